// SPDX-License-Identifier: Apache-2.0

package probe

import "github.com/govmm/govmm/kvm"

// archCaps are what x86-64 adds.
var archCaps = []capSpec{
	{kvm.CapIRQChip, "interrupt controllers in the kernel", Required},
	{kvm.CapIRQRouting, "interrupt routing", Required},
	{kvm.CapIRQFD, "irqfd", Required},
	{kvm.CapSignalMSI, "MSI", Required},
	{kvm.CapIRQFDResample, "irqfd for level interrupts", Wanted},
	{kvm.CapSplitIRQChip, "split irqchip", Optional},
	{kvm.CapAdjustClock, "KVM clock", Wanted},
	{kvm.CapTSCDeadlineTimer, "TSC deadline timer", Wanted},
	{kvm.CapTSCControl, "TSC frequency control", Optional},
	{kvm.CapGetTSCKHz, "TSC frequency known", Optional},
	{kvm.CapX2APICAPI, "x2APIC interface", Optional},
	{kvm.CapXSave2, "XSAVE state, bytes", Optional},
	{kvm.CapX86UserSpaceMSR, "MSR exits", Optional},
	{kvm.CapX86MSRFilter, "MSR filter", Optional},
	{kvm.CapX86DisableExits, "exits that can be disabled", Optional},
	{kvm.CapNestedState, "nested state", Optional},
	{kvm.CapHyperV, "Hyper-V guest id and hypercalls", Optional},
	{kvm.CapHyperVTime, "Hyper-V reference time", Optional},
	{kvm.CapHyperVVPIndex, "Hyper-V VP index", Optional},
	{kvm.CapHyperVSynIC2, "Hyper-V SynIC (VMBus NICs)", Optional},
	{kvm.CapHyperVEventFD, "Hyper-V event eventfd", Optional},
}
