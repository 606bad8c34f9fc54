// SPDX-License-Identifier: Apache-2.0

package aml

import (
	"bytes"
	"encoding/hex"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestEncoding compares with bytes worked out by hand from the specification's
// grammar and examples.
func TestEncoding(t *testing.T) {
	for _, c := range []struct {
		name string
		term Term
		want string // hexadecimal
	}{
		{"Zero", Int(0), "00"},
		{"One", Int(1), "01"},
		{"smallest byte", Int(2), "0a02"},
		{"largest byte", Int(255), "0aff"},
		{"smallest word", Int(256), "0b0001"},
		{"largest word", Int(0xffff), "0bffff"},
		{"double word", Int(0x12345678), "0c78563412"},
		{"largest double word", Int(0xffffffff), "0cffffffff"},
		{"quad word", Int(1 << 32), "0e0000000001000000"},
		{"Ones", Int(^uint64(0)), "ff"},
		{"string", String("QEMU0001"), "0d" + hex.EncodeToString([]byte("QEMU0001")) + "00"},
		{"EISAID of the specification's example", EISAID("PNP0C09"), "0c41d00c09"},
		{"EISAID of a host bridge", EISAID("PNP0A03"), "0c41d00a03"},
		{"one segment", Path("ABCD"), "41424344"},
		{"short segment", Path("A"), "415f5f5f"},
		{"root", Path(`\`), "5c00"},
		{"root and segment", Path(`\_SB`), "5c5f53425f"},
		{"two segments", Path("A.B"), "2e" + "415f5f5f" + "425f5f5f"},
		{"parents and three segments", Path("^^A1.B.C"), "5e5e2f03" + "41315f5f" + "425f5f5f" + "435f5f5f"},
		{"Name", Name("_UID", Int(3)), "085f5549440a03"},
		{"empty Scope", Scope(`\`), "1003" + "5c00"},
		{"Device", Device("DEV", Name("_ADR", Int(0))), "5b820b" + "4445565f" + "085f41445200"},
		{"Method", Method("_STA", 2, Return(Arg(1))), "1408" + "5f535441" + "02" + "a469"},
		{"soft off", Name(`\_S5`, Package(Int(5), Int(5), Int(0), Int(0))), "085c5f53355f" + "120804" + "0a050a050000"},
		{"Buffer", Buffer([]byte{1, 2, 3}), "11060a03010203"},
		{"Buffer with the longest one-byte length", Buffer(make([]byte, 60)), "113f" + "0a3c" + strings.Repeat("00", 60)},
		{"Buffer with the shortest two-byte length", Buffer(make([]byte, 61)), "114104" + "0a3d" + strings.Repeat("00", 61)},
	} {
		got, err := Encode(c.term)
		if err != nil || hex.EncodeToString(got) != c.want {
			t.Errorf("%s: %x, %v; want %s", c.name, got, err, c.want)
		}
	}
}

// TestResources compares with the descriptors' layouts (section 6.4).
func TestResources(t *testing.T) {
	for _, c := range []struct {
		name string
		r    Resource
		want string
	}{
		{"IO", IO(0x3f8, 8), "4701f803f8030108"},
		{"IRQ", IRQ(4), "23100001"},
		{"Interrupt", Interrupt{GSI: 16, ActiveLow: true, Shared: true}.Resource, "8906000d0110000000"},
		{"edge Interrupt", Interrupt{GSI: 5, Edge: true}.Resource, "890600030105000000"},
		{"Memory32Fixed", Memory32Fixed(0xe0000000, 0x10000000), "86090001000000e000000010"},
		{"WordBusNumber", WordBusNumber(0, 255), "880d00020c00" + "00000000ff0000000001"},
		{"WordIO", WordIO(0xd00, 0xffff), "880d00010c03" + "0000000dffff000000f3"},
		{"DWordMemory", DWordMemory(0xc0000000, 0xdfffffff), "871700000c01" + "00000000" + "000000c0" + "ffffffdf" + "00000000" + "00000020"},
		{"QWordMemory", QWordMemory(1<<40, 1<<41-1), "8a2b00000c03" + "0000000000000000" + "0000000000010000" + "ffffffffff010000" + "0000000000000000" + "0000000000010000"},
	} {
		got, err := Encode(ResourceTemplate(c.r))
		want, _ := hex.DecodeString(c.want + "7900")
		if err != nil || !bytes.HasSuffix(got, want) {
			t.Errorf("%s: %x, %v; want it to end in %x", c.name, got, err, want)
		}
		if length, n, err := decodePkgLength(got[1:]); err != nil || length != len(got)-1 {
			t.Errorf("%s: buffer length %d (%d bytes), %v; want %d", c.name, length, n, err, len(got)-1)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		term Term
		want string
	}{
		{"long segment", Path("ABCDE"), "one to four characters"},
		{"empty segment", Path("A..B"), "one to four characters"},
		{"digit first", Path("1A"), "not allowed there"},
		{"small letter", Path("Abc"), "not allowed there"},
		{"too many segments", Path(strings.Repeat("A.", 255) + "A"), "more than 255"},
		{"EISA id", EISAID("pnp0A03"), "three capital letters"},
		{"short EISA id", EISAID("PNP"), "three capital letters"},
		{"string with NUL", String("a\x00b"), "ASCII"},
		{"string beyond ASCII", String("ü"), "ASCII"},
		{"too many arguments", Method("M", 8), "0 to 7"},
		{"no such argument", Arg(7), "0 to 6"},
		{"negative argument", Arg(-1), "0 to 6"},
		{"long package", Package(repeat(Int(0), 256)...), "255"},
		{"empty ports", ResourceTemplate(IO(1, 0)), "empty"},
		{"IRQ", ResourceTemplate(IRQ(16)), "0 to 15"},
		{"all I/O", ResourceTemplate(WordIO(0, 0xffff)), "16-bit length"},
		{"backward window", ResourceTemplate(DWordMemory(2, 1)), "empty"},
		{"all memory", ResourceTemplate(QWordMemory(0, ^uint64(0))), "64-bit length"},
		{"deep inside", Scope(`\_SB`, Device("D", Name("bad", Int(0)))), "not allowed there"},
	} {
		if _, err := Encode(c.term); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
}

func repeat(t Term, n int) (ts []Term) {
	for range n {
		ts = append(ts, t)
	}
	return ts
}

// TestPkgLengthLimits: the lengths around each change of the encoding's size.
// The largest length of each size counts the size itself.
func TestPkgLengthLimits(t *testing.T) {
	for _, c := range []struct{ content, size int }{
		{0, 1}, {62, 1},
		{63, 2}, {1<<12 - 3, 2},
		{1<<12 - 2, 3}, {1<<20 - 4, 3},
		{1<<20 - 3, 4}, {1<<28 - 5, 4},
	} {
		b, err := pkgLength(c.content)
		if err != nil {
			t.Fatal(err)
		}
		length, size, err := decodePkgLength(b)
		if err != nil || size != c.size || len(b) != c.size || length != c.content+c.size {
			t.Errorf("%d bytes of content: % x decodes to %d in %d bytes, %v", c.content, b, length, size, err)
		}
	}
	if _, err := pkgLength(1<<28 - 4); err == nil {
		t.Error("a package of 2^28 bytes was encoded")
	}
}

func TestPkgLengthProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 1<<28-5).Draw(t, "n")
		b, err := pkgLength(n)
		if err != nil {
			t.Fatal(err)
		}
		length, size, err := decodePkgLength(b)
		if err != nil || size != len(b) || length != n+size {
			t.Fatalf("% x decodes to %d in %d bytes, %v", b, length, size, err)
		}
	})
}

func FuzzInteger(f *testing.F) {
	for _, v := range []uint64{0, 1, 2, 255, 256, 65535, 65536, 1<<32 - 1, 1 << 32, 1<<64 - 1} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v uint64) {
		b, err := Encode(Int(v))
		if err != nil {
			t.Fatal(err)
		}
		got, size, err := decodeInteger(b)
		if err != nil || got != v || size != len(b) {
			t.Fatalf("%#x: % x decodes to %#x in %d bytes, %v", v, b, got, size, err)
		}
	})
}

// validName is the grammar of a NameString in ASL.
var validName = regexp.MustCompile(`^(\\|\^*)([A-Z_][A-Z_0-9]{0,3}(\.[A-Z_][A-Z_0-9]{0,3})*)?$`)

func FuzzName(f *testing.F) {
	for _, s := range []string{"", `\`, `\_SB`, "^^A.B", "A.B.C.D", "_SB.PCI0", "a", "A.", ".A", `\^A`, "^\\A", "ABCDE", "A\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := Encode(Path(s))
		valid := validName.MatchString(s) && !strings.HasSuffix(s, "\n") && strings.Count(s, ".") < 255
		if valid != (err == nil) {
			t.Fatalf("%q: valid %v, error %v", s, valid, err)
		}
		if err != nil {
			return
		}
		got, size, err := decodeName(b)
		if err != nil || size != len(b) || got != padded(s) {
			t.Fatalf("%q: % x decodes to %q in %d bytes, %v", s, b, got, size, err)
		}
	})
}

// padded writes each segment with four characters.
func padded(s string) string {
	i := len(s) - len(strings.TrimLeft(s, `\^`))
	if i == len(s) {
		return s
	}
	segs := strings.Split(s[i:], ".")
	for j := range segs {
		segs[j] = (segs[j] + "___")[:4]
	}
	return s[:i] + strings.Join(segs, ".")
}
