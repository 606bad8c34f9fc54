// SPDX-License-Identifier: Apache-2.0

package kvm

// Regs are the general registers (struct kvm_regs).
type Regs struct {
	RAX, RBX, RCX, RDX uint64
	RSI, RDI, RSP, RBP uint64
	R8, R9, R10, R11   uint64
	R12, R13, R14, R15 uint64
	RIP, RFLAGS        uint64
}

// Segment is a segment register with its cached descriptor (struct kvm_segment).
type Segment struct {
	Base     uint64
	Limit    uint32 // in bytes, also if G is set
	Selector uint16
	Type     uint8 // descriptor type, 4 bits
	Present  uint8
	DPL      uint8 // privilege level, 2 bits
	DB       uint8 // default operation size
	S        uint8 // 1 code or data, 0 system
	L        uint8 // 64-bit code
	G        uint8 // granularity
	AVL      uint8
	Unusable uint8
	_        uint8
}

// DTable is a descriptor table register (struct kvm_dtable).
type DTable struct {
	Base  uint64
	Limit uint16
	_     [3]uint16
}

// SRegs are the special registers (struct kvm_sregs).
type SRegs struct {
	CS, DS, ES, FS, GS, SS  Segment
	TR, LDT                 Segment
	GDT, IDT                DTable
	CR0, CR2, CR3, CR4, CR8 uint64
	EFER                    uint64
	APICBase                uint64
	InterruptBitmap         [4]uint64 // at most one bit: the pending external interrupt
}

// SRegs2 is SRegs with the PAE page directory pointers instead of the interrupt
// bitmap (struct kvm_sregs2, needs CapSRegs2).
type SRegs2 struct {
	CS, DS, ES, FS, GS, SS  Segment
	TR, LDT                 Segment
	GDT, IDT                DTable
	CR0, CR2, CR3, CR4, CR8 uint64
	EFER                    uint64
	APICBase                uint64
	Flags                   uint64 // SRegs2PDPTRsValid
	PDPTRs                  [4]uint64
}

// SRegs2PDPTRsValid says that PDPTRs are set (KVM_SREGS2_FLAGS_PDPTRS_VALID).
const SRegs2PDPTRsValid = 1

// FPU is the x87 and SSE state (struct kvm_fpu). KVM transfers all of it but
// MXCSR; XSave has that too.
type FPU struct {
	FPR        [8][16]uint8
	FCW        uint16
	FSW        uint16
	FTWX       uint8 // tag word in FXSAVE format
	_          uint8
	LastOpcode uint16
	LastIP     uint64
	LastDP     uint64
	XMM        [16][16]uint8
	MXCSR      uint32
	_          uint32
}

// XCR is an extended control register (struct kvm_xcr). XCR 0 enables state
// components.
type XCR struct {
	XCR   uint32
	_     uint32
	Value uint64
}

// maxXCRs is KVM_MAX_XCRS.
const maxXCRs = 16

// xcrs is struct kvm_xcrs.
type xcrs struct {
	NrXCRs uint32
	Flags  uint32
	XCRs   [maxXCRs]XCR
	_      [16]uint64
}

// Flags of VCPUEvents: which members SetVCPUEvents shall use.
const (
	EventValidNMIPending  = 1 << 0 // KVM_VCPUEVENT_VALID_NMI_PENDING
	EventValidSIPIVector  = 1 << 1 // KVM_VCPUEVENT_VALID_SIPI_VECTOR
	EventValidShadow      = 1 << 2 // KVM_VCPUEVENT_VALID_SHADOW
	EventValidSMM         = 1 << 3 // KVM_VCPUEVENT_VALID_SMM
	EventValidPayload     = 1 << 4 // KVM_VCPUEVENT_VALID_PAYLOAD
	EventValidTripleFault = 1 << 5 // KVM_VCPUEVENT_VALID_TRIPLE_FAULT
)

