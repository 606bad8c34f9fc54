// SPDX-License-Identifier: Apache-2.0

// Package power is the fixed hardware of ACPI: the PM1 event and control
// registers, the PM timer, the power button, and the reset control register of a
// PC. Names and bits are those of the ACPI specification 6.3, section 4.8.
package power

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/govmm/govmm/internal/irq"
)

// The window of I/O ports: its size and where in it the register blocks are.
const (
	Size = 16

	EventOffset   = 0 // PM1a_EVT_BLK: status, then enable
	EventSize     = 4
	ControlOffset = 4 // PM1a_CNT_BLK
	ControlSize   = 2
	TimerOffset   = 8 // PM_TMR_BLK
	TimerSize     = 4
)

// SleepTypeS5 is the SLP_TYPa value that the \_S5 package must name for soft off.
const SleepTypeS5 = 5

// TimerFrequency is that of the PM timer, in Hz. It counts 32 bits (TMR_VAL_EXT).
const TimerFrequency = 3579545

// PM1 status and enable bits (tables 4-13 and 4-14); a bit has the same place in
// both registers. Without a BIOS in system management mode, BM_STS and GBL_STS
// are never set; without sleep states to wake from, RTC_STS neither, but a driver
// expects to be able to enable its event. There is no sleep button.
const (
	tmrSTS    = 1 << 0
	gblSTS    = 1 << 5
	pwrbtnSTS = 1 << 8
	rtcSTS    = 1 << 10

	enableBits = tmrSTS | gblSTS | pwrbtnSTS | rtcSTS
)

// PM1 control bits (table 4-15).
const (
	sciEN       = 1 << 0
	bmRLD       = 1 << 1
	slpTypShift = 10
	slpTypMask  = 7
	slpEN       = 1 << 13
)

// Config connects the power management hardware.
type Config struct {
	// SCI is the system control interrupt, level-triggered and active high.
	// It is called with the lock held and must not call back.
	SCI irq.Line
	// OnPowerOff runs on the guest's CPU thread when the guest enters S5.
	OnPowerOff func()
}

// PM is the power management hardware, a bus.Handler of Size ports.
type PM struct {
	cfg   Config
	start time.Time
	armed chan struct{} // capacity 1: TMR_EN has been switched on

	mu      sync.Mutex
	line    bool
	status  uint16
	enable  uint16
	control uint16
	halves  int64 // half periods of the timer that TMR_STS has accounted for
}

// New makes the hardware, its timer at 0.
func New(cfg Config) *PM {
	return &PM{cfg: cfg, start: time.Now(), armed: make(chan struct{}, 1), control: sciEN}
}

// Reset is a reset of the machine. The timer goes on.
func (m *PM) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status, m.enable, m.control = 0, 0, sciEN
	m.halves = m.ticks() >> 31
	m.update()
}

// PressPowerButton asks the guest to shut down. It reports whether the guest
// listens: whether it has enabled the button's event.
func (m *PM) PressPowerButton() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status |= pwrbtnSTS
	m.update()
	return m.enable&pwrbtnSTS != 0
}

// Run raises the timer's interrupt, every 2^31 ticks (10 minutes) for a guest
// that has enabled it, until ctx is done.
func (m *PM) Run(ctx context.Context) {
	for {
		var carry <-chan time.Time
		if d, on := m.untilCarry(); on {
			carry = time.After(d)
		}
		select {
		case <-ctx.Done():
			return
		case <-m.armed:
		case <-carry:
		}
	}
}

// untilCarry brings TMR_STS up to date and returns the time to its next setting.
func (m *PM) untilCarry() (d time.Duration, enabled bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.carry()
	left := (m.halves+1)<<31 - m.ticks()
	return time.Duration(left)*time.Second/TimerFrequency + time.Microsecond, m.enable&tmrSTS != 0
}

// ticks is the timer's count since start, not cut to its 32 bits.
func (m *PM) ticks() int64 {
	d := time.Since(m.start)
	s, ns := int64(d/time.Second), int64(d%time.Second)
	return s*TimerFrequency + ns*TimerFrequency/int64(time.Second)
}

// carry sets TMR_STS if the timer's top bit has changed since the last look
// (section 4.8.3.3).
func (m *PM) carry() {
	if h := m.ticks() >> 31; h != m.halves {
		m.halves = h
		m.status |= tmrSTS
		m.update()
	}
}

// update sets the SCI to what the registers say.
func (m *PM) update() {
	level := m.status&m.enable != 0
	if level == m.line {
		return
	}
	m.line = level
	if m.cfg.SCI != nil {
		m.cfg.SCI.Set(level)
	}
}

// BusRead reads registers. All of them are read at once, so an access of any
// width is whole.
func (m *PM) BusRead(off uint64, p []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.carry()
	var r [Size]byte
	binary.LittleEndian.PutUint16(r[EventOffset:], m.status)
	binary.LittleEndian.PutUint16(r[EventOffset+2:], m.enable)
	binary.LittleEndian.PutUint16(r[ControlOffset:], m.control)
	binary.LittleEndian.PutUint32(r[TimerOffset:], uint32(m.ticks()))
	clear(p)
	if off < Size {
		copy(p, r[off:])
	}
}

// BusWrite writes registers byte by byte, the highest byte last: SLP_EN takes
// effect when SLP_TYP is known.
func (m *PM) BusWrite(off uint64, p []byte) {
	if m.write(off, p) && m.cfg.OnPowerOff != nil {
		m.cfg.OnPowerOff()
	}
}

func (m *PM) write(off uint64, p []byte) (powerOff bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.carry()
	for i, v := range p {
		powerOff = m.writeByte(off+uint64(i), v) || powerOff
	}
	m.update()
	return powerOff
}

func (m *PM) writeByte(off uint64, v byte) (powerOff bool) {
	switch off {
	case EventOffset, EventOffset + 1: // write one to clear
		m.status &^= uint16(v) << (8 * (off - EventOffset))
	case EventOffset + 2, EventOffset + 3:
		before := m.enable
		m.enable = setByte(m.enable, off-EventOffset-2, v) & enableBits
		m.arm(m.enable &^ before)
	case ControlOffset:
		m.control = setByte(m.control, 0, v)&^1 | sciEN
		m.control &= sciEN | bmRLD | slpTypMask<<slpTypShift
	case ControlOffset + 1: // SLP_EN is write-only
		m.control = setByte(m.control, 1, v) & (sciEN | bmRLD | slpTypMask<<slpTypShift)
		return v&(slpEN>>8) != 0 && m.control>>slpTypShift == SleepTypeS5
	}
	return false
}

// arm tells Run about newly enabled events.
func (m *PM) arm(enabled uint16) {
	if enabled&tmrSTS == 0 {
		return
	}
	select {
	case m.armed <- struct{}{}:
	default:
	}
}

// setByte replaces byte i (0 or 1) of r.
func setByte(r uint16, i uint64, v byte) uint16 {
	return r&^(0xff<<(8*i)) | uint16(v)<<(8*i)
}
