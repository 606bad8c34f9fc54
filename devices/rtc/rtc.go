// SPDX-License-Identifier: Apache-2.0

// Package rtc is a PC's real-time clock and CMOS memory: an MC146818A at I/O
// ports 0x70 and 0x71. It shows the host's time in UTC. Register and bit names
// are those of the MC146818A data sheet.
package rtc

import (
	"context"
	"sync"
	"time"

	"github.com/govmm/govmm/internal/irq"
)

// Port is the first I/O port, Size their number: the index, then the data.
const (
	Port = 0x70
	Size = 2
)

// Century is the CMOS byte that holds the century; the FADT names it.
const Century = 0x32

// Config connects a clock.
type Config struct {
	// Line is the interrupt. It is called with the clock's lock held and must not
	// call the clock. The chip's output is a level, until register C is read.
	Line irq.Line
	// Now is the host's clock; nil: time.Now. What the guest sets is kept as a
	// difference to it.
	Now func() time.Time
	// MemoryBelow4G and MemoryAbove4G are the guest's RAM in bytes on either
	// side, from address 0 and from 4 GiB, for the bytes where firmware looks.
	MemoryBelow4G, MemoryAbove4G uint64
}

// RTC is the clock, a bus.Handler of Size ports.
type RTC struct {
	cfg   Config
	armed chan struct{} // capacity 1: which interrupts are enabled has changed

	mu    sync.Mutex
	line  bool
	index byte
	ram   [128]byte // the time registers are current only while the clock stands
	shift shift     // the guest's time minus the host's
	last  time.Time // the guest's time up to which events are accounted for
}

// New makes a clock that shows the host's time.
func New(cfg Config) *RTC {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	r := &RTC{cfg: cfg, armed: make(chan struct{}, 1)}
	r.ram[regA] = divider32768 | rate1024
	r.ram[regB] = b24Hour
	r.ram[regD] = dVRT
	r.memorySize()
	r.last = r.now()
	return r
}

// Reset is a reset of the machine: the chip's RESET pin disables interrupts and
// clears their flags. Time and memory stay; they have a battery.
func (r *RTC) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ram[regB] &^= bPIE | bAIE | bUIE | bSQWE
	r.ram[regC] = 0
	r.index = 0
	r.update()
}

// Run raises the interrupts that the guest has enabled, until ctx is done.
func (r *RTC) Run(ctx context.Context) {
	for {
		var event <-chan time.Time
		if d, on := r.untilEvent(); on {
			event = time.After(d)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.armed:
		case <-event:
		}
	}
}

// memorySize fills in what a PC's firmware finds there: base memory in KiB at
// 0x15, extended memory in KiB at 0x17 and 0x30, above 16 MiB in 64 KiB at 0x34,
// above 4 GiB in 64 KiB at 0x5b.
func (r *RTC) memorySize() {
	below, above := r.cfg.MemoryBelow4G, r.cfg.MemoryAbove4G
	r.put(0x15, 2, min(below, 640<<10)>>10)
	extended := min(sub(below, 1<<20)>>10, 0xffff)
	r.put(0x17, 2, extended)
	r.put(0x30, 2, extended)
	r.put(0x34, 2, min(sub(below, 16<<20)>>16, 0xffff))
	r.put(0x5b, 3, min(above>>16, 0xffffff))
}

func sub(a, b uint64) uint64 { return a - min(a, b) }

// put stores the n low bytes of v, lowest first.
func (r *RTC) put(i, n int, v uint64) {
	for range n {
		r.ram[i] = byte(v)
		v >>= 8
		i++
	}
}

// BusRead reads the index (which a PC can't: all ones) or the data port.
func (r *RTC) BusRead(off uint64, p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range p {
		p[i] = 0xff
		if off+uint64(i) == 1 {
			p[i] = r.read()
		}
	}
}

// BusWrite writes the index or the data port. Bit 7 of the index port masks the
// NMI on a PC; no device here raises one.
func (r *RTC) BusWrite(off uint64, p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, v := range p {
		switch off + uint64(i) {
		case 0:
			r.index = v & 0x7f
		case 1:
			r.write(v)
		}
	}
}
