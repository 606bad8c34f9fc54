// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"fmt"

	"github.com/govmm/govmm/internal/guestmem"
)

// The physical address space, as in every PC: RAM from 0, a hole for devices
// below 4 GiB, the rest of RAM from 4 GiB on, and a window for large BARs above.
const (
	lowRAMMax  = 0xc000_0000 // RAM below the hole ends here at the latest
	mmio32Base = 0xc000_0000 // 32-bit BARs
	mmio32Size = 0x2000_0000
	ecamBase   = 0xe000_0000 // PCI configuration space of bus 0
	ecamSize   = 1 << 20
	ioapicBase = 0xfec0_0000
	lapicBase  = 0xfee0_0000
	// KVM needs four pages for itself on Intel CPUs that can't run real mode in
	// guest mode: three for a TSS and one for page tables.
	identityMapAddr = 0xfffb_c000
	tssAddr         = 0xfffb_d000
	highRAMBase     = 1 << 32

	mmio64Size  = 1 << 35 // 64-bit BARs
	mmio64Align = 1 << 30

	pciIOBase = 0xc000 // I/O BARs
	pciIOSize = 0x2000
)

// layout is where one VM's RAM and windows lie.
type layout struct {
	ram    []guestmem.Range
	mmio64 guestmem.Range // empty if the CPU's address space has no room
}

// newLayout places memory bytes of RAM in an address space of physBits bits.
func newLayout(memory uint64, physBits uint) (layout, error) {
	var l layout
	l.ram = []guestmem.Range{{GPA: 0, Size: min(memory, lowRAMMax)}}
	top := uint64(highRAMBase)
	if memory > lowRAMMax {
		high := guestmem.Range{GPA: highRAMBase, Size: memory - lowRAMMax}
		l.ram = append(l.ram, high)
		top = high.End()
	}
	limit := uint64(1) << physBits
	if top > limit {
		return layout{}, fmt.Errorf("%d MiB of memory end at %#x, but this CPU's guests have %d address bits", memory>>20, top, physBits)
	}
	base := (top + mmio64Align - 1) &^ (mmio64Align - 1)
	if base < limit && limit-base >= mmio64Size {
		l.mmio64 = guestmem.Range{GPA: base, Size: mmio64Size}
	}
	return l, nil
}
