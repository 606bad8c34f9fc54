// SPDX-License-Identifier: Apache-2.0

package guestmem

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// hostBig tells whether this host is big-endian, so that guest values, which
// are little-endian, need a swap.
var hostBig = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

func le16(v uint16) uint16 {
	if hostBig {
		return bits.ReverseBytes16(v)
	}
	return v
}

func le32(v uint32) uint32 {
	if hostBig {
		return bits.ReverseBytes32(v)
	}
	return v
}

func le64(v uint64) uint64 {
	if hostBig {
		return bits.ReverseBytes64(v)
	}
	return v
}

// HostAddr is where the region's RAM is mapped in this process: what KVM wants
// for a memory slot.
func (r Region) HostAddr() uintptr { return uintptr(unsafe.Pointer(&r.mem[0])) }

// Load32 loads a 4-byte aligned value.
func (v View) Load32(off uint64) uint32 {
	if !v.holds(off, 4) {
		return 0
	}
	return le32(atomic.LoadUint32((*uint32)(unsafe.Pointer(&v.b[off]))))
}

// Store32 stores a 4-byte aligned value.
func (v View) Store32(off uint64, x uint32) {
	if v.holds(off, 4) {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&v.b[off])), le32(x))
	}
}

// Load64 loads an 8-byte aligned value.
func (v View) Load64(off uint64) uint64 {
	if !v.holds(off, 8) {
		return 0
	}
	return le64(atomic.LoadUint64((*uint64)(unsafe.Pointer(&v.b[off]))))
}

// Store64 stores an 8-byte aligned value.
func (v View) Store64(off uint64, x uint64) {
	if v.holds(off, 8) {
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&v.b[off])), le64(x))
	}
}

// Or32 sets bits of a 4-byte aligned value and returns what it was before, in
// one atomic step: for words of flags that the guest changes too.
func (v View) Or32(off uint64, bits uint32) (old uint32) {
	if !v.holds(off, 4) {
		return 0
	}
	return le32(atomic.OrUint32((*uint32)(unsafe.Pointer(&v.b[off])), le32(bits)))
}

// Load16 loads a 2-byte aligned value. sync/atomic has no 16-bit operations:
// the aligned 32-bit word around the value is loaded instead, which lies in the
// same page and so always in RAM.
func (v View) Load16(off uint64) uint16 {
	if !v.holds(off, 2) {
		return 0
	}
	word, shift := v.wordOf(off)
	return le16(uint16(atomic.LoadUint32(word) >> shift))
}

// Store16 stores a 2-byte aligned value by compare-and-swap on the aligned
// 32-bit word around it: the other half may belong to the guest, which can
// change it at the same time (virtio's flags beside idx), and must not be
// overwritten with an older value. A guest that changes the other half without
// end can not hold the caller up for ever: the swap is bounded, then plain.
func (v View) Store16(off uint64, x uint16) {
	if !v.holds(off, 2) {
		return
	}
	word, shift := v.wordOf(off)
	mask := uint32(0xffff) << shift
	for range storeTries {
		old := atomic.LoadUint32(word)
		if atomic.CompareAndSwapUint32(word, old, old&^mask|uint32(le16(x))<<shift) {
			return
		}
	}
	*(*uint16)(unsafe.Pointer(&v.b[off])) = le16(x)
	atomic.LoadUint32(word)
}

// storeTries bounds Store16. No real driver writes beside an index more than
// once a notification, so the second try already succeeds.
const storeTries = 64

// wordOf returns the aligned 32-bit word that holds the 16-bit value at off and
// the shift of the value in it, in host byte order.
func (v View) wordOf(off uint64) (*uint32, uint) {
	p := unsafe.Pointer(&v.b[off])
	up := uintptr(p) & 2
	shift := up * 8
	if hostBig {
		shift = (2 - up) * 8
	}
	return (*uint32)(unsafe.Add(p, -int(up))), uint(shift)
}
