// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"os"

	"golang.org/x/sys/unix"
)

// kvmIO is KVMIO, the type byte of every KVM ioctl number.
const kvmIO = 0xae

// request is an ioctl number with the kernel's name for error messages.
type request struct {
	nr   uintptr
	name string
}

// ioc composes an ioctl number as _IOC of asm-generic/ioctl.h does: direction,
// argument size in bytes, type and number. The width of the size field and the
// values of the directions are those of the architecture: POWER differs from x86.
func ioc(dir, nr, size uintptr) uintptr {
	const (
		typeShift = 8
		sizeShift = 16
		dirShift  = sizeShift + iocSizeBits
	)
	return dir<<dirShift | size<<sizeShift | kvmIO<<typeShift | nr
}

// io is _IO: no argument, or an argument passed by value.
func io(name string, nr uintptr) request { return request{ioc(iocNone, nr, 0), name} }

// iow is _IOW: the kernel reads size bytes.
func iow(name string, nr, size uintptr) request { return request{ioc(iocWrite, nr, size), name} }

// ior is _IOR: the kernel writes size bytes.
func ior(name string, nr, size uintptr) request { return request{ioc(iocRead, nr, size), name} }

// iowr is _IOWR: the kernel reads and writes size bytes. For arrays of variable
// length, size is that of the header alone.
func iowr(name string, nr, size uintptr) request {
	return request{ioc(iocRead|iocWrite, nr, size), name}
}

// ioctl makes a call whose argument is a number, and repeats it on EINTR.
func ioctl(fd int, req request, arg uintptr) (int, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req.nr, arg)
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
			continue
		}
		return -1, os.NewSyscallError(req.name, errno)
	}
}
