// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"encoding/binary"
	"fmt"
)

var (
	reqGetRegs       = ior("KVM_GET_REGS", 0x81, sizeof[Regs]())
	reqSetRegs       = iow("KVM_SET_REGS", 0x82, sizeof[Regs]())
	reqGetSRegs      = ior("KVM_GET_SREGS", 0x83, sizeof[SRegs]())
	reqSetSRegs      = iow("KVM_SET_SREGS", 0x84, sizeof[SRegs]())
	reqTranslate     = iowr("KVM_TRANSLATE", 0x85, sizeof[Translation]())
	reqInterrupt     = iow("KVM_INTERRUPT", 0x86, 4)
	reqGetFPU        = ior("KVM_GET_FPU", 0x8c, sizeof[FPU]())
	reqSetFPU        = iow("KVM_SET_FPU", 0x8d, sizeof[FPU]())
	reqGetLAPIC      = ior("KVM_GET_LAPIC", 0x8e, sizeof[LAPIC]())
	reqSetLAPIC      = iow("KVM_SET_LAPIC", 0x8f, sizeof[LAPIC]())
	reqNMI           = io("KVM_NMI", 0x9a)
	reqSetGuestDebug = iow("KVM_SET_GUEST_DEBUG", 0x9b, sizeof[GuestDebug]())
	reqGetVCPUEvents = ior("KVM_GET_VCPU_EVENTS", 0x9f, sizeof[VCPUEvents]())
	reqSetVCPUEvents = iow("KVM_SET_VCPU_EVENTS", 0xa0, sizeof[VCPUEvents]())
	reqGetDebugRegs  = ior("KVM_GET_DEBUGREGS", 0xa1, sizeof[DebugRegs]())
	reqSetDebugRegs  = iow("KVM_SET_DEBUGREGS", 0xa2, sizeof[DebugRegs]())
	reqSetTSCKHz     = io("KVM_SET_TSC_KHZ", 0xa2)
	reqGetTSCKHz     = io("KVM_GET_TSC_KHZ", 0xa3)
	reqGetXSave      = ior("KVM_GET_XSAVE", 0xa4, xsaveMinSize)
	reqSetXSave      = iow("KVM_SET_XSAVE", 0xa5, xsaveMinSize)
	reqGetXCRs       = ior("KVM_GET_XCRS", 0xa6, sizeof[xcrs]())
	reqSetXCRs       = iow("KVM_SET_XCRS", 0xa7, sizeof[xcrs]())
	reqKVMClockCtrl  = io("KVM_KVMCLOCK_CTRL", 0xad)
	reqSMI           = io("KVM_SMI", 0xb7)
	reqGetSRegs2     = ior("KVM_GET_SREGS2", 0xcc, sizeof[SRegs2]())
	reqSetSRegs2     = iow("KVM_SET_SREGS2", 0xcd, sizeof[SRegs2]())
	reqGetXSave2     = ior("KVM_GET_XSAVE2", 0xcf, xsaveMinSize)
)

// xsaveMinSize is the size of struct kvm_xsave without its extra part, in bytes.
const xsaveMinSize = 4096

// initArch learns how large the XSAVE state is (CapXSave2: 4096 or more).
func (v *VCPU) initArch(vm *VM) {
	if n, err := vm.CheckExtension(CapXSave2); err == nil && n >= xsaveMinSize {
		v.xsaveSize = n
	}
}

// Regs returns the general registers (KVM_GET_REGS).
func (v *VCPU) Regs() (r Regs, err error) {
	err = v.check(ioctlPtr(v.fd, reqGetRegs, &r))
	return r, err
}

// SetRegs sets the general registers (KVM_SET_REGS).
func (v *VCPU) SetRegs(r Regs) error { return v.check(ioctlPtr(v.fd, reqSetRegs, &r)) }

// SRegs returns segments, descriptor tables and control registers (KVM_GET_SREGS).
func (v *VCPU) SRegs() (s SRegs, err error) {
	err = v.check(ioctlPtr(v.fd, reqGetSRegs, &s))
	return s, err
}

// SetSRegs sets segments, descriptor tables and control registers (KVM_SET_SREGS).
func (v *VCPU) SetSRegs(s SRegs) error { return v.check(ioctlPtr(v.fd, reqSetSRegs, &s)) }

// SRegs2 is SRegs with the PDPTRs (KVM_GET_SREGS2).
func (v *VCPU) SRegs2() (s SRegs2, err error) {
	err = v.check(ioctlPtr(v.fd, reqGetSRegs2, &s))
	return s, err
}

