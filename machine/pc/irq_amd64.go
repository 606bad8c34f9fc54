// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/govmm/govmm/internal/irq"
	"github.com/govmm/govmm/kvm"
)

// Global system interrupts: 0 to 15 are the ISA interrupts, on PIC and IOAPIC
// alike as in KVM's default routing; PCI's INTx lines have the IOAPIC's last
// eight pins to themselves.
const (
	gsiCOM1    = 4
	gsiRTC     = 8
	gsiSCI     = 9
	gsiPCIBase = 16
	gsiPCI     = 8
	// The vCPUs' synthetic interrupts follow: no pin of a chip.
	gsiSINTBase = 24

	picPins = 8 // inputs of each of the two PICs
)

// gsiLine is an input of KVM's interrupt controllers.
type gsiLine struct {
	vm  *kvm.VM
	gsi uint32
	log *slog.Logger

	mu    sync.Mutex
	level bool
}

// Set passes changes on to KVM.
func (l *gsiLine) Set(level bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if level == l.level {
		return
	}
	if err := l.vm.IRQLine(l.gsi, level); err != nil {
		l.log.Error("interrupt line", "gsi", l.gsi, "level", level, "err", err)
		return
	}
	l.level = level
}

// sharedLine ORs the lines of the functions that share a PCI interrupt pin.
type sharedLine struct {
	out    irq.Line
	mu     sync.Mutex
	raised int
}

// join returns a line of its own for one more function.
func (s *sharedLine) join() irq.Line {
	var mine bool
	return irq.LineFunc(func(level bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if level == mine {
			return
		}
		mine = level
		if level {
			s.raised++
		} else {
			s.raised--
		}
		s.out.Set(s.raised > 0)
	})
}

// msi delivers message-signalled interrupts to KVM's LAPICs.
type msi struct {
	vm     *kvm.VM
	errors atomic.Uint64
}

// Send delivers one message. A message that no LAPIC can take is the guest's
// own doing and is only counted.
func (m *msi) Send(msg irq.Message) {
	if _, err := m.vm.SignalMSI(msg.Addr, msg.Data); err != nil {
		m.errors.Add(1)
	}
}

// doorbells lets KVM signal eventfds for MMIO writes, so that a notification
// does not leave the kernel on the vCPU's thread.
type doorbells struct {
	vm  *kvm.VM
	log *slog.Logger
}

// AddDoorbell tells KVM. If it can't, the write reaches the device as any other.
func (d doorbells) AddDoorbell(addr uint64, fd int) {
	if err := d.vm.IOEventFD(kvm.IOEvent{Addr: addr, FD: fd}); err != nil {
		d.log.Warn("no ioeventfd: notifications are slower", "address", addr, "err", err)
	}
}

// RemoveDoorbell undoes AddDoorbell.
func (d doorbells) RemoveDoorbell(addr uint64, fd int) {
	if err := d.vm.IOEventFD(kvm.IOEvent{Addr: addr, FD: fd, Deassign: true}); err != nil {
		d.log.Debug("ioeventfd was not there", "address", addr, "err", err)
	}
}
