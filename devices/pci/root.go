// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"errors"
	"fmt"
	"sync"

	"github.com/govmm/govmm/internal/bus"
)

// Slots is the number of device slots of a bus; slot 0 is the host bridge's.
const Slots = 32

// AutoSlot lets Add choose a slot.
const AutoSlot = -1

// The host bridge at 00:00.0 has the identity of the generic PCI Express host
// bridge that virtual machines commonly have: guests know it, and have no
// work-arounds for the chip set that it is not.
const (
	bridgeVendorID  = 0x1b36
	bridgeDeviceID  = 0x0008
	bridgeClass     = 0x060000
	bridgeSubVendor = 0x1af4
	bridgeSubID     = 0x1100
)

// Range is a range of addresses: Size bytes from Base.
type Range struct{ Base, Size uint64 }

func (r Range) holds(base, size uint64) bool {
	return base >= r.Base && size <= r.Size && base-r.Base <= r.Size-size
}

// RootConfig is where a bus lies in the machine's address spaces.
type RootConfig struct {
	MMIO, PIO *bus.Bus
	// MMIO32 and MMIO64 are the windows for memory BARs below and above 4 GiB, IO
	// is the one for I/O BARs. A window of size 0 does not exist. BARs are decoded
	// nowhere else.
	MMIO32, MMIO64, IO Range
}

// Root is bus 0 with its host bridge.
type Root struct {
	cfg RootConfig

	// mu guards all that follows and all functions' configuration spaces and BARs.
	mu      sync.Mutex
	slots   [Slots]*Function
	address uint32 // CONFIG_ADDRESS
	refused uint64
}

// NewRoot makes a bus that has only the host bridge.
func NewRoot(cfg RootConfig) (*Root, error) {
	if cfg.MMIO == nil || cfg.PIO == nil {
		return nil, errors.New("pci: a root needs the MMIO and the port I/O bus")
	}
	if cfg.MMIO32.Size != 0 && !(Range{0, 1 << 32}).holds(cfg.MMIO32.Base, cfg.MMIO32.Size) {
		return nil, fmt.Errorf("pci: window %#x+%#x is not below 4 GiB", cfg.MMIO32.Base, cfg.MMIO32.Size)
	}
	if cfg.IO.Size != 0 && !(Range{0, 1 << 16}).holds(cfg.IO.Base, cfg.IO.Size) {
		return nil, fmt.Errorf("pci: I/O window %#x+%#x is not below 64 KiB", cfg.IO.Base, cfg.IO.Size)
	}
	bridge, err := NewFunction(Config{
		VendorID: bridgeVendorID, DeviceID: bridgeDeviceID, Class: bridgeClass,
		SubsystemVendorID: bridgeSubVendor, SubsystemID: bridgeSubID,
	})
	if err != nil {
		return nil, err
	}
	r := &Root{cfg: cfg}
	bridge.root = r
	r.slots[0] = bridge
	return r, nil
}

// Add puts f into a slot, 1 to 31 or AutoSlot, and assigns addresses to its
// BARs. It returns the slot. Functions are added before the guest runs.
func (r *Root) Add(slot int, f *Function) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.root != nil {
		return 0, errors.New("pci: the function is already in a slot")
	}
	slot, err := r.freeSlot(slot)
	if err != nil {
		return 0, err
	}
	if err := r.place(f); err != nil {
		return 0, fmt.Errorf("pci: slot %d: %w", slot, err)
	}
	f.initial = f.space.data
	f.root = r
	r.slots[slot] = f
	return slot, nil
}

func (r *Root) freeSlot(slot int) (int, error) {
	if slot == AutoSlot {
		for i := range r.slots {
			if r.slots[i] == nil {
				return i, nil
			}
		}
		return 0, fmt.Errorf("pci: all %d slots are taken; use fewer devices", Slots)
	}
	if slot < 0 || slot >= Slots {
		return 0, fmt.Errorf("pci: slot %d: use 1 to %d", slot, Slots-1)
	}
	if r.slots[slot] != nil {
		return 0, fmt.Errorf("pci: slot %d is taken; use another one", slot)
	}
	return slot, nil
}

