// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"testing"

	"github.com/govmm/govmm/internal/guestmem"
)

func TestLowStructuresDoNotOverlap(t *testing.T) {
	all := lowStructures()
	for i, a := range all {
		if a.Size == 0 || a.GPA < 0x1000 {
			t.Errorf("%#x+%#x: in page 0", a.GPA, a.Size)
		}
		// The kernel's trampoline is in the last two pages below 0x9f000
		// (arch/x86/boot/compressed/pgtable_64.c).
		if a.End() > 0x9d000 {
			t.Errorf("%#x+%#x: in the way of the trampoline", a.GPA, a.Size)
		}
		for _, b := range all[:i] {
			if a.GPA < b.End() && b.GPA < a.End() {
				t.Errorf("%#x+%#x overlaps %#x+%#x", a.GPA, a.Size, b.GPA, b.Size)
			}
		}
	}
	for _, addr := range []uint64{zeroPageAddr, pageTableAddr, stackAddr} {
		if addr%4096 != 0 {
			t.Errorf("%#x is not page aligned", addr)
		}
	}
}

// boot.rst, "64-bit Boot Protocol".
func TestLong64State(t *testing.T) {
	mem := newRAM(t, ramOf(32*mib))
	e := load(t, openImage(t, linuxLike().build()), mem, Params{Cmdline: "x"})
	want := Entry{
		Name: "linux64", Mode: Long64,
		RIP: 0x1000200, RSI: 0x7000, RSP: 0x9000, RFLAGS: 2,
		CR0: 1<<31 | 1<<4 | 1<<0, CR3: 0x9000, CR4: 1 << 5, EFER: 1<<10 | 1<<8,
		GDT:     Table{0x1000, 47},
		Code:    Segment{Selector: 0x10, Limit: 0xffffffff, Type: 11, S: true, P: true, L: true, G: true},
		Data:    Segment{Selector: 0x18, Limit: 0xffffffff, Type: 3, S: true, P: true, DB: true, G: true},
		Task:    Segment{Selector: 0x20, Limit: 0x67, Type: 11, P: true},
		Kernel:  guestmem.Range{GPA: 0x1000000, Size: 0x800000},
		Cmdline: guestmem.Range{GPA: 0x20000, Size: 2},
	}
	if e != want {
		t.Errorf("entry\n%+v, want\n%+v", e, want)
	}
	checkGDT(t, mem, e, []uint64{0, 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00008b0000000067, 0})
}

// Xen's docs/misc/pvh.pandoc.
func TestProtected32State(t *testing.T) {
	mem := newRAM(t, ramOf(32*mib))
	e := load(t, openImage(t, vmlinuxLike().build()), mem, Params{})
	want := Entry{
		Name: "pvh", Mode: Protected32,
		RIP: 0x1000100, RBX: 0x6000, RSP: 0x9000, RFLAGS: 2,
		CR0:     1<<4 | 1<<0,
		GDT:     Table{0x1000, 47},
		Code:    Segment{Selector: 0x10, Limit: 0xffffffff, Type: 11, S: true, P: true, DB: true, G: true},
		Data:    Segment{Selector: 0x18, Limit: 0xffffffff, Type: 3, S: true, P: true, DB: true, G: true},
		Task:    Segment{Selector: 0x20, Limit: 0x67, Type: 11, P: true},
		Kernel:  guestmem.Range{GPA: 0x1000000, Size: 0x205000},
		Cmdline: guestmem.Range{GPA: 0x20000, Size: 1},
	}
	if e != want {
		t.Errorf("entry\n%+v, want\n%+v", e, want)
	}
	checkGDT(t, mem, e, []uint64{0, 0, 0x00cf9b000000ffff, 0x00cf93000000ffff, 0x00008b0000000067, 0})
}

// checkGDT compares the table with descriptors encoded by hand after the Intel
// SDM, volume 3, figure 3-8.
func checkGDT(t *testing.T, mem *guestmem.Memory, e Entry, want []uint64) {
	t.Helper()
	if int(e.GDT.Limit)+1 != 8*len(want) {
		t.Fatalf("GDT limit %#x", e.GDT.Limit)
	}
	for i, w := range want {
		if got := le.Uint64(read(t, mem, e.GDT.Base+uint64(8*i), 8)); got != w {
			t.Errorf("GDT[%d] is %#016x, want %#016x", i, got, w)
		}
	}
}

func TestModeString(t *testing.T) {
	if s := Long64.String() + " " + Protected32.String(); s != "long64 protected32" {
		t.Error(s)
	}
}

func TestDescriptorFields(t *testing.T) {
	s := Segment{Base: 0x89abcdef, Limit: 0x54321, Type: 0xa, DPL: 3}
	if got, want := s.descriptor(), uint64(0x89056aabcdef4321); got != want {
		t.Errorf("descriptor %#016x, want %#016x", got, want)
	}
}

// walk translates an address as the CPU does with 4-level paging (Intel SDM,
// volume 3, 4.5.4), for supervisor writes.
func walk(t *testing.T, mem *guestmem.Memory, cr3, addr uint64) (phys uint64, ok bool) {
	t.Helper()
	table := cr3
	for shift := 39; shift >= 12; shift -= 9 {
		pte := le.Uint64(read(t, mem, table+(addr>>shift&511)*8, 8))
		if pte&3 != 3 {
			return 0, false
		}
		frame := pte & 0x000ffffffffff000
		if shift == 12 || shift < 39 && pte&0x80 != 0 {
			mask := uint64(1)<<shift - 1
			if frame&mask != 0 {
				t.Fatalf("entry for %#x has reserved bits: %#x", addr, pte)
			}
			return frame | addr&mask, true
		}
		table = frame
	}
	return 0, false
}

func TestIdentityMap(t *testing.T) {
	mem := newRAM(t, ramOf(32*mib))
	e := load(t, openImage(t, linuxLike().build()), mem, Params{})
	for addr := uint64(0); addr < 4<<30; addr += 1<<21 - 4096 {
		if phys, ok := walk(t, mem, e.CR3, addr); !ok || phys != addr {
			t.Fatalf("%#x maps to %#x, %v", addr, phys, ok)
		}
	}
	for _, addr := range []uint64{4<<30 - 1, 4 << 30, 1 << 39, 1<<48 - 1} {
		if phys, ok := walk(t, mem, e.CR3, addr); ok != (addr < 4<<30) || ok && phys != addr {
			t.Errorf("%#x maps to %#x, %v", addr, phys, ok)
		}
	}
}
