// SPDX-License-Identifier: Apache-2.0

package serial

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govmm/govmm/internal/console"
)

// edgeLine is an edge-triggered interrupt input, as an ISA interrupt has it at
// an IOAPIC: a rising edge is latched until the handler starts.
type edgeLine struct {
	mu    sync.Mutex
	level bool
	latch chan struct{} // capacity 1
}

func newEdgeLine() *edgeLine { return &edgeLine{latch: make(chan struct{}, 1)} }

func (l *edgeLine) Set(level bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if level && !l.level {
		select {
		case l.latch <- struct{}{}:
		default:
		}
	}
	l.level = level
}

// linux is a model of an interrupt-driven 8250 driver that behaves as Linux's
// does: it fills the FIFO when the transmitter is empty, switches the interrupt
// off when there is no more to send, and gives up after passLimit rounds.
type linux struct {
	u    *UART
	line *edgeLine

	mu   sync.Mutex // the port lock
	ier  byte
	xmit []byte
	got  []byte
}

const passLimit = 16 // Linux: 512

func (d *linux) in(reg uint64) byte {
	var b [1]byte
	d.u.BusRead(reg, b[:])
	return b[0]
}

func (d *linux) out(reg uint64, v byte) { d.u.BusWrite(reg, []byte{v}) }

func (d *linux) setIER(v byte) {
	d.ier = v
	d.out(regIER, v)
}

// open does what starting a port does: clear FIFOs, read the event registers,
// then enable the FIFO, the receiver's interrupt and RTS.
func (d *linux) open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.out(regIIR, 0x01)
	d.out(regIIR, 0x07)
	d.out(regIIR, 0x00)
	for _, r := range []uint64{regLSR, regData, regIIR, regMSR} {
		d.in(r)
	}
	d.out(regLCR, 0x03)
	d.out(regMCR, mcrOUT2)
	d.out(regIIR, 0x81) // trigger at 8
	d.setIER(ierERBFI | ierELSI)
	d.out(regMCR, mcrOUT2|mcrRTS|mcrDTR)
}

func (d *linux) send(p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.xmit = append(d.xmit, p...)
	if d.ier&ierETBEI == 0 {
		d.setIER(d.ier | ierETBEI)
	}
}

// printk sends by polling, between the driver's bytes, with interrupts off.
func (d *linux) printk(p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.out(regIER, 0)
	for _, c := range p {
		for d.in(regLSR)&lsrTHRE == 0 {
		}
		d.out(regData, c)
	}
	d.out(regIER, d.ier)
}

// interrupt is the handler of one edge.
func (d *linux) interrupt() {
	for range passLimit {
		if !d.handle() {
			return
		}
	}
}

func (d *linux) handle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.in(regIIR)&iirNone != 0 {
		return false
	}
	lsr := d.in(regLSR)
	for range 256 {
		if lsr&lsrDR == 0 {
			break
		}
		d.got = append(d.got, d.in(regData))
		lsr = d.in(regLSR)
	}
	d.in(regMSR)
	if lsr&lsrTHRE != 0 && d.ier&ierETBEI != 0 {
		d.fill()
	}
	return true
}

func (d *linux) fill() {
	for range min(FIFOSize, len(d.xmit)) {
		d.out(regData, d.xmit[0])
		d.xmit = d.xmit[1:]
	}
	if len(d.xmit) == 0 {
		d.setIER(d.ier &^ ierETBEI)
	}
}

// serve handles interrupts until ctx is done.
func (d *linux) serve(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.line.latch:
			d.interrupt()
		}
	}
}

func (d *linux) received() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return bytes.Clone(d.got)
}

func (d *linux) unsent() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.xmit)
}

func newLinux(t *testing.T, o *console.Output) *linux {
	line := newEdgeLine()
	d := &linux{u: New(Config{Line: line, Out: o}), line: line}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { o.Run(ctx) })
	wg.Go(func() { d.serve(ctx) })
	wg.Go(func() { d.u.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return d
}

// random makes n bytes other than 0xff.
func random(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(p)
	for i := range p {
		p[i] %= 0xff
	}
	return p
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for !cond() {
		select {
		case <-t.Context().Done():
			t.Fatal("never happened: " + what)
		case <-time.After(time.Millisecond):
		}
	}
}

// TestTransmitIsComplete: a megabyte through interrupt-driven transmission, with
// input and kernel messages at the same time, arrives whole.
func TestTransmitIsComplete(t *testing.T) {
	var out bytes.Buffer
	o := console.NewOutput(console.Config{Out: &out, Buffer: 4 << 20})
	d := newLinux(t, o)
	d.open()
	want, input := random(1<<20), random(1<<16)
	var wg sync.WaitGroup
	wg.Go(func() {
		if n, err := d.u.Feed(t.Context(), input); n != len(input) || err != nil {
			t.Error(n, err)
		}
	})
	const message = "\xffkernel\xff" // 0xff does not occur elsewhere
	for p := want; len(p) > 0; {
		n := min(len(p), 1+len(p)%999)
		d.send(p[:n])
		p = p[n:]
		d.printk([]byte(message))
	}
	wg.Wait()
	eventually(t, "the last byte is transmitted", func() bool { return d.unsent() == 0 })
	if err := o.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := bytes.ReplaceAll(out.Bytes(), []byte(message), nil)
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes came out, not the %d that went in", len(got), len(want))
	}
	eventually(t, "the last byte is received", func() bool { return len(d.received()) == len(input) })
	if !bytes.Equal(d.received(), input) {
		t.Error("the guest has not received what was fed")
	}
}

