// SPDX-License-Identifier: Apache-2.0

package kvm

import "fmt"

// Cap is a capability number for KVM_CHECK_EXTENSION and KVM_ENABLE_CAP. The
// value CheckExtension returns is 0 for "no"; otherwise 1 or, where the comment
// says so, a count, a size or a mask.
type Cap uint32

// Capabilities of x86-64 and POWER hosts, each with the kernel's name
// (include/uapi/linux/kvm.h).
const (
	CapIRQChip                  Cap = 0   // KVM_CAP_IRQCHIP
	CapHLT                      Cap = 1   // KVM_CAP_HLT
	CapUserMemory               Cap = 3   // KVM_CAP_USER_MEMORY
	CapSetTSSAddr               Cap = 4   // KVM_CAP_SET_TSS_ADDR
	CapExtCPUID                 Cap = 7   // KVM_CAP_EXT_CPUID
	CapClockSource              Cap = 8   // KVM_CAP_CLOCKSOURCE
	CapNrVCPUs                  Cap = 9   // KVM_CAP_NR_VCPUS; value: recommended vCPUs per VM
	CapNrMemSlots               Cap = 10  // KVM_CAP_NR_MEMSLOTS; value: memory slots per VM
	CapPIT                      Cap = 11  // KVM_CAP_PIT
	CapMPState                  Cap = 14  // KVM_CAP_MP_STATE
	CapCoalescedMMIO            Cap = 15  // KVM_CAP_COALESCED_MMIO; value: page offset in the run mapping
	CapSyncMMU                  Cap = 16  // KVM_CAP_SYNC_MMU
	CapDestroyMemoryRegionWorks Cap = 21  // KVM_CAP_DESTROY_MEMORY_REGION_WORKS
	CapUserNMI                  Cap = 22  // KVM_CAP_USER_NMI
	CapSetGuestDebug            Cap = 23  // KVM_CAP_SET_GUEST_DEBUG
	CapReinjectControl          Cap = 24  // KVM_CAP_REINJECT_CONTROL
	CapIRQRouting               Cap = 25  // KVM_CAP_IRQ_ROUTING; value: largest number of GSIs
	CapIRQInjectStatus          Cap = 26  // KVM_CAP_IRQ_INJECT_STATUS
	CapJoinMemoryRegionsWorks   Cap = 30  // KVM_CAP_JOIN_MEMORY_REGIONS_WORKS
	CapMCE                      Cap = 31  // KVM_CAP_MCE; value: machine-check banks
	CapIRQFD                    Cap = 32  // KVM_CAP_IRQFD
	CapPIT2                     Cap = 33  // KVM_CAP_PIT2
	CapSetBootCPUID             Cap = 34  // KVM_CAP_SET_BOOT_CPU_ID
	CapPITState2                Cap = 35  // KVM_CAP_PIT_STATE2
	CapIOEventFD                Cap = 36  // KVM_CAP_IOEVENTFD
	CapSetIdentityMapAddr       Cap = 37  // KVM_CAP_SET_IDENTITY_MAP_ADDR
	CapAdjustClock              Cap = 39  // KVM_CAP_ADJUST_CLOCK; value: mask of ClockFlags
	CapInternalErrorData        Cap = 40  // KVM_CAP_INTERNAL_ERROR_DATA
	CapVCPUEvents               Cap = 41  // KVM_CAP_VCPU_EVENTS
	CapHyperV                   Cap = 44  // KVM_CAP_HYPERV
	CapHyperVVapic              Cap = 45  // KVM_CAP_HYPERV_VAPIC
	CapHyperVSpin               Cap = 46  // KVM_CAP_HYPERV_SPIN
	CapIntrShadow               Cap = 49  // KVM_CAP_INTR_SHADOW
	CapDebugRegs                Cap = 50  // KVM_CAP_DEBUGREGS
	CapX86RobustSinglestep      Cap = 51  // KVM_CAP_X86_ROBUST_SINGLESTEP
	CapPPCUnsetIRQ              Cap = 53  // KVM_CAP_PPC_UNSET_IRQ
	CapEnableCap                Cap = 54  // KVM_CAP_ENABLE_CAP
	CapXSave                    Cap = 55  // KVM_CAP_XSAVE
	CapXCRs                     Cap = 56  // KVM_CAP_XCRS
	CapPPCIRQLevel              Cap = 58  // KVM_CAP_PPC_IRQ_LEVEL
	CapAsyncPF                  Cap = 59  // KVM_CAP_ASYNC_PF
	CapTSCControl               Cap = 60  // KVM_CAP_TSC_CONTROL
	CapGetTSCKHz                Cap = 61  // KVM_CAP_GET_TSC_KHZ
	CapSPAPRTCE                 Cap = 63  // KVM_CAP_SPAPR_TCE
	CapPPCSMT                   Cap = 64  // KVM_CAP_PPC_SMT; value: threads per virtual core
	CapMaxVCPUs                 Cap = 66  // KVM_CAP_MAX_VCPUS; value: vCPUs per VM
	CapPPCPAPR                  Cap = 68  // KVM_CAP_PPC_PAPR
	CapOneReg                   Cap = 70  // KVM_CAP_ONE_REG
	CapTSCDeadlineTimer         Cap = 72  // KVM_CAP_TSC_DEADLINE_TIMER
	CapSyncRegs                 Cap = 74  // KVM_CAP_SYNC_REGS; value: mask of register classes
	CapKVMClockCtrl             Cap = 76  // KVM_CAP_KVMCLOCK_CTRL
	CapSignalMSI                Cap = 77  // KVM_CAP_SIGNAL_MSI
	CapPPCGetSMMUInfo           Cap = 78  // KVM_CAP_PPC_GET_SMMU_INFO
	CapPPCAllocHTab             Cap = 80  // KVM_CAP_PPC_ALLOC_HTAB
	CapReadOnlyMem              Cap = 81  // KVM_CAP_READONLY_MEM
	CapIRQFDResample            Cap = 82  // KVM_CAP_IRQFD_RESAMPLE
	CapPPCHTabFD                Cap = 84  // KVM_CAP_PPC_HTAB_FD
	CapDeviceCtrl               Cap = 89  // KVM_CAP_DEVICE_CTRL
	CapPPCRTAS                  Cap = 91  // KVM_CAP_PPC_RTAS
	CapIRQXICS                  Cap = 92  // KVM_CAP_IRQ_XICS
	CapSPAPRMultiTCE            Cap = 94  // KVM_CAP_SPAPR_MULTITCE
	CapExtEmulCPUID             Cap = 95  // KVM_CAP_EXT_EMUL_CPUID
	CapHyperVTime               Cap = 96  // KVM_CAP_HYPERV_TIME
	CapIOAPICPolarityIgnored    Cap = 97  // KVM_CAP_IOAPIC_POLARITY_IGNORED
	CapEnableCapVM              Cap = 98  // KVM_CAP_ENABLE_CAP_VM
	CapIOEventFDNoLength        Cap = 100 // KVM_CAP_IOEVENTFD_NO_LENGTH
	CapVMAttributes             Cap = 101 // KVM_CAP_VM_ATTRIBUTES
	CapPPCFixupHCall            Cap = 103 // KVM_CAP_PPC_FIXUP_HCALL
	CapPPCEnableHCall           Cap = 104 // KVM_CAP_PPC_ENABLE_HCALL
	CapCheckExtensionVM         Cap = 105 // KVM_CAP_CHECK_EXTENSION_VM
	CapPPCHWRNG                 Cap = 115 // KVM_CAP_PPC_HWRNG
	CapDisableQuirks            Cap = 116 // KVM_CAP_DISABLE_QUIRKS
	CapX86SMM                   Cap = 117 // KVM_CAP_X86_SMM
	CapGuestDebugHwBPs          Cap = 119 // KVM_CAP_GUEST_DEBUG_HW_BPS; value: hardware breakpoints
	CapGuestDebugHwWPs          Cap = 120 // KVM_CAP_GUEST_DEBUG_HW_WPS; value: hardware watchpoints
	CapSplitIRQChip             Cap = 121 // KVM_CAP_SPLIT_IRQCHIP
	CapIOEventFDAnyLength       Cap = 122 // KVM_CAP_IOEVENTFD_ANY_LENGTH
	CapHyperVSynIC              Cap = 123 // KVM_CAP_HYPERV_SYNIC
	CapSPAPRTCE64               Cap = 125 // KVM_CAP_SPAPR_TCE_64
	CapVCPUAttributes           Cap = 127 // KVM_CAP_VCPU_ATTRIBUTES
	CapMaxVCPUID                Cap = 128 // KVM_CAP_MAX_VCPU_ID; value: vCPU ids are below it
	CapX2APICAPI                Cap = 129 // KVM_CAP_X2APIC_API
	CapPPCHTM                   Cap = 132 // KVM_CAP_PPC_HTM
	CapSPAPRResizeHPT           Cap = 133 // KVM_CAP_SPAPR_RESIZE_HPT
	CapPPCMMURadix              Cap = 134 // KVM_CAP_PPC_MMU_RADIX
	CapPPCMMUHashV3             Cap = 135 // KVM_CAP_PPC_MMU_HASH_V3
	CapImmediateExit            Cap = 136 // KVM_CAP_IMMEDIATE_EXIT
	CapX86DisableExits          Cap = 143 // KVM_CAP_X86_DISABLE_EXITS; value: mask of exits
	CapPPCFWNMI                 Cap = 146 // KVM_CAP_PPC_FWNMI
	CapPPCSMTPossible           Cap = 147 // KVM_CAP_PPC_SMT_POSSIBLE
	CapHyperVSynIC2             Cap = 148 // KVM_CAP_HYPERV_SYNIC2
	CapHyperVVPIndex            Cap = 149 // KVM_CAP_HYPERV_VP_INDEX
	CapPPCGetCPUChar            Cap = 151 // KVM_CAP_PPC_GET_CPU_CHAR
	CapGetMSRFeatures           Cap = 153 // KVM_CAP_GET_MSR_FEATURES
	CapHyperVEventFD            Cap = 154 // KVM_CAP_HYPERV_EVENTFD
	CapHyperVTLBFlush           Cap = 155 // KVM_CAP_HYPERV_TLBFLUSH
	CapNestedState              Cap = 157 // KVM_CAP_NESTED_STATE
	CapMSRPlatformInfo          Cap = 159 // KVM_CAP_MSR_PLATFORM_INFO
	CapPPCNestedHV              Cap = 160 // KVM_CAP_PPC_NESTED_HV
	CapHyperVSendIPI            Cap = 161 // KVM_CAP_HYPERV_SEND_IPI
	CapCoalescedPIO             Cap = 162 // KVM_CAP_COALESCED_PIO
	CapHyperVEnlightenedVMCS    Cap = 163 // KVM_CAP_HYPERV_ENLIGHTENED_VMCS
	CapExceptionPayload         Cap = 164 // KVM_CAP_EXCEPTION_PAYLOAD
	CapHyperVCPUID              Cap = 167 // KVM_CAP_HYPERV_CPUID
	CapManualDirtyLogProtect2   Cap = 168 // KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2; value: mask of flags
	CapPPCIRQXIVE               Cap = 169 // KVM_CAP_PPC_IRQ_XIVE
	CapPMUEventFilter           Cap = 173 // KVM_CAP_PMU_EVENT_FILTER
	CapHyperVDirectTLBFlush     Cap = 175 // KVM_CAP_HYPERV_DIRECT_TLBFLUSH
	CapPPCGuestDebugSStep       Cap = 176 // KVM_CAP_PPC_GUEST_DEBUG_SSTEP
	CapPPCSecureGuest           Cap = 181 // KVM_CAP_PPC_SECURE_GUEST
	CapHaltPoll                 Cap = 182 // KVM_CAP_HALT_POLL
	CapAsyncPFInt               Cap = 183 // KVM_CAP_ASYNC_PF_INT
	CapSmallerMaxPhyAddr        Cap = 185 // KVM_CAP_SMALLER_MAXPHYADDR
	CapStealTime                Cap = 187 // KVM_CAP_STEAL_TIME
	CapX86UserSpaceMSR          Cap = 188 // KVM_CAP_X86_USER_SPACE_MSR; value: mask of MSRExitReason
	CapX86MSRFilter             Cap = 189 // KVM_CAP_X86_MSR_FILTER
	CapEnforcePVFeatureCPUID    Cap = 190 // KVM_CAP_ENFORCE_PV_FEATURE_CPUID
	CapSysHyperVCPUID           Cap = 191 // KVM_CAP_SYS_HYPERV_CPUID
	CapDirtyLogRing             Cap = 192 // KVM_CAP_DIRTY_LOG_RING; value: largest ring in bytes
	CapX86BusLockExit           Cap = 193 // KVM_CAP_X86_BUS_LOCK_EXIT
	CapPPCDAWR1                 Cap = 194 // KVM_CAP_PPC_DAWR1
	CapSetGuestDebug2           Cap = 195 // KVM_CAP_SET_GUEST_DEBUG2
	CapHyperVEnforceCPUID       Cap = 199 // KVM_CAP_HYPERV_ENFORCE_CPUID
	CapSRegs2                   Cap = 200 // KVM_CAP_SREGS2
	CapExitHypercall            Cap = 201 // KVM_CAP_EXIT_HYPERCALL
	CapPPCRPTInvalidate         Cap = 202 // KVM_CAP_PPC_RPT_INVALIDATE
	CapBinaryStatsFD            Cap = 203 // KVM_CAP_BINARY_STATS_FD
	CapExitOnEmulationFailure   Cap = 204 // KVM_CAP_EXIT_ON_EMULATION_FAILURE
	CapVMGPABits                Cap = 207 // KVM_CAP_VM_GPA_BITS; value: guest physical address bits
	CapXSave2                   Cap = 208 // KVM_CAP_XSAVE2; value: bytes of the XSAVE state
	CapSysAttributes            Cap = 209 // KVM_CAP_SYS_ATTRIBUTES
	CapPPCAILMode3              Cap = 210 // KVM_CAP_PPC_AIL_MODE_3
	CapPMUCapability            Cap = 212 // KVM_CAP_PMU_CAPABILITY
	CapDisableQuirks2           Cap = 213 // KVM_CAP_DISABLE_QUIRKS2; value: mask of quirks
	CapVMTSCControl             Cap = 214 // KVM_CAP_VM_TSC_CONTROL
	CapSystemEventData          Cap = 215 // KVM_CAP_SYSTEM_EVENT_DATA
	CapX86TripleFaultEvent      Cap = 218 // KVM_CAP_X86_TRIPLE_FAULT_EVENT
	CapX86NotifyVMExit          Cap = 219 // KVM_CAP_X86_NOTIFY_VMEXIT
	CapVMDisableNXHugePages     Cap = 220 // KVM_CAP_VM_DISABLE_NX_HUGE_PAGES
	CapDirtyLogRingAcqRel       Cap = 223 // KVM_CAP_DIRTY_LOG_RING_ACQ_REL; value: largest ring in bytes
	CapMemoryFaultInfo          Cap = 232 // KVM_CAP_MEMORY_FAULT_INFO
	CapMemoryAttributes         Cap = 233 // KVM_CAP_MEMORY_ATTRIBUTES
	CapGuestMemFD               Cap = 234 // KVM_CAP_GUEST_MEMFD
	CapVMTypes                  Cap = 235 // KVM_CAP_VM_TYPES
	CapPreFaultMemory           Cap = 236 // KVM_CAP_PRE_FAULT_MEMORY
	CapX86APICBusCyclesNS       Cap = 237 // KVM_CAP_X86_APIC_BUS_CYCLES_NS
	CapX86GuestMode             Cap = 238 // KVM_CAP_X86_GUEST_MODE
)

