// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type level struct {
	mu sync.Mutex
	on bool
}

func (l *level) Set(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on = on
}

func (l *level) state() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.on
}

type guest struct {
	*PM
	sci  level
	offs int
}

func newGuest() *guest {
	g := &guest{}
	g.PM = New(Config{SCI: &g.sci, OnPowerOff: func() { g.offs++ }})
	return g
}

func (g *guest) get16(off uint64) uint16 {
	var b [2]byte
	g.BusRead(off, b[:])
	return binary.LittleEndian.Uint16(b[:])
}

func (g *guest) set16(off uint64, v uint16) {
	g.BusWrite(off, binary.LittleEndian.AppendUint16(nil, v))
}

func (g *guest) timer() uint32 {
	var b [4]byte
	g.BusRead(TimerOffset, b[:])
	return binary.LittleEndian.Uint32(b[:])
}

// TestPowerOff: only SLP_EN with the type of S5 switches off.
func TestPowerOff(t *testing.T) {
	for _, c := range []struct {
		name   string
		writes [][]byte // to the control register
		want   int
	}{
		{"type and enable in one write", [][]byte{{0x01, 0x34}}, 1},
		{"type first, as ACPICA writes it", [][]byte{{0x01, 0x14}, {0x01, 0x34}}, 1},
		{"type without enable", [][]byte{{0x01, 0x14}}, 0},
		{"another type", [][]byte{{0x01, 0x20}}, 0},
		{"S3's type in other firmware", [][]byte{{0x01, 0x24}}, 0},
		{"low byte only", [][]byte{{0x34}}, 0},
	} {
		g := newGuest()
		for _, w := range c.writes {
			g.BusWrite(ControlOffset, w)
		}
		if g.offs != c.want {
			t.Errorf("%s: %d power-offs, want %d", c.name, g.offs, c.want)
		}
	}
	g := newGuest()
	g.BusWrite(ControlOffset+1, []byte{0x34}) // a byte write of the high half
	if g.offs != 1 {
		t.Error("a byte write to the register's high half did not switch off")
	}
}

// TestControlReadsBack: SCI_EN is always set, SLP_EN never reads as set.
func TestControlReadsBack(t *testing.T) {
	g := newGuest()
	for _, c := range []struct{ write, want uint16 }{
		{0x0000, 0x0001}, {0xffff, 0x1c03}, {0x1400, 0x1401}, {0x0002, 0x0003},
	} {
		g.set16(ControlOffset, c.write)
		if got := g.get16(ControlOffset); got != c.want {
			t.Errorf("wrote %#x, read %#x, want %#x", c.write, got, c.want)
		}
	}
	g.Reset()
	if got := g.get16(ControlOffset); got != 0x0001 {
		t.Errorf("control %#x after a reset", got)
	}
}

// TestPowerButton is the way of a press through a guest's driver.
func TestPowerButton(t *testing.T) {
	g := newGuest()
	if g.PressPowerButton() {
		t.Error("a guest that has not enabled the event does not listen")
	}
	if g.sci.state() {
		t.Error("an event that is not enabled raised the SCI")
	}
	g.set16(EventOffset+2, pwrbtnSTS) // a late driver finds the press
	if !g.sci.state() || g.get16(EventOffset) != pwrbtnSTS {
		t.Errorf("SCI %v, status %#x", g.sci.state(), g.get16(EventOffset))
	}
	g.set16(EventOffset, tmrSTS) // clears another bit
	if !g.sci.state() {
		t.Error("the event is gone")
	}
	g.set16(EventOffset, pwrbtnSTS)
	if g.sci.state() || g.get16(EventOffset) != 0 {
		t.Errorf("SCI %v, status %#x after it was cleared", g.sci.state(), g.get16(EventOffset))
	}
	if !g.PressPowerButton() || !g.sci.state() {
		t.Error("the second press")
	}
	g.Reset()
	if g.sci.state() || g.get16(EventOffset+2) != 0 {
		t.Error("not reset")
	}
}

func TestEnableBits(t *testing.T) {
	g := newGuest()
	g.set16(EventOffset+2, 0xffff)
	if got := g.get16(EventOffset + 2); got != 0x0521 {
		t.Errorf("enable %#x", got)
	}
}

