// SPDX-License-Identifier: Apache-2.0

package porttest

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/loop"
)

// stuck is how long a test waits for what must happen before it says that a
// wake-up was lost. It is not a measure of speed: nothing takes long.
const stuck = 20 * time.Second

// world is a queue pair, a Pump, and the host's side of the wire, with numbered
// frames in both directions. Its methods may be called from several goroutines.
type world struct {
	t    fatal
	port netio.Port
	pump *netio.Pump
	near *loop.Queue // the pump's
	net  *loop.Loop  // the backend of near
	far  *loop.Queue // the host's end

	mu       sync.Mutex // the guest and the far end
	guest    Guest
	tx, rx   flow // of the guest
	txReaped uint64
	buf      []byte

	faults, losses atomic.Int32 // calls of OnFault and OnBackend
}

// flow is how far the frames of one direction are.
type flow struct{ sent, came uint64 }

// newWorld sets up a stopped Pump. wrap, if not nil, puts itself between the
// Pump and the Port.
func newWorld(t *testing.T, f fatal, h Harness, o netio.Options, wrap func(*world) netio.Port) *world {
	t.Helper()
	a, b, err := loop.Pair(1)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: f, port: h.Port, guest: h.Guest,
		near: a.Queue(0), far: b.Queue(0), net: a,
		buf: make([]byte, jumbo+1),
	}
	if wrap != nil {
		w.port = wrap(w)
	}
	o.Name = "test"
	o.OnFault = func(error) { w.faults.Add(1) }
	o.OnBackend = func(error) { w.losses.Add(1) }
	w.pump = netio.NewPump(w.port, w.near, o)
	t.Cleanup(func() {
		w.pump.Stop()
		if a.Close() != nil || b.Close() != nil {
			t.Error("the loop's descriptors were closed by someone else")
		}
	})
	return w
}

func (w *world) start() {
	w.t.Helper()
	if err := w.pump.Start(); err != nil {
		w.t.Fatalf("%v", err)
	}
}

// guestSend sends up to n frames from the guest, kicks if asked to, and returns
// how many the ring took.
func (w *world) guestSend(n, size int, kick bool) (sent int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ; sent < n && w.guest.Send(numbered(w.tx.sent, size)); sent++ {
		w.tx.sent++
	}
	if kick && sent > 0 {
		w.guest.Kick(netio.TX)
	}
	return sent
}

// hostSend sends up to n frames from the host and returns how many the wire took.
func (w *world) hostSend(n, size int) (sent int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ; sent < n && w.far.WriteFrame(numbered(w.rx.sent, size)); sent++ {
		w.rx.sent++
	}
	return sent
}

// post lends n buffers.
func (w *world) post(n int, kick bool) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n = w.guest.Post(n)
	if kick && n > 0 {
		w.guest.Kick(netio.RX)
	}
	return n
}

// reap takes back what was sent.
func (w *world) reap() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.txReaped += uint64(w.guest.Reap())
}

func (w *world) kick(d netio.Dir) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.guest.Kick(d)
}

// collect takes and checks all that has arrived on both sides, and returns the
// number of frames.
func (w *world) collect() int { return w.guestRecv() + w.hostRecv() }

func (w *world) guestRecv() (n int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		f, ok := w.guest.Recv()
		if !ok {
			return n
		}
		w.arrived("guest", f, &w.rx)
		n++
	}
}

func (w *world) hostRecv() (n int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		size := w.far.ReadFrame(w.buf)
		if size == 0 {
			w.txReaped += uint64(w.guest.Reap())
			return n
		}
		w.arrived("host", w.buf[:size], &w.tx)
		n++
	}
}

func (w *world) arrived(where string, f []byte, flow *flow) {
	w.t.Helper()
	if err := check(f, flow.came); err != nil {
		w.t.Fatalf("at the %s: %v", where, err)
	}
	flow.came++
}

// waiting returns how many frames are still on their way in both directions.
func (w *world) waiting() (tx, rx uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tx.sent - w.tx.came, w.rx.sent - w.rx.came
}

// settled reports whether all frames have arrived and all sent ones are
// completed.
func (w *world) settled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tx.came == w.tx.sent && w.rx.came == w.rx.sent && w.txReaped == w.tx.sent
}

// drain waits until all frames have arrived and all sent ones are completed. It
// posts buffers as a driver does, with kicks only when asked for, and no others.
func (w *world) drain() {
	w.t.Helper()
	w.await("frames to arrive", func() bool {
		w.collect()
		if w.post(1<<20, false) > 0 {
			w.kick(netio.RX)
		}
		return w.settled()
	})
}

// await waits for cond.
func (w *world) await(what string, cond func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(stuck); !cond(); {
		if time.Now().After(deadline) {
			tx, rx := w.waiting()
			w.t.Fatalf("stuck waiting for %s: %d frames to the host and %d to the guest are under way; counters %+v",
				what, tx, rx, w.pump.Counters())
		}
		time.Sleep(20 * time.Microsecond)
	}
}
