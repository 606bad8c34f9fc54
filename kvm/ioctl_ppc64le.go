// SPDX-License-Identifier: Apache-2.0

package kvm

// Encoding of ioctl numbers (arch/powerpc/include/uapi/asm/ioctl.h): three
// direction bits, and _IO has its own.
const (
	iocNone     = 1
	iocRead     = 2
	iocWrite    = 4
	iocSizeBits = 13
)
