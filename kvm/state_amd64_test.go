// SPDX-License-Identifier: Apache-2.0

package kvm_test

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"testing"

	"github.com/govmm/govmm/kvm"
	"github.com/govmm/govmm/kvm/baremetal"
)

func TestSystem(t *testing.T) {
	sys := openSystem(t)
	if n := sys.VCPUMmapSize(); n < 3*4096 {
		t.Errorf("run mapping of %d bytes", n)
	}
	for _, c := range []kvm.Cap{kvm.CapUserMemory, kvm.CapIRQChip, kvm.CapIRQFD, kvm.CapIOEventFD, kvm.CapImmediateExit} {
		if n, err := sys.CheckExtension(c); err != nil || n == 0 {
			t.Errorf("%v is %d (%v)", c, n, err)
		}
	}
	if n, err := sys.CheckExtension(1 << 20); err != nil || n != 0 {
		t.Errorf("a capability that does not exist is %d (%v)", n, err)
	}
}

func TestCPUIDTables(t *testing.T) {
	sys := openSystem(t)
	supported, err := sys.SupportedCPUID()
	check(t, err)
	leaf0, leaf1 := supported.Find(0, 0), supported.Find(1, 0)
	if leaf0 == nil || leaf1 == nil || leaf0.EAX < 1 {
		t.Fatalf("no leaf 0 or 1 in %d entries", len(supported))
	}
	const longMode = 1 << 29
	if e := supported.Find(0x80000001, 0); e == nil || e.EDX&longMode == 0 {
		t.Error("no long mode")
	}
	if supported.Find(0x12345678, 0) != nil {
		t.Error("found a leaf that does not exist")
	}
	for _, e := range supported { // sub-leaves are told apart
		if e.Flags&kvm.CPUIDSignificantIndex != 0 && *supported.Find(e.Function, e.Index) != e {
			t.Errorf("Find(%#x, %d) gives another entry", e.Function, e.Index)
		}
	}
	if _, err := sys.EmulatedCPUID(); err != nil {
		t.Error(err)
	}
	n, err := sys.CheckExtension(kvm.CapSysHyperVCPUID)
	check(t, err)
	if hv, err := sys.SupportedHyperVCPUID(); n != 0 && (err != nil || hv.Find(0x40000000, 0) == nil) {
		t.Errorf("Hyper-V leaves: %v (%v)", hv, err)
	}
}

// TestCPUIDRoundTrip sets a leaf of its own and lets the guest read it.
func TestCPUIDRoundTrip(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.Kernel},
		"\xb8\x01\x00\x00\x40\x31\xc9\x0f\xa2", // mov eax, 0x40000001; xor ecx, ecx; cpuid
		value, "\x89\xd8", value,               // report eax; mov eax, ebx; report
		done)
	want := kvm.CPUID{
		{Function: 0, EAX: 1, EBX: 0x756e6547, EDX: 0x49656e69, ECX: 0x6c65746e},
		{Function: 1, EAX: 0x000306f2, EDX: 0x078bfbff},
		{Function: 0x40000000, EAX: 0x40000001, EBX: 0x6d766f67, ECX: 0x6d, EDX: 0},
		{Function: 0x40000001, EAX: 0x11223344, EBX: 0x55667788},
	}
	check(t, m.CPU.SetCPUID(want))
	got, err := m.CPU.CPUID()
	check(t, err)
	for _, w := range want {
		if e := got.Find(w.Function, w.Index); e == nil || e.EBX != w.EBX {
			t.Errorf("leaf %#x is %+v, want %+v", w.Function, e, w)
		}
	}
	var seen []uint32
	runToDone(t, m, func(e kvm.Exit) { seen = append(seen, binary.LittleEndian.Uint32(e.IO().Data)) })
	if !slices.Equal(seen, []uint32{0x11223344, 0x55667788}) {
		t.Errorf("the guest read %#x", seen)
	}
	if err := m.CPU.SetCPUID(make(kvm.CPUID, 257)); err == nil {
		t.Error("257 entries were accepted")
	}
}

const (
	msrTSCAux     = 0xc0000103
	msrStar       = 0xc0000081
	msrSysenterCS = 0x174
	msrUnknown    = 0x40009999
)

