// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"encoding/binary"
	"fmt"
)

// irqLevel is struct kvm_irq_level.
type irqLevel struct {
	IRQ   uint32
	Level uint32
}

// msi is struct kvm_msi.
type msi struct {
	AddressLo uint32
	AddressHi uint32
	Data      uint32
	Flags     uint32
	DevID     uint32
	_         [12]byte
}

// irqFD is struct kvm_irqfd.
type irqFD struct {
	FD         uint32
	GSI        uint32
	Flags      uint32
	ResampleFD uint32
	_          [16]byte
}

const (
	irqFDFlagDeassign = 1 << 0 // KVM_IRQFD_FLAG_DEASSIGN
	irqFDFlagResample = 1 << 1 // KVM_IRQFD_FLAG_RESAMPLE
)

var (
	reqIRQLine       = iow("KVM_IRQ_LINE", 0x61, sizeof[irqLevel]())
	reqSetGSIRouting = iow("KVM_SET_GSI_ROUTING", 0x6a, routingHeaderSize)
	reqIRQFD         = iow("KVM_IRQFD", 0x76, sizeof[irqFD]())
	reqSignalMSI     = iow("KVM_SIGNAL_MSI", 0xa5, sizeof[msi]())
)

// IRQLine sets the level of an input of the in-kernel interrupt controllers
// (KVM_IRQ_LINE). An edge is a true followed by a false.
func (vm *VM) IRQLine(gsi uint32, level bool) error {
	l := irqLevel{IRQ: gsi}
	if level {
		l.Level = 1
	}
	if _, err := ioctlPtr(vm.fd, reqIRQLine, &l); err != nil {
		return fmt.Errorf("kvm: GSI %d: %w", gsi, err)
	}
	return nil
}

// SignalMSI delivers one message-signalled interrupt (KVM_SIGNAL_MSI). delivered
// is false if the guest blocked it, which is no error.
func (vm *VM) SignalMSI(addr uint64, data uint32) (delivered bool, err error) {
	m := msi{AddressLo: uint32(addr), AddressHi: uint32(addr >> 32), Data: data}
	n, err := ioctlPtr(vm.fd, reqSignalMSI, &m)
	if err != nil {
		return false, fmt.Errorf("kvm: MSI %#x data %#x: %w", addr, data, err)
	}
	return n > 0, nil
}

// IRQFDOptions are the rarer parameters of IRQFD; the zero value attaches an
// edge-triggered interrupt.
type IRQFDOptions struct {
	// Deassign detaches the eventfd from the GSI.
	Deassign bool
	// Resample makes the GSI a level: the eventfd raises it, and when the guest
	// acknowledges the interrupt KVM lowers it and signals ResampleFD. Whoever
	// still has a reason to interrupt then writes the eventfd again.
	Resample   bool
	ResampleFD int
}

// IRQFD attaches an eventfd to a GSI: a write to fd is an interrupt, without an
// exit or an ioctl (KVM_IRQFD). Needs an in-kernel interrupt controller.
func (vm *VM) IRQFD(fd int, gsi uint32, opts IRQFDOptions) error {
	a := irqFD{FD: uint32(fd), GSI: gsi}
	if opts.Deassign {
		a.Flags |= irqFDFlagDeassign
	}
	if opts.Resample {
		a.Flags |= irqFDFlagResample
		a.ResampleFD = uint32(opts.ResampleFD)
	}
	if _, err := ioctlPtr(vm.fd, reqIRQFD, &a); err != nil {
		return fmt.Errorf("kvm: eventfd %d to GSI %d: %w", fd, gsi, err)
	}
	return nil
}

// Route connects a global system interrupt number to what it triggers. Several
// routes may share a GSI if their targets are pins of different chips.
type Route struct {
	GSI    uint32
	Target RouteTarget
}

// RouteTarget is one of IRQChipRoute, MSIRoute and HyperVSINTRoute.
type RouteTarget interface {
	// encode returns the entry's type and stores the union's members.
	encode(union []byte) (typ uint32)
}

// IRQChipID names one of the in-kernel interrupt controllers.
type IRQChipID uint32

// IRQChipRoute is a pin of an in-kernel interrupt controller
// (KVM_IRQ_ROUTING_IRQCHIP).
type IRQChipRoute struct {
	Chip IRQChipID
	Pin  uint32
}

// MSIRoute is a message-signalled interrupt (KVM_IRQ_ROUTING_MSI).
type MSIRoute struct {
	Addr uint64
	Data uint32
}

// HyperVSINTRoute is a synthetic interrupt source of a vCPU's SynIC
// (KVM_IRQ_ROUTING_HV_SINT). SINT is 0 to 15.
type HyperVSINTRoute struct {
	VCPU uint32
	SINT uint32
}

// Types of struct kvm_irq_routing_entry.
const (
	routingIRQChip = 1 // KVM_IRQ_ROUTING_IRQCHIP
	routingMSI     = 2 // KVM_IRQ_ROUTING_MSI
	routingHVSINT  = 4 // KVM_IRQ_ROUTING_HV_SINT
)

func (r IRQChipRoute) encode(u []byte) uint32 {
	binary.NativeEndian.PutUint32(u[0:], uint32(r.Chip))
	binary.NativeEndian.PutUint32(u[4:], r.Pin)
	return routingIRQChip
}

func (r MSIRoute) encode(u []byte) uint32 {
	binary.NativeEndian.PutUint32(u[0:], uint32(r.Addr))
	binary.NativeEndian.PutUint32(u[4:], uint32(r.Addr>>32))
	binary.NativeEndian.PutUint32(u[8:], r.Data)
	return routingMSI
}

func (r HyperVSINTRoute) encode(u []byte) uint32 {
	binary.NativeEndian.PutUint32(u[0:], r.VCPU)
	binary.NativeEndian.PutUint32(u[4:], r.SINT)
	return routingHVSINT
}

// Sizes in bytes of struct kvm_irq_routing without entries, of struct
// kvm_irq_routing_entry, and the offset of the union in it.
const (
	routingHeaderSize  = 8
	routingEntrySize   = 48
	routingUnionOffset = 16
)

// SetGSIRouting replaces the whole routing table (KVM_SET_GSI_ROUTING). The table
// KVM starts with (GSI 0 to 15 to the PICs, 0 to 23 to the IOAPIC) is gone then,
// so routes lists those pins too where they are wanted.
func (vm *VM) SetGSIRouting(routes []Route) error {
	buf, err := encodeRoutes(routes)
	if err != nil {
		return err
	}
	if _, err := ioctlPtr(vm.fd, reqSetGSIRouting, &buf[0]); err != nil {
		return fmt.Errorf("kvm: %d routes: %w", len(routes), err)
	}
	return nil
}

// encodeRoutes builds a struct kvm_irq_routing.
func encodeRoutes(routes []Route) ([]byte, error) {
	buf := make([]byte, routingHeaderSize+len(routes)*routingEntrySize)
	binary.NativeEndian.PutUint32(buf, uint32(len(routes)))
	for i, r := range routes {
		if r.Target == nil {
			return nil, fmt.Errorf("kvm: route of GSI %d has no target", r.GSI)
		}
		e := buf[routingHeaderSize+i*routingEntrySize:][:routingEntrySize]
		binary.NativeEndian.PutUint32(e[0:], r.GSI)
		binary.NativeEndian.PutUint32(e[4:], r.Target.encode(e[routingUnionOffset:]))
	}
	return buf, nil
}
