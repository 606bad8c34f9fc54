// SPDX-License-Identifier: Apache-2.0

package kvm_test

import (
	"fmt"
	"testing"

	"github.com/govmm/govmm/kvm"
	"github.com/govmm/govmm/kvm/baremetal"
)

const (
	apicEnable = 1 << 8 // of the spurious interrupt vector register
	msiAddr    = 0xfee00000
)

// apicMachine has an enabled local APIC in the kernel. Interrupts are seen to arrive
// in the APIC's request register: mostly the snippet, a loop by default, never runs.
func apicMachine(t testing.TB, o baremetal.Options, code ...string) *baremetal.Machine {
	t.Helper()
	m := newMachine(t, o, append(code, spin)...)
	l, err := m.CPU.LAPIC()
	check(t, err)
	l.SetReg(kvm.LAPICSVR, apicEnable|0xff)
	check(t, m.CPU.SetLAPIC(l))
	return m
}

// requested reports whether the vector is in the interrupt request register.
func requested(t testing.TB, m *baremetal.Machine, vector uint8) func() bool {
	return func() bool {
		t.Helper()
		l, err := m.CPU.LAPIC()
		check(t, err)
		return l.Requested(vector)
	}
}

// unmask routes a pin of the IOAPIC to a vector of the boot processor.
func unmask(t testing.TB, m *baremetal.Machine, pin int, vector uint8, level bool) {
	t.Helper()
	s, err := m.VM.IOAPIC()
	check(t, err)
	s.Redirection[pin] = uint64(vector)
	if level {
		s.Redirection[pin] |= 1 << 15
	}
	check(t, m.VM.SetIOAPIC(s))
}

func TestSignalMSI(t *testing.T) {
	for name, o := range map[string]baremetal.Options{"full": {IRQChip: true}, "split": {SplitIRQ: true}} {
		t.Run(name, func(t *testing.T) {
			m := apicMachine(t, o)
			delivered, err := m.VM.SignalMSI(msiAddr, 0x41)
			check(t, err)
			if !delivered || !requested(t, m, 0x41)() {
				t.Errorf("delivered %t, requested %t", delivered, requested(t, m, 0x41)())
			}
			delivered, err = m.VM.SignalMSI(msiAddr|7<<12, 0x42) // no processor 7
			if delivered {
				t.Errorf("a message to nobody was delivered (%v)", err)
			}
		})
	}
}

func TestIRQFDByMSI(t *testing.T) {
	m := apicMachine(t, baremetal.Options{IRQChip: true})
	const gsi = 100
	check(t, m.VM.SetGSIRouting([]kvm.Route{{GSI: gsi, Target: kvm.MSIRoute{Addr: msiAddr, Data: 0x51}}}))
	fd := newEventFD(t)
	check(t, m.VM.IRQFD(fd, gsi, kvm.IRQFDOptions{}))
	signal(t, fd)
	eventually(t, "interrupt 0x51", requested(t, m, 0x51))

	// The route may change under the irqfd: that is how MSI-X masks and moves.
	check(t, m.VM.SetGSIRouting([]kvm.Route{{GSI: gsi, Target: kvm.MSIRoute{Addr: msiAddr, Data: 0x52}}}))
	signal(t, fd)
	eventually(t, "interrupt 0x52", requested(t, m, 0x52))

	check(t, m.VM.IRQFD(fd, gsi, kvm.IRQFDOptions{Deassign: true}))
	check(t, m.VM.SetGSIRouting([]kvm.Route{{GSI: gsi, Target: kvm.MSIRoute{Addr: msiAddr, Data: 0x53}}}))
	signal(t, fd)
	// Deassign waits for the kernel's work queue, so a late interrupt can't come.
	if requested(t, m, 0x53)() {
		t.Error("a detached eventfd raised an interrupt")
	}
	if n := count(t, fd); n != 1 {
		t.Errorf("the detached eventfd holds %d, want 1", n)
	}
}

func TestIRQFDByIOAPIC(t *testing.T) {
	m := apicMachine(t, baremetal.Options{IRQChip: true})
	unmask(t, m, 11, 0x61, false)
	fd := newEventFD(t)
	check(t, m.VM.IRQFD(fd, 11, kvm.IRQFDOptions{}))
	signal(t, fd)
	eventually(t, "interrupt 0x61", requested(t, m, 0x61))
}

