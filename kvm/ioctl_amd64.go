// SPDX-License-Identifier: Apache-2.0

package kvm

// Encoding of ioctl numbers (asm-generic/ioctl.h).
const (
	iocNone     = 0
	iocWrite    = 1
	iocRead     = 2
	iocSizeBits = 14
)