// place gives each of f's BARs an address.
func (r *Root) place(f *Function) error {
	var placed []*bar
	for _, b := range f.bars {
		home, err := r.room(b, placed)
		if err != nil {
			return err
		}
		b.home = home
		placed = append(placed, b)
	}
	for _, b := range f.bars {
		b.setAddress(&f.space, b.home)
	}
	return nil
}

// room finds an address for b beside the homes of all other functions' BARs and
// those of its own function in also.
func (r *Root) room(b *bar, also []*bar) (uint64, error) {
	var taken []Range
	for _, f := range r.slots {
		if f != nil {
			taken = appendHomes(taken, f.bars, b.Kind)
		}
	}
	taken = appendHomes(taken, also, b.Kind)
	for _, w := range r.windows(b.Kind) {
		if base, ok := firstFit(w, b.Size, b.alignment(), taken); ok {
			return base, nil
		}
	}
	return 0, fmt.Errorf("no room for a BAR of %#x bytes in the bus's windows", b.Size)
}

// alignment is a BAR's own size, and at least a page for memory, so that two
// devices never share one.
func (b *bar) alignment() uint64 {
	if b.Kind == IO {
		return b.Size
	}
	return max(b.Size, msixPage)
}

// windows lists where a kind of BAR can lie, the best first.
func (r *Root) windows(k Kind) []Range {
	switch k {
	case IO:
		return []Range{r.cfg.IO}
	case Mem64:
		return []Range{r.cfg.MMIO64, r.cfg.MMIO32}
	}
	return []Range{r.cfg.MMIO32}
}

func appendHomes(rs []Range, bars []*bar, k Kind) []Range {
	for _, b := range bars {
		if (b.Kind == IO) == (k == IO) {
			rs = append(rs, Range{b.home, b.Size})
		}
	}
	return rs
}

// firstFit finds the lowest aligned base in w that keeps clear of taken.
func firstFit(w Range, size, align uint64, taken []Range) (uint64, bool) {
	base := alignUp(w.Base, align)
	for base >= w.Base && w.holds(base, size) {
		i := 0
		for i < len(taken) && (taken[i].Base+taken[i].Size <= base || base+size <= taken[i].Base) {
			i++
		}
		if i == len(taken) {
			return base, true
		}
		base = alignUp(taken[i].Base+taken[i].Size, align)
	}
	return 0, false
}

func alignUp(v, align uint64) uint64 { return (v + align - 1) &^ (align - 1) }

// Reset resets the bus and every function on it.
func (r *Root) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.address = 0
	for _, f := range r.slots {
		if f != nil {
			f.reset()
		}
	}
	r.decode()
}

// RefusedBARs counts how often the guest gave a BAR an address at which it
// can't be decoded: outside the windows, or occupied by another device.
func (r *Root) RefusedBARs() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// decode makes the address spaces follow the BARs. All that moved away is
// unmapped first, so that BARs may change places. A BAR whose address is
// occupied keeps waiting for it. r.mu is held.
func (r *Root) decode() {
	r.eachBAR(func(f *Function, b *bar) {
		if addr, ok := b.wants(&f.space); b.mapped && !(ok && addr == b.at) {
			r.busOf(b).Unmap(b.at)
			b.mapped = false
		}
	})
	r.eachBAR(func(f *Function, b *bar) {
		if addr, ok := b.wants(&f.space); ok && !b.mapped {
			r.mapBAR(b, addr)
		}
	})
}

func (r *Root) eachBAR(do func(*Function, *bar)) {
	for _, f := range r.slots {
		if f == nil {
			continue
		}
		for _, b := range f.bars {
			do(f, b)
		}
	}
}

func (r *Root) busOf(b *bar) *bus.Bus {
	if b.Kind == IO {
		return r.cfg.PIO
	}
	return r.cfg.MMIO
}

func (r *Root) mapBAR(b *bar, addr uint64) {
	if r.inWindow(b, addr) && r.busOf(b).Map(addr, b.Size, b.Handler) == nil {
		b.mapped, b.at, b.refused = true, addr, false
		return
	}
	if !b.refused {
		b.refused = true
		r.refused++
	}
}

func (r *Root) inWindow(b *bar, addr uint64) bool {
	for _, w := range r.windows(b.Kind) {
		if w.holds(addr, b.Size) {
			return true
		}
	}
	return false
}