func TestIRQLine(t *testing.T) {
	m := apicMachine(t, baremetal.Options{IRQChip: true})
	unmask(t, m, 5, 0x62, true)
	if requested(t, m, 0x62)() {
		t.Fatal("requested before the line rose")
	}
	check(t, m.VM.IRQLine(5, true))
	if !requested(t, m, 0x62)() {
		t.Error("not requested after the line rose")
	}
	s, err := m.VM.IOAPIC()
	check(t, err)
	if s.IRR>>5&1 != 1 {
		t.Errorf("IOAPIC IRR is %#x", s.IRR)
	}
	check(t, m.VM.IRQLine(5, false))
	if s, err = m.VM.IOAPIC(); err != nil || s.IRR>>5&1 != 0 {
		t.Errorf("IOAPIC IRR is %#x after the line fell (%v)", s.IRR, err)
	}
}

// TestResample checks the whole cycle of a level interrupt by eventfd: raise, end
// of interrupt in the guest, resample event, line low, raise again.
func TestResample(t *testing.T) {
	const pin, vector = 9, 0x63
	const remoteIRR = 1 << 14
	o := baremetal.Options{Level: baremetal.User, IRQChip: true}
	m := apicMachine(t, o,
		"\xbf\x00\x00\xe0\xfe",                     // mov edi, 0xfee00000
		"\xc7\x87\xb0\x00\x00\x00\x00\x00\x00\x00", // mov dword [rdi+0xb0], 0: end of interrupt
		done)
	unmask(t, m, pin, vector, true)
	raise, resample := newEventFD(t), newEventFD(t)
	check(t, m.VM.IRQFD(raise, pin, kvm.IRQFDOptions{Resample: true, ResampleFD: resample}))
	for round := range 3 {
		signal(t, raise)
		eventually(t, "the IOAPIC sends the interrupt", func() bool {
			s, err := m.VM.IOAPIC()
			check(t, err)
			return s.Redirection[pin]&remoteIRR != 0
		})
		// The processor takes the interrupt: out of the request register into service.
		l, err := m.CPU.LAPIC()
		check(t, err)
		l.SetReg(kvm.LAPICSVR, apicEnable|0xff)
		l.SetReg(kvm.LAPICIRR+vector/32*16, 0)
		l.SetReg(kvm.LAPICISR+vector/32*16, 1<<(vector%32))
		l.SetReg(kvm.LAPICTMR+vector/32*16, 1<<(vector%32))
		check(t, m.CPU.SetLAPIC(l))
		check(t, m.Reset(o))
		if n := count(t, resample); n != 0 {
			t.Fatalf("round %d: %d resample events before the end of interrupt", round, n)
		}
		runToDone(t, m, unexpected(t))
		eventually(t, "the resample event", func() bool { return count(t, resample) == 1 })
		s, err := m.VM.IOAPIC()
		check(t, err)
		if s.IRR>>pin&1 != 0 || s.Redirection[pin]&remoteIRR != 0 {
			t.Errorf("round %d: the line is still high: IRR %#x, entry %#x", round, s.IRR, s.Redirection[pin])
		}
	}
}

// TestSplitIRQChipEOI checks that a user-space IOAPIC hears of the end of a level
// interrupt.
func TestSplitIRQChipEOI(t *testing.T) {
	const vector = 0x71
	const levelMSI = 1 << 15 // trigger mode in an MSI's data
	o := baremetal.Options{Level: baremetal.User, SplitIRQ: true}
	m := newMachine(t, o,
		"\xbf\x00\x00\xe0\xfe", "\xc7\x87\xb0\x00\x00\x00\x00\x00\x00\x00", // end of interrupt
		done)
	check(t, m.VM.SetGSIRouting([]kvm.Route{{GSI: 3, Target: kvm.MSIRoute{Addr: msiAddr, Data: vector | levelMSI}}}))
	l, err := m.CPU.LAPIC()
	check(t, err)
	l.SetReg(kvm.LAPICSVR, apicEnable|0xff)
	l.SetReg(kvm.LAPICISR+vector/32*16, 1<<(vector%32))
	l.SetReg(kvm.LAPICTMR+vector/32*16, 1<<(vector%32))
	check(t, m.CPU.SetLAPIC(l))
	check(t, m.Reset(o))
	if e := runOnce(t, m); e.Reason != kvm.ExitIOAPICEOI || e.IOAPICEOI() != vector {
		t.Fatalf("exit %v", e)
	}
	runToDone(t, m, unexpected(t))
}

