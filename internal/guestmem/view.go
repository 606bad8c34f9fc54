// SPDX-License-Identifier: Apache-2.0

package guestmem

import "fmt"

// View is a checked window on guest RAM that lies in one region: what a device
// keeps for as long as a ring is in use, so that index accesses need no address
// look-up. Offsets are checked on every access; one out of the window is a bug
// of the device, which checks guest values before it uses them as offsets, and
// reads as zero.
//
// 16-, 32- and 64-bit accesses are little-endian. Loads acquire and stores
// release; both are sequentially consistent, which the event index of virtio
// (2.7.10) and the interrupt mask of VMBus rings need between a store and a
// later load.
type View struct {
	b []byte
}

// View returns the window [gpa, gpa+n). gpa must be a multiple of align, a
// power of two.
func (m *Memory) View(gpa, n, align uint64) (View, error) {
	if gpa&(align-1) != 0 {
		return View{}, fmt.Errorf("%#x is not aligned to %d bytes: %w", gpa, align, ErrRange)
	}
	b, ok := m.span(gpa, n)
	if !ok {
		return View{}, rangeError(gpa, n)
	}
	return View{b}, nil
}

// Len is the size of the window in bytes.
func (v View) Len() uint64 { return uint64(len(v.b)) }

// CopyIn copies len(p) bytes at off into p: the one private copy that is then
// validated and used. The length is the same on both sides, so that the compiler
// makes a constant one a move or two.
func (v View) CopyIn(off uint64, p []byte) {
	if v.holds(off, len(p)) {
		copy(p, v.b[off:off+uint64(len(p))])
	}
}

// CopyOut copies p into the window at off.
func (v View) CopyOut(off uint64, p []byte) {
	if v.holds(off, len(p)) {
		copy(v.b[off:off+uint64(len(p))], p)
	}
}

func (v View) holds(off uint64, n int) bool {
	return off <= uint64(len(v.b)) && uint64(n) <= uint64(len(v.b))-off
}
