// SPDX-License-Identifier: Apache-2.0

package virtiopci

import (
	"sync"
	"sync/atomic"

	"github.com/govmm/govmm/devices/pci"
)

// Bits of the ISR status (virtio 1.2, 4.1.4.5).
const (
	isrQueue  = 1 << 0
	isrConfig = 1 << 1
)

// noVector is VIRTIO_MSI_NO_VECTOR: no message (virtio 1.2, 4.1.5.1.2).
const noVector = 0xffff

// signals is what the device's threads change: interrupts and the status. Its
// lock is held for a few instructions and the line's change of level only.
type signals struct {
	fn *pci.Function

	mu      sync.Mutex
	status  uint8 // device_status
	isr     uint8
	session *session // the driver that is served; nil: none
}

// session is one driver from DRIVER_OK to reset. A device that gives up on a
// driver of the past changes nothing.
type session struct{ t *Transport }

func (s *signals) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.isr, s.session = 0, 0, nil
	s.fn.SetINTx(false)
}

func (s *signals) getStatus() uint8 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// addStatus sets bits of the status.
func (s *signals) addStatus(v uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status |= v
}

// open makes a session the current one.
func (s *signals) open(n *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = n
}

// fail sets DEVICE_NEEDS_RESET. It reports false if the session has ended or
// failed before.
func (s *signals) fail(n *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != n || s.status&statusNeedsReset != 0 {
		return false
	}
	s.status |= statusNeedsReset
	return true
}

// assert sets an ISR bit. The pin follows the OR of all of them.
func (s *signals) assert(bit uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isr |= bit
	s.fn.SetINTx(true)
}

// acknowledge is the driver's read of the ISR, which clears it and so releases
// the pin (virtio 1.2, 4.1.4.5.1).
func (s *signals) acknowledge() uint8 {
	s.mu.Lock()
	defer s.mu.Unlock()
	isr := s.isr
	s.isr = 0
	s.fn.SetINTx(false)
	return isr
}

// interrupt is the configuration's or a queue's: an irq.Vector.
type interrupt struct {
	t      *Transport
	bit    uint8         // in the ISR
	vector atomic.Uint32 // MSI-X vector, or noVector
}

func (i *interrupt) init(t *Transport, bit uint8) {
	i.t, i.bit = t, bit
	i.vector.Store(noVector)
}

// Raise interrupts the driver: with a message if MSI-X is enabled, else by ISR
// and pin. The configuration's ISR bit is set in both cases (virtio 1.2,
// 4.1.4.5.1), and its generation changes (4.1.4.3.1).
func (i *interrupt) Raise() {
	if i.bit == isrConfig {
		i.t.generation.Add(1)
		i.t.signals.assert(i.bit)
		i.message()
		return
	}
	if i.message() {
		return
	}
	i.t.signals.assert(i.bit)
	i.message() // the driver may have enabled MSI-X between the two
}

// message reports false if MSI-X is disabled.
func (i *interrupt) message() bool {
	if !i.t.fn.MSIXEnabled() {
		return false
	}
	v := i.vector.Load()
	return v == noVector || i.t.fn.Vector(int(v)).TryRaise()
}

// setVector maps the interrupt to an MSI-X vector. A vector that does not exist
// maps it to none, which the driver sees when it reads the register back
// (virtio 1.2, 4.1.5.1.2.1).
func (i *interrupt) setVector(v uint16) (ok bool) {
	if int(v) >= i.t.fn.Vectors() {
		i.vector.Store(noVector)
		return v == noVector
	}
	i.vector.Store(uint32(v))
	return true
}
