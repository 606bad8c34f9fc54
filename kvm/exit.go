// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"encoding/binary"
	"fmt"
)

// ExitReason says why KVM_RUN returned (kvm_run.exit_reason).
type ExitReason uint32

// Exit reasons of x86-64 and POWER, with the kernel's names.
const (
	ExitUnknown       ExitReason = 0  // KVM_EXIT_UNKNOWN: see Exit.HardwareReason
	ExitException     ExitReason = 1  // KVM_EXIT_EXCEPTION
	ExitIO            ExitReason = 2  // KVM_EXIT_IO: see Exit.IO
	ExitHypercall     ExitReason = 3  // KVM_EXIT_HYPERCALL: see Exit.Hypercall
	ExitDebug         ExitReason = 4  // KVM_EXIT_DEBUG: see Exit.Debug
	ExitHLT           ExitReason = 5  // KVM_EXIT_HLT: only without an in-kernel APIC
	ExitMMIO          ExitReason = 6  // KVM_EXIT_MMIO: see Exit.MMIO
	ExitIRQWindowOpen ExitReason = 7  // KVM_EXIT_IRQ_WINDOW_OPEN
	ExitShutdown      ExitReason = 8  // KVM_EXIT_SHUTDOWN: triple fault
	ExitFailEntry     ExitReason = 9  // KVM_EXIT_FAIL_ENTRY: see Exit.FailEntry
	ExitIntr          ExitReason = 10 // KVM_EXIT_INTR: a signal or a Kick
	ExitSetTPR        ExitReason = 11 // KVM_EXIT_SET_TPR
	ExitTPRAccess     ExitReason = 12 // KVM_EXIT_TPR_ACCESS
	ExitNMI           ExitReason = 16 // KVM_EXIT_NMI
	ExitInternalError ExitReason = 17 // KVM_EXIT_INTERNAL_ERROR: see Exit.InternalError
	ExitOSI           ExitReason = 18 // KVM_EXIT_OSI
	ExitPAPRHCall     ExitReason = 19 // KVM_EXIT_PAPR_HCALL: see Exit.PAPRHCall
	ExitWatchdog      ExitReason = 21 // KVM_EXIT_WATCHDOG
	ExitEPR           ExitReason = 23 // KVM_EXIT_EPR
	ExitSystemEvent   ExitReason = 24 // KVM_EXIT_SYSTEM_EVENT: see Exit.SystemEvent
	ExitIOAPICEOI     ExitReason = 26 // KVM_EXIT_IOAPIC_EOI: see Exit.IOAPICEOI
	ExitHyperV        ExitReason = 27 // KVM_EXIT_HYPERV: see Exit.HyperV
	ExitRDMSR         ExitReason = 29 // KVM_EXIT_X86_RDMSR: see Exit.MSR
	ExitWRMSR         ExitReason = 30 // KVM_EXIT_X86_WRMSR: see Exit.MSR
	ExitDirtyRingFull ExitReason = 31 // KVM_EXIT_DIRTY_RING_FULL
	ExitAPResetHold   ExitReason = 32 // KVM_EXIT_AP_RESET_HOLD
	ExitBusLock       ExitReason = 33 // KVM_EXIT_X86_BUS_LOCK
	ExitNotify        ExitReason = 37 // KVM_EXIT_NOTIFY
	ExitMemoryFault   ExitReason = 39 // KVM_EXIT_MEMORY_FAULT; comes with an error
)