func TestMSRs(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	n, err := m.CPU.SetMSRs([]kvm.MSREntry{{Index: msrStar, Data: 0x0010_0008 << 32}, {Index: msrSysenterCS, Data: 8}})
	if n != 2 || err != nil {
		t.Fatalf("SetMSRs did %d (%v)", n, err)
	}
	got := []kvm.MSREntry{{Index: msrSysenterCS}, {Index: msrStar}}
	if n, err := m.CPU.GetMSRs(got); n != 2 || err != nil || got[0].Data != 8 || got[1].Data != 0x0010_0008<<32 {
		t.Errorf("GetMSRs did %d (%v): %+v", n, err, got)
	}
}

// TestShortMSRCount puts an MSR that KVM lacks in the middle: those before it are
// done, it is no error, and the entries from it on are untouched.
func TestShortMSRCount(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	entries := []kvm.MSREntry{{Index: msrSysenterCS, Data: 8}, {Index: msrUnknown, Data: 77}, {Index: msrStar, Data: 99}}
	n, err := m.CPU.SetMSRs(entries)
	if n != 1 || err != nil {
		t.Errorf("SetMSRs did %d (%v), want 1", n, err)
	}
	n, err = m.CPU.GetMSRs(entries)
	if n != 1 || err != nil {
		t.Errorf("GetMSRs did %d (%v), want 1", n, err)
	}
	if entries[0].Data != 8 || entries[1].Data != 77 || entries[2].Data != 99 {
		t.Errorf("entries %+v", entries)
	}
	if n, err := m.CPU.GetMSRs(nil); n != 0 || err != nil {
		t.Errorf("no MSRs: %d (%v)", n, err)
	}
}

// TestManyMSRs needs several calls of the kernel's 256 entries.
func TestManyMSRs(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	const total = 600
	entries := make([]kvm.MSREntry, total)
	for i := range entries {
		entries[i].Index, entries[i].Data = msrSysenterCS, uint64(i)
	}
	if n, err := m.CPU.SetMSRs(entries); n != total || err != nil {
		t.Fatalf("SetMSRs did %d (%v)", n, err)
	}
	if n, err := m.CPU.GetMSRs(entries); n != total || err != nil || entries[0].Data != total-1 || entries[total-1].Data != total-1 {
		t.Errorf("GetMSRs did %d (%v): first %+v, last %+v", n, err, entries[0], entries[total-1])
	}
	entries[550].Index = msrUnknown
	if n, err := m.CPU.GetMSRs(entries); n != 550 || err != nil {
		t.Errorf("GetMSRs did %d (%v), want 550", n, err)
	}
}

func TestMSRLists(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	sys := openSystem(t)
	list, err := sys.MSRIndexList()
	check(t, err)
	for _, msr := range []uint32{msrStar, msrSysenterCS} {
		if !slices.Contains(list, msr) {
			t.Errorf("MSR %#x is not among %d", msr, len(list))
		}
	}
	// Each listed MSR either can be read or, one at a time, gives a short count.
	for _, msr := range list {
		if n, err := m.CPU.GetMSRs([]kvm.MSREntry{{Index: msr}}); err != nil || n > 1 {
			t.Errorf("MSR %#x: %d (%v)", msr, n, err)
		}
	}
	features, err := sys.MSRFeatureIndexList()
	check(t, err)
	for _, msr := range features {
		if n, err := sys.GetMSRs([]kvm.MSREntry{{Index: msr}}); err != nil || n > 1 {
			t.Errorf("feature MSR %#x: %d (%v)", msr, n, err)
		}
	}
}

// fill gives every exported field of a structure of numbers another value.
func fill(v reflect.Value, next *uint64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), next)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), next)
		}
	default:
		*next++
		v.SetUint(*next & 0x7f)
	}
}

func TestRegsRoundTrip(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	var want kvm.Regs
	n := uint64(0x10)
	fill(reflect.ValueOf(&want).Elem(), &n)
	want.RFLAGS = 2 | 1<<6 | 1<<11 // fixed bit, ZF, OF
	check(t, m.CPU.SetRegs(want))
	if got, err := m.CPU.Regs(); err != nil || got != want {
		t.Errorf("got %+v, want %+v (%v)", got, want, err)
	}
}

