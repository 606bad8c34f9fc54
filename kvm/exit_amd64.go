// SPDX-License-Identifier: Apache-2.0

package kvm

// Hypercall is a hypercall KVM passes on (KVM_EXIT_HYPERCALL), after EnableCap of
// CapExitHypercall.
type Hypercall struct {
	Nr   uint64
	Args [6]uint64
}

// Offsets of kvm_run.hypercall.
const (
	hypercallNr   = runUnion + 0
	hypercallArgs = runUnion + 8
	hypercallRet  = runUnion + 56
)

// Hypercall decodes ExitHypercall.
func (e Exit) Hypercall() Hypercall {
	h := Hypercall{Nr: e.vcpu.u64(hypercallNr)}
	for i := range h.Args {
		h.Args[i] = e.vcpu.u64(hypercallArgs + 8*i)
	}
	return h
}

// SetHypercallResult stores what the guest finds in RAX.
func (e Exit) SetHypercallResult(ret uint64) { e.vcpu.putU64(hypercallRet, ret) }

// Debug is a debug event (KVM_EXIT_DEBUG), after SetGuestDebug.
type Debug struct {
	Exception uint32 // 1 #DB or 3 #BP
	PC        uint64 // linear address of the instruction
	DR6, DR7  uint64
}

// Debug decodes ExitDebug.
func (e Exit) Debug() Debug {
	v := e.vcpu
	return Debug{
		Exception: v.u32(runUnion), PC: v.u64(runUnion + 8),
		DR6: v.u64(runUnion + 16), DR7: v.u64(runUnion + 24),
	}
}

// IOAPICEOI decodes ExitIOAPICEOI: the vector whose end of interrupt a user-space
// IOAPIC must see (split irqchip).
func (e Exit) IOAPICEOI() uint8 { return e.vcpu.run[runUnion] }

// HyperVType is the kind of a Hyper-V exit.
type HyperVType uint32

// Hyper-V exits.
const (
	HyperVSynIC     HyperVType = 1 // KVM_EXIT_HYPERV_SYNIC: the guest wrote a SynIC MSR
	HyperVHypercall HyperVType = 2 // KVM_EXIT_HYPERV_HCALL
	HyperVSynDbg    HyperVType = 3 // KVM_EXIT_HYPERV_SYNDBG
)

// HyperV is an exit of the Hyper-V emulation (KVM_EXIT_HYPERV). Type says which of
// the members is set.
type HyperV struct {
	Type      HyperVType
	SynIC     HyperVSynICExit
	Hypercall HyperVHypercallExit
	SynDbg    HyperVSynDbgExit
}

// HyperVSynICExit reports the SynIC's registers after a guest's write to one.
type HyperVSynICExit struct {
	MSR       uint32 // the MSR that was written
	Control   uint64 // SCONTROL
	EventPage uint64 // SIEFP
	MsgPage   uint64 // SIMP
}

// HyperVHypercallExit is a hypercall that KVM does not handle itself.
type HyperVHypercallExit struct {
	Input  uint64    // TLFS hypercall input value: call code in bits 0 to 15
	Params [2]uint64 // guest physical addresses, or the data of a fast call
}

// HyperVSynDbgExit reports the synthetic debugger's registers.
type HyperVSynDbgExit struct {
	MSR         uint32
	Control     uint64
	Status      uint64
	SendPage    uint64
	RecvPage    uint64
	PendingPage uint64
}

// Offsets of struct kvm_hyperv_exit's members.
const (
	hypervType        = runUnion + 0
	hypervUnion       = runUnion + 8
	hypervHCallResult = hypervUnion + 8
	hypervStatus      = hypervUnion + 16
)

// HyperV decodes ExitHyperV.
func (e Exit) HyperV() HyperV {
	v := e.vcpu
	h := HyperV{Type: HyperVType(v.u32(hypervType))}
	switch h.Type {
	case HyperVSynIC:
		h.SynIC = HyperVSynICExit{
			MSR: v.u32(hypervUnion), Control: v.u64(hypervUnion + 8),
			EventPage: v.u64(hypervUnion + 16), MsgPage: v.u64(hypervUnion + 24),
		}
	case HyperVHypercall:
		h.Hypercall = HyperVHypercallExit{
			Input:  v.u64(hypervUnion),
			Params: [2]uint64{v.u64(hypervUnion + 16), v.u64(hypervUnion + 24)},
		}
	case HyperVSynDbg:
		h.SynDbg = HyperVSynDbgExit{
			MSR: v.u32(hypervUnion), Control: v.u64(hypervUnion + 8), Status: v.u64(hypervStatus),
			SendPage: v.u64(hypervUnion + 24), RecvPage: v.u64(hypervUnion + 32), PendingPage: v.u64(hypervUnion + 40),
		}
	}
	return h
}

// SetHyperVResult stores the result value of a HyperVHypercall exit.
func (e Exit) SetHyperVResult(result uint64) { e.vcpu.putU64(hypervHCallResult, result) }

// SetHyperVStatus stores the status of a HyperVSynDbg exit.
func (e Exit) SetHyperVStatus(status uint64) { e.vcpu.putU64(hypervStatus, status) }

// MSRExitReason says why an MSR access came to user space; also the mask for
// EnableCap(CapX86UserSpaceMSR, mask).
type MSRExitReason uint32

// Reasons of MSR exits.
const (
	MSRExitInval   MSRExitReason = 1 << 0 // KVM_MSR_EXIT_REASON_INVAL: KVM refuses the value
	MSRExitUnknown MSRExitReason = 1 << 1 // KVM_MSR_EXIT_REASON_UNKNOWN: KVM has no such MSR
	MSRExitFilter  MSRExitReason = 1 << 2 // KVM_MSR_EXIT_REASON_FILTER: SetMSRFilter denies it
)

// MSRExit is an MSR access (KVM_EXIT_X86_RDMSR, KVM_EXIT_X86_WRMSR).
type MSRExit struct {
	Why   MSRExitReason
	Index uint32
	Data  uint64 // what the guest writes
}

// Offsets of kvm_run.msr.
const (
	msrError  = runUnion + 0
	msrReason = runUnion + 8
	msrIndex  = runUnion + 12
	msrData   = runUnion + 16
)

// MSR decodes ExitRDMSR and ExitWRMSR.
func (e Exit) MSR() MSRExit {
	v := e.vcpu
	return MSRExit{Why: MSRExitReason(v.u32(msrReason)), Index: v.u32(msrIndex), Data: v.u64(msrData)}
}

// SetMSRData answers ExitRDMSR.
func (e Exit) SetMSRData(data uint64) { e.vcpu.putU64(msrData, data) }

// FailMSR makes the guest's MSR access raise #GP.
func (e Exit) FailMSR() { e.vcpu.run[msrError] = 1 }
