// SPDX-License-Identifier: Apache-2.0

package guestmem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Gather copies what the iovecs hold, in order, into dst until one of the two
// ends, and returns the number of bytes. The iovecs come from Vec, or point
// into Go memory.
func Gather(dst []byte, vec []unix.Iovec) (n int) {
	for i := range vec {
		if n == len(dst) {
			break
		}
		n += copy(dst[n:], unsafe.Slice(vec[i].Base, vec[i].Len))
	}
	return n
}

// ScatterAt copies src into the iovecs from byte off of all of them together on,
// until one of the two ends, and returns the number of bytes.
func ScatterAt(vec []unix.Iovec, off uint64, src []byte) (n int) {
	if len(src) == 2 && len(vec) > 0 && off < vec[0].Len && vec[0].Len-off >= 2 {
		// A header's field: not worth a call of memmove.
		*(*[2]byte)(unsafe.Add(unsafe.Pointer(vec[0].Base), off)) = [2]byte(src)
		return 2
	}
	for i := range vec {
		if off < vec[i].Len {
			n += copy(unsafe.Slice(vec[i].Base, vec[i].Len)[off:], src[n:])
			if n == len(src) {
				break
			}
			off = 0
			continue
		}
		off -= vec[i].Len
	}
	return n
}

// Scatter copies src into the iovecs, in order, until one of the two ends, and
// returns the number of bytes.
func Scatter(vec []unix.Iovec, src []byte) (n int) {
	for i := range vec {
		if n == len(src) {
			break
		}
		n += copy(unsafe.Slice(vec[i].Base, vec[i].Len), src[n:])
	}
	return n
}