// SetSRegs2 is SetSRegs with the PDPTRs (KVM_SET_SREGS2).
func (v *VCPU) SetSRegs2(s SRegs2) error { return v.check(ioctlPtr(v.fd, reqSetSRegs2, &s)) }

// FPU returns the x87 and SSE state (KVM_GET_FPU).
func (v *VCPU) FPU() (f FPU, err error) {
	err = v.check(ioctlPtr(v.fd, reqGetFPU, &f))
	return f, err
}

// SetFPU sets the x87 and SSE state (KVM_SET_FPU).
func (v *VCPU) SetFPU(f FPU) error { return v.check(ioctlPtr(v.fd, reqSetFPU, &f)) }

// LAPIC returns the local APIC's registers (KVM_GET_LAPIC; needs an in-kernel
// APIC).
func (v *VCPU) LAPIC() (l LAPIC, err error) {
	err = v.check(ioctlPtr(v.fd, reqGetLAPIC, &l))
	return l, err
}

// SetLAPIC sets the local APIC's registers (KVM_SET_LAPIC). KVM looks up the target
// of an interrupt in a table that it makes anew when the registers of an APIC that
// matter for it change. A vCPU made since gets no interrupt, INIT and SIPI included,
// before that: SetLAPIC is one such change, a guest that enables its APIC another.
func (v *VCPU) SetLAPIC(l LAPIC) error { return v.check(ioctlPtr(v.fd, reqSetLAPIC, &l)) }

// VCPUEvents returns pending events (KVM_GET_VCPU_EVENTS).
func (v *VCPU) VCPUEvents() (e VCPUEvents, err error) {
	err = v.check(ioctlPtr(v.fd, reqGetVCPUEvents, &e))
	return e, err
}

// SetVCPUEvents sets pending events (KVM_SET_VCPU_EVENTS).
func (v *VCPU) SetVCPUEvents(e VCPUEvents) error {
	return v.check(ioctlPtr(v.fd, reqSetVCPUEvents, &e))
}

// DebugRegs returns the debug registers (KVM_GET_DEBUGREGS).
func (v *VCPU) DebugRegs() (d DebugRegs, err error) {
	err = v.check(ioctlPtr(v.fd, reqGetDebugRegs, &d))
	return d, err
}

// SetDebugRegs sets the debug registers (KVM_SET_DEBUGREGS).
func (v *VCPU) SetDebugRegs(d DebugRegs) error {
	return v.check(ioctlPtr(v.fd, reqSetDebugRegs, &d))
}

// XSave returns the XSAVE image in the standard (non-compacted) format of CPUID
// leaf 0xd: 4096 bytes (KVM_GET_XSAVE), or more where CapXSave2 says so
// (KVM_GET_XSAVE2).
func (v *VCPU) XSave() ([]byte, error) {
	req, size := reqGetXSave, xsaveMinSize
	if v.xsaveSize > 0 {
		req, size = reqGetXSave2, v.xsaveSize
	}
	buf := make([]byte, size)
	if err := v.check(ioctlPtr(v.fd, req, &buf[0])); err != nil {
		return nil, err
	}
	return buf, nil
}

// SetXSave sets the XSAVE image (KVM_SET_XSAVE); its length is that of XSave.
func (v *VCPU) SetXSave(image []byte) error {
	if want := max(xsaveMinSize, v.xsaveSize); len(image) != want {
		return fmt.Errorf("kvm: vCPU %d: XSAVE image has %d bytes, want %d", v.id, len(image), want)
	}
	return v.check(ioctlPtr(v.fd, reqSetXSave, &image[0]))
}

// XCRs returns the extended control registers (KVM_GET_XCRS).
func (v *VCPU) XCRs() ([]XCR, error) {
	var x xcrs
	if err := v.check(ioctlPtr(v.fd, reqGetXCRs, &x)); err != nil {
		return nil, err
	}
	return x.XCRs[:min(x.NrXCRs, maxXCRs)], nil
}

// SetXCRs sets extended control registers, at most 16 (KVM_SET_XCRS).
func (v *VCPU) SetXCRs(regs []XCR) error {
	x := xcrs{NrXCRs: uint32(len(regs))}
	if len(regs) > maxXCRs {
		return fmt.Errorf("kvm: vCPU %d: %d extended control registers, at most %d exist", v.id, len(regs), maxXCRs)
	}
	copy(x.XCRs[:], regs)
	return v.check(ioctlPtr(v.fd, reqSetXCRs, &x))
}

// SetCPUID sets what the CPUID instruction returns (KVM_SET_CPUID2); before the
// first Run.
func (v *VCPU) SetCPUID(c CPUID) error { return v.check(0, setCPUID(v.fd, c)) }

