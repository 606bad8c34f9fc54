// SPDX-License-Identifier: Apache-2.0

package serial

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// level is a line that remembers its level and counts rising edges.
type level struct {
	on    bool
	edges int
}

func (l *level) Set(on bool) {
	if on && !l.on {
		l.edges++
	}
	l.on = on
}

type bench struct {
	*linux
	line level
	tx   bytes.Buffer
}

func newBench() *bench {
	b := &bench{}
	b.linux = &linux{u: New(Config{Line: &b.line, Out: &b.tx})}
	return b
}

// TestInterruptPriority: all four sources at once are served in the order of the
// data sheet's table, each reset by what that table says.
func TestInterruptPriority(t *testing.T) {
	b := newBench()
	b.out(regMCR, mcrLoop)
	b.out(regIIR, fcrEnable)
	b.out(regMCR, mcrLoop|mcrRTS) // CTS changes
	for range FIFOSize + 1 {
		b.out(regData, 'x') // the last overruns
	}
	b.out(regIER, ierBits)
	for _, step := range []struct {
		iir   byte
		reset func()
	}{
		{iirFIFO | iirLineStatus, func() { b.in(regLSR) }},
		{iirFIFO | iirData, func() {
			for range FIFOSize {
				b.in(regData)
			}
		}},
		{iirFIFO | iirTHREmpty, func() {}}, // the reading of IIR has reset it
		{iirFIFO | iirModemStatus, func() { b.in(regMSR) }},
	} {
		if !b.line.on {
			t.Errorf("the line is low with IIR %#x to come", step.iir)
		}
		if got := b.in(regIIR); got != step.iir {
			t.Errorf("IIR %#x, want %#x", got, step.iir)
		}
		step.reset()
	}
	if got := b.in(regIIR); got != iirFIFO|iirNone || b.line.on {
		t.Errorf("at the end: IIR %#x, line %v", got, b.line.on)
	}
}

// TestTriggerLevels: from the trigger level on the interrupt is "data
// available", below it "character timeout".
func TestTriggerLevels(t *testing.T) {
	for fcr, trigger := range map[byte]int{0x01: 1, 0x41: 4, 0x81: 8, 0xc1: 14} {
		b := newBench()
		b.out(regIIR, fcr)
		b.out(regIER, ierERBFI)
		b.out(regMCR, mcrRTS)
		for n := 1; n <= FIFOSize; n++ {
			b.u.Feed(t.Context(), []byte{byte(n)})
			want := byte(iirFIFO | iirDataTimeout)
			if n >= trigger {
				want = iirFIFO | iirData
			}
			if got := b.in(regIIR); got != want || !b.line.on {
				t.Errorf("trigger %d, %d bytes: IIR %#x, want %#x", trigger, n, got, want)
			}
		}
	}
}

func TestEachTransmittedByteIsAnEdge(t *testing.T) {
	b := newBench()
	b.out(regIER, ierETBEI)
	for i := range 5 {
		if b.line.edges != i+1 {
			t.Errorf("%d edges before byte %d", b.line.edges, i)
		}
		b.out(regData, 'a')
	}
	if b.in(regIIR); b.line.on {
		t.Error("the line is high after IIR was read")
	}
	if b.tx.String() != "aaaaa" {
		t.Errorf("%q", b.tx.String())
	}
}

func TestModemStatusDeltas(t *testing.T) {
	b := newBench()
	if got := b.in(regMSR); got != msrDCD|msrDSR|msrCTS {
		t.Errorf("MSR %#x: a ready terminal is connected", got)
	}
	for _, c := range []struct{ mcr, want byte }{
		{mcrLoop, 0x0b},                          // DCD, DSR, CTS go off
		{mcrLoop, 0},                             // no change
		{mcrLoop | mcrRTS, msrCTS | 0x01},        //
		{mcrLoop | mcrDTR, msrDSR | 0x02 | 0x01}, //
		{mcrLoop | mcrOUT1, msrRI | 0x02},        // RI going on does not count
		{mcrLoop | mcrOUT2, msrDCD | 0x08 | msrTERI},
	} {
		b.out(regMCR, c.mcr)
		if got := b.in(regMSR); got != c.want {
			t.Errorf("MCR %#x: MSR %#x, want %#x", c.mcr, got, c.want)
		}
	}
}

