// SPDX-License-Identifier: Apache-2.0

// Package fault is how a device says that its guest broke the contract.
package fault

import "fmt"

// Guest is a guest's breach of a device's contract: a bad descriptor, a ring
// outside RAM. It stops the queue or the device, and is counted; it never stops
// the VMM.
type Guest struct {
	Device string // which device, such as "virtio-net 0"
	Reason string // what the guest did
}

func (f *Guest) Error() string { return f.Device + ": guest fault: " + f.Reason }

// Guestf makes a Guest fault.
func Guestf(device, format string, args ...any) *Guest {
	return &Guest{device, fmt.Sprintf(format, args...)}
}
