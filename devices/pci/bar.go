// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"fmt"
	"math/bits"

	"github.com/govmm/govmm/internal/bus"
)

// Kind is the address space of a BAR and the width of its register.
type Kind uint8

// The kinds of BAR.
const (
	Mem32 Kind = iota // memory, a 32-bit register
	Mem64             // memory, a 64-bit register that takes two BAR slots
	IO                // port I/O
)

// BAR describes a base address register: a window of the device that the guest
// can move.
type BAR struct {
	// Size is in bytes, a power of two: at least 16 for memory, 4 to 256 for I/O.
	// With 0 there is no such BAR.
	Size uint64
	Kind Kind
	// Prefetchable says that reads have no side effects (memory only).
	Prefetchable bool
	Handler      bus.Handler
}

// half is one half of a 64-bit BAR's register.
type half uint8

const (
	noHalf half = iota
	lowHalf
	highHalf
)

// bar is a BAR in use. Its Root's lock guards it.
type bar struct {
	BAR
	reg  int    // offset of its register in configuration space
	home uint64 // the address that the Root assigned

	// torn is the half of a 64-bit register that was written last while the other
	// half, which was not, may still hold a part of the old address.
	torn half

	mapped  bool
	at      uint64 // where it is mapped, or was last
	refused bool   // its address can't be decoded, and that has been counted
}

func newBAR(i int, b BAR) (*bar, error) {
	low, high := uint64(16), uint64(1)<<31
	switch b.Kind {
	case IO:
		low, high = 4, 256
	case Mem64:
		high = 1 << 62
	}
	if bits.OnesCount64(b.Size) != 1 || b.Size < low || b.Size > high {
		return nil, fmt.Errorf("BAR %d: size %#x is not a power of two from %#x to %#x", i, b.Size, low, high)
	}
	if b.Kind == Mem64 && i == 5 {
		return nil, fmt.Errorf("BAR %d: a 64-bit BAR needs the next slot too; use BAR 0 to 4", i)
	}
	if b.Handler == nil {
		return nil, fmt.Errorf("BAR %d has no handler", i)
	}
	return &bar{BAR: b, reg: regBAR0 + 4*i}, nil
}

// width is the size of the register in bytes.
func (b *bar) width() int {
	if b.Kind == Mem64 {
		return 8
	}
	return 4
}

// layout sets the register's fixed bits and its write mask: address bits below
// the size are zero for ever, which is how the guest learns the size.
func (b *bar) layout(s *space) {
	flags := uint32(0)
	switch b.Kind {
	case IO:
		flags = barIO
	case Mem64:
		flags = barMemory64
	}
	if b.Prefetchable && b.Kind != IO {
		flags |= barPrefetchable
	}
	mask := -b.Size
	s.set32(b.reg, flags)
	s.mask32(b.reg, uint32(mask))
	if b.Kind == Mem64 {
		s.mask32(b.reg+4, uint32(mask>>32))
	}
}

// setAddress puts addr into the register.
func (b *bar) setAddress(s *space, addr uint64) {
	s.set32(b.reg, s.get32(b.reg)&^s.mask32At(b.reg)|uint32(addr))
	if b.Kind == Mem64 {
		s.set32(b.reg+4, uint32(addr>>32))
	}
}

// address is what the register holds.
func (b *bar) address(s *space) uint64 {
	addr := uint64(s.get32(b.reg) & s.mask32At(b.reg))
	if b.Kind == Mem64 {
		addr |= uint64(s.get32(b.reg+4)) << 32
	}
	return addr
}

// enabled tells whether the command register lets the BAR be decoded.
func (b *bar) enabled(s *space) bool {
	bit := uint16(commandMemory)
	if b.Kind == IO {
		bit = commandIO
	}
	return s.get16(regCommand)&bit != 0
}

// written follows a write of [off, off+n) that changed the address from old to
// now. A 64-bit register is written in two halves. While decoding is on, the
// address between the two writes is one that the guest never meant, so it is
// not decoded: the BAR moves when both halves have been written, in either
// order. Putting back the address where it is mapped, as sizing does, counts
// as both.
func (b *bar) written(off, n int, old, now uint64) {
	if now != old {
		b.refused = false
	}
	if b.Kind != Mem64 {
		return
	}
	low, high := overlaps(off, n, b.reg, 4), overlaps(off, n, b.reg+4, 4)
	switch {
	case low && high, low && b.torn == highHalf, high && b.torn == lowHalf:
		b.torn = noHalf
	case low:
		b.torn = lowHalf
	case high:
		b.torn = highHalf
	}
	if now != old && now == b.at {
		b.torn = noHalf
	}
}

// settle forgets what only matters while decoding is on.
func (b *bar) settle() { b.torn, b.refused = noHalf, false }

// wants returns the address at which the BAR is to be decoded now.
func (b *bar) wants(s *space) (addr uint64, ok bool) {
	addr = b.address(s)
	return addr, b.enabled(s) && (b.torn == noHalf || addr == b.at)
}
