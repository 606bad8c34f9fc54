// SPDX-License-Identifier: Apache-2.0

package porttest

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"pgregory.net/rapid"
)

// exchange sends n frames of mixed sizes each way while the driver keeps the
// rings going, and waits for all.
func (w *world) exchange(n uint64, maxSize int) {
	w.t.Helper()
	size := func(i uint64) int { return minFrame + int(i*i*7919)%(maxSize-minFrame+1) }
	w.await("both directions", func() bool {
		w.post(1<<20, true)
		w.collect()
		for range 8 {
			if w.tx.sent < n {
				w.guestSend(1, size(w.tx.sent), true)
			}
			if w.rx.sent < n {
				w.hostSend(1, size(w.rx.sent))
			}
		}
		return w.tx.sent == n && w.rx.sent == n
	})
	w.drain()
}

// testBothWays: every frame arrives exactly once, in order and unchanged, in
// whatever batches.
func testBothWays(t *testing.T, mk Make, c Config) {
	for _, batch := range []int{1, 7, 64, 256} {
		w := newWorld(t, t, mk(t, c), netio.Options{Batch: batch}, nil)
		w.start()
		w.exchange(300, c.Window)
		w.pump.Stop()
		got := w.pump.Counters()
		for d, dir := range map[string]netio.DirCounters{"rx": got.RX, "tx": got.TX} {
			var batches uint64
			for _, n := range dir.BatchSizes {
				batches += n
			}
			if dir.Frames != 300 || batches != dir.Batches || dir.Notified+dir.Suppressed != dir.Batches || dir.Errors != 0 {
				t.Errorf("batch %d: %s counters don't add up: %+v", batch, d, dir)
			}
			if batch == 1 && dir.BatchSizes[0] != 300 {
				t.Errorf("%s: publications of one frame were asked for: %v", d, dir.BatchSizes)
			}
		}
	}
}

// testGSO: large segments keep their offload metadata both ways.
func testGSO(t *testing.T, mk Make, c Config, traits Traits) {
	w := newWorld(t, t, mk(t, c), netio.Options{}, nil)
	w.start()
	w.post(1<<20, true)
	for _, size := range []int{100, 1526, c.Window - 1, c.Window} {
		want := tcp(min(size, netio.HeaderLen+etherLen+65535), 1448) // IPv4 has no longer ones
		w.mu.Lock()
		ok := w.guest.Send(want)
		w.guest.Kick(netio.TX)
		w.mu.Unlock()
		if !ok {
			t.Fatal("the ring is full")
		}
		var out []byte
		w.await("a large frame to the host", func() bool {
			out = w.buf[:w.far.ReadFrame(w.buf)]
			return len(out) > 0
		})
		if !sameOffload(out, want) || !bytes.Equal(out[etherAt:], want[etherAt:]) {
			t.Errorf("%d bytes to the host: the frame changed; header % x, want % x", size, out[:etherAt], want[:etherAt])
		}
		if !w.far.WriteFrame(want) {
			t.Fatal("the wire is full")
		}
		var in []byte
		w.await("a large frame to the guest", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			in, ok = w.guest.Recv()
			w.guest.Post(1 << 20)
			w.guest.Kick(netio.RX)
			return ok
		})
		if !traits.Coalesced && !sameOffload(in, want) || !bytes.Equal(in[etherAt:], want[etherAt:]) {
			t.Errorf("%d bytes to the guest: the frame changed; header % x, want % x", size, in[:etherAt], want[:etherAt])
		}
	}
	w.pump.Stop()
	if got := w.pump.Counters(); got.TX.GSO != 4 || got.RX.GSO != 4 {
		t.Errorf("%d and %d frames counted as segmented, want 4 each", got.TX.GSO, got.RX.GSO)
	}
}

