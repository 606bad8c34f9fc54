// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"fmt"
	"runtime"

	"github.com/govmm/govmm/boot"
	"github.com/govmm/govmm/internal/bug"
	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/kvm"
)

// cpu is one vCPU and the OS thread that is its own from creation to close.
type cpu struct {
	id    int
	board *Board
	vcpu  *kvm.VCPU
}

// thread is the whole life of a vCPU's goroutine: it reports on ready once the
// vCPU exists, waits for start, and runs the guest until the board stops. A
// closed quit instead of start ends it without running.
func (c *cpu) thread(entry boot.Entry, ready chan<- error, start, quit <-chan struct{}) {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	defer bug.Catch()
	vcpu, err := c.board.vm.CreateVCPU(c.id)
	if err != nil {
		ready <- fmt.Errorf("vCPU %d: %w", c.id, err)
		return
	}
	defer vcpu.Close()
	c.vcpu = vcpu
	if err := c.setUp(entry); err != nil {
		ready <- fmt.Errorf("vCPU %d: %w", c.id, err)
		return
	}
	ready <- nil
	select {
	case <-start:
		c.loop()
	case <-quit:
	}
}

// setUp gives the vCPU its CPUID table and, to the first one, the state in
// which the kernel is entered. The others wait for the guest to start them
// (INIT, SIPI), which KVM's LAPIC does by itself.
func (c *cpu) setUp(entry boot.Entry) error {
	if err := c.vcpu.SetCPUID(c.board.model.table(c.id)); err != nil {
		return err
	}
	if h := c.board.dev.hyperv; h != nil {
		if err := h.setUpCPU(c.vcpu); err != nil {
			return err
		}
	}
	if err := c.setMSRs(); err != nil {
		return err
	}
	if c.id == 0 {
		return enter(c.vcpu, entry)
	}
	// KVM finds a LAPIC as the target of an interrupt only once its state was
	// set: without this, an INIT that comes before the guest has touched any
	// LAPIC would be lost.
	lapic, err := c.vcpu.LAPIC()
	if err != nil {
		return err
	}
	return c.vcpu.SetLAPIC(lapic)
}

// MSRs that firmware would set (Intel SDM vol. 4).
const (
	msrMiscEnable  = 0x1a0
	msrMTRRDefType = 0x2ff

	miscEnableFastString = 1 << 0
	mtrrEnable           = 1 << 11
	mtrrWriteBack        = 6
)

// setMSRs does what the guest expects of firmware. An MSR that this host's KVM
// lacks is left out: the count that KVM returns says where it stopped.
func (c *cpu) setMSRs() error {
	msrs := []kvm.MSREntry{
		{Index: msrMTRRDefType, Data: mtrrEnable | mtrrWriteBack},
		{Index: msrMiscEnable, Data: miscEnableFastString},
	}
	for len(msrs) > 0 {
		n, err := c.vcpu.SetMSRs(msrs)
		if err != nil {
			return err
		}
		if n < len(msrs) {
			c.board.log.Debug("KVM has no such MSR", "msr", msrs[n].Index)
			n++
		}
		msrs = msrs[n:]
	}
	return nil
}

// loop runs the guest until the board stops.
func (c *cpu) loop() {
	for !c.board.stopping.Load() {
		exit, err := c.vcpu.Run()
		if err != nil {
			c.board.end(result.Of(result.KVMError, "vCPU %d: %v", c.id, err))
			return
		}
		c.handle(exit)
	}
}

// handle answers one exit to user space.
func (c *cpu) handle(exit kvm.Exit) {
	switch exit.Reason {
	case kvm.ExitIO:
		c.portIO(exit.IO())
	case kvm.ExitMMIO:
		m := exit.MMIO()
		if m.Write {
			c.board.mmio.Write(m.Addr, m.Data)
		} else {
			c.board.mmio.Read(m.Addr, m.Data)
		}
	case kvm.ExitIntr, kvm.ExitIRQWindowOpen:
	case kvm.ExitShutdown:
		c.board.end(result.Of(result.TripleFault, "vCPU %d shut down (triple fault) at %s", c.id, c.where()))
	case kvm.ExitSystemEvent:
		c.systemEvent(exit.SystemEvent())
	case kvm.ExitHyperV:
		if h := c.board.dev.hyperv; h == nil || !h.exit(c.id, exit) {
			c.unexpected(exit)
		}
	default:
		c.unexpected(exit)
	}
}

// unexpected ends the run for an exit that the board has no answer to.
func (c *cpu) unexpected(exit kvm.Exit) {
	c.board.end(result.Of(result.KVMError, "vCPU %d: %v at %s", c.id, exit, c.where()))
}

// portIO does the items of a port access one by one, as the bus would see them.
func (c *cpu) portIO(io kvm.IO) {
	for d := io.Data; len(d) > 0; d = d[io.Size:] {
		if io.In {
			c.board.pio.Read(uint64(io.Port), d[:io.Size])
		} else {
			c.board.pio.Write(uint64(io.Port), d[:io.Size])
		}
	}
}

func (c *cpu) systemEvent(e kvm.SystemEvent) {
	switch e.Type {
	case kvm.SystemEventShutdown:
		c.board.end(result.Of(result.PowerOff, "system event"))
	case kvm.SystemEventReset:
		c.board.end(result.Of(result.Reset, "system event"))
	default:
		c.board.end(result.Of(result.KVMError, "vCPU %d: system event %d", c.id, e.Type))
	}
}

// where describes the vCPU's position in one line, for a result's detail.
func (c *cpu) where() string {
	r, err := c.vcpu.Regs()
	if err != nil {
		return err.Error()
	}
	s, err := c.vcpu.SRegs()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("rip=%#x rsp=%#x rflags=%#x cr0=%#x cr2=%#x cr3=%#x cr4=%#x efer=%#x",
		r.RIP, r.RSP, r.RFLAGS, s.CR0, s.CR2, s.CR3, s.CR4, s.EFER)
}