// capNames holds the kernel's names; gaps are numbers this package does not use.
var capNames = [...]string{
	CapIRQChip:                  "KVM_CAP_IRQCHIP",
	CapHLT:                      "KVM_CAP_HLT",
	CapUserMemory:               "KVM_CAP_USER_MEMORY",
	CapSetTSSAddr:               "KVM_CAP_SET_TSS_ADDR",
	CapExtCPUID:                 "KVM_CAP_EXT_CPUID",
	CapClockSource:              "KVM_CAP_CLOCKSOURCE",
	CapNrVCPUs:                  "KVM_CAP_NR_VCPUS",
	CapNrMemSlots:               "KVM_CAP_NR_MEMSLOTS",
	CapPIT:                      "KVM_CAP_PIT",
	CapMPState:                  "KVM_CAP_MP_STATE",
	CapCoalescedMMIO:            "KVM_CAP_COALESCED_MMIO",
	CapSyncMMU:                  "KVM_CAP_SYNC_MMU",
	CapDestroyMemoryRegionWorks: "KVM_CAP_DESTROY_MEMORY_REGION_WORKS",
	CapUserNMI:                  "KVM_CAP_USER_NMI",
	CapSetGuestDebug:            "KVM_CAP_SET_GUEST_DEBUG",
	CapReinjectControl:          "KVM_CAP_REINJECT_CONTROL",
	CapIRQRouting:               "KVM_CAP_IRQ_ROUTING",
	CapIRQInjectStatus:          "KVM_CAP_IRQ_INJECT_STATUS",
	CapJoinMemoryRegionsWorks:   "KVM_CAP_JOIN_MEMORY_REGIONS_WORKS",
	CapMCE:                      "KVM_CAP_MCE",
	CapIRQFD:                    "KVM_CAP_IRQFD",
	CapPIT2:                     "KVM_CAP_PIT2",
	CapSetBootCPUID:             "KVM_CAP_SET_BOOT_CPU_ID",
	CapPITState2:                "KVM_CAP_PIT_STATE2",
	CapIOEventFD:                "KVM_CAP_IOEVENTFD",
	CapSetIdentityMapAddr:       "KVM_CAP_SET_IDENTITY_MAP_ADDR",
	CapAdjustClock:              "KVM_CAP_ADJUST_CLOCK",
	CapInternalErrorData:        "KVM_CAP_INTERNAL_ERROR_DATA",
	CapVCPUEvents:               "KVM_CAP_VCPU_EVENTS",
	CapHyperV:                   "KVM_CAP_HYPERV",
	CapHyperVVapic:              "KVM_CAP_HYPERV_VAPIC",
	CapHyperVSpin:               "KVM_CAP_HYPERV_SPIN",
	CapIntrShadow:               "KVM_CAP_INTR_SHADOW",
	CapDebugRegs:                "KVM_CAP_DEBUGREGS",
	CapX86RobustSinglestep:      "KVM_CAP_X86_ROBUST_SINGLESTEP",
	CapPPCUnsetIRQ:              "KVM_CAP_PPC_UNSET_IRQ",
	CapEnableCap:                "KVM_CAP_ENABLE_CAP",
	CapXSave:                    "KVM_CAP_XSAVE",
	CapXCRs:                     "KVM_CAP_XCRS",
	CapPPCIRQLevel:              "KVM_CAP_PPC_IRQ_LEVEL",
	CapAsyncPF:                  "KVM_CAP_ASYNC_PF",
	CapTSCControl:               "KVM_CAP_TSC_CONTROL",
	CapGetTSCKHz:                "KVM_CAP_GET_TSC_KHZ",
	CapSPAPRTCE:                 "KVM_CAP_SPAPR_TCE",
	CapPPCSMT:                   "KVM_CAP_PPC_SMT",
	CapMaxVCPUs:                 "KVM_CAP_MAX_VCPUS",
	CapPPCPAPR:                  "KVM_CAP_PPC_PAPR",
	CapOneReg:                   "KVM_CAP_ONE_REG",
	CapTSCDeadlineTimer:         "KVM_CAP_TSC_DEADLINE_TIMER",
	CapSyncRegs:                 "KVM_CAP_SYNC_REGS",
	CapKVMClockCtrl:             "KVM_CAP_KVMCLOCK_CTRL",
	CapSignalMSI:                "KVM_CAP_SIGNAL_MSI",
	CapPPCGetSMMUInfo:           "KVM_CAP_PPC_GET_SMMU_INFO",
	CapPPCAllocHTab:             "KVM_CAP_PPC_ALLOC_HTAB",
	CapReadOnlyMem:              "KVM_CAP_READONLY_MEM",
	CapIRQFDResample:            "KVM_CAP_IRQFD_RESAMPLE",
	CapPPCHTabFD:                "KVM_CAP_PPC_HTAB_FD",
	CapDeviceCtrl:               "KVM_CAP_DEVICE_CTRL",
	CapPPCRTAS:                  "KVM_CAP_PPC_RTAS",
	CapIRQXICS:                  "KVM_CAP_IRQ_XICS",
	CapSPAPRMultiTCE:            "KVM_CAP_SPAPR_MULTITCE",
	CapExtEmulCPUID:             "KVM_CAP_EXT_EMUL_CPUID",
	CapHyperVTime:               "KVM_CAP_HYPERV_TIME",
	CapIOAPICPolarityIgnored:    "KVM_CAP_IOAPIC_POLARITY_IGNORED",
	CapEnableCapVM:              "KVM_CAP_ENABLE_CAP_VM",
	CapIOEventFDNoLength:        "KVM_CAP_IOEVENTFD_NO_LENGTH",
	CapVMAttributes:             "KVM_CAP_VM_ATTRIBUTES",
	CapPPCFixupHCall:            "KVM_CAP_PPC_FIXUP_HCALL",
	CapPPCEnableHCall:           "KVM_CAP_PPC_ENABLE_HCALL",
	CapCheckExtensionVM:         "KVM_CAP_CHECK_EXTENSION_VM",
	CapPPCHWRNG:                 "KVM_CAP_PPC_HWRNG",
	CapDisableQuirks:            "KVM_CAP_DISABLE_QUIRKS",
	CapX86SMM:                   "KVM_CAP_X86_SMM",
	CapGuestDebugHwBPs:          "KVM_CAP_GUEST_DEBUG_HW_BPS",
	CapGuestDebugHwWPs:          "KVM_CAP_GUEST_DEBUG_HW_WPS",
	CapSplitIRQChip:             "KVM_CAP_SPLIT_IRQCHIP",
	CapIOEventFDAnyLength:       "KVM_CAP_IOEVENTFD_ANY_LENGTH",
	CapHyperVSynIC:              "KVM_CAP_HYPERV_SYNIC",
	CapSPAPRTCE64:               "KVM_CAP_SPAPR_TCE_64",
	CapVCPUAttributes:           "KVM_CAP_VCPU_ATTRIBUTES",
	CapMaxVCPUID:                "KVM_CAP_MAX_VCPU_ID",
	CapX2APICAPI:                "KVM_CAP_X2APIC_API",
	CapPPCHTM:                   "KVM_CAP_PPC_HTM",
	CapSPAPRResizeHPT:           "KVM_CAP_SPAPR_RESIZE_HPT",
	CapPPCMMURadix:              "KVM_CAP_PPC_MMU_RADIX",
	CapPPCMMUHashV3:             "KVM_CAP_PPC_MMU_HASH_V3",
	CapImmediateExit:            "KVM_CAP_IMMEDIATE_EXIT",
	CapX86DisableExits:          "KVM_CAP_X86_DISABLE_EXITS",
	CapPPCFWNMI:                 "KVM_CAP_PPC_FWNMI",
	CapPPCSMTPossible:           "KVM_CAP_PPC_SMT_POSSIBLE",
	CapHyperVSynIC2:             "KVM_CAP_HYPERV_SYNIC2",
	CapHyperVVPIndex:            "KVM_CAP_HYPERV_VP_INDEX",
	CapPPCGetCPUChar:            "KVM_CAP_PPC_GET_CPU_CHAR",
	CapGetMSRFeatures:           "KVM_CAP_GET_MSR_FEATURES",
	CapHyperVEventFD:            "KVM_CAP_HYPERV_EVENTFD",
	CapHyperVTLBFlush:           "KVM_CAP_HYPERV_TLBFLUSH",
	CapNestedState:              "KVM_CAP_NESTED_STATE",
	CapMSRPlatformInfo:          "KVM_CAP_MSR_PLATFORM_INFO",
	CapPPCNestedHV:              "KVM_CAP_PPC_NESTED_HV",
	CapHyperVSendIPI:            "KVM_CAP_HYPERV_SEND_IPI",
	CapCoalescedPIO:             "KVM_CAP_COALESCED_PIO",
	CapHyperVEnlightenedVMCS:    "KVM_CAP_HYPERV_ENLIGHTENED_VMCS",
	CapExceptionPayload:         "KVM_CAP_EXCEPTION_PAYLOAD",
	CapHyperVCPUID:              "KVM_CAP_HYPERV_CPUID",
	CapManualDirtyLogProtect2:   "KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2",
	CapPPCIRQXIVE:               "KVM_CAP_PPC_IRQ_XIVE",
	CapPMUEventFilter:           "KVM_CAP_PMU_EVENT_FILTER",
	CapHyperVDirectTLBFlush:     "KVM_CAP_HYPERV_DIRECT_TLBFLUSH",
	CapPPCGuestDebugSStep:       "KVM_CAP_PPC_GUEST_DEBUG_SSTEP",
	CapPPCSecureGuest:           "KVM_CAP_PPC_SECURE_GUEST",
	CapHaltPoll:                 "KVM_CAP_HALT_POLL",
	CapAsyncPFInt:               "KVM_CAP_ASYNC_PF_INT",
	CapSmallerMaxPhyAddr:        "KVM_CAP_SMALLER_MAXPHYADDR",
	CapStealTime:                "KVM_CAP_STEAL_TIME",
	CapX86UserSpaceMSR:          "KVM_CAP_X86_USER_SPACE_MSR",
	CapX86MSRFilter:             "KVM_CAP_X86_MSR_FILTER",
	CapEnforcePVFeatureCPUID:    "KVM_CAP_ENFORCE_PV_FEATURE_CPUID",
	CapSysHyperVCPUID:           "KVM_CAP_SYS_HYPERV_CPUID",
	CapDirtyLogRing:             "KVM_CAP_DIRTY_LOG_RING",
	CapX86BusLockExit:           "KVM_CAP_X86_BUS_LOCK_EXIT",
	CapPPCDAWR1:                 "KVM_CAP_PPC_DAWR1",
	CapSetGuestDebug2:           "KVM_CAP_SET_GUEST_DEBUG2",
	CapHyperVEnforceCPUID:       "KVM_CAP_HYPERV_ENFORCE_CPUID",
	CapSRegs2:                   "KVM_CAP_SREGS2",
	CapExitHypercall:            "KVM_CAP_EXIT_HYPERCALL",
	CapPPCRPTInvalidate:         "KVM_CAP_PPC_RPT_INVALIDATE",
	CapBinaryStatsFD:            "KVM_CAP_BINARY_STATS_FD",
	CapExitOnEmulationFailure:   "KVM_CAP_EXIT_ON_EMULATION_FAILURE",
	CapVMGPABits:                "KVM_CAP_VM_GPA_BITS",
	CapXSave2:                   "KVM_CAP_XSAVE2",
	CapSysAttributes:            "KVM_CAP_SYS_ATTRIBUTES",
	CapPPCAILMode3:              "KVM_CAP_PPC_AIL_MODE_3",
	CapPMUCapability:            "KVM_CAP_PMU_CAPABILITY",
	CapDisableQuirks2:           "KVM_CAP_DISABLE_QUIRKS2",
	CapVMTSCControl:             "KVM_CAP_VM_TSC_CONTROL",
	CapSystemEventData:          "KVM_CAP_SYSTEM_EVENT_DATA",
	CapX86TripleFaultEvent:      "KVM_CAP_X86_TRIPLE_FAULT_EVENT",
	CapX86NotifyVMExit:          "KVM_CAP_X86_NOTIFY_VMEXIT",
	CapVMDisableNXHugePages:     "KVM_CAP_VM_DISABLE_NX_HUGE_PAGES",
	CapDirtyLogRingAcqRel:       "KVM_CAP_DIRTY_LOG_RING_ACQ_REL",
	CapMemoryFaultInfo:          "KVM_CAP_MEMORY_FAULT_INFO",
	CapMemoryAttributes:         "KVM_CAP_MEMORY_ATTRIBUTES",
	CapGuestMemFD:               "KVM_CAP_GUEST_MEMFD",
	CapVMTypes:                  "KVM_CAP_VM_TYPES",
	CapPreFaultMemory:           "KVM_CAP_PRE_FAULT_MEMORY",
	CapX86APICBusCyclesNS:       "KVM_CAP_X86_APIC_BUS_CYCLES_NS",
	CapX86GuestMode:             "KVM_CAP_X86_GUEST_MODE",
}

// String returns the kernel's name of the capability, "KVM_CAP_IRQCHIP" for
// CapIRQChip, or its number if this package does not know it.
func (c Cap) String() string {
	if int(c) < len(capNames) && capNames[c] != "" {
		return capNames[c]
	}
	return fmt.Sprintf("KVM_CAP(%d)", uint32(c))
}

// KnownCaps returns every capability this package has a name for, in rising
// order of number.
func KnownCaps() []Cap {
	var caps []Cap
	for c, name := range capNames {
		if name != "" {
			caps = append(caps, Cap(c))
		}
	}
	return caps
}
