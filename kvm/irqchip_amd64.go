// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"encoding/binary"
	"fmt"
)

// Interrupt controllers of CreateIRQChip, also for IRQChipRoute.Chip.
const (
	IRQChipPICMaster IRQChipID = 0 // KVM_IRQCHIP_PIC_MASTER
	IRQChipPICSlave  IRQChipID = 1 // KVM_IRQCHIP_PIC_SLAVE
	IRQChipIOAPIC    IRQChipID = 2 // KVM_IRQCHIP_IOAPIC
)

// IOAPICPins is KVM_IOAPIC_NUM_PINS, the inputs of the in-kernel IOAPIC.
const IOAPICPins = 24

// irqChipStateSize is the size of the union in struct kvm_irqchip, in bytes.
const irqChipStateSize = 512

// irqChip is struct kvm_irqchip.
type irqChip struct {
	ChipID uint32
	_      uint32
	State  [irqChipStateSize]byte
}

// pitConfig is struct kvm_pit_config.
type pitConfig struct {
	Flags uint32
	_     [15]uint32
}

// PITChannel is the state of one 8254 channel (struct kvm_pit_channel_state).
type PITChannel struct {
	Count         uint32 // 1 to 65536
	LatchedCount  uint16
	CountLatched  uint8
	StatusLatched uint8
	Status        uint8
	ReadState     uint8
	WriteState    uint8
	WriteLatch    uint8
	RWMode        uint8
	Mode          uint8
	BCD           uint8
	Gate          uint8
	CountLoadTime int64 // nanoseconds
}

// PITState is the state of the 8254 timer (struct kvm_pit_state2).
type PITState struct {
	Channels [3]PITChannel
	Flags    uint32
	_        [9]uint32
}

// PITSpeakerDummy lets KVM answer port 0x61 too (KVM_PIT_SPEAKER_DUMMY).
const PITSpeakerDummy = 1

// KVM_SET_IRQCHIP carries the direction of a read in the kernel's header; the
// number is part of the interface.
var (
	reqCreateIRQChip = io("KVM_CREATE_IRQCHIP", 0x60)
	reqGetIRQChip    = iowr("KVM_GET_IRQCHIP", 0x62, sizeof[irqChip]())
	reqSetIRQChip    = ior("KVM_SET_IRQCHIP", 0x63, sizeof[irqChip]())
	reqCreatePIT2    = iow("KVM_CREATE_PIT2", 0x77, sizeof[pitConfig]())
	reqGetPIT2       = ior("KVM_GET_PIT2", 0x9f, sizeof[PITState]())
	reqSetPIT2       = iow("KVM_SET_PIT2", 0xa0, sizeof[PITState]())
)

// CreateIRQChip makes the two 8259 PICs, the IOAPIC and, for every vCPU made
// later, a local APIC, all in the kernel (KVM_CREATE_IRQCHIP).
func (vm *VM) CreateIRQChip() error { return vmError(ioctl(vm.fd, reqCreateIRQChip, 0)) }

// EnableSplitIRQChip makes local APICs in the kernel only; user space emulates
// PICs and an IOAPIC with the given number of pins, and learns of their ends of
// interrupt by ExitIOAPICEOI (KVM_CAP_SPLIT_IRQCHIP).
func (vm *VM) EnableSplitIRQChip(pins int) error {
	return vm.EnableCap(CapSplitIRQChip, uint64(pins))
}

// CreatePIT2 makes an 8254 timer in the kernel (KVM_CREATE_PIT2), after
// CreateIRQChip. flags is 0 or PITSpeakerDummy.
func (vm *VM) CreatePIT2(flags uint32) error {
	c := pitConfig{Flags: flags}
	return vmError(ioctlPtr(vm.fd, reqCreatePIT2, &c))
}

// PIT2 returns the state of the timer (KVM_GET_PIT2).
func (vm *VM) PIT2() (s PITState, err error) {
	err = vmError(ioctlPtr(vm.fd, reqGetPIT2, &s))
	return s, err
}

// SetPIT2 sets the state of the timer (KVM_SET_PIT2).
func (vm *VM) SetPIT2(s PITState) error { return vmError(ioctlPtr(vm.fd, reqSetPIT2, &s)) }

// PICState is the state of one 8259 (struct kvm_pic_state).
type PICState struct {
	LastIRR                uint8 // edge detection
	IRR, IMR, ISR          uint8
	PriorityAdd            uint8
	IRQBase                uint8
	ReadRegSelect          uint8
	Poll                   uint8
	SpecialMask            uint8
	InitState              uint8
	AutoEOI                uint8
	RotateOnAutoEOI        uint8
	SpecialFullyNestedMode uint8
	Init4                  uint8
	ELCR                   uint8 // edge or level trigger of each input
	ELCRMask               uint8
}

// IOAPICState is the state of the in-kernel IOAPIC (struct kvm_ioapic_state).
type IOAPICState struct {
	BaseAddress uint64
	IORegSel    uint32
	ID          uint32
	IRR         uint32
	_           uint32
	// Redirection holds the redirection table entries in the layout of the 82093AA:
	// vector in bits 0 to 7, mask in bit 16, destination in bits 56 to 63.
	Redirection [IOAPICPins]uint64
}

// PIC returns the state of one of the 8259s (KVM_GET_IRQCHIP).
func (vm *VM) PIC(id IRQChipID) (s PICState, err error) {
	err = vm.getIRQChip(id, &s)
	return s, err
}

// SetPIC sets the state of one of the 8259s (KVM_SET_IRQCHIP).
func (vm *VM) SetPIC(id IRQChipID, s PICState) error { return vm.setIRQChip(id, &s) }

// IOAPIC returns the state of the IOAPIC (KVM_GET_IRQCHIP).
func (vm *VM) IOAPIC() (s IOAPICState, err error) {
	err = vm.getIRQChip(IRQChipIOAPIC, &s)
	return s, err
}

// SetIOAPIC sets the state of the IOAPIC (KVM_SET_IRQCHIP).
func (vm *VM) SetIOAPIC(s IOAPICState) error { return vm.setIRQChip(IRQChipIOAPIC, &s) }

func (vm *VM) getIRQChip(id IRQChipID, state any) error {
	c := irqChip{ChipID: uint32(id)}
	if _, err := ioctlPtr(vm.fd, reqGetIRQChip, &c); err != nil {
		return fmt.Errorf("kvm: irqchip %d: %w", id, err)
	}
	_, err := binary.Decode(c.State[:], binary.NativeEndian, state)
	return err
}

func (vm *VM) setIRQChip(id IRQChipID, state any) error {
	c := irqChip{ChipID: uint32(id)}
	if _, err := binary.Encode(c.State[:], binary.NativeEndian, state); err != nil {
		return err
	}
	if _, err := ioctlPtr(vm.fd, reqSetIRQChip, &c); err != nil {
		return fmt.Errorf("kvm: irqchip %d: %w", id, err)
	}
	return nil
}
