// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
	"github.com/ulikunitz/xz/lzma"
)

// machineCode looks to the x86 filter like nothing but calls, jumps, and short
// displacements. The files in testdata hold it, packed by the reference tools:
//
//	x86filter.xz  xz --check=crc32 --x86 --lzma2=dict=32KiB
//	x86blocks.xz  the same with --block-size=6000 -T2
//	code.lzma     xz --format=lzma -9
//	code.bz2      bzip2 -9
func machineCode() []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	alphabet := []byte{0xe8, 0xe9, 0x00, 0xff, 0x01, 0x80}
	b := make([]byte, 16<<10)
	for i := range b {
		b[i] = alphabet[rng.IntN(len(alphabet))]
	}
	return b
}

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// packed returns what a packer of one of the libraries makes of b.
func packed(t testing.TB, b []byte, open func(io.Writer) (io.WriteCloser, error)) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := open(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func xzPacked(t testing.TB, b []byte, check byte) []byte {
	return packed(t, b, func(w io.Writer) (io.WriteCloser, error) {
		return xz.WriterConfig{CheckSum: check, NoCheckSum: check == xz.None}.NewWriter(w)
	})
}

func zstdPacked(t testing.TB, b []byte) []byte {
	return packed(t, b, func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) })
}

func lzmaPacked(t testing.TB, b []byte) []byte {
	return packed(t, b, func(w io.Writer) (io.WriteCloser, error) { return lzma.NewWriter(w) })
}

// lz4Packed packs in the legacy format, with the given size of blocks.
func lz4Packed(t testing.TB, b []byte, block int) []byte {
	t.Helper()
	out := []byte{0x02, 0x21, 0x4c, 0x18}
	for len(b) > 0 {
		n := min(block, len(b))
		dst := make([]byte, lz4.CompressBlockBound(n))
		k, err := lz4.CompressBlock(b[:n], dst, nil)
		if err != nil || k == 0 {
			t.Fatalf("lz4: %d, %v", k, err)
		}
		out = append(le.AppendUint32(out, uint32(k)), dst[:k]...)
		b = b[n:]
	}
	return out
}

// withSize appends the unpacked size, as the kernel's build does.
func withSize(packed []byte, size int) []byte {
	return le.AppendUint32(bytes.Clone(packed), uint32(size))
}

func TestUnpack(t *testing.T) {
	code := machineCode()
	big := bytes.Repeat(code, 600) // more than one block of LZ4
	for _, c := range []struct {
		name    string
		payload []byte
		want    []byte
	}{
		{"gzip", gzipped(code), code},
		{"bzip2", withSize(testdata(t, "code.bz2"), len(code)), code},
		{"lzma", withSize(testdata(t, "code.lzma"), len(code)), code},
		{"lzma by the library", withSize(lzmaPacked(t, code), len(code)), code},
		{"xz with x86 filter", withSize(testdata(t, "x86filter.xz"), len(code)), code},
		{"xz with x86 filter in blocks", withSize(testdata(t, "x86blocks.xz"), len(code)), code},
		{"xz without filter", withSize(xzPacked(t, big, xz.CRC32), len(big)), big},
		{"xz without check", withSize(xzPacked(t, code, xz.None), len(code)), code},
		{"lz4", withSize(lz4Packed(t, big, 8<<20), len(big)), big},
		{"zstd", withSize(zstdPacked(t, big), len(big)), big},
		{"not packed", vmlinuxLike().build(), vmlinuxLike().build()},
	} {
		got, err := unpack(c.payload, maxVmlinux)
		if err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %d bytes, want %d; %v", c.name, len(got), len(c.want), err)
		}
	}
}

