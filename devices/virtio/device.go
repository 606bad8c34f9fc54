// SPDX-License-Identifier: Apache-2.0

// Package virtio is the device-independent part of virtio 1.2: features, the
// split virtqueue, and the contract between a device model and its transport.
package virtio

import (
	"github.com/govmm/govmm/internal/guestmem"
	"github.com/govmm/govmm/internal/irq"
)

// Reserved feature bits (virtio 1.2, section 6).
const (
	FeatureIndirectDesc uint64 = 1 << 28 // VIRTIO_F_INDIRECT_DESC
	FeatureEventIdx     uint64 = 1 << 29 // VIRTIO_F_EVENT_IDX
	FeatureVersion1     uint64 = 1 << 32 // VIRTIO_F_VERSION_1
)

// Device is a device model: it knows its type's features, configuration space
// and queues, and nothing of PCI. The transport calls it under a lock of its
// own, one call at a time.
type Device interface {
	// ID is the device's type (virtio 1.2, section 5): 1 is a network card.
	ID() uint16
	// Features are all feature bits on offer, the reserved ones included.
	Features() uint64
	// QueueSizes is the largest size of each queue, powers of two.
	QueueSizes() []uint16
	// ReadConfig reads the device's configuration space (little-endian); bytes
	// past its end read as zero.
	ReadConfig(off uint64, p []byte)
	// WriteConfig writes it; writes to read-only fields and past the end are lost.
	WriteConfig(off uint64, p []byte)
	// Start is the driver's DRIVER_OK. An error that is a *fault.Guest means that
	// what the driver set up can't be used; the transport answers with
	// DEVICE_NEEDS_RESET.
	Start(Driver) error
	// Stop ends all work: when it returns, the device touches neither guest
	// memory nor an interrupt, and completed work has been published. It is the
	// one path for reset, reboot and the VM's end, and idempotent.
	Stop()
}

// Driver is what the guest's driver has negotiated and set up.
type Driver struct {
	Features uint64           // accepted, a subset of those on offer
	Memory   *guestmem.Memory // the guest's RAM
	Queues   []QueueConfig    // by queue index, as long as QueueSizes
	// ConfigChanged raises the configuration interrupt.
	ConfigChanged irq.Vector
	// Fail tells the transport, from any goroutine, that the device gave up on
	// this driver: it sets DEVICE_NEEDS_RESET and raises ConfigChanged. It does
	// not call back into the device.
	Fail func(error)
}

// QueueConfig is one queue as the driver set it up.
type QueueConfig struct {
	Enabled bool
	Size    uint16 // entries, a power of two
	// Guest physical addresses of the descriptor table, the driver area (avail
	// ring) and the device area (used ring): virtio 1.2, 2.7.
	Desc, Avail, Used uint64
	// Interrupt is the queue's vector; it is never nil.
	Interrupt irq.Vector
	// KickFD is the eventfd that the driver's notification signals. The transport
	// owns it.
	KickFD int
}