// testRxBackPressure: without buffers the frames wait in the kernel, none is
// lost, and the pump sleeps.
func testRxBackPressure(t *testing.T, mk Make, c Config) {
	w := newWorld(t, t, mk(t, c), netio.Options{}, nil)
	w.start()
	// One frame fits, so that the pump waits for the wire before it waits for us.
	w.post((c.Window+c.BufSize-1)/c.BufSize, true)
	w.await("an empty wire", func() bool { return w.pump.Counters().RX.Again > 0 })
	w.hostSend(1, 200)
	w.await("the first frame", func() bool { return w.guestRecv() == 1 })
	for w.hostSend(1, 200) == 1 {
	}
	w.await("a stall", func() bool { return w.pump.Counters().RX.Stalls > 0 })
	if n := w.guestRecv(); n != 0 {
		t.Fatalf("%d frames without a buffer", n)
	}
	// The frames that wait must not keep the pump awake.
	before := w.pump.Counters().Wakeups
	const others = 5
	for range others {
		w.guestSend(1, 200, true)
		w.await("the other direction", func() bool { w.hostRecv(); return w.tx.came == w.tx.sent })
	}
	if n := w.pump.Counters().Wakeups - before; n > 4*others {
		t.Errorf("%d wake-ups for %d frames while receiving is stalled", n, others)
	}
	// A trickle of buffers, each with the kick that the device asks for.
	for range 10 {
		w.post(1, true)
	}
	w.drain()
	// When the stall is over, a frame by itself wakes the pump.
	w.hostSend(1, 200)
	w.await("a frame after the stall", func() bool { return w.guestRecv() == 1 })
	w.pump.Stop()
	if got := w.pump.Counters().RX; got.StalledNs == 0 || got.Frames != w.rx.sent {
		t.Errorf("counters = %+v, %d frames were sent", got, w.rx.sent)
	}
}

// testTxBackPressure: when the host takes no more, the frames wait in the
// guest's ring, and go on in order.
func testTxBackPressure(t *testing.T, mk Make, c Config) {
	w := newWorld(t, t, mk(t, c), netio.Options{}, nil)
	w.start()
	w.near.InjectSendAgain(3)
	w.await("the wire to fill up", func() bool {
		w.reap()
		return w.guestSend(1, 1000, true) == 0 && w.pump.Counters().TX.Stalls > 1
	})
	w.drain()
	if got := w.pump.Counters().TX; got.Again == 0 || got.StalledNs == 0 || got.Errors != 0 {
		t.Errorf("counters = %+v", got)
	}
	// A frame that the host refuses is not the end.
	w.near.InjectRefusals(1)
	w.guestSend(1, 1000, true)
	w.await("a refusal", func() bool { return w.pump.Counters().TX.Errors == 1 })
	w.tx.came++
	w.guestSend(5, 1000, true)
	w.drain()
}

// testPublication: a burst is published in batches of the size asked for.
func testPublication(t *testing.T, mk Make, c Config) {
	for _, batch := range []int{1, 8, 64} {
		w := newWorld(t, t, mk(t, c), netio.Options{Batch: batch}, nil)
		const frames = 48
		if n := w.guestSend(frames, 200, true); n != frames {
			t.Fatalf("the ring took %d frames", n)
		}
		if n := w.hostSend(frames, 200); n != frames {
			t.Fatalf("the wire took %d frames", n)
		}
		w.start() // all is there already
		w.await("the burst", func() bool { w.hostRecv(); return w.txReaped == frames })
		w.pump.Stop()
		if got, want := w.pump.Counters().TX.Batches, uint64((frames+batch-1)/batch); got != want {
			t.Errorf("batch %d: %d frames in %d publications, want %d", batch, frames, got, want)
		}
	}
}