func TestUnpackRefused(t *testing.T) {
	code := machineCode()
	bomb := make([]byte, 2<<20)
	x86 := testdata(t, "x86filter.xz")
	flip := func(b []byte, i int) []byte {
		b = bytes.Clone(b)
		b[(i+len(b))%len(b)] ^= 0x10
		return b
	}
	// The footer tells how long the index before it is (2.1.2); the check of the
	// only block is before that.
	footer := len(x86) - 12
	checkOffset := footer - (int(le.Uint32(x86[footer+4:]))+1)*4 - 4
	dict := bytes.Clone(testdata(t, "code.lzma"))
	le.PutUint32(dict[1:], 0xffffff00)
	const limit = 1 << 20
	for _, c := range []struct {
		name    string
		payload []byte
		want    string
	}{
		{"unknown", []byte("no such format"), "no known compression format"},
		{"lzo", withSize([]byte("\x89LZO\x00\r\n\x1a\n"), 100), "LZO: is not supported"},
		{"too large", withSize(zstdPacked(t, bomb), len(bomb)), "tells of 2 MiB, more than the 1 MiB"},
		{"size too small", withSize(zstdPacked(t, code), len(code)-1), "expected 16383"},
		{"size too large", withSize(zstdPacked(t, code), len(code)+1), "expected 16385"},
		{"gzip bomb", flip(gzipped(bomb), -2), "gzip payload"},
		{"bzip2 with a wrong size", withSize(testdata(t, "code.bz2"), 1), "bzip2 payload has 2 bytes, expected 1"},
		{"lzma bomb", withSize(lzmaPacked(t, bomb), 100), "expected 100"},
		{"xz bomb", withSize(xzPacked(t, bomb, xz.CRC32), 100), "expected 100"},
		{"lz4 bomb", withSize(lz4Packed(t, bomb, 8<<20), 100), "format LZ4"},
		{"zstd bomb", withSize(zstdPacked(t, bomb), 100), "expected 100"},
		{"gzip cut", gzipped(code)[:1000], "gzip payload"},
		{"bzip2 cut", withSize(testdata(t, "code.bz2")[:1000], len(code)), "format bzip2"},
		{"lzma cut", withSize(testdata(t, "code.lzma")[:1000], len(code)), "format LZMA"},
		{"lzma header cut", withSize([]byte("\x5d\x00\x00\x80"), 1), "format LZMA"},
		{"lzma with a huge dictionary", withSize(dict, len(code)), "dictionary"},
		{"xz cut", withSize(x86[:1000], len(code)), "format XZ"},
		{"xz header cut", withSize(x86[:8], len(code)), "format XZ"},
		{"xz block header cut", withSize(x86[:14], len(code)), "format XZ"},
		{"xz check cut", withSize(x86[:len(x86)-40], len(code)), "format XZ"},
		{"xz header damaged", withSize(flip(x86, 7), len(code)), "damaged XZ stream"},
		{"xz block header damaged", withSize(flip(x86, 14), len(code)), "damaged XZ stream"},
		{"xz data damaged", withSize(flip(x86, 5000), len(code)), "format XZ"},
		{"xz check damaged", withSize(flip(x86, checkOffset), len(code)), "wrong CRC32"},
		{"xz with CRC64", withSize(xzPacked(t, code, xz.CRC64), len(code)), "check is not CRC32"},
		{"lz4 block cut", withSize(lz4Packed(t, code, 8<<20)[:1000], len(code)), "unexpected EOF"},
		{"lz4 block size cut", withSize([]byte("\x02\x21\x4c\x18\x01"), len(code)), "unexpected EOF"},
		{"lz4 block damaged", withSize([]byte("\x02\x21\x4c\x18\x02\x00\x00\x00\xff\xff"), len(code)), "format LZ4"},
		{"zstd cut", withSize(zstdPacked(t, code)[:1000], len(code)), "format ZSTD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := unpack(c.payload, limit)
			if err == nil || !bytes.Contains([]byte(err.Error()), []byte(c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// xzHeader builds a block header after The .xz File Format, section 3.1.
func xzHeader(body ...byte) []byte {
	h := append([]byte{0}, body...)
	h = append(h, make([]byte, -len(h)&3)...)
	h[0] = byte(len(h) / 4)
	return le.AppendUint32(h, crc32.ChecksumIEEE(h))
}

func TestXZBlockHeader(t *testing.T) {
	for _, c := range []struct {
		name string
		body []byte
		want *xzBlock // nil: refused
	}{
		{"LZMA2, 8 MiB", []byte{0, 0x21, 1, 22}, &xzBlock{dictCap: 8 << 20}},
		{"LZMA2, smallest", []byte{0, 0x21, 1, 0}, &xzBlock{dictCap: 4 << 10}},
		{"LZMA2, 6 KiB", []byte{0, 0x21, 1, 1}, &xzBlock{dictCap: 6 << 10}},
		{"LZMA2, largest", []byte{0, 0x21, 1, 40}, &xzBlock{dictCap: 1<<32 - 1}},
		{"LZMA2, larger", []byte{0, 0x21, 1, 41}, nil},
		{"x86 and LZMA2", []byte{1, 4, 0, 0x21, 1, 22}, &xzBlock{x86: true, dictCap: 8 << 20}},
		{"with sizes", []byte{0xc0, 0x80, 0x01, 0x05, 0x21, 1, 22}, &xzBlock{dictCap: 8 << 20}},
		{"size not minimal", []byte{0x40, 0x80, 0x00, 0x21, 1, 22}, nil},
		{"size over 63 bits", []byte{0x40, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0x21, 1, 22}, nil},
		{"reserved flag", []byte{0x04, 0x21, 1, 22}, nil},
		{"x86 twice", []byte{2, 4, 0, 4, 0, 0x21, 1, 22}, nil},
		{"x86 last", []byte{1, 0x21, 1, 22, 4, 0}, nil},
		{"x86 only", []byte{0, 4, 0}, nil},
		{"x86 with an offset", []byte{1, 4, 4, 0, 0, 0, 0, 0x21, 1, 22}, nil},
		{"ARM", []byte{1, 7, 0, 0x21, 1, 22}, nil},
		{"properties outside", []byte{0, 0x21, 100, 22}, nil},
		{"properties without end", []byte{0, 0x21, 255, 255, 255, 255, 255, 255, 255, 255, 127}, nil},
		{"nothing", []byte{0, 0x80}, nil},
	} {
		got, err := xzBlockHeader(bytes.NewReader(xzHeader(c.body...)))
		if c.want == nil {
			if err == nil {
				t.Errorf("%s: %+v", c.name, got)
			}
			continue
		}
		if err != nil || *got != *c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
}

func TestExtract(t *testing.T) {
	vmlinux := vmlinuxLike().build()
	s := linuxLike()
	s.payload = gzipped(vmlinux)
	path := writeFile(t, "bzImage", s.build())
	got, err := Extract(path)
	if err != nil || !bytes.Equal(got, vmlinux) {
		t.Errorf("%d bytes, %v", len(got), err)
	}

	_, err = Extract(writeFile(t, "vmlinux", vmlinux))
	wantBadImage(t, err, "vmlinux", "is an ELF file already")
	_, err = Extract(writeFile(t, "text", []byte("text")))
	wantBadImage(t, err, "a text file")
}

func TestExtractRefused(t *testing.T) {
	mem := newRAM(t, ramOf(32*mib))
	for _, c := range []struct {
		name  string
		patch func([]byte)
		want  string
	}{
		{"no payload", func(b []byte) { le.PutUint32(b[0x24c:], 0) }, "payload at 0x2000+0x0"},
		{"outside", func(b []byte) { le.PutUint32(b[0x248:], 0xffffffff) }, "payload at 0xffffffff"},
		{"longer than the kernel", func(b []byte) { le.PutUint32(b[0x24c:], 0xffffffff) }, "payload at 0x2000+0xffffffff"},
		{"not packed", func(b []byte) { copy(b[0x1000+0x2000:], "oops") }, "no known compression format"},
	} {
		s := linuxLike()
		s.payload = gzipped(vmlinuxLike().build())
		b := s.build()
		c.patch(b)
		path := writeFile(t, "bzImage", b)
		_, err := Extract(path)
		wantBadImage(t, err, path, c.want)
		_, err = openImage(t, b).Load(mem, Params{Entry: "pvh"})
		wantBadImage(t, err, c.want)
		// The 64-bit entry needs none of it.
		load(t, openImage(t, b), mem, Params{})
	}

	s := linuxLike()
	s.payload = gzipped([]byte("no kernel at all"))
	_, err := openImage(t, s.build()).Load(mem, Params{Entry: "pvh"})
	wantBadImage(t, err, "its payload is a truncated ELF file")
}

// A target that the filter did not convert stays as it is. The first is the
// example of a call to the next instruction but 0x100.
func TestDecodeX86(t *testing.T) {
	for _, c := range []struct{ in, want []byte }{
		{[]byte{0xe8, 0x05, 0x01, 0, 0}, []byte{0xe8, 0x00, 0x01, 0, 0}},
		{[]byte{0x90, 0xe9, 0x00, 0x00, 0, 0}, []byte{0x90, 0xe9, 0xfa, 0xff, 0xff, 0xff}},
		{[]byte{0xe8, 1, 2, 3, 4}, []byte{0xe8, 1, 2, 3, 4}},
		{[]byte{0xe8, 0, 0, 0}, []byte{0xe8, 0, 0, 0}},
		{nil, nil},
	} {
		got := bytes.Clone(c.in)
		decodeX86(got)
		if !bytes.Equal(got, c.want) {
			t.Errorf("% x becomes % x, want % x", c.in, got, c.want)
		}
	}
}

// encodeX86 is the packer's side of the filter.
func encodeX86(b []byte) {
	recent := uint(0)
	for i := 0; i+5 <= len(b); {
		switch {
		case b[i] != 0xe8 && b[i] != 0xe9:
			recent = recent << 1 & 7
			i++
		case wasConverted(b[i:], recent):
			rel, next := le.Uint32(b[i+1:]), uint32(i+5)
			abs := rel + next
			if recent != 0 {
				low := map[uint]int{1: 24, 2: 16, 4: 8}[recent]
				if isSign(byte(abs >> (low - 8))) {
					abs = (abs ^ (1<<low - 1)) + next
				}
			}
			le.PutUint32(b[i+1:], uint32(int32(abs<<7)>>7))
			recent = 0
			i += 5
		default:
			recent = (recent<<1 | 1) & 7
			i++
		}
	}
}