// TestTimerFrequency: over a day the timer has counted 3579545 each second, cut
// to 32 bits.
func TestTimerFrequency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuest()
		if got := g.timer(); got != 0 {
			t.Errorf("starts at %d", got)
		}
		for _, c := range []struct {
			sleep time.Duration
			want  uint64
		}{
			{time.Second, TimerFrequency},
			{999999 * time.Second, 1000000 * TimerFrequency},
			{100 * 365 * 24 * time.Hour, (1000000 + 100*365*86400) * TimerFrequency},
		} {
			time.Sleep(c.sleep)
			if got := g.timer(); got != uint32(c.want) {
				t.Errorf("%d, want %d", got, uint32(c.want))
			}
		}
		before := g.timer()
		time.Sleep(time.Millisecond)
		if d := g.timer() - before; d != 3579 && d != 3580 {
			t.Errorf("%d ticks in a millisecond", d)
		}
	})
}

// half is the time of 2^31 ticks, after which TMR_STS is set.
const half = 599932 * time.Millisecond // 2147483648 / 3579545 = 599.932... s

// TestTimerCarry: the status bit is set whether or not anybody waits for it, the
// interrupt comes by itself.
func TestTimerCarry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuest()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { g.Run(ctx) })
		time.Sleep(half - time.Second)
		if g.get16(EventOffset) != 0 {
			t.Error("the carry is early")
		}
		time.Sleep(2 * time.Second)
		if g.get16(EventOffset) != tmrSTS || g.sci.state() {
			t.Errorf("status %#x, SCI %v", g.get16(EventOffset), g.sci.state())
		}
		g.set16(EventOffset, tmrSTS)
		g.set16(EventOffset+2, tmrSTS)
		time.Sleep(half - 2*time.Second)
		if g.sci.state() {
			t.Error("the second carry is early")
		}
		time.Sleep(2 * time.Second)
		if !g.sci.state() {
			t.Error("the second carry did not raise the SCI")
		}
		cancel()
		wg.Wait()
	})
}

func TestWideAndOddAccesses(t *testing.T) {
	g := newGuest()
	p := make([]byte, 8)
	g.BusRead(Size-2, p)
	g.BusRead(1<<40, p)
	if binary.LittleEndian.Uint64(p) != 0 {
		t.Errorf("% x", p)
	}
	g.BusWrite(EventOffset, []byte{0, 0, 0x21, 0x01, 1, 0x10, 0, 0})
	if en, cnt := g.get16(EventOffset+2), g.get16(ControlOffset); en != 0x0121 || cnt != 0x1001 {
		t.Errorf("an 8-byte write: enable %#x, control %#x", en, cnt)
	}
}

func TestResetControl(t *testing.T) {
	for _, c := range []struct {
		writes []byte
		want   int
		reads  byte
	}{
		{[]byte{0x02}, 0, 0x02},
		{[]byte{0x02, 0x06}, 1, 0x02}, // as Linux does
		{[]byte{ResetValue}, 1, 0x02}, // as ACPI does
		{[]byte{0x0e}, 1, 0x0a},
		{[]byte{0xf1}, 0, 0x00},
	} {
		n := 0
		r := NewResetControl(func() { n++ })
		for _, v := range c.writes {
			r.BusWrite(0, []byte{v})
		}
		var b [1]byte
		r.BusRead(0, b[:])
		if n != c.want || b[0] != c.reads {
			t.Errorf("% x: %d resets, reads %#x; want %d, %#x", c.writes, n, b[0], c.want, c.reads)
		}
		r.BusWrite(1, []byte{0x06})
		if r.Reset(); n != c.want {
			t.Error("another port resets")
		}
		if r.BusRead(0, b[:]); b[0] != 0 {
			t.Error("not reset")
		}
	}
}

// FuzzAccess: the SCI is always what status and enable say.
func FuzzAccess(f *testing.F) {
	f.Add([]byte{0x82, 0x00, 0x83, 0x01, 0x40, 0, 0x81, 1})
	f.Add([]byte{0xb0, 0xff, 0x85, 0x34, 0x00, 0x00})
	f.Fuzz(func(t *testing.T, ops []byte) {
		g := newGuest()
		for ; len(ops) >= 2; ops = ops[2:] {
			p := make([]byte, 1<<(ops[0]>>4&3))
			p[0] = ops[1]
			off := uint64(ops[0] & 0xf)
			switch {
			case ops[0]&0x80 != 0:
				g.BusWrite(off, p)
			case ops[0]&0x40 != 0:
				g.PressPowerButton()
			default:
				g.BusRead(off, p)
			}
			if want := g.get16(EventOffset)&g.get16(EventOffset+2) != 0; g.sci.state() != want {
				t.Fatalf("SCI %v, want %v", g.sci.state(), want)
			}
			if g.get16(ControlOffset)&sciEN == 0 {
				t.Fatal("SCI_EN is off")
			}
		}
	})
}