// VCPUEvents are pending and injected exceptions, interrupts, NMIs and SMIs
// (struct kvm_vcpu_events).
type VCPUEvents struct {
	Exception struct {
		Injected     uint8
		Nr           uint8 // vector
		HasErrorCode uint8
		Pending      uint8
		ErrorCode    uint32
	}
	Interrupt struct {
		Injected uint8
		Nr       uint8
		Soft     uint8
		Shadow   uint8 // 1 MOV SS, 2 STI
	}
	NMI struct {
		Injected uint8
		Pending  uint8
		Masked   uint8
		_        uint8
	}
	SIPIVector uint32
	Flags      uint32 // EventValid constants
	SMI        struct {
		SMM          uint8
		Pending      uint8
		SMMInsideNMI uint8
		LatchedInit  uint8
	}
	TripleFaultPending  uint8
	_                   [26]uint8
	ExceptionHasPayload uint8
	ExceptionPayload    uint64
}

// DebugRegs are the debug registers (struct kvm_debugregs).
type DebugRegs struct {
	DB    [4]uint64 // DR0 to DR3
	DR6   uint64
	DR7   uint64
	Flags uint64 // 0
	_     [9]uint64
}

// LAPICSize is KVM_APIC_REG_SIZE, the bytes of the APIC register page that KVM
// keeps.
const LAPICSize = 0x400

// LAPIC is the local APIC's register page (struct kvm_lapic_state): 32-bit
// registers every 16 bytes, at the offsets of Intel SDM volume 3, table 11-1.
type LAPIC [LAPICSize]byte

// Offsets of local APIC registers.
const (
	LAPICID    = 0x20  // ID
	LAPICTPR   = 0x80  // task priority
	LAPICSVR   = 0xf0  // spurious interrupt vector; bit 8 enables the APIC
	LAPICISR   = 0x100 // in service, 8 registers
	LAPICTMR   = 0x180 // trigger mode, 8 registers
	LAPICIRR   = 0x200 // interrupt request, 8 registers
	LAPICLVT0  = 0x350 // LINT0
	LAPICLVT1  = 0x360 // LINT1
	LAPICTimer = 0x320 // LVT timer
)

// Reg returns the register at offset off, a multiple of 16 below LAPICSize; other
// offsets give 0.
func (l *LAPIC) Reg(off int) uint32 {
	if off < 0 || off > LAPICSize-4 {
		return 0
	}
	return uint32(l[off]) | uint32(l[off+1])<<8 | uint32(l[off+2])<<16 | uint32(l[off+3])<<24
}

// SetReg sets the register at offset off; other offsets are ignored.
func (l *LAPIC) SetReg(off int, x uint32) {
	if off < 0 || off > LAPICSize-4 {
		return
	}
	l[off], l[off+1], l[off+2], l[off+3] = byte(x), byte(x>>8), byte(x>>16), byte(x>>24)
}

// Requested reports whether vector waits in the interrupt request register.
func (l *LAPIC) Requested(vector uint8) bool {
	return l.Reg(LAPICIRR+int(vector)/32*16)>>(vector%32)&1 != 0
}

// Translation is the result of Translate (struct kvm_translation).
type Translation struct {
	LinearAddress   uint64
	PhysicalAddress uint64
	Valid           uint8
	Writeable       uint8
	UserMode        uint8
	_               [5]uint8
}

// Flags of GuestDebug.Control.
const (
	GuestDebugEnable     = 1 << 0  // KVM_GUESTDBG_ENABLE
	GuestDebugSingleStep = 1 << 1  // KVM_GUESTDBG_SINGLESTEP
	GuestDebugUseSWBP    = 1 << 16 // KVM_GUESTDBG_USE_SW_BP: int3 exits
	GuestDebugUseHWBP    = 1 << 17 // KVM_GUESTDBG_USE_HW_BP: DebugReg is used
	GuestDebugInjectDB   = 1 << 18 // KVM_GUESTDBG_INJECT_DB
	GuestDebugInjectBP   = 1 << 19 // KVM_GUESTDBG_INJECT_BP
	GuestDebugBlockIRQ   = 1 << 20 // KVM_GUESTDBG_BLOCKIRQ
)

// GuestDebug is the debugger's control of a vCPU (struct kvm_guest_debug).
type GuestDebug struct {
	Control  uint32
	_        uint32
	DebugReg [8]uint64 // DR0 to DR7 in the guest's place
}
