// SPDX-License-Identifier: Apache-2.0

package kvm

import "testing"

func decodeArch(e Exit) {
	e.HyperV()
	e.MSR()
	e.Debug()
	e.Hypercall()
	e.IOAPICEOI()
}

func TestDecodeHyperV(t *testing.T) {
	synic := fakeExit(ExitHyperV, func(u []byte) {
		put(u, 0, uint32(1), uint32(0), uint32(0x40000080), uint32(0), uint64(1), uint64(0x2000), uint64(0x3000))
	}).HyperV()
	if want := (HyperVSynICExit{MSR: 0x40000080, Control: 1, EventPage: 0x2000, MsgPage: 0x3000}); synic.SynIC != want || synic.Type != HyperVSynIC {
		t.Errorf("got %+v, want %+v", synic, want)
	}
	e := fakeExit(ExitHyperV, func(u []byte) {
		put(u, 0, uint32(2), uint32(0), uint64(0x5c), uint64(0), uint64(0xa000), uint64(0xb000))
	})
	if got, want := e.HyperV().Hypercall, (HyperVHypercallExit{Input: 0x5c, Params: [2]uint64{0xa000, 0xb000}}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	e.SetHyperVResult(0x1234)
	if got := e.vcpu.u64(48); got != 0x1234 {
		t.Errorf("the result is at the wrong place: %#x at 48", got)
	}
	dbg := fakeExit(ExitHyperV, func(u []byte) {
		put(u, 0, uint32(3), uint32(0), uint32(0x400000f1), uint32(0), uint64(1), uint64(2), uint64(3), uint64(4), uint64(5))
	})
	if got, want := dbg.HyperV().SynDbg, (HyperVSynDbgExit{MSR: 0x400000f1, Control: 1, Status: 2, SendPage: 3, RecvPage: 4, PendingPage: 5}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	dbg.SetHyperVStatus(9)
	if got := dbg.vcpu.u64(56); got != 9 {
		t.Errorf("the status is at the wrong place: %#x at 56", got)
	}
}

func TestDecodeX86Exits(t *testing.T) {
	e := fakeExit(ExitWRMSR, func(u []byte) { put(u, 8, uint32(4), uint32(0x10a), uint64(0x77)) })
	if got, want := e.MSR(), (MSRExit{Why: MSRExitFilter, Index: 0x10a, Data: 0x77}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	e.SetMSRData(0x88)
	e.FailMSR()
	if e.vcpu.run[32] != 1 || e.vcpu.u64(48) != 0x88 {
		t.Errorf("the answer is at the wrong place: % x", e.vcpu.run[32:56])
	}
	dbg := fakeExit(ExitDebug, func(u []byte) { put(u, 0, uint32(3), uint32(0), uint64(1), uint64(2), uint64(3)) }).Debug()
	if want := (Debug{Exception: 3, PC: 1, DR6: 2, DR7: 3}); dbg != want {
		t.Errorf("got %+v, want %+v", dbg, want)
	}
	call := fakeExit(ExitHypercall, func(u []byte) { put(u, 0, uint64(12), [6]uint64{1, 2, 3, 4, 5, 6}) })
	if got, want := call.Hypercall(), (Hypercall{Nr: 12, Args: [6]uint64{1, 2, 3, 4, 5, 6}}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	call.SetHypercallResult(7)
	if got := call.vcpu.u64(88); got != 7 {
		t.Errorf("the result is at the wrong place: %#x at 88", got)
	}
	if got := fakeExit(ExitIOAPICEOI, func(u []byte) { u[0] = 0x31 }).IOAPICEOI(); got != 0x31 {
		t.Errorf("IOAPICEOI is %#x", got)
	}
}