// exitNames holds the kernel's names.
var exitNames = [...]string{
	ExitUnknown:       "KVM_EXIT_UNKNOWN",
	ExitException:     "KVM_EXIT_EXCEPTION",
	ExitIO:            "KVM_EXIT_IO",
	ExitHypercall:     "KVM_EXIT_HYPERCALL",
	ExitDebug:         "KVM_EXIT_DEBUG",
	ExitHLT:           "KVM_EXIT_HLT",
	ExitMMIO:          "KVM_EXIT_MMIO",
	ExitIRQWindowOpen: "KVM_EXIT_IRQ_WINDOW_OPEN",
	ExitShutdown:      "KVM_EXIT_SHUTDOWN",
	ExitFailEntry:     "KVM_EXIT_FAIL_ENTRY",
	ExitIntr:          "KVM_EXIT_INTR",
	ExitSetTPR:        "KVM_EXIT_SET_TPR",
	ExitTPRAccess:     "KVM_EXIT_TPR_ACCESS",
	ExitNMI:           "KVM_EXIT_NMI",
	ExitInternalError: "KVM_EXIT_INTERNAL_ERROR",
	ExitOSI:           "KVM_EXIT_OSI",
	ExitPAPRHCall:     "KVM_EXIT_PAPR_HCALL",
	ExitWatchdog:      "KVM_EXIT_WATCHDOG",
	ExitEPR:           "KVM_EXIT_EPR",
	ExitSystemEvent:   "KVM_EXIT_SYSTEM_EVENT",
	ExitIOAPICEOI:     "KVM_EXIT_IOAPIC_EOI",
	ExitHyperV:        "KVM_EXIT_HYPERV",
	ExitRDMSR:         "KVM_EXIT_X86_RDMSR",
	ExitWRMSR:         "KVM_EXIT_X86_WRMSR",
	ExitDirtyRingFull: "KVM_EXIT_DIRTY_RING_FULL",
	ExitAPResetHold:   "KVM_EXIT_AP_RESET_HOLD",
	ExitBusLock:       "KVM_EXIT_X86_BUS_LOCK",
	ExitNotify:        "KVM_EXIT_NOTIFY",
	ExitMemoryFault:   "KVM_EXIT_MEMORY_FAULT",
}

// String returns the kernel's name of the reason.
func (r ExitReason) String() string {
	if int(r) < len(exitNames) && exitNames[r] != "" {
		return exitNames[r]
	}
	return fmt.Sprintf("KVM_EXIT(%d)", uint32(r))
}

// Offsets in struct kvm_run (include/uapi/linux/kvm.h), the same on x86-64 and
// POWER. The union of what the exits report follows the common fields.
const (
	runExitReason  = 8
	runUnion       = 32
	runUnionSize   = 256
	runMinSize     = runUnion + runUnionSize
	exitWords      = 16 // entries of internal.data and system_event.data
	mmioDataBytes  = 8
	insnBytes      = 15
	ioDirectionOut = 1 // KVM_EXIT_IO_OUT
)

// Exit is one return of Run. It is a view of the vCPU's run page, valid until the
// next Run or Close, and costs no allocation. Each method decodes the report of
// one Reason and is meaningful for that reason alone.
type Exit struct {
	Reason ExitReason
	vcpu   *VCPU
}

func (v *VCPU) exitReason() ExitReason { return ExitReason(v.u32(runExitReason)) }

func (v *VCPU) u32(off int) uint32 { return binary.NativeEndian.Uint32(v.run[off:]) }
func (v *VCPU) u64(off int) uint64 { return binary.NativeEndian.Uint64(v.run[off:]) }

func (v *VCPU) putU64(off int, x uint64) { binary.NativeEndian.PutUint64(v.run[off:], x) }

// words copies up to 16 words at off, of which the kernel says n are valid.
func (v *VCPU) words(off int, n uint32) (data [exitWords]uint64, count int) {
	count = int(min(n, exitWords))
	for i := range count {
		data[i] = v.u64(off + 8*i)
	}
	return data, count
}

// IO is a port access (KVM_EXIT_IO). A string instruction gives Count items.
type IO struct {
	Port  uint16
	Size  int  // bytes of an item: 1, 2 or 4
	Count int  // items, one after another in Data
	In    bool // the guest reads; the handler fills Data
	Data  []byte
}

// Offsets of kvm_run.io.
const (
	ioDirection  = runUnion + 0
	ioSize       = runUnion + 1
	ioPort       = runUnion + 2
	ioCount      = runUnion + 4
	ioDataOffset = runUnion + 8
)

// ioInRange reports whether the data of an ExitIO lies in the run mapping.
func (v *VCPU) ioInRange() bool {
	n := uint64(v.run[ioSize]) * uint64(v.u32(ioCount))
	off := v.u64(ioDataOffset)
	size := uint64(len(v.run))
	return n <= size && off <= size-n
}