// testStopStart: whatever moment Stop comes at, nothing is lost or doubled, and
// nothing moves while the pump is stopped.
func testStopStart(t *testing.T, mk Make, c Config) {
	const stops = 100
	w := newWorld(t, t, mk(t, c), netio.Options{Batch: 16}, nil)
	end, done := make(chan struct{}), make(chan struct{})
	go func() { // the guest and the host don't care
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			default:
			}
			w.post(1<<20, true)
			w.guestSend(i%20, minFrame+i%1000, true)
			w.hostSend(i%20, minFrame+i%1000)
			w.collect()
		}
	}()
	var frames uint64
	for range stops {
		w.start()
		w.start() // does nothing
		w.await("traffic", func() bool {
			n := w.pump.Counters()
			return n.RX.Frames+n.TX.Frames > frames
		})
		w.pump.Stop()
		w.pump.Stop() // does nothing
		n := w.pump.Counters()
		frames = n.RX.Frames + n.TX.Frames
	}
	close(end)
	<-done
	w.start()
	w.drain()
	w.pump.Stop()
	got := w.pump.Counters()
	if got.TX.Frames != w.tx.sent || got.RX.Frames != w.rx.sent || got.Stops != stops+1 {
		t.Errorf("counters = %+v; %d frames to the host and %d to the guest were sent", got, w.tx.sent, w.rx.sent)
	}
}

// testStopReleases: what the pump has reserved is the guest's again after Stop.
func testStopReleases(t *testing.T, mk Make, c Config) {
	w := newWorld(t, t, mk(t, c), netio.Options{}, nil)
	const buffers = 10
	w.post(buffers, false)
	w.start()
	for range 2 { // when the second comes out, receiving has had its first turn
		w.guestSend(1, 100, true)
		w.await("a frame", func() bool { w.hostRecv(); return w.tx.came == w.tx.sent })
	}
	w.pump.Stop()
	b := netio.NewRxBatch(netio.MaxBatch)
	if err := w.port.RxReserve(b, 1<<30); err != nil || len(b.Bufs) != buffers {
		t.Errorf("%d of %d buffers are there after Stop, %v", len(b.Bufs), buffers, err)
	}
	w.port.RxRelease(b)
}

// testFaultDirection: a broken ring is reported once and stops its direction
// alone, until the pump is started again.
func testFaultDirection(t *testing.T, mk Make, c Config) {
	for _, d := range []netio.Dir{netio.RX, netio.TX} {
		w := newWorld(t, t, mk(t, c), netio.Options{}, nil)
		w.start()
		w.post(1<<20, true)
		w.guestSend(3, 100, true)
		w.hostSend(3, 100)
		w.drain()

		w.mu.Lock()
		w.guest.Break(d)
		w.guest.Kick(d)
		w.mu.Unlock()
		if d == netio.RX {
			// It meets the fault when it needs buffers, and may use up good ones first.
			w.await("the fault", func() bool { w.hostSend(1, 100); w.guestRecv(); return w.faults.Load() > 0 })
			w.guestSend(20, 100, true)
			w.await("the other direction", func() bool { w.hostRecv(); return w.tx.came == w.tx.sent })
		} else {
			w.await("the fault", func() bool { return w.faults.Load() > 0 })
			before := w.rx.sent
			w.hostSend(20, 100)
			w.await("the other direction", func() bool { w.post(1<<20, true); w.guestRecv(); return w.rx.came == before+20 })
		}
		w.pump.Stop()
		n := w.pump.Counters()
		if got := w.faults.Load(); got != 1 || n.RX.Faults+n.TX.Faults != 1 {
			t.Errorf("%v: %d calls of OnFault; counters %+v", d, got, n)
		}
		w.start()
		if d == netio.TX {
			w.await("the fault again", func() bool { return w.faults.Load() == 2 })
		}
		w.pump.Stop()
	}
}