func TestSRegsRoundTrip(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.User}, spin)
	want, err := m.CPU.SRegs()
	check(t, err)
	if want.CS.DPL != 3 || want.CS.L != 1 || want.GDT.Limit != 0x37 || want.EFER&(1<<10) == 0 {
		t.Errorf("special registers %+v", want)
	}
	want.FS.Base, want.GS.Base, want.CR2 = 0x7000_1234_5000, 0x7fff_0000_0000, 0xdead_f000
	check(t, m.CPU.SetSRegs(want))
	if got, err := m.CPU.SRegs(); err != nil || got != want {
		t.Errorf("got  %+v\nwant %+v (%v)", got, want, err)
	}
	two, err := m.CPU.SRegs2()
	check(t, err)
	if two.CS != want.CS || two.CR3 != want.CR3 || two.GS.Base != want.GS.Base || two.EFER != want.EFER {
		t.Errorf("SRegs2 %+v differs from SRegs %+v", two, want)
	}
	two.FS.Base = 0x1000
	check(t, m.CPU.SetSRegs2(two))
	if got, err := m.CPU.SRegs2(); err != nil || got != two {
		t.Errorf("got  %+v\nwant %+v (%v)", got, two, err)
	}
}

func TestFPURoundTrip(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	want, err := m.CPU.FPU()
	check(t, err)
	n := uint64(0)
	fill(reflect.ValueOf(&want.XMM).Elem(), &n)
	want.FCW = 0x27f
	check(t, m.CPU.SetFPU(want))
	if got, err := m.CPU.FPU(); err != nil || got.XMM != want.XMM || got.FCW != want.FCW {
		t.Errorf("got  %+v\nwant %+v (%v)", got, want, err)
	}
}

func TestXSaveRoundTrip(t *testing.T) {
	// Intel SDM volume 1, section 13.4: MXCSR at 24, XMM0 at 160, XSTATE_BV at 512.
	const mxcsr, xmm0, xstateBV, x87AndSSE = 24, 160, 512, 3
	m := newMachine(t, baremetal.Options{}, spin)
	image, err := m.CPU.XSave()
	check(t, err)
	if len(image) < 4096 {
		t.Fatalf("an image of %d bytes", len(image))
	}
	image[xstateBV] |= x87AndSSE
	copy(image[xmm0:], "0123456789abcdef")
	binary.LittleEndian.PutUint32(image[mxcsr:], 0x3f80)
	check(t, m.CPU.SetXSave(image))
	got, err := m.CPU.XSave()
	check(t, err)
	if !bytes.Equal(got[:xstateBV+8], image[:xstateBV+8]) {
		t.Errorf("got  % x\nwant % x", got[:xstateBV+8], image[:xstateBV+8])
	}
	if fpu, err := m.CPU.FPU(); err != nil || string(fpu.XMM[0][:]) != "0123456789abcdef" {
		t.Errorf("XMM0 is % x (%v)", fpu.XMM[0], err)
	}
	for _, n := range []int{0, 4095, len(image) + 1} {
		if err := m.CPU.SetXSave(make([]byte, n)); err == nil {
			t.Errorf("an image of %d bytes was accepted", n)
		}
	}
}

func TestXCRs(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	regs, err := m.CPU.XCRs()
	check(t, err)
	if len(regs) != 1 || regs[0].XCR != 0 || regs[0].Value&1 != 1 {
		t.Errorf("%+v", regs) // x87 is always on
	}
	check(t, m.CPU.SetXCRs([]kvm.XCR{{XCR: 0, Value: 1}}))
	if err := m.CPU.SetXCRs([]kvm.XCR{{XCR: 0, Value: 0}}); err == nil {
		t.Error("XCR0 without x87 was accepted")
	}
	if err := m.CPU.SetXCRs(make([]kvm.XCR, 17)); err == nil {
		t.Error("17 registers were accepted")
	}
}

func TestDebugRegsRoundTrip(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	want := kvm.DebugRegs{DB: [4]uint64{0x1000, 0x2000, 0x3000, 0x4000}, DR6: 0xffff0ff0, DR7: 0x400}
	check(t, m.CPU.SetDebugRegs(want))
	if got, err := m.CPU.DebugRegs(); err != nil || got != want {
		t.Errorf("got %+v, want %+v (%v)", got, want, err)
	}
}

func TestVCPUEventsRoundTrip(t *testing.T) {
	m := newMachine(t, baremetal.Options{IRQChip: true}, spin)
	ev, err := m.CPU.VCPUEvents()
	check(t, err)
	ev.NMI.Masked = 1
	ev.SIPIVector = 0x12
	ev.Flags |= kvm.EventValidSIPIVector
	check(t, m.CPU.SetVCPUEvents(ev))
	if got, err := m.CPU.VCPUEvents(); err != nil || got.NMI.Masked != 1 {
		t.Errorf("%+v (%v)", got, err)
	}
}

