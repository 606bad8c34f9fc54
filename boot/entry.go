// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"encoding/binary"

	"github.com/govmm/govmm/internal/guestmem"
)

// Mode is the CPU mode in which a kernel is entered.
type Mode uint8

// The modes of an entry.
const (
	Long64      Mode = iota // 64-bit mode with paging
	Protected32             // 32-bit protected mode without paging
)

func (m Mode) String() string {
	if m == Protected32 {
		return "protected32"
	}
	return "long64"
}

// Entry is the state of the first vCPU, for the board to put into registers,
// and where things were loaded. Registers that have no field here are zero;
// interrupts are disabled, and there is no IDT.
type Entry struct {
	Name string // linux64 or pvh
	Mode Mode

	RIP, RSP, RSI, RBX, RFLAGS uint64
	CR0, CR3, CR4, EFER        uint64
	GDT                        Table
	Code                       Segment // CS
	Data                       Segment // DS, ES, FS, GS, SS
	Task                       Segment // TR

	Kernel  guestmem.Range // all that the kernel needs before it reads the memory map
	Initrd  guestmem.Range // empty if there is none
	Cmdline guestmem.Range // with its NUL
}

// Table is the value of GDTR.
type Table struct {
	Base  uint64
	Limit uint16 // bytes - 1
}

// Segment is a segment register with its hidden part, as in the Intel SDM,
// volume 3, section 3.4.5, "Segment Descriptors".
type Segment struct {
	Selector uint16
	Base     uint64
	Limit    uint32 // bytes - 1, granularity already applied
	Type     uint8  // 4 bits
	S        bool   // code or data, not system
	DPL      uint8
	P        bool // present
	L        bool // 64-bit code
	DB       bool // 32-bit
	G        bool // granularity 4 KiB
}

// Selectors, as boot.rst, "64-bit Boot Protocol", wants them.
const (
	bootCS  = 0x10 // __BOOT_CS
	bootDS  = 0x18 // __BOOT_DS
	bootTSS = 0x20
)

// Types of segment descriptors (Intel SDM, volume 3, tables 3-1 and 3-2).
const (
	typeData    = 0x3 // read and write, accessed
	typeTSSBusy = 0xb // busy TSS, 32- or 64-bit by mode
	typeCode    = 0xb // execute and read, accessed
)

// tssLimit is the limit of the smallest TSS. No TSS is ever read: the kernel
// loads its own before it leaves ring 0.
const tssLimit = 0x67

// Bits of control registers and RFLAGS (Intel SDM, volume 3, section 2.5).
const (
	cr0PE = 1 << 0
	cr0ET = 1 << 4
	cr0PG = 1 << 31

	cr4PAE = 1 << 5

	eferLME = 1 << 8
	eferLMA = 1 << 10

	rflagsReserved = 1 << 1 // always 1
)

// newEntry returns the state that does not depend on the image.
func newEntry(mode Mode) Entry {
	e := Entry{
		Mode:   mode,
		RSP:    stackTop,
		RFLAGS: rflagsReserved,
		CR0:    cr0PE | cr0ET,
		GDT:    Table{gdtAddr, gdtSize - 1},
		Code:   Segment{Selector: bootCS, Limit: ^uint32(0), Type: typeCode, S: true, P: true, G: true, DB: true},
		Data:   Segment{Selector: bootDS, Limit: ^uint32(0), Type: typeData, S: true, P: true, G: true, DB: true},
		Task:   Segment{Selector: bootTSS, Limit: tssLimit, Type: typeTSSBusy, P: true},
	}
	if mode == Long64 {
		e.Code.L, e.Code.DB = true, false
		e.CR0 |= cr0PG
		e.CR3 = pageTableAddr
		e.CR4 = cr4PAE
		e.EFER = eferLME | eferLMA
	}
	return e
}

// descriptor packs a segment into its 8 bytes of the GDT.
func (s Segment) descriptor() uint64 {
	bit := func(b bool, n uint) uint64 {
		if b {
			return 1 << n
		}
		return 0
	}
	limit := uint64(s.Limit)
	if s.G {
		limit >>= 12
	}
	return limit&0xffff | s.Base&0xffffff<<16 |
		uint64(s.Type&0xf)<<40 | bit(s.S, 44) | uint64(s.DPL&3)<<45 | bit(s.P, 47) |
		limit>>16&0xf<<48 | bit(s.L, 53) | bit(s.DB, 54) | bit(s.G, 55) | s.Base>>24&0xff<<56
}

// writeGDT writes the table that holds the entry's segments. The upper half of
// a 64-bit TSS descriptor is the last slot, and zero.
func (e *Entry) writeGDT(mem *guestmem.Memory) error {
	gdt := make([]byte, gdtSize)
	for _, s := range []Segment{e.Code, e.Data, e.Task} {
		binary.LittleEndian.PutUint64(gdt[s.Selector:], s.descriptor())
	}
	return mem.WriteAt(gdtAddr, gdt)
}

// Bits of page table entries (Intel SDM, volume 3, section 4.5).
const (
	pteP  = 1 << 0
	pteRW = 1 << 1
	ptePS = 1 << 7 // maps a 2 MiB page
)

// writePageTables writes an identity map of [0, mappedEnd) by 2 MiB pages, which
// every 64-bit CPU has. The kernel wants itself, the zero page and the command
// line mapped, and its decompressor the initrd too.
func writePageTables(mem *guestmem.Memory) error {
	const pdpt, pd = pageTableAddr + pageSize, pageTableAddr + 2*pageSize
	t := make([]byte, pageTableSize)
	put := func(addr, pte uint64) { binary.LittleEndian.PutUint64(t[addr-pageTableAddr:], pte) }
	put(pageTableAddr, pdpt|pteP|pteRW)
	for i := range uint64(mappedEnd >> 30) {
		put(pdpt+8*i, pd+i*pageSize|pteP|pteRW)
	}
	for i := range uint64(mappedEnd >> 21) {
		put(pd+8*i, i<<21|pteP|pteRW|ptePS)
	}
	return mem.WriteAt(pageTableAddr, t)
}
