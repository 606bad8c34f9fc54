// SPDX-License-Identifier: Apache-2.0

package kvm

import "testing"

func TestX86Layouts(t *testing.T) {
	checkLayouts(t, []layout{
		{Regs{}, 144, map[string]uintptr{"RSI": 32, "R8": 64, "RIP": 128, "RFLAGS": 136}},
		{Segment{}, 24, map[string]uintptr{"Limit": 8, "Selector": 12, "Type": 14, "Present": 15, "DPL": 16, "Unusable": 22}},
		{DTable{}, 16, map[string]uintptr{"Limit": 8}},
		{SRegs{}, 312, map[string]uintptr{"TR": 144, "GDT": 192, "CR0": 224, "EFER": 264, "APICBase": 272, "InterruptBitmap": 280}},
		{SRegs2{}, 320, map[string]uintptr{"GDT": 192, "CR0": 224, "Flags": 280, "PDPTRs": 288}},
		{FPU{}, 416, map[string]uintptr{"FCW": 128, "LastOpcode": 134, "LastIP": 136, "XMM": 152, "MXCSR": 408}},
		{XCR{}, 16, map[string]uintptr{"Value": 8}},
		{xcrs{}, 392, map[string]uintptr{"XCRs": 8}},
		{VCPUEvents{}, 64, map[string]uintptr{
			"Interrupt": 8, "NMI": 12, "SIPIVector": 16, "Flags": 20, "SMI": 24,
			"TripleFaultPending": 28, "ExceptionHasPayload": 55, "ExceptionPayload": 56,
		}},
		{DebugRegs{}, 128, map[string]uintptr{"DR6": 32, "DR7": 40, "Flags": 48}},
		{LAPIC{}, 1024, nil},
		{Translation{}, 24, map[string]uintptr{"PhysicalAddress": 8, "Valid": 16}},
		{GuestDebug{}, 72, map[string]uintptr{"DebugReg": 8}},
		{CPUIDEntry{}, 40, map[string]uintptr{"Flags": 8, "EAX": 12, "EDX": 24}},
		{cpuid2{}, cpuidHeaderSize + 256*40, map[string]uintptr{"Entries": 8}},
		{MSREntry{}, 16, map[string]uintptr{"Data": 8}},
		{msrs{}, msrsHeaderSize + 255*16, map[string]uintptr{"Entries": 8}},
		{msrFilter{}, 392, map[string]uintptr{"ranges": 8}},
		{msrFilterRange{}, 24, map[string]uintptr{"nmsrs": 4, "base": 8, "bitmap": 16}},
		{ClockData{}, 48, map[string]uintptr{"Flags": 8, "Realtime": 16, "HostTSC": 24}},
		{hypervEventFD{}, 24, map[string]uintptr{"FD": 4, "Flags": 8}},
		{irqChip{}, 520, map[string]uintptr{"State": 8}},
		{PICState{}, 16, map[string]uintptr{"ELCR": 14}},
		{IOAPICState{}, 216, map[string]uintptr{"Redirection": 24}},
		{pitConfig{}, 64, nil},
		{PITChannel{}, 24, map[string]uintptr{"Status": 8, "CountLoadTime": 16}},
		{PITState{}, 112, map[string]uintptr{"Flags": 72}},
	})
}

// TestIoctlNumbers compares with the numbers a C program prints on x86-64.
func TestIoctlNumbers(t *testing.T) {
	for want, req := range map[uintptr]request{
		0xae00: reqGetAPIVersion, 0xae01: reqCreateVM, 0xae03: reqCheckExtension, 0xae04: reqGetVCPUMmapSize,
		0xc004ae02: reqGetMSRIndexList, 0xc004ae0a: reqGetMSRFeatureIndexList,
		0xc008ae05: reqGetSupportedCPUID, 0xc008ae09: reqGetEmulatedCPUID, 0xc008aec1: reqGetSupportedHVCPUID,
		0xae41: reqCreateVCPU, 0x4020ae46: reqSetUserMemoryRegion, 0x4010ae42: reqGetDirtyLog, 0xc018aec0: reqClearDirtyLog,
		0xae47: reqSetTSSAddr, 0x4008ae48: reqSetIdentityMapAddr, 0xae78: reqSetBootCPUID,
		0xae60: reqCreateIRQChip, 0x4008ae61: reqIRQLine, 0xc208ae62: reqGetIRQChip, 0x8208ae63: reqSetIRQChip,
		0x4008ae6a: reqSetGSIRouting, 0x4020ae76: reqIRQFD, 0x4040ae79: reqIOEventFD, 0x4020aea5: reqSignalMSI,
		0x4040ae77: reqCreatePIT2, 0x8070ae9f: reqGetPIT2, 0x4070aea0: reqSetPIT2,
		0x4030ae7b: reqSetClock, 0x8030ae7c: reqGetClock, 0x4068aea3: reqEnableCap,
		0x4018aebd: reqHyperVEventFD, 0x4188aec6: reqSetMSRFilter,
		0xae80: reqRun, 0x8090ae81: reqGetRegs, 0x4090ae82: reqSetRegs, 0x8138ae83: reqGetSRegs, 0x4138ae84: reqSetSRegs,
		0x8140aecc: reqGetSRegs2, 0x4140aecd: reqSetSRegs2, 0xc018ae85: reqTranslate, 0x4004ae86: reqInterrupt,
		0xc008ae88: reqGetMSRs, 0x4008ae89: reqSetMSRs, 0x4004ae8b: reqSetSignalMask,
		0x81a0ae8c: reqGetFPU, 0x41a0ae8d: reqSetFPU, 0x8400ae8e: reqGetLAPIC, 0x4400ae8f: reqSetLAPIC,
		0x4008ae90: reqSetCPUID2, 0xc008ae91: reqGetCPUID2, 0x8004ae98: reqGetMPState, 0x4004ae99: reqSetMPState,
		0xae9a: reqNMI, 0x4048ae9b: reqSetGuestDebug, 0x8040ae9f: reqGetVCPUEvents, 0x4040aea0: reqSetVCPUEvents,
		0x8080aea1: reqGetDebugRegs, 0x4080aea2: reqSetDebugRegs, 0xaea2: reqSetTSCKHz, 0xaea3: reqGetTSCKHz,
		0x9000aea4: reqGetXSave, 0x5000aea5: reqSetXSave, 0x9000aecf: reqGetXSave2,
		0x8188aea6: reqGetXCRs, 0x4188aea7: reqSetXCRs, 0x4010aeab: reqGetOneReg, 0x4010aeac: reqSetOneReg,
		0xaead: reqKVMClockCtrl, 0xaeb7: reqSMI,
	} {
		if req.nr != want {
			t.Errorf("%s is %#x, want %#x", req.name, req.nr, want)
		}
	}
}
