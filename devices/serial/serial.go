// SPDX-License-Identifier: Apache-2.0

// Package serial is a 16550A UART as a PC has it at 0x3f8. Register and bit
// names are those of the PC16550D data sheet. It transmits in no time and never
// makes the guest wait; received bytes wait on the host's side until the guest
// has room for them.
package serial

import (
	"context"
	"io"
	"sync"

	"github.com/govmm/govmm/internal/irq"
)

// Size is the number of I/O ports.
const Size = 8

// FIFOSize is the depth of the receiver FIFO, bytes.
const FIFOSize = 16

// Config connects a UART.
type Config struct {
	// Line is the interrupt. It is called with the UART's lock held and must not
	// call the UART.
	Line irq.Line
	// Out gets what the guest transmits, byte by byte, on the guest's CPU thread:
	// it must not block (console.Output does not).
	Out io.Writer
}

// UART is the device. Its methods may be called from any goroutine.
type UART struct {
	cfg    Config
	feeder chan struct{} // capacity 1: held by the Feed whose turn it is
	space  chan struct{} // capacity 1: there may be room for received bytes

	mu   sync.Mutex
	out  [1]byte // what Out is called with, so that no call allocates
	rx   fifo
	line bool // level of the interrupt line

	ier, fcr, lcr, mcr, scr byte
	dll, dlm                byte
	overrun                 bool // LSR.OE: a byte came that found no room
	msrDelta                byte // MSR bits 3:0
	// thrEmpty is the pending "transmitter holding register empty" interrupt.
	// The register is always empty: only the event comes and goes.
	thrEmpty bool
	pace     pacer
}

// New makes a UART in its reset state.
func New(cfg Config) *UART {
	u := &UART{
		cfg:    cfg,
		feeder: make(chan struct{}, 1),
		space:  make(chan struct{}, 1),
		pace:   newPacer(),
	}
	u.resetRegisters()
	return u
}

// Reset is a reset of the machine. Bytes that Feed has not handed over stay.
func (u *UART) Reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.resetRegisters()
	u.update()
}

func (u *UART) resetRegisters() {
	u.rx.clear()
	u.ier, u.fcr, u.lcr, u.mcr, u.scr = 0, 0, 0, 0, 0
	u.dll, u.dlm = 12, 0 // 9600 baud
	u.overrun, u.thrEmpty, u.msrDelta = false, false, 0
}

// Feed sends p to the guest and returns when the guest's FIFO has taken all of
// it or ctx is done; it returns how much was taken. It keeps to the flow control
// of RS-232: bytes wait while the guest does not raise RTS. A driver raises it
// when it is ready; what comes earlier it throws away, by clearing the FIFO. Calls
// take turns.
func (u *UART) Feed(ctx context.Context, p []byte) (int, error) {
	select {
	case u.feeder <- struct{}{}:
		defer func() { <-u.feeder }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	done := u.receive(p)
	for done < len(p) {
		select {
		case <-u.space:
			done += u.receive(p[done:])
		case <-ctx.Done():
			return done, ctx.Err()
		}
	}
	return done, nil
}

// receive puts as much of p as fits now into the receiver.
func (u *UART) receive(p []byte) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.listening() {
		return 0
	}
	n := u.rx.push(p, u.depth())
	u.update()
	return n
}

// listening tells that bytes from outside reach a guest that wants them.
// In loop-back mode the input is disconnected. The enabled interrupt is no sign:
// a driver that probes enables it for a moment.
func (u *UART) listening() bool {
	return u.mcr&(mcrLoop|mcrRTS) == mcrRTS
}

// depth is the capacity of the receiver, bytes.
func (u *UART) depth() int {
	if u.fcr&fcrEnable == 0 {
		return 1
	}
	return FIFOSize
}

// offerSpace wakes Feed if the receiver is empty and takes bytes. It waits for
// the last byte to be read so that the line falls and rises again for the next
// ones: a handler that gives up after some rounds (Linux does) while bytes keep
// coming has then seen, on an edge-triggered line, an edge for the rest.
func (u *UART) offerSpace() {
	if !u.listening() || u.rx.n > 0 {
		return
	}
	select {
	case u.space <- struct{}{}:
	default:
	}
}

// fifo is the receiver's FIFO.
type fifo struct {
	buf     [FIFOSize]byte
	head, n int
}

func (f *fifo) clear() { f.head, f.n = 0, 0 }

// push appends as much of p as fits a capacity of depth bytes.
func (f *fifo) push(p []byte, depth int) int {
	n := max(0, min(len(p), depth-f.n))
	for _, c := range p[:n] {
		f.buf[(f.head+f.n)%FIFOSize] = c
		f.n++
	}
	return n
}

// pop takes the oldest byte; an empty FIFO gives 0.
func (f *fifo) pop() byte {
	if f.n == 0 {
		return 0
	}
	c := f.buf[f.head]
	f.head, f.n = (f.head+1)%FIFOSize, f.n-1
	return c
}