// TestBlockedOutputDoesNotBlockTheGuest: the guest transmits more than the
// buffer holds while nobody reads.
func TestBlockedOutputDoesNotBlockTheGuest(t *testing.T) {
	block := make(chan struct{})
	defer close(block)
	o := console.NewOutput(console.Config{Out: blockedWriter{block}, Buffer: 4 << 10})
	d := newLinux(t, o)
	d.open()
	d.send(random(64 << 10))
	eventually(t, "the guest has sent all", func() bool { return d.unsent() == 0 })
	if o.Stats().Lost == 0 {
		t.Error("nothing was counted as lost")
	}
}

type blockedWriter struct{ c chan struct{} }

func (w blockedWriter) Write(p []byte) (int, error) {
	<-w.c
	return len(p), nil
}

// TestEarlyInputIsKept: what is typed before the guest's driver starts is lost
// neither to its probing nor to its clearing of FIFOs.
func TestEarlyInputIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newLinux(t, console.NewOutput(console.Config{}))
		want := []byte("root\nuname -a\npoweroff\n")
		go d.u.Feed(t.Context(), want)
		for _, w := range []struct {
			reg uint64
			v   byte
		}{
			{regIER, 0}, {regIER, 0x0f}, {regIER, 0},
			{regMCR, mcrLoop | mcrOUT2 | mcrRTS}, {regMCR, 0}, {regMCR, mcrDTR},
			{regIIR, 0x01}, {regIER, ierETBEI}, {regIER, 0},
		} {
			synctest.Wait() // Feed waits for its chance
			d.out(w.reg, w.v)
		}
		synctest.Wait()
		d.open()
		synctest.Wait()
		if got := d.received(); !bytes.Equal(got, want) {
			t.Errorf("received %q, want %q", got, want)
		}
	})
}

// TestProbe goes through the register tests by which Linux tells a 16550A
// (autoconfig and its helpers in 8250_port.c).
func TestProbe(t *testing.T) {
	d := &linux{u: New(Config{})}
	expect := func(what string, got, want byte) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %#x, want %#x", what, got, want)
		}
	}
	d.out(regIER, 0)
	expect("IER cleared", d.in(regIER)&0x0f, 0)
	d.out(regIER, 0x0f)
	expect("IER set", d.in(regIER)&0x0f, 0x0f)
	d.out(regIER, 0x40)
	expect("the XScale's UUE bit", d.in(regIER), 0)

	d.out(regMCR, mcrLoop|mcrOUT2|mcrRTS)
	expect("modem status in loop-back", d.in(regMSR)&0xf0, msrDCD|msrCTS)
	d.out(regMCR, 0)

	d.out(regLCR, 0xbf)
	d.out(regIIR, 0) // a 16650's EFR
	d.out(regLCR, 0)
	d.out(regIIR, 0x01)
	expect("the FIFO bits", d.in(regIIR)>>6, 3)
	d.out(regIIR, 0x21)
	expect("a 16750's 64-byte mode without DLAB", d.in(regIIR)>>5, 6)
	d.out(regLCR, 0x80)
	d.out(regIIR, 0x21)
	expect("a 16750's 64-byte mode with DLAB", d.in(regIIR)>>5, 6)
	d.out(regLCR, 0)

	d.out(regIIR, 0x07)
	expect("LSR", d.in(regLSR), lsrTHRE|lsrTEMT)
	d.out(regSCR, 0xa5)
	expect("scratch", d.in(regSCR), 0xa5)
}

// TestFIFOSize is the test by which a driver counts the FIFO's bytes: it sends
// 256 to itself.
func TestFIFOSize(t *testing.T) {
	d := &linux{u: New(Config{})}
	d.out(regIIR, 0x07)
	d.out(regMCR, mcrLoop)
	d.out(regLCR, 0x80)
	d.out(regData, 1)
	d.out(regIER, 0)
	d.out(regLCR, 0x03)
	for i := range 256 {
		d.out(regData, byte(i))
	}
	if lsr := d.in(regLSR); lsr&lsrOE == 0 {
		t.Errorf("LSR %#x: no overrun", lsr)
	}
	n := 0
	for ; d.in(regLSR)&lsrDR != 0; n++ {
		if c := d.in(regData); c != byte(n) {
			t.Errorf("byte %d is %d", n, c)
		}
	}
	if n != FIFOSize {
		t.Errorf("the FIFO has %d bytes", n)
	}
}

// TestTransmitInterruptTest is Linux's test for UARTs that don't raise the
// interrupt again (UART_BUG_THRE) or at all (UART_BUG_TXEN).
func TestTransmitInterruptTest(t *testing.T) {
	d := &linux{u: New(Config{})}
	for i := range 2 {
		d.out(regIER, ierETBEI)
		if iir := d.in(regIIR); iir&0x0f != iirTHREmpty {
			t.Errorf("round %d: IIR %#x, want THR empty", i, iir)
		}
		if iir := d.in(regIIR); iir&0x0f != iirNone {
			t.Errorf("round %d: IIR %#x after it was read, want none", i, iir)
		}
		d.out(regIER, 0)
	}
}