func TestLoopbackIsNotTransmitted(t *testing.T) {
	b := newBench()
	b.out(regMCR, mcrLoop|mcrRTS)
	b.out(regData, 'x')
	if b.tx.Len() != 0 {
		t.Errorf("%q came out in loop-back mode", b.tx.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := b.u.Feed(ctx, []byte("y")); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("input in loop-back mode: %d, %v", n, err)
	}
	if got := b.in(regData); got != 'x' {
		t.Errorf("received %q", got)
	}
}

func TestWithoutFIFO(t *testing.T) {
	b := newBench()
	b.out(regMCR, mcrLoop)
	b.out(regData, 'a')
	b.out(regData, 'b')
	if lsr := b.in(regLSR); lsr&(lsrOE|lsrDR) != lsrOE|lsrDR {
		t.Errorf("LSR %#x, want an overrun of the one-byte receiver", lsr)
	}
	b.out(regIER, ierERBFI)
	if iir := b.in(regIIR); iir != iirData {
		t.Errorf("IIR %#x, want data and no FIFO bits", iir)
	}
	b.out(regIIR, fcrEnable) // a change of FCR0 clears
	if lsr := b.in(regLSR); lsr&lsrDR != 0 {
		t.Error("enabling the FIFO has not cleared it")
	}
}

// TestFeedWaitsForTheGuest: Feed blocks, in turn, until the guest has read, and
// reset of the machine leaves the rest for the next driver.
func TestFeedWaitsForTheGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.out(regIIR, fcrEnable)
		b.out(regMCR, mcrRTS)
		ctx, cancel := context.WithCancel(t.Context())
		fed := 0
		ended := false
		go func() {
			n, err := b.u.Feed(ctx, bytes.Repeat([]byte("z"), 40))
			if !errors.Is(err, context.Canceled) {
				t.Errorf("err %v", err)
			}
			fed, ended = n, true
		}()
		synctest.Wait()
		second := make(chan struct{})
		go func() {
			if n, err := b.u.Feed(ctx, []byte("second")); n != 0 || err == nil {
				t.Errorf("the second Feed was not after the first: %d, %v", n, err)
			}
			close(second)
		}()
		synctest.Wait()
		for range FIFOSize {
			if got := b.in(regData); got == 0 {
				t.Fatal("the FIFO is empty")
			}
		}
		synctest.Wait()
		if b.in(regLSR)&lsrDR == 0 {
			t.Error("Feed has not filled the FIFO again")
		}
		if ended {
			t.Error("Feed has returned with bytes left")
		}
		b.u.Reset()
		if b.in(regLSR)&lsrDR != 0 || b.in(regIER) != 0 || b.in(regMCR) != 0 {
			t.Error("registers are not reset")
		}
		cancel()
		synctest.Wait()
		<-second
		if !ended || fed != 2*FIFOSize {
			t.Errorf("fed %d, ended %v", fed, ended)
		}
	})
}

func TestResetLowersTheLine(t *testing.T) {
	b := newBench()
	b.out(regIER, ierETBEI)
	if !b.line.on {
		t.Fatal("no interrupt")
	}
	b.u.Reset()
	if b.line.on {
		t.Error("the line is high after a reset")
	}
}

func TestWideAccess(t *testing.T) {
	b := newBench()
	b.out(regLCR, lcrDLAB)
	b.u.BusWrite(regData, []byte{0x34, 0x12})
	got := make([]byte, 2)
	b.u.BusRead(regData, got)
	if !bytes.Equal(got, []byte{0x34, 0x12}) {
		t.Errorf("divisor %x", got)
	}
	got = make([]byte, 4)
	b.u.BusRead(regSCR, got)
	if !bytes.Equal(got, []byte{0, 0xff, 0xff, 0xff}) {
		t.Errorf("beyond the last register: %x", got)
	}
}

func TestTransmitDoesNotAllocate(t *testing.T) {
	b := newBench()
	b.tx.Grow(1 << 20)
	p := []byte{'x'}
	if n := testing.AllocsPerRun(1000, func() { b.u.BusWrite(regData, p) }); n != 0 {
		t.Errorf("%v allocations a byte", n)
	}
}

// model is the receiver and the interrupt logic written down a second time, from
// the data sheet: what is on the line must be what it says.
type model struct {
	ier, fcr, mcr byte
	rx            int
	oe, thre      bool
	delta         byte
}

