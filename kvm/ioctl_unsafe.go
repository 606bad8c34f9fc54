// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctlPtr makes a call whose argument is a structure, and repeats it on EINTR.
// T has the layout of the kernel's structure, or is the first element of a
// buffer large enough for what the kernel reads and writes.
func ioctlPtr[T any](fd int, req request, arg *T) (int, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req.nr, uintptr(unsafe.Pointer(arg)))
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
			continue
		}
		return -1, os.NewSyscallError(req.name, errno)
	}
}

// sizeof returns the size of T in bytes, for the size field of ioctl numbers.
func sizeof[T any]() uintptr {
	var t T
	return unsafe.Sizeof(t)
}

// wordAt returns the 32-bit word at offset off of a shared mapping, for atomic
// access. off must be a multiple of 4 inside b.
func wordAt(b []byte, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&b[off : off+4 : off+4][0]))
}

// dirtyLog is struct kvm_dirty_log. The bitmap is a pointer, not a number, so
// that the garbage collector keeps it in place.
type dirtyLog struct {
	slot   uint32
	_      uint32
	bitmap unsafe.Pointer
}

// clearDirtyLog is struct kvm_clear_dirty_log.
type clearDirtyLog struct {
	slot      uint32
	numPages  uint32
	firstPage uint64
	bitmap    unsafe.Pointer
}

func newDirtyLog(slot uint32, bitmap []uint64) *dirtyLog {
	return &dirtyLog{slot: slot, bitmap: unsafe.Pointer(unsafe.SliceData(bitmap))}
}

func newClearDirtyLog(slot uint32, firstPage uint64, numPages uint32, bitmap []uint64) *clearDirtyLog {
	return &clearDirtyLog{
		slot: slot, firstPage: firstPage, numPages: numPages,
		bitmap: unsafe.Pointer(unsafe.SliceData(bitmap)),
	}
}

// oneReg is struct kvm_one_reg.
type oneReg struct {
	id   uint64
	addr unsafe.Pointer
}

func newOneReg(id uint64, value []byte) *oneReg {
	return &oneReg{id: id, addr: unsafe.Pointer(unsafe.SliceData(value))}
}