// IO decodes ExitIO. Data is a view of the run page, Size*Count bytes long.
func (e Exit) IO() IO {
	v := e.vcpu
	size, count := int(v.run[ioSize]), int(v.u32(ioCount))
	off := v.u64(ioDataOffset)
	return IO{
		Port:  binary.NativeEndian.Uint16(v.run[ioPort:]),
		Size:  size,
		Count: count,
		In:    v.run[ioDirection] != ioDirectionOut,
		Data:  v.run[off:][: size*count : size*count],
	}
}

// MMIO is an access to guest memory without a slot (KVM_EXIT_MMIO).
type MMIO struct {
	Addr  uint64 // guest physical address
	Data  []byte // 1 to 8 bytes in guest byte order; for reads the handler fills it
	Write bool
}

// Offsets of kvm_run.mmio.
const (
	mmioAddr    = runUnion + 0
	mmioData    = runUnion + 8
	mmioLen     = runUnion + 16
	mmioIsWrite = runUnion + 20
)

// MMIO decodes ExitMMIO. Data is a view of the run page.
func (e Exit) MMIO() MMIO {
	v := e.vcpu
	n := min(v.u32(mmioLen), mmioDataBytes)
	return MMIO{
		Addr:  v.u64(mmioAddr),
		Data:  v.run[mmioData : mmioData+n : mmioData+n],
		Write: v.run[mmioIsWrite] != 0,
	}
}

// HardwareReason decodes ExitUnknown: the processor's own exit code.
func (e Exit) HardwareReason() uint64 { return e.vcpu.u64(runUnion) }

// FailEntry is a guest entry the processor refused (KVM_EXIT_FAIL_ENTRY).
type FailEntry struct {
	HardwareReason uint64 // VMX: exit reason with bit 31 set; SVM: VMEXIT_INVALID
	CPU            uint32 // the host processor
}

// FailEntry decodes ExitFailEntry.
func (e Exit) FailEntry() FailEntry {
	return FailEntry{HardwareReason: e.vcpu.u64(runUnion), CPU: e.vcpu.u32(runUnion + 8)}
}

// Suberror says what KVM could not do in ExitInternalError.
type Suberror uint32

// Suberrors of KVM_EXIT_INTERNAL_ERROR.
const (
	SuberrorEmulation      Suberror = 1 // KVM_INTERNAL_ERROR_EMULATION: an instruction its emulator lacks
	SuberrorSimulEx        Suberror = 2 // KVM_INTERNAL_ERROR_SIMUL_EX: unexpected simultaneous exceptions
	SuberrorDeliveryEv     Suberror = 3 // KVM_INTERNAL_ERROR_DELIVERY_EV: exit while an event was delivered
	SuberrorUnexpectedExit Suberror = 4 // KVM_INTERNAL_ERROR_UNEXPECTED_EXIT_REASON
)

// String describes the suberror.
func (s Suberror) String() string {
	switch s {
	case SuberrorEmulation:
		return "instruction emulation failed"
	case SuberrorSimulEx:
		return "unexpected simultaneous exceptions"
	case SuberrorDeliveryEv:
		return "unexpected exit while an event was delivered"
	case SuberrorUnexpectedExit:
		return "unexpected hardware exit reason"
	}
	return fmt.Sprintf("suberror %d", uint32(s))
}

// InternalError is KVM giving up (KVM_EXIT_INTERNAL_ERROR).
type InternalError struct {
	Suberror Suberror
	Data     [exitWords]uint64 // details without a stable meaning; NData are valid
	NData    int
	// Instruction holds the bytes at the guest's RIP if Suberror is
	// SuberrorEmulation and KVM could fetch them. A view of the run page.
	Instruction []byte
}

// Offsets of kvm_run.internal and kvm_run.emulation_failure.
const (
	internalSuberror = runUnion + 0
	internalNData    = runUnion + 4
	internalData     = runUnion + 8
	emulationFlags   = runUnion + 8
	emulationSize    = runUnion + 16
	emulationBytes   = runUnion + 17

	emulationFlagInstructionBytes = 1 << 0 // KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES
)