func (m *model) line() bool {
	return m.ier&4 != 0 && m.oe || m.ier&1 != 0 && m.rx > 0 || m.ier&2 != 0 && m.thre || m.ier&8 != 0 && m.delta != 0
}

func (m *model) depth() int {
	if m.fcr&1 != 0 {
		return 16
	}
	return 1
}

// lines in loop-back mode and out of it, MSR bits 7:4 in bits 3:0.
func (m *model) lines() byte {
	if m.mcr&16 == 0 {
		return 0b1011
	}
	return m.mcr&2>>1 | m.mcr&1<<1 | m.mcr&12
}

// TestLineProperty: after every access of a random sequence the level of the
// line is that of the model.
func TestLineProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, m := newBench(), &model{}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if b.line.on != m.line() {
					t.Fatalf("line %v, model %+v", b.line.on, *m)
				}
			},
			"IER": func(t *rapid.T) {
				v := rapid.Byte().Draw(t, "v")
				m.thre = m.thre || v&2 != 0 && m.ier&2 == 0
				m.ier = v & 15
				b.out(regIER, v)
			},
			"FCR": func(t *rapid.T) {
				v := rapid.Byte().Draw(t, "v")
				if v&2 != 0 || (v^m.fcr)&1 != 0 {
					m.rx = 0
				}
				m.fcr = v
				b.out(regIIR, v)
			},
			"MCR": func(t *rapid.T) {
				v := rapid.Byte().Draw(t, "v")
				before := m.lines()
				m.mcr = v & 31
				after := m.lines()
				m.delta |= (before ^ after) & 0b1011
				m.delta |= before &^ after & 0b0100
				b.out(regMCR, v)
			},
			"THR": func(*rapid.T) {
				m.thre = true
				if m.mcr&16 != 0 {
					if m.rx < m.depth() {
						m.rx++
					} else {
						m.oe = true
					}
				}
				b.out(regData, 'x')
			},
			"RBR": func(*rapid.T) {
				m.rx = max(0, m.rx-1)
				b.in(regData)
			},
			"IIR": func(*rapid.T) {
				if v := b.in(regIIR); v&0xf == iirTHREmpty {
					m.thre = false
				}
			},
			"LSR": func(t *rapid.T) {
				v := b.in(regLSR)
				if v&1 != 0 != (m.rx > 0) || v&2 != 0 != m.oe {
					t.Fatalf("LSR %#x, model %+v", v, *m)
				}
				m.oe = false
			},
			"MSR": func(t *rapid.T) {
				if v := b.in(regMSR); v != m.lines()<<4|m.delta {
					t.Fatalf("MSR %#x, model %+v", v, *m)
				}
				m.delta = 0
			},
			"feed": func(t *rapid.T) {
				n := rapid.IntRange(0, 20).Draw(t, "n")
				if m.mcr&(16|2) != 2 {
					n = 0
				}
				took := b.u.receive(make([]byte, n))
				if want := max(0, min(n, m.depth()-m.rx)); took != want {
					t.Fatalf("took %d, want %d", took, want)
				}
				m.rx += took
			},
		})
	})
}

// FuzzAccess: any sequence of accesses leaves a device that answers.
func FuzzAccess(f *testing.F) {
	f.Add([]byte{0x83, 0x80, 0x80, 1, 0x83, 3, 0x81, 0x0f, 0x80, 'x', 2, 1})
	f.Add([]byte{0x84, 0x1a, 0x82, 7, 0x80, 1, 5, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		b := newBench()
		for ; len(ops) >= 2; ops = ops[2:] {
			off, width := uint64(ops[0]&0xf), 1<<(ops[0]>>4&3)
			p := make([]byte, width)
			p[0] = ops[1]
			switch {
			case ops[0]&0x80 != 0:
				b.u.BusWrite(off, p)
			case ops[0]&0x40 != 0:
				b.u.receive(p)
			default:
				b.u.BusRead(off, p)
			}
			if want := b.u.pending() != iirNone; b.line.on != want {
				t.Fatalf("line %v, want %v", b.line.on, want)
			}
			if b.u.rx.n < 0 || b.u.rx.n > FIFOSize {
				t.Fatalf("%d bytes in the FIFO", b.u.rx.n)
			}
		}
	})
}
