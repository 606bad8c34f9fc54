// SPDX-License-Identifier: Apache-2.0

package serial

import (
	"context"
	"time"
)

// A real transmitter is slow, so a driver's handler finds it full and ends. This
// one is always empty: as long as another CPU has more to send, Linux's handler
// never ends, and where each access takes long (a nested or emulated host) the
// watchdog of that CPU reports a soft lockup. So after burst bytes without a
// break, the next "transmitter empty" interrupt waits: a share of the time that
// the bytes took, so that the guest gets on whatever the host's speed.
const (
	burst      = 1024 // bytes
	pauseShare = 4    // the pause is a quarter of the burst's time
	minPause   = 50 * time.Microsecond
	maxPause   = 100 * time.Millisecond
)

// pacer counts the bytes of a burst. It is idle unless Run runs.
type pacer struct {
	on    bool
	held  bool // the interrupt waits for Run
	sent  int  // bytes since the burst began
	since time.Time
	hold  chan time.Duration // capacity 1: how long to hold the interrupt
}

func newPacer() pacer { return pacer{hold: make(chan time.Duration, 1)} }

// count takes note of a byte and begins a pause at the end of a burst.
func (p *pacer) count() {
	if !p.on || p.held {
		return
	}
	if p.sent == 0 {
		p.since = time.Now()
	}
	if p.sent++; p.sent < burst {
		return
	}
	p.sent = 0
	p.held = true
	p.hold <- min(max(time.Since(p.since)/pauseShare, minPause), maxPause)
}

// Run gives the guest's CPUs a break now and then while it transmits by
// interrupts, until ctx is done. Without it all else works.
func (u *UART) Run(ctx context.Context) {
	u.setPacing(true)
	defer u.setPacing(false)
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-u.pace.hold:
			wait(ctx, d)
			u.release()
		}
	}
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// setPacing switches pacing on or off. Off leaves nothing held.
func (u *UART) setPacing(on bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pace.on = on
	if !on && u.pace.held {
		u.resume()
		select {
		case <-u.pace.hold:
		default:
		}
	}
}

// release raises the interrupt that was held.
func (u *UART) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.resume()
}

func (u *UART) resume() {
	u.pace.held = false
	u.thrEmpty = true
	u.update()
}
