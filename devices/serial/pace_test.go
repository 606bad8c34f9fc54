// SPDX-License-Identifier: Apache-2.0

package serial

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// runPaced runs a UART and returns what ends it.
func runPaced(t *testing.T, u *UART) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { u.Run(ctx) })
	synctest.Wait()
	return func() { cancel(); wg.Wait() }
}

// high is the level of the line, which Set is called for with the lock held.
func (b *bench) high() bool {
	b.u.mu.Lock()
	defer b.u.mu.Unlock()
	return b.line.on
}

// TestPause: a handler that has sent a burst without end finds no more work for
// a quarter of the time that the burst took, and then is called again.
func TestPause(t *testing.T) {
	const gaps = burst - 1 // between the first byte and the last
	for _, c := range []struct{ perByte, pause time.Duration }{
		{0, minPause},
		{time.Microsecond, gaps * time.Microsecond / 4},
		{100 * time.Microsecond, gaps * 100 * time.Microsecond / 4},
		{time.Millisecond, maxPause},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench()
			defer runPaced(t, b.u)()
			b.out(regIER, ierETBEI)
			for i := range burst {
				time.Sleep(c.perByte)
				if b.in(regIIR) != iirTHREmpty {
					t.Fatalf("the transmitter is not empty before byte %d", i)
				}
				b.out(regData, 'x')
			}
			if b.in(regLSR)&lsrTHRE == 0 {
				t.Error("a polling driver has to wait")
			}
			time.Sleep(c.pause - 1)
			synctest.Wait()
			if b.in(regIIR) != iirNone || b.high() {
				t.Errorf("%v a byte: the pause is over too early", c.perByte)
			}
			time.Sleep(2 * time.Nanosecond)
			synctest.Wait()
			if !b.high() || b.in(regIIR) != iirTHREmpty {
				t.Errorf("%v a byte: the pause does not end after %v", c.perByte, c.pause)
			}
		})
	}
}

// TestNoPause: handlers that end by themselves, polling, and a UART that is not
// run are not held up.
func TestNoPause(t *testing.T) {
	for name, byteSent := range map[string]func(*bench){
		"handler ends":  func(b *bench) { b.in(regIIR); b.in(regIIR); b.out(regData, 'x') },
		"without IER":   func(b *bench) { b.out(regIER, 0); b.out(regData, 'x'); b.out(regIER, ierETBEI) },
		"without a Run": func(b *bench) { b.out(regData, 'x') },
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench()
			if name != "without a Run" {
				defer runPaced(t, b.u)()
			}
			b.out(regIER, ierETBEI)
			for i := range 3 * burst {
				if byteSent(b); !b.high() {
					t.Fatalf("%s: held up after byte %d", name, i)
				}
			}
		})
	}
}

// TestEndOfRunReleases: an interrupt that is held when Run ends is not lost.
func TestEndOfRunReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		stop := runPaced(t, b.u)
		b.out(regIER, ierETBEI)
		for range burst {
			b.out(regData, 'x')
		}
		if b.high() {
			t.Error("no pause")
		}
		stop()
		if !b.high() {
			t.Error("the interrupt is lost")
		}
		for range 2 * burst {
			if b.out(regData, 'x'); !b.high() {
				t.Fatal("held up without a Run")
			}
		}
	})
}
