// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"slices"
	"testing"

	"github.com/govmm/govmm/internal/guestmem"
)

func TestFindPVHEntry(t *testing.T) {
	long := func(b []byte, off int, v uint32) []byte {
		b = bytes.Clone(b)
		le.PutUint32(b[off:], v)
		return b
	}
	xen := note("Xen\x00", 18, quad(0x1000850))
	// With 8-byte alignment the 4-byte descriptor of the first note is padded
	// to 24 bytes in all.
	aligned8 := slices.Concat(note("GNU\x00", 1, quad(1)[:4]), make([]byte, 4), xen)
	for _, c := range []struct {
		name  string
		notes []byte
		align uint64
		want  uint64
	}{
		{"64-bit pointer", xen, 4, 0x1000850},
		{"32-bit pointer", note("Xen\x00", 18, quad(0x1000850)[:4]), 4, 0x1000850},
		{"behind others", slices.Concat(note("Xen\x00", 6, []byte("linux\x00")), note("GNU\x00", 3, pattern(20, 1)), note("Linux\x00", 257, quad(0)[:1]), xen), 4, 0x1000850},
		{"aligned to 8", aligned8, 8, 0x1000850},
		{"none", note("GNU\x00", 3, pattern(20, 1)), 4, 0},
		{"empty", nil, 4, 0},
		{"other owner", note("GNU\x00", 18, quad(0x1000850)), 4, 0},
		{"owner without NUL", note("Xen", 18, quad(0x1000850)), 4, 0},
		{"other type", note("Xen\x00", 17, quad(0x1000850)), 4, 0},
		{"no descriptor", note("Xen\x00", 18, nil), 4, 0},
		{"odd descriptor", note("Xen\x00", 18, pattern(6, 1)), 4, 0},
		{"header cut", xen[:11], 4, 0},
		{"descriptor cut", xen[:len(xen)-1], 4, 0},
		{"name size overflows", long(xen, 0, 0xffffffff), 4, 0},
		{"descriptor size overflows", long(xen, 4, 0xffffffff), 4, 0},
		{"both overflow", long(long(xen, 0, 0xfffffffc), 4, 0xfffffffc), 8, 0},
		{"empty notes without end", make([]byte, 1<<16), 4, 0},
		{"behind empty notes", append(make([]byte, 12*1000), xen...), 4, 0x1000850},
	} {
		if got := findPVHEntry(c.notes, c.align); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
}

// The structures are those of xen/interface/hvm/start_info.h.
func TestStartInfo(t *testing.T) {
	mem := newRAM(t, ramOf(64*mib))
	e := load(t, openImage(t, vmlinuxLike().build()), mem, Params{
		Entry:   "pvh",
		Cmdline: "console=hvc0",
		Initrds: []Source{{Data: pattern(5000, 1)}},
		RSDP:    0xe0000,
		E820: []E820Entry{
			{guestmem.Range{GPA: 0, Size: 0x9fc00}, E820RAM},
			{guestmem.Range{GPA: 0x100000, Size: 63 * mib}, E820RAM},
			{guestmem.Range{GPA: 0xfee00000, Size: 0x1000}, E820Reserved},
		},
	})
	if e.RBX == 0 || e.RSI != 0 {
		t.Fatalf("RBX %#x RSI %#x", e.RBX, e.RSI)
	}
	s := read(t, mem, e.RBX, 56)
	u32 := func(off int) uint32 { return le.Uint32(s[off:]) }
	u64 := func(off int) uint64 { return le.Uint64(s[off:]) }
	if u32(0) != 0x336ec578 || u32(4) != 1 {
		t.Errorf("magic %#x version %d", u32(0), u32(4))
	}
	if u32(8) != 0 || u32(52) != 0 {
		t.Errorf("flags %#x reserved %#x", u32(8), u32(52))
	}
	if u32(12) != 1 {
		t.Errorf("nr_modules %d", u32(12))
	}
	if got, want := read(t, mem, u64(16), 32), slices.Concat(quad(64*mib-0x2000), quad(5000), quad(0), quad(0)); !bytes.Equal(got, want) {
		t.Errorf("module % x, want % x", got, want)
	}
	if got := read(t, mem, u64(24), 13); string(got) != "console=hvc0\x00" {
		t.Errorf("command line %q", got)
	}
	if u64(32) != 0xe0000 {
		t.Errorf("rsdp_paddr %#x", u64(32))
	}
	if u32(48) != 3 {
		t.Fatalf("memmap_entries %d", u32(48))
	}
	want := slices.Concat(
		quad(0), quad(0x9fc00), quad(1),
		quad(0x100000), quad(63*mib), quad(1),
		quad(0xfee00000), quad(0x1000), quad(2))
	if got := read(t, mem, u64(40), 72); !bytes.Equal(got, want) {
		t.Errorf("memory map % x, want % x", got, want)
	}
}

func TestStartInfoWithoutInitrd(t *testing.T) {
	mem := newRAM(t, ramOf(64*mib))
	e := load(t, openImage(t, vmlinuxLike().build()), mem, Params{})
	s := read(t, mem, e.RBX, 56)
	if n, list := le.Uint32(s[12:]), le.Uint64(s[16:]); n != 0 || list != 0 {
		t.Errorf("%d modules at %#x", n, list)
	}
	if c := le.Uint64(s[24:]); c == 0 {
		t.Error("no command line: it must be there, if only empty")
	}
}
