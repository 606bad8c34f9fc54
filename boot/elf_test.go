// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"testing"

	"github.com/govmm/govmm/internal/guestmem"
)

func TestELFRefused(t *testing.T) {
	// The offsets of the first program header's fields.
	const phdr0 = 64
	for _, c := range []struct {
		name   string
		change func(*elfSpec)
		patch  func([]byte) []byte
		want   string
	}{
		{"no program headers", func(s *elfSpec) { s.segments, s.notes = nil, nil }, nil, "0 program headers"},
		{"wrong header size", nil, func(b []byte) []byte { b[54] = 32; return b }, "3 program headers of 32 bytes"},
		{"65535 program headers", nil, func(b []byte) []byte { le.PutUint16(b[56:], 0xffff); return b }, "65535 program headers"},
		{"headers outside", nil, func(b []byte) []byte { le.PutUint64(b[32:], 1<<20); return b }, "is truncated: its program headers"},
		{"headers' offset overflows", nil, func(b []byte) []byte { le.PutUint64(b[32:], ^uint64(0)-10); return b }, "is truncated: its program headers"},
		{"headers cut", nil, func(b []byte) []byte { return b[:200] }, "is truncated: its program headers"},
		{"segment cut", nil, func(b []byte) []byte { return b[:len(b)-0x1000] }, "is truncated: a segment"},
		{"segment's offset overflows", nil, func(b []byte) []byte { le.PutUint64(b[phdr0+8:], ^uint64(0)); return b }, "is truncated: a segment"},
		{"segment's sum overflows", nil, func(b []byte) []byte {
			le.PutUint64(b[phdr0+8:], 0x100)
			le.PutUint64(b[phdr0+32:], ^uint64(0)-0x80)
			return b
		}, "is truncated: a segment"},
		{"notes only", func(s *elfSpec) { s.segments = nil }, nil, "without a segment to load"},
		{"empty segments only", func(s *elfSpec) { s.segments = []segment{{paddr: 0x1000000}} }, nil, "without a segment to load"},
		{"filesz over memsz", func(s *elfSpec) { s.segments[0].memsz = 0x2fff }, nil, "has 0x3000 bytes in the file, but only 0x2fff"},
		{"in low memory", func(s *elfSpec) { s.segments[0].paddr = 0x7000 }, nil, "physical address 0x7000, below 0x100000"},
		{"overlap", func(s *elfSpec) { s.segments[1].paddr = 0x1002fff }, nil, "overlaps the one before, which ends at 0x1003000"},
		{"twice the same", func(s *elfSpec) { s.segments[1].paddr = 0x1000000 }, nil, "overlaps"},
		{"above 4 GiB", func(s *elfSpec) { s.segments[1].paddr = 1 << 32 }, nil, "not below 4 GiB"},
		{"memory's sum overflows", func(s *elfSpec) { s.segments[1].memsz = ^uint64(0) }, nil, "not below 4 GiB"},
		{"PVH entry outside", func(s *elfSpec) { s.notes = note("Xen\x00", 18, quad(0x2000000)) }, nil, "PVH entry 0x2000000 is in no segment"},
		{"PVH entry in bss", func(s *elfSpec) { s.notes = note("Xen\x00", 18, quad(0x1204000)) }, nil, "PVH entry 0x1204000 is in no segment"},
		{"entry is virtual, no note", func(s *elfSpec) { s.notes, s.entry = nil, 0xffffffff81000000 }, nil, "entry 0xffffffff81000000 is not a physical address"},
		{"static program", func(s *elfSpec) { s.notes, s.extraProgTypes = nil, []uint32{6} }, nil, "user space (it has a PT_PHDR header)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := vmlinuxLike()
			if c.change != nil {
				c.change(&s)
			}
			b := s.build()
			if c.patch != nil {
				b = c.patch(b)
			}
			_, err := Open(writeFile(t, "vmlinux", b))
			wantBadImage(t, err, c.want)
		})
	}
}

// Segments go to their physical addresses, in whatever order, and bss is zero.
func TestELFSegments(t *testing.T) {
	s := vmlinuxLike()
	s.segments = append(s.segments, segment{paddr: 0x1100000, memsz: 0x2000}) // bss only
	s.segments = append(s.segments, segment{paddr: 0x300000, memsz: 0})       // nothing
	s.segments[0], s.segments[1] = s.segments[1], s.segments[0]               // not sorted
	s.extraProgTypes = []uint32{0x6474e551, 0}                                // PT_GNU_STACK, PT_NULL
	mem := newRAM(t, ramOf(32*mib))
	if err := mem.WriteAt(0x1000000, bytes.Repeat([]byte{0xa5}, 16*mib)); err != nil {
		t.Fatal(err)
	}
	e := load(t, openImage(t, s.build()), mem, Params{Entry: "linux64"})
	if want := (guestmem.Range{GPA: 0x1000000, Size: 0x205000}); e.Kernel != want {
		t.Errorf("occupies %#x+%#x", e.Kernel.GPA, e.Kernel.Size)
	}
	for _, g := range s.segments {
		want := append(bytes.Clone(g.data), make([]byte, int(g.memsz)-len(g.data))...)
		if !bytes.Equal(read(t, mem, g.paddr, g.memsz), want) {
			t.Errorf("segment at %#x differs", g.paddr)
		}
		if g.memsz > 0 && read(t, mem, g.paddr+g.memsz, 1)[0] != 0xa5 {
			t.Errorf("memory behind the segment at %#x was written", g.paddr)
		}
	}
}