// testBackendGone: the pump reports it once, sleeps from then on, and stops.
func testBackendGone(t *testing.T, mk Make, c Config) {
	for name, before := range map[string]func(*world){
		"idle":       func(w *world) { w.post(4, true) },
		"no buffers": func(w *world) { w.hostSend(1, 100) },
		"busy":       func(w *world) { w.post(1<<20, true); w.guestSend(50, 100, true); w.hostSend(50, 100) },
		"full":       func(w *world) { w.await("full", func() bool { return w.guestSend(1, 1000, true) == 0 }) },
	} {
		w := newWorld(t, t, mk(t, c), netio.Options{}, nil)
		w.start()
		before(w)
		w.net.Vanish()
		w.await(name+": the loss", func() bool { return w.losses.Load() > 0 })
		w.guestSend(5, 100, true)
		w.post(5, true)
		w.pump.Stop()
		n := w.pump.Counters()
		if got := w.losses.Load(); got != 1 || w.faults.Load() != 0 {
			t.Errorf("%s: %d calls of OnBackend, %d of OnFault", name, got, w.faults.Load())
		}
		if n.Wakeups > 200 {
			t.Errorf("%s: %d wake-ups, the pump didn't sleep", name, n.Wakeups)
		}
	}
}

// testNotifyCounters: interrupts are counted as sent or suppressed, as the guest
// sees them.
func testNotifyCounters(t *testing.T, mk Make, c Config, traits Traits) {
	w := newWorld(t, t, mk(t, c), netio.Options{}, nil)
	for _, d := range []netio.Dir{netio.RX, netio.TX} {
		w.guest.SetInterrupts(d, false)
	}
	before := [2]int{w.guest.Interrupts(netio.RX), w.guest.Interrupts(netio.TX)}
	w.start()
	w.exchange(200, min(c.Window, 2000))
	w.pump.Stop()
	n := w.pump.Counters()
	for d, dir := range map[netio.Dir]netio.DirCounters{netio.RX: n.RX, netio.TX: n.TX} {
		if got := w.guest.Interrupts(d) - before[d]; got != int(dir.Notified) || got != 0 || dir.Suppressed != dir.Batches {
			t.Errorf("%v: %d interrupts though none were wanted; counters %+v", d, got, dir)
		}
		w.guest.SetInterrupts(d, true)
	}
	w.start()
	w.exchange(400, min(c.Window, 2000))
	w.pump.Stop()
	n = w.pump.Counters()
	total := n.RX.Notified + n.TX.Notified
	for d, dir := range map[netio.Dir]netio.DirCounters{netio.RX: n.RX, netio.TX: n.TX} {
		none := dir.Notified == 0 && (!traits.OneInterrupt || total == 0)
		if got := w.guest.Interrupts(d) - before[d]; got != int(dir.Notified) || none || dir.Notified > dir.Batches {
			t.Errorf("%v: %d interrupts; counters %+v", d, got, dir)
		}
	}
}

// hooks is a Port that lets the guest and the host do something at the worst
// moments: before and after every call that the Pump makes.
type hooks struct {
	netio.Port
	at func()
}

func (h *hooks) TxFetch(b *netio.TxBatch, max int) error {
	h.at()
	defer h.at()
	return h.Port.TxFetch(b, max)
}

func (h *hooks) TxComplete(b *netio.TxBatch, n int) {
	h.at()
	defer h.at()
	h.Port.TxComplete(b, n)
}

func (h *hooks) RxReserve(b *netio.RxBatch, bytes int) error {
	h.at()
	defer h.at()
	return h.Port.RxReserve(b, bytes)
}

func (h *hooks) RxCommit(b *netio.RxBatch) {
	h.at()
	defer h.at()
	h.Port.RxCommit(b)
}

func (h *hooks) Notify(d netio.Dir) bool {
	h.at()
	defer h.at()
	return h.Port.Notify(d)
}

func (h *hooks) ArmKick(d netio.Dir) bool {
	h.at()
	defer h.at() // between the last look and the sleep
	return h.Port.ArmKick(d)
}

func (h *hooks) DisarmKick(d netio.Dir) {
	h.at()
	defer h.at()
	h.Port.DisarmKick(d)
}

