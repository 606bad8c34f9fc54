// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The descriptors are non-blocking, so these calls return at once and go to the
// kernel without a word to the Go scheduler, which saves a tenth of a small
// frame's time. The memory behind the iovecs is guest RAM or reachable by the
// caller, and the collector doesn't move it.

func write(fd int, v *unix.Iovec) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(v.Base)), uintptr(v.Len))
	return errno
}

func writeBytes(fd int, p []byte) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return errno
}

func writev(fd int, vec []unix.Iovec) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(vec))), uintptr(len(vec)))
	return errno
}

func read(fd int, v *unix.Iovec) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(v.Base)), uintptr(v.Len))
	return int(n), errno
}

func readBytes(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return int(n), errno
}

func readv(fd int, vec []unix.Iovec) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(vec))), uintptr(len(vec)))
	return int(n), errno
}

// iovec makes an iovec of p, which is not empty.
func iovec(p []byte) unix.Iovec {
	return unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))}
}

// endsAt reports whether b lies right behind a in host memory.
func endsAt(a, b *unix.Iovec) bool {
	return uintptr(unsafe.Pointer(a.Base))+uintptr(a.Len) == uintptr(unsafe.Pointer(b.Base))
}

// gsoType returns the header's gso_type, its second byte, or 0 if the first
// iovec doesn't hold it.
func gsoType(vec []unix.Iovec) byte {
	if vec[0].Len < 2 {
		return 0
	}
	return *(*byte)(unsafe.Add(unsafe.Pointer(vec[0].Base), 1))
}