func TestLAPICRoundTrip(t *testing.T) {
	m := newMachine(t, baremetal.Options{IRQChip: true}, spin)
	l, err := m.CPU.LAPIC()
	check(t, err)
	l.SetReg(kvm.LAPICTPR, 0x40)
	l.SetReg(kvm.LAPICLVT0, 0x10700) // masked, ExtINT
	check(t, m.CPU.SetLAPIC(l))
	got, err := m.CPU.LAPIC()
	check(t, err)
	if got.Reg(kvm.LAPICTPR) != 0x40 || got.Reg(kvm.LAPICLVT0) != 0x10700 {
		t.Errorf("TPR %#x, LVT0 %#x", got.Reg(kvm.LAPICTPR), got.Reg(kvm.LAPICLVT0))
	}
	s, err := m.CPU.SRegs()
	check(t, err)
	if s.CR8 != 4 {
		t.Errorf("CR8 is %d, the task priority's high bits are 4", s.CR8)
	}
	for _, off := range []int{-1, kvm.LAPICSize - 3, kvm.LAPICSize, 1 << 30} {
		l.SetReg(off, 1)
		if l.Reg(off) != 0 {
			t.Errorf("there is a register at %d", off)
		}
	}
}

func TestMPState(t *testing.T) {
	m := newMachine(t, baremetal.Options{IRQChip: true}, spin)
	if s, err := m.CPU.MPState(); err != nil || s != kvm.MPRunnable {
		t.Errorf("state %d (%v)", s, err)
	}
	second, err := m.VM.CreateVCPU(1)
	check(t, err)
	defer second.Close()
	if s, err := second.MPState(); err != nil || s != kvm.MPUninitialized {
		t.Errorf("the second vCPU's state is %d (%v)", s, err)
	}
	check(t, second.SetMPState(kvm.MPHalted))
	if s, err := second.MPState(); err != nil || s != kvm.MPHalted {
		t.Errorf("the second vCPU's state is %d (%v)", s, err)
	}
	if err := second.SetMPState(100); err == nil {
		t.Error("state 100 was accepted")
	}
}

func TestTranslate(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.User}, spin)
	tr, err := m.CPU.Translate(0x123456)
	check(t, err)
	if tr.Valid != 1 || tr.PhysicalAddress != 0x123456 {
		t.Errorf("%+v", tr)
	}
	if tr, err := m.CPU.Translate(0x8000_0000); err != nil || tr.Valid != 0 { // third GiB
		t.Errorf("%+v (%v)", tr, err)
	}
}

func TestTSC(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	khz, err := m.CPU.TSCKHz()
	check(t, err)
	if khz < 100_000 {
		t.Errorf("%d kHz", khz)
	}
	check(t, m.CPU.SetTSCKHz(uint32(khz)))
	if got, err := m.CPU.TSCKHz(); err != nil || got != khz {
		t.Errorf("%d kHz, want %d (%v)", got, khz, err)
	}
}

func TestClock(t *testing.T) {
	m := newMachine(t, baremetal.Options{IRQChip: true}, spin)
	const hour = uint64(3600e9)
	check(t, m.VM.SetClock(kvm.ClockData{Clock: hour}))
	c, err := m.VM.Clock()
	check(t, err)
	if c.Clock < hour || c.Clock > 2*hour {
		t.Errorf("clock %d ns, want an hour", c.Clock)
	}
	if err := m.CPU.KVMClockCtrl(); err == nil {
		t.Error("KVMClockCtrl works without a KVM clock")
	}
}

func TestIntelAddresses(t *testing.T) {
	sys := openSystem(t)
	vm, err := sys.CreateVM()
	check(t, err)
	defer vm.Close()
	check(t, vm.SetTSSAddr(0xfffbd000))
	check(t, vm.SetIdentityMapAddr(0xfffbc000))
	check(t, vm.SetBootCPUID(0))
	if err := vm.SetTSSAddr(0xffffe000); err == nil {
		t.Error("a task state segment beyond 4 GiB was accepted")
	}
	if vm.FD() < 3 {
		t.Errorf("descriptor %d", vm.FD())
	}
	if n, err := vm.CheckExtension(kvm.CapIRQChip); err != nil || n == 0 {
		t.Errorf("CapIRQChip is %d (%v)", n, err)
	}
}

func TestOneRegChecksTheSize(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	const u64 = 3 << 52 // KVM_REG_SIZE_U64
	if err := m.CPU.OneReg(u64|1, make([]byte, 4)); err == nil {
		t.Error("four bytes were accepted for a register of eight")
	}
	if err := m.CPU.SetOneReg(u64|1<<51, make([]byte, 8)); err == nil {
		t.Error("a register that does not exist was written")
	}
}
