// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"testing"

	"github.com/ulikunitz/xz"

	"github.com/govmm/govmm/internal/guestmem"
)

// fuzzRAM is small, so that images that want much are refused, not loaded
// slowly.
const fuzzRAM = 32 * mib

// fuzzLoad checks what holds for every image that is taken: it is entered by
// each way inside of what it occupies, which is RAM; and Load fails or succeeds,
// but does nothing else.
func fuzzLoad(t *testing.T, mem *guestmem.Memory, data []byte) {
	img, err := parse(bytes.NewReader(data), uint64(len(data)))
	if err != nil {
		return
	}
	k := &Kernel{path: "fuzz", img: img}
	for _, c := range k.Version() {
		if c < '!' || c > '~' {
			t.Fatalf("version %q", k.Version())
		}
	}
	if len(k.EntryNames()) == 0 {
		t.Fatal("no entry")
	}
	span := img.span()
	if span.GPA < HighMemory || span.Size == 0 || span.End() > 4<<30+64<<30 {
		t.Fatalf("occupies %#x+%#x", span.GPA, span.Size)
	}
	for _, name := range k.EntryNames() {
		if name == EntryPVH && img.kind() == BzImage {
			continue // the payload has a fuzz target of its own
		}
		e, err := k.Load(mem, Params{Entry: name, Cmdline: "x", Initrds: []Source{{Data: []byte("0707")}}})
		if err != nil {
			continue
		}
		if e.Kernel != span || span.End() > fuzzRAM {
			t.Fatalf("loaded to %#x+%#x", e.Kernel.GPA, e.Kernel.Size)
		}
		if e.RIP < span.GPA || e.RIP >= span.End() {
			t.Fatalf("entered at %#x", e.RIP)
		}
		if e.Initrd.GPA < span.End() && span.GPA < e.Initrd.End() {
			t.Fatalf("initrd at %#x+%#x", e.Initrd.GPA, e.Initrd.Size)
		}
	}
}

// fuzzMemory makes the guest RAM that all inputs of a worker share.
func fuzzMemory(f *testing.F) *guestmem.Memory {
	return newRAM(f, ramOf(fuzzRAM))
}

func FuzzBzImage(f *testing.F) {
	mem := fuzzMemory(f)
	for _, change := range []func(*bzSpec){
		func(*bzSpec) {},
		func(s *bzSpec) { s.setupSects = 0 },
		func(s *bzSpec) { s.relocatable = 0 },
		func(s *bzSpec) { s.pref = 0 },
		func(s *bzSpec) { s.initSize = 1 },
	} {
		s := linuxLike()
		s.setupSects, s.prot = 2, pattern(0x400, 1)
		change(&s)
		f.Add(s.build())
	}
	f.Fuzz(func(t *testing.T, data []byte) { fuzzLoad(t, mem, data) })
}

func FuzzELF(f *testing.F) {
	mem := fuzzMemory(f)
	for _, change := range []func(*elfSpec){
		func(*elfSpec) {},
		func(s *elfSpec) { s.notes = nil },
		func(s *elfSpec) { s.entry = 0 },
		func(s *elfSpec) { s.segments = s.segments[:1] },
	} {
		s := vmlinuxLike()
		s.segments[0].data = s.segments[0].data[:0x900]
		change(&s)
		f.Add(s.build())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if isELF(data) {
			fuzzLoad(t, mem, data)
		}
	})
}

func FuzzPVHNotes(f *testing.F) {
	xen := note("Xen\x00", 18, quad(0x1000850))
	f.Add(xen, true)
	f.Add(append(note("GNU\x00", 3, pattern(20, 1)), xen...), false)
	f.Add(append(make([]byte, 24), xen...), true)
	f.Fuzz(func(t *testing.T, notes []byte, wide bool) {
		align := uint64(4)
		if wide {
			align = 8
		}
		if addr := findPVHEntry(notes, align); addr != 0 && !bytes.Contains(notes, quad(addr)[:4]) {
			t.Fatalf("entry %#x is not in the notes", addr)
		}
	})
}

func FuzzUnpack(f *testing.F) {
	const limit = 1 << 20
	code := machineCode()[:3000]
	f.Add(gzipped(code))
	f.Add(withSize(lzmaPacked(f, code), len(code)))
	f.Add(withSize(xzPacked(f, code, xz.CRC32), len(code)))
	f.Add(withSize(lz4Packed(f, code, 8<<20), len(code)))
	f.Add(withSize(zstdPacked(f, code), len(code)))
	f.Add(withSize(testdata(f, "x86filter.xz"), 16384))
	f.Add(withSize(testdata(f, "code.bz2"), 16384))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) < 8 {
			return // extract refuses these
		}
		out, err := unpack(payload, limit)
		if err == nil && len(out) > limit {
			t.Fatalf("%d bytes", len(out))
		}
	})
}

func FuzzDecodeX86(f *testing.F) {
	f.Add(machineCode()[:200])
	f.Add([]byte{0xe8, 0xe8, 0xe8, 0xe8, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bytes.Clone(data)
		decodeX86(data)
		encodeX86(data)
		if !bytes.Equal(in, data) {
			t.Fatalf("% x is not what it was: % x", data, in)
		}
	})
}

func FuzzIdentify(f *testing.F) {
	f.Add([]byte("text"))
	f.Add(peImage(0x8664, ".linux\x00\x00"))
	f.Add(at(1024, 56, "ARM\x64"))
	f.Fuzz(func(t *testing.T, head []byte) {
		if identify(head) == "" {
			t.Fatal("nothing said")
		}
	})
}
