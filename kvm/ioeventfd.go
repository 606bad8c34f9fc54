// SPDX-License-Identifier: Apache-2.0

package kvm

import "fmt"

// ioEventFD is struct kvm_ioeventfd.
type ioEventFD struct {
	DataMatch uint64
	Addr      uint64
	Len       uint32
	FD        int32
	Flags     uint32
	_         [36]byte
}

const (
	ioEventFDFlagDataMatch = 1 << 0 // KVM_IOEVENTFD_FLAG_DATAMATCH
	ioEventFDFlagPIO       = 1 << 1 // KVM_IOEVENTFD_FLAG_PIO
	ioEventFDFlagDeassign  = 1 << 2 // KVM_IOEVENTFD_FLAG_DEASSIGN
)

var reqIOEventFD = iow("KVM_IOEVENTFD", 0x79, sizeof[ioEventFD]())

// IOEvent describes a guest write that signals an eventfd instead of exiting.
type IOEvent struct {
	// Addr is the guest physical address, or the port if PIO is set.
	Addr uint64
	// Len is the width of the write in bytes: 1, 2, 4 or 8; 0 means any width
	// (needs CapIOEventFDAnyLength).
	Len uint32
	// FD is the eventfd.
	FD int
	// PIO selects the port space.
	PIO bool
	// HasDataMatch limits the event to writes of the value DataMatch; others exit.
	// Not together with Len 0.
	HasDataMatch bool
	DataMatch    uint64
	// Deassign removes the event; the other fields are those it was made with.
	Deassign bool
}

// IOEventFD attaches an eventfd to a guest address, or detaches it (KVM_IOEVENTFD).
func (vm *VM) IOEventFD(ev IOEvent) error {
	a := ioEventFD{Addr: ev.Addr, Len: ev.Len, FD: int32(ev.FD)}
	if ev.PIO {
		a.Flags |= ioEventFDFlagPIO
	}
	if ev.HasDataMatch {
		a.Flags |= ioEventFDFlagDataMatch
		a.DataMatch = ev.DataMatch
	}
	if ev.Deassign {
		a.Flags |= ioEventFDFlagDeassign
	}
	if _, err := ioctlPtr(vm.fd, reqIOEventFD, &a); err != nil {
		return fmt.Errorf("kvm: eventfd %d at %s: %w", ev.FD, ev.place(), err)
	}
	return nil
}

// place names the address for error messages.
func (ev IOEvent) place() string {
	space := "address"
	if ev.PIO {
		space = "port"
	}
	return fmt.Sprintf("%s %#x, %d bytes", space, ev.Addr, ev.Len)
}