// InternalError decodes ExitInternalError.
func (e Exit) InternalError() InternalError {
	v := e.vcpu
	ie := InternalError{Suberror: Suberror(v.u32(internalSuberror))}
	ie.Data, ie.NData = v.words(internalData, v.u32(internalNData))
	if ie.Suberror == SuberrorEmulation && ie.NData >= 1 && v.u64(emulationFlags)&emulationFlagInstructionBytes != 0 {
		n := min(int(v.run[emulationSize]), insnBytes)
		ie.Instruction = v.run[emulationBytes : emulationBytes+n : emulationBytes+n]
	}
	return ie
}

// SystemEventType is the kind of a system event.
type SystemEventType uint32

// System events.
const (
	SystemEventShutdown SystemEventType = 1 // KVM_SYSTEM_EVENT_SHUTDOWN
	SystemEventReset    SystemEventType = 2 // KVM_SYSTEM_EVENT_RESET
	SystemEventCrash    SystemEventType = 3 // KVM_SYSTEM_EVENT_CRASH: Hyper-V crash MSRs
	SystemEventWakeup   SystemEventType = 4 // KVM_SYSTEM_EVENT_WAKEUP
	SystemEventSuspend  SystemEventType = 5 // KVM_SYSTEM_EVENT_SUSPEND
	SystemEventSEVTerm  SystemEventType = 6 // KVM_SYSTEM_EVENT_SEV_TERM
)

// SystemEvent is an event of the whole machine (KVM_EXIT_SYSTEM_EVENT).
type SystemEvent struct {
	Type  SystemEventType
	Data  [exitWords]uint64 // NData are valid
	NData int
}

// SystemEvent decodes ExitSystemEvent.
func (e Exit) SystemEvent() SystemEvent {
	ev := SystemEvent{Type: SystemEventType(e.vcpu.u32(runUnion))}
	ev.Data, ev.NData = e.vcpu.words(runUnion+8, e.vcpu.u32(runUnion+4))
	return ev
}

// MemoryFault is a guest access KVM could not resolve (KVM_EXIT_MEMORY_FAULT).
type MemoryFault struct {
	Flags uint64
	GPA   uint64 // guest physical address
	Size  uint64 // bytes
}

// MemoryFault decodes ExitMemoryFault, which Run returns with an error.
func (e Exit) MemoryFault() MemoryFault {
	v := e.vcpu
	return MemoryFault{Flags: v.u64(runUnion), GPA: v.u64(runUnion + 8), Size: v.u64(runUnion + 16)}
}

// NotifyFlags decodes ExitNotify (kvm_run.notify.flags); bit 0 means that the
// guest's state is lost (KVM_NOTIFY_CONTEXT_INVALID).
func (e Exit) NotifyFlags() uint32 { return e.vcpu.u32(runUnion) }

// String describes the exit in one line, for logs and error messages.
func (e Exit) String() string {
	switch e.Reason {
	case ExitUnknown:
		return fmt.Sprintf("%v hardware reason %#x", e.Reason, e.HardwareReason())
	case ExitIO:
		x := e.IO()
		return fmt.Sprintf("%v port %#x size %d count %d in %t", e.Reason, x.Port, x.Size, x.Count, x.In)
	case ExitMMIO:
		x := e.MMIO()
		return fmt.Sprintf("%v address %#x size %d write %t", e.Reason, x.Addr, len(x.Data), x.Write)
	case ExitFailEntry:
		x := e.FailEntry()
		return fmt.Sprintf("%v hardware reason %#x on CPU %d", e.Reason, x.HardwareReason, x.CPU)
	case ExitInternalError:
		x := e.InternalError()
		if x.Instruction != nil {
			return fmt.Sprintf("%v %v: % x", e.Reason, x.Suberror, x.Instruction)
		}
		return fmt.Sprintf("%v %v %#x", e.Reason, x.Suberror, x.Data[:x.NData])
	case ExitSystemEvent:
		x := e.SystemEvent()
		return fmt.Sprintf("%v type %d %#x", e.Reason, x.Type, x.Data[:x.NData])
	}
	return e.Reason.String()
}