// CPUID returns what the CPUID instruction returns (KVM_GET_CPUID2).
func (v *VCPU) CPUID() (CPUID, error) {
	c, err := getCPUID(v.fd, reqGetCPUID2)
	return c, v.check(0, err)
}

// SupportedHyperVCPUID returns the Hyper-V leaves this vCPU can have
// (KVM_GET_SUPPORTED_HV_CPUID).
func (v *VCPU) SupportedHyperVCPUID() (CPUID, error) {
	c, err := getCPUID(v.fd, reqGetSupportedHVCPUID)
	return c, v.check(0, err)
}

// GetMSRs fills in the data of the entries (KVM_GET_MSRS) and returns how many
// were read. Fewer than asked is no error: KVM refused entries[n].
func (v *VCPU) GetMSRs(entries []MSREntry) (int, error) {
	n, err := transferMSRs(v.fd, reqGetMSRs, entries, true)
	return n, v.check(0, err)
}

// SetMSRs writes the entries (KVM_SET_MSRS) and returns how many were written.
// Fewer than asked is no error: KVM refused entries[n].
func (v *VCPU) SetMSRs(entries []MSREntry) (int, error) {
	n, err := transferMSRs(v.fd, reqSetMSRs, entries, false)
	return n, v.check(0, err)
}

// SetGuestDebug sets breakpoints or single stepping (KVM_SET_GUEST_DEBUG).
func (v *VCPU) SetGuestDebug(d GuestDebug) error {
	return v.check(ioctlPtr(v.fd, reqSetGuestDebug, &d))
}

// NMI queues a non-maskable interrupt (KVM_NMI).
func (v *VCPU) NMI() error { return v.check(ioctl(v.fd, reqNMI, 0)) }

// SMI queues a system management interrupt (KVM_SMI).
func (v *VCPU) SMI() error { return v.check(ioctl(v.fd, reqSMI, 0)) }

// Interrupt injects an external interrupt vector (KVM_INTERRUPT); only without an
// in-kernel local APIC.
func (v *VCPU) Interrupt(vector uint8) error {
	irq := uint32(vector)
	return v.check(ioctlPtr(v.fd, reqInterrupt, &irq))
}

// RequestInterruptWindow makes Run return ExitIRQWindowOpen when Interrupt can be
// called (kvm_run.request_interrupt_window).
func (v *VCPU) RequestInterruptWindow(on bool) {
	const bit = 1 // byte 0 of the word
	if on {
		v.inputs.Or(bit)
	} else {
		v.inputs.And(^uint32(bit))
	}
}

// ReadyForInterrupt reports, after Run returned, whether Interrupt can be called
// (kvm_run.ready_for_interrupt_injection).
func (v *VCPU) ReadyForInterrupt() bool { return v.run[runReadyForInterrupt] != 0 }

// CR8 returns the task priority after Run returned (kvm_run.cr8).
func (v *VCPU) CR8() uint64 { return v.u64(runCR8) }

// SetCR8 sets the task priority for the next Run; only without an in-kernel APIC.
func (v *VCPU) SetCR8(x uint64) { binary.NativeEndian.PutUint64(v.run[runCR8:], x) }

// Offsets in struct kvm_run.
const (
	runReadyForInterrupt = 12
	runCR8               = 16
)

// TSCKHz returns the frequency of the guest's time stamp counter in kHz
// (KVM_GET_TSC_KHZ).
func (v *VCPU) TSCKHz() (int, error) {
	khz, err := ioctl(v.fd, reqGetTSCKHz, 0)
	return khz, v.check(0, err)
}

// SetTSCKHz sets the frequency of the guest's time stamp counter in kHz
// (KVM_SET_TSC_KHZ; other than the host's only with CapTSCControl).
func (v *VCPU) SetTSCKHz(khz uint32) error {
	return v.check(ioctl(v.fd, reqSetTSCKHz, uintptr(khz)))
}

// KVMClockCtrl tells the guest that it was paused, so that its lockup detectors
// stay quiet (KVM_KVMCLOCK_CTRL). EINVAL means that the guest does not use the KVM
// clock.
func (v *VCPU) KVMClockCtrl() error { return v.check(ioctl(v.fd, reqKVMClockCtrl, 0)) }

// Translate walks the guest's page tables (KVM_TRANSLATE).
func (v *VCPU) Translate(linear uint64) (t Translation, err error) {
	t.LinearAddress = linear
	err = v.check(ioctlPtr(v.fd, reqTranslate, &t))
	return t, err
}