// testWakeupPoints: there is no moment at which what the guest or the host does
// goes unnoticed. One thing happens at one of the points between the calls that
// the pump makes, each of them in turn, and nothing after it.
func testWakeupPoints(t *testing.T, mk Make, c Config) {
	for name, event := range map[string]struct {
		setup, act func(*world)
		done       func(*world) bool
	}{
		"a frame to send": {
			func(*world) {},
			func(w *world) { w.guestSend(1, 100, true) },
			func(w *world) bool { return w.hostRecv() == 1 },
		},
		"buffers": {
			func(w *world) { w.hostSend(1, 100) },
			func(w *world) { w.post(1<<20, true) },
			func(w *world) bool { return w.guestRecv() == 1 },
		},
		"a frame to receive": {
			func(w *world) { w.post(1<<20, true) },
			func(w *world) { w.hostSend(1, 100) },
			func(w *world) bool { return w.guestRecv() == 1 },
		},
		"room for a frame": {
			func(*world) {},
			func(w *world) { w.near.InjectSendAgain(2); w.guestSend(1, 100, true) },
			func(w *world) bool { return w.hostRecv() == 1 },
		},
	} {
		// Nothing happens but what was set up: count the points before the sleep.
		points := 0
		for point := -1; point < points; point++ {
			var calls atomic.Int32
			var w *world
			at := func() {
				if int(calls.Add(1)) == point+1 {
					event.act(w)
				}
			}
			w = newWorld(t, t, mk(t, c), netio.Options{}, func(w *world) netio.Port { return &hooks{Port: w.port, at: at} })
			event.setup(w)
			w.start()
			if point < 0 {
				points = settled(&calls)
			} else {
				w.await(fmt.Sprintf("%s at point %d", name, point), func() bool { return event.done(w) })
			}
			w.pump.Stop()
		}
		if points < 10 {
			t.Errorf("%s: %d points only", name, points)
		}
	}
}

// settled returns the value that n has when it doesn't change any more. If it
// is wrong, because the machine is busy, the caller tests less.
func settled(n *atomic.Int32) int {
	for last := int32(-1); ; {
		now := n.Load()
		if now == last {
			return int(now)
		}
		last = now
		time.Sleep(10 * time.Millisecond)
	}
}

// testWakeups: whatever the guest and the host do at whatever moment, with the
// kicks that the device asks for and no others, all frames arrive.
func testWakeups(t *testing.T, mk Make, c Config) {
	rapid.Check(t, func(rt *rapid.T) {
		type action struct {
			after int // calls of hooks since the last action
			kind  int
			n     int
			size  int
		}
		actions := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) action {
			return action{
				after: rapid.IntRange(0, 6).Draw(rt, "after"),
				kind:  rapid.IntRange(0, 5).Draw(rt, "kind"),
				n:     rapid.IntRange(1, 4).Draw(rt, "n"),
				size:  rapid.SampledFrom([]int{minFrame, 300, c.Window}).Draw(rt, "size"),
			}
		}), 1, 60).Draw(rt, "actions")

		var w *world
		perform := func(a action) {
			switch a.kind {
			case 0, 1:
				w.guestSend(a.n, a.size, true)
			case 2:
				w.hostSend(a.n, a.size)
			case 3:
				w.post(a.n, true)
			case 4:
				w.near.InjectSendAgain(a.n)
			case 5:
				w.near.InjectRecvAgain(a.n)
			}
		}
		next := make(chan action, len(actions)) // taken by the pump's thread or at the end
		for _, a := range actions {
			next <- a
		}
		calls := 0
		var pending *action
		at := func() {
			if pending == nil {
				select {
				case a := <-next:
					pending, calls = &a, 0
				default:
					return
				}
			}
			if calls++; calls > pending.after {
				perform(*pending)
				pending = nil
			}
		}
		o := netio.Options{Batch: rapid.SampledFrom([]int{1, 3, 64}).Draw(rt, "batch")}
		w = newWorld(t, rt, mk(t, c), o, func(w *world) netio.Port { return &hooks{Port: w.port, at: at} })
		w.start()
		// What the pump doesn't come to, because it sleeps, comes from outside.
		for len(next) > 0 {
			select {
			case a := <-next:
				perform(a)
			default:
			}
			w.hostRecv()
		}
		w.drain()
		w.pump.Stop()
	})
}