func TestRoutingErrors(t *testing.T) {
	m := apicMachine(t, baremetal.Options{IRQChip: true})
	for name, routes := range map[string][]kvm.Route{
		"a GSI out of range": {{GSI: 1 << 20, Target: kvm.MSIRoute{}}},
		"a pin out of range": {{GSI: 1, Target: kvm.IRQChipRoute{Chip: kvm.IRQChipIOAPIC, Pin: 24}}},
		"an unknown chip":    {{GSI: 1, Target: kvm.IRQChipRoute{Chip: 7}}},
		"a route to nowhere": {{GSI: 1}},
		"a pin of a chip twice": {
			{GSI: 1, Target: kvm.IRQChipRoute{Chip: kvm.IRQChipIOAPIC, Pin: 1}},
			{GSI: 1, Target: kvm.IRQChipRoute{Chip: kvm.IRQChipIOAPIC, Pin: 2}},
		},
	} {
		if m.VM.SetGSIRouting(routes) == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	check(t, m.VM.SetGSIRouting(nil))
	check(t, m.VM.SetGSIRouting([]kvm.Route{
		{GSI: 4, Target: kvm.IRQChipRoute{Chip: kvm.IRQChipPICMaster, Pin: 4}},
		{GSI: 4, Target: kvm.IRQChipRoute{Chip: kvm.IRQChipIOAPIC, Pin: 4}},
		{GSI: 12, Target: kvm.IRQChipRoute{Chip: kvm.IRQChipPICSlave, Pin: 4}},
	}))
	unmask(t, m, 4, 0x66, false)
	check(t, m.VM.IRQLine(4, true))
	if !requested(t, m, 0x66)() {
		t.Error("the IOAPIC route does not work")
	}
	if pic, err := m.VM.PIC(kvm.IRQChipPICMaster); err != nil || pic.IRR>>4&1 != 1 {
		t.Errorf("the PIC route does not work: %+v (%v)", pic, err)
	}
	if err := m.VM.IRQFD(-1, 4, kvm.IRQFDOptions{}); err == nil {
		t.Error("IRQFD accepted descriptor -1")
	}
}

// TestHyperVSynIC enables the SynIC, gives a SINT a GSI and lets the guest write a
// SynIC register, which exits. Where KVM has no SynIC it must refuse to enable it.
func TestHyperVSynIC(t *testing.T) {
	const scontrol = 0x40000080 // HV_X64_MSR_SCONTROL
	o := baremetal.Options{Level: baremetal.Kernel, IRQChip: true}
	m := apicMachine(t, o,
		"\xb9\x80\x00\x00\x40",         // mov ecx, scontrol
		"\xb8\x01\x00\x00\x00\x31\xd2", // mov eax, 1; xor edx, edx
		"\x0f\x30",                     // wrmsr
		done)
	n, err := m.VM.CheckExtension(kvm.CapHyperVSynIC2)
	check(t, err)
	err = m.CPU.EnableCap(kvm.CapHyperVSynIC2)
	if (n != 0) != (err == nil) {
		t.Fatalf("capability %d, enabling it: %v", n, err)
	}
	if n == 0 {
		return
	}
	check(t, m.VM.SetGSIRouting([]kvm.Route{{GSI: 50, Target: kvm.HyperVSINTRoute{VCPU: 0, SINT: 2}}}))
	check(t, m.VM.IRQFD(newEventFD(t), 50, kvm.IRQFDOptions{}))
	leaves, err := m.CPU.SupportedHyperVCPUID()
	check(t, err)
	check(t, m.CPU.SetCPUID(leaves))
	e := runOnce(t, m)
	if e.Reason != kvm.ExitHyperV {
		t.Fatalf("exit %v", e)
	}
	if h := e.HyperV(); h.Type != kvm.HyperVSynIC || h.SynIC.MSR != scontrol || h.SynIC.Control != 1 {
		t.Errorf("%+v", h)
	}
	runToDone(t, m, unexpected(t))

	fd := newEventFD(t)
	check(t, m.VM.HyperVEventFD(0x1234, fd))
	if m.VM.HyperVEventFD(0x1234, fd) == nil {
		t.Error("a connection got two eventfds")
	}
	check(t, m.VM.HyperVEventFD(0x1234, -1))
	if err := m.VM.HyperVEventFD(1<<24, fd); err == nil {
		t.Error("a connection id of 25 bits was accepted")
	}
}

func TestIRQChipState(t *testing.T) {
	m := newMachine(t, baremetal.Options{IRQChip: true}, spin)
	pic, err := m.VM.PIC(kvm.IRQChipPICSlave)
	check(t, err)
	pic.IRQBase, pic.IMR, pic.ELCR = 0x28, 0xa5, 0x0c
	check(t, m.VM.SetPIC(kvm.IRQChipPICSlave, pic))
	if got, err := m.VM.PIC(kvm.IRQChipPICSlave); err != nil || got != pic {
		t.Errorf("PIC is %+v, want %+v (%v)", got, pic, err)
	}
	ioapic, err := m.VM.IOAPIC()
	check(t, err)
	if ioapic.BaseAddress != 0xfec00000 {
		t.Errorf("IOAPIC at %#x", ioapic.BaseAddress)
	}
	ioapic.ID, ioapic.Redirection[23] = 5, 0x0100_0000_0001_0077
	check(t, m.VM.SetIOAPIC(ioapic))
	if got, err := m.VM.IOAPIC(); err != nil || got != ioapic {
		t.Errorf("IOAPIC is %+v, want %+v (%v)", got, ioapic, err)
	}

	check(t, m.VM.CreatePIT2(kvm.PITSpeakerDummy))
	pit, err := m.VM.PIT2()
	check(t, err)
	pit.Channels[2].Count, pit.Channels[2].Mode, pit.Channels[2].Gate = 0x1234, 3, 1
	check(t, m.VM.SetPIT2(pit))
	got, err := m.VM.PIT2()
	check(t, err)
	if c := got.Channels[2]; c.Count != 0x1234 || c.Mode != 3 || c.Gate != 1 {
		t.Errorf("PIT channel 2 is %+v", c)
	}
	if m.VM.CreateIRQChip() == nil {
		t.Error("a second irqchip was made")
	}
}

func TestIRQWithoutChip(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	for name, err := range map[string]error{
		"IRQLine": m.VM.IRQLine(1, true),
		"IRQFD":   m.VM.IRQFD(newEventFD(t), 1, kvm.IRQFDOptions{}),
	} {
		if err == nil {
			t.Errorf("%s works without an irqchip", name)
		}
	}
	if _, err := m.CPU.LAPIC(); err == nil {
		t.Error("there is a local APIC without an irqchip")
	}
}

// TestUserSpaceInterrupt injects a vector without an in-kernel APIC, in the window
// that KVM announces.
func TestUserSpaceInterrupt(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.Kernel}, done, "\xfb\x90", spin) // sti; nop; jmp $
	runToDone(t, m, unexpected(t))
	m.CPU.RequestInterruptWindow(true)
	if m.CPU.ReadyForInterrupt() {
		t.Error("ready for an interrupt before sti")
	}
	if e := runOnce(t, m); e.Reason != kvm.ExitIRQWindowOpen {
		t.Fatalf("exit %v", e)
	}
	m.CPU.RequestInterruptWindow(false)
	if !m.CPU.ReadyForInterrupt() {
		t.Error("not ready for an interrupt after sti")
	}
	check(t, m.CPU.Interrupt(0x42))
	ev, err := m.CPU.VCPUEvents()
	check(t, err)
	if ev.Interrupt.Injected != 1 || ev.Interrupt.Nr != 0x42 {
		t.Errorf("events %+v", ev)
	}
}

func TestNMI(t *testing.T) {
	m := apicMachine(t, baremetal.Options{IRQChip: true})
	check(t, m.CPU.NMI())
	ev, err := m.CPU.VCPUEvents()
	check(t, err)
	if ev.NMI.Pending == 0 {
		t.Errorf("no NMI is pending: %+v", ev.NMI)
	}
}

func TestInterruptPathDoesNotAllocate(t *testing.T) {
	m := apicMachine(t, baremetal.Options{IRQChip: true})
	for name, f := range map[string]func() error{
		"IRQLine":   func() error { return m.VM.IRQLine(20, false) },
		"SignalMSI": func() error { _, err := m.VM.SignalMSI(msiAddr, 0x41); return err },
	} {
		if n := testing.AllocsPerRun(100, func() { check(t, f()) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func ExampleLAPIC_Requested() {
	var l kvm.LAPIC
	l.SetReg(kvm.LAPICIRR+0x20, 1<<1)
	fmt.Println(l.Requested(0x41), l.Requested(0x42))
	// Output: true false
}
