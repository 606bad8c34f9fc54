// SPDX-License-Identifier: Apache-2.0

package boot

import "github.com/govmm/govmm/internal/guestmem"

// Where boot data lies in low memory. The ranges do not overlap. All of it is
// RAM to the guest and free for reuse once the kernel has copied it; page 0,
// which holds the interrupt table and the BIOS data area of a PC, is left alone.
//
// The kernel's decompressor takes two pages at the end of low memory for its
// trampoline, so nothing lies there.
const (
	gdtAddr       = 0x1000 // global descriptor table
	startInfoAddr = 0x6000 // hvm_start_info, then module list and memory map
	zeroPageAddr  = 0x7000 // struct boot_params
	stackAddr     = 0x8000 // grows down from stackTop
	pageTableAddr = 0x9000 // PML4, PDPT, four page directories
	cmdlineAddr   = 0x20000

	pageSize      = 0x1000
	gdtSize       = 6 * 8
	stackTop      = stackAddr + pageSize
	pageTableSize = 6 * pageSize
	cmdlineRoom   = 0x90000 - cmdlineAddr // bytes, with the NUL
)

const (
	// lowMemoryEnd is the end of usable RAM below 640 KiB. A PC has its extended
	// BIOS data area above, and kernels look for one there.
	lowMemoryEnd = 0x9fc00
	// HighMemory is where RAM for the kernel begins. The board may use
	// [0xe0000, HighMemory) for ACPI tables.
	HighMemory = 0x100000
	// mappedEnd is the end of the identity map that a 64-bit entry has.
	mappedEnd = 4 << 30
)

// lowStructures lists what boot writes below HighMemory.
func lowStructures() []guestmem.Range {
	return []guestmem.Range{
		{GPA: gdtAddr, Size: gdtSize},
		{GPA: startInfoAddr, Size: startInfoSize},
		{GPA: zeroPageAddr, Size: zeroPageSize},
		{GPA: stackAddr, Size: pageSize},
		{GPA: pageTableAddr, Size: pageTableSize},
		{GPA: cmdlineAddr, Size: cmdlineRoom},
	}
}

// end is the first address after [addr, addr+size), or the largest address if
// there is none.
func end(addr, size uint64) uint64 {
	if addr+size < addr {
		return ^uint64(0)
	}
	return addr + size
}

// alignUp rounds up to a multiple of align, a power of two. It returns the
// largest address if there is no such multiple.
func alignUp(addr, align uint64) uint64 {
	if up := (addr + align - 1) &^ (align - 1); up >= addr {
		return up
	}
	return ^uint64(0)
}
