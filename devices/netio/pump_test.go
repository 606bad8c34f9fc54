// SPDX-License-Identifier: Apache-2.0

package netio_test

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/loop"
	"github.com/govmm/govmm/devices/netio/porttest"
	"golang.org/x/sys/unix"
)

const jumbo = netio.MaxFrame + netio.HeaderLen

func newRef(t *testing.T, c porttest.Config) *porttest.Ref {
	t.Helper()
	r, err := porttest.NewRef(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// newLoop returns a loop's queue, on which frames come back.
func newLoop(t *testing.T) *loop.Queue {
	t.Helper()
	l, err := loop.New(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Queue(0)
}

// await waits for cond. The limit is there so that a failure ends the test.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("stuck waiting for %s", what)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// The whole path from ring to backend and back allocates nothing.
func TestAllocations(t *testing.T) {
	for name, c := range map[string]porttest.Config{
		"one buffer": {Size: 256, BufSize: 2048, Window: 1530},
		"merged":     {Size: 256, BufSize: 2048, Window: jumbo, Merge: true},
	} {
		t.Run(name, func(t *testing.T) {
			ref := newRef(t, c)
			p := netio.NewPump(ref, newLoop(t), netio.Options{Batch: 8})
			frame := make([]byte, 200)
			ref.Post(1 << 20)
			n := testing.AllocsPerRun(10, func() {
				for range 20 {
					ref.Send(frame)
				}
				p.Round() // sends, and receives
				ref.Reap()
			})
			if n != 0 {
				t.Errorf("%v allocations for 20 frames both ways", n)
			}
			if got, ok := ref.Recv(); !ok || len(got) != len(frame) {
				t.Errorf("a frame of %d bytes came back, %v", len(got), ok)
			}
		})
	}
}

// A burst ends at its budget, so that the other direction has its turn, and
// large frames are published in small batches.
func TestBudget(t *testing.T) {
	ref := newRef(t, porttest.Config{Size: 256, BufSize: 2048, Window: 1530})
	p := netio.NewPump(ref, newLoop(t), netio.Options{})
	for range 100 {
		ref.Send(make([]byte, 100))
	}
	p.Round()
	if n := ref.Reap(); n != 64 {
		t.Errorf("a burst of %d small frames", n)
	}
	ref = newRef(t, porttest.Config{Size: 256, BufSize: jumbo, Window: jumbo})
	sink := &sink{Queue: newLoop(t)}
	p = netio.NewPump(ref, sink, netio.Options{})
	for range 20 {
		ref.Send(make([]byte, 50<<10))
	}
	p.Round()
	if n := ref.Reap(); n != 6 { // 256 KiB or more
		t.Errorf("a burst of %d frames of 50 KiB", n)
	}
	if len(sink.batches) != 2 || sink.batches[0] != 3 || sink.batches[1] != 3 { // 128 KiB or more
		t.Errorf("batches of %v frames of 50 KiB", sink.batches)
	}
}

// sink is a queue that takes everything.
type sink struct {
	netio.Queue
	batches []int
}

func (s *sink) Send(b *netio.TxBatch, from int) (int, error) {
	s.batches = append(s.batches, len(b.Frames)-from)
	return len(b.Frames) - from, nil
}

// Busy polling finds frames without a wake-up, and stops for Stop.
func TestBusyPoll(t *testing.T) {
	ref := newRef(t, porttest.Config{Size: 256, BufSize: 2048, Window: 1530})
	p := netio.NewPump(ref, newLoop(t), netio.Options{BusyPoll: time.Minute})
	ref.Post(100)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		ref.Send(make([]byte, 100)) // and no kick
		await(t, "a frame without a kick", func() bool { _, ok := ref.Recv(); return ok })
		if n := p.Counters(); n.Wakeups != 0 {
			t.Fatalf("frame %d: %+v", i, n)
		}
	}
	p.Stop()
	if n := p.Counters(); n.SpinHits == 0 || n.RX.Frames != 20 {
		t.Errorf("counters = %+v", n)
	}
}

// A window without work ends, and the pump sleeps until it is kicked.
func TestBusyPollMiss(t *testing.T) {
	ref := newRef(t, porttest.Config{Size: 256, BufSize: 2048, Window: 1530})
	p := netio.NewPump(ref, newLoop(t), netio.Options{BusyPoll: 20 * time.Microsecond})
	ref.Post(100)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	for range 20 {
		misses := p.Counters().SpinMisses
		ref.Send(make([]byte, 100))
		ref.Kick(netio.TX)
		await(t, "a frame", func() bool { _, ok := ref.Recv(); return ok })
		await(t, "the end of the window", func() bool { return p.Counters().SpinMisses > misses })
	}
}

// kicks is a Port with other eventfds.
type kicks struct {
	netio.Port
	rx, tx int
}

func (k kicks) Kicks() (rx, tx int) { return k.rx, k.tx }

// One eventfd may serve both directions, and there may be none.
func TestKicks(t *testing.T) {
	ref := newRef(t, porttest.Config{Size: 256, BufSize: 2048, Window: 1530})
	_, tx := ref.Kicks()
	for name, k := range map[string]kicks{
		"one for both": {ref, tx, tx},
		"no rx":        {ref, -1, tx},
	} {
		p := netio.NewPump(k, newLoop(t), netio.Options{})
		if err := p.Start(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ref.Post(10)
		ref.Send(make([]byte, 100))
		ref.Kick(netio.TX)
		await(t, name, func() bool { _, ok := ref.Recv(); return ok })
		p.Stop()
	}
	p := netio.NewPump(kicks{ref, -1, -1}, newLoop(t), netio.Options{})
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.Stop()
}

// noFD is a queue whose descriptor is closed.
type noFD struct{ netio.Queue }

func (noFD) PollFD() int { return 1 << 20 }

func TestStartErrors(t *testing.T) {
	ref := newRef(t, porttest.Config{Size: 256, BufSize: 2048, Window: 1530})
	for want, p := range map[string]*netio.Pump{
		"watch the backend":                          netio.NewPump(ref, noFD{newLoop(t)}, netio.Options{Name: "tap7"}),
		"watch the guest's transmit notifications":   netio.NewPump(kicks{ref, -1, 1 << 20}, newLoop(t), netio.Options{Name: "tap7"}),
		"watch the guest's receive notifications":    netio.NewPump(kicks{ref, 1 << 20, -1}, newLoop(t), netio.Options{Name: "tap7"}),
		"epoll_ctl: bad file descriptor":             netio.NewPump(kicks{ref, 1 << 20, -1}, newLoop(t), netio.Options{Name: "tap7"}),
		"packet pump tap7: watch the guest's receiv": netio.NewPump(kicks{ref, 1 << 20, -1}, newLoop(t), netio.Options{Name: "tap7"}),
	} {
		if err := p.Start(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
		p.Stop() // does nothing
	}
}

// A guest whose buffers can never hold a frame has broken its promise: that is
// reported, instead of a pump that waits or spins for ever.
func TestBuffersTooSmall(t *testing.T) {
	for name, c := range map[string]porttest.Config{
		"merged": {Size: 512, BufSize: 64, Window: jumbo, Merge: true}, // 256 of them
		"single": {Size: 512, BufSize: 64, Window: 1530},
	} {
		ref := newRef(t, c)
		var faults atomic.Int32
		p := netio.NewPump(ref, newLoop(t), netio.Options{Name: "net0", OnFault: func(err error) {
			if !strings.Contains(err.Error(), "net0: guest fault: receive buffers are too small") {
				t.Errorf("%s: %v", name, err)
			}
			faults.Add(1)
		}})
		ref.Post(1 << 20)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		await(t, name, func() bool { return faults.Load() > 0 })
		ref.Send(make([]byte, 100)) // the other direction goes on
		ref.Kick(netio.TX)
		await(t, name, func() bool { return ref.Reap() == 1 })
		p.Stop()
		if faults.Load() != 1 {
			t.Errorf("%s: %d faults", name, faults.Load())
		}
	}
}

// Callbacks are optional.
func TestNoCallbacks(t *testing.T) {
	ref := newRef(t, porttest.Config{Size: 64, BufSize: 2048, Window: 1530})
	l, err := loop.New(1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := netio.NewPump(ref, l.Queue(0), netio.Options{})
	ref.Break(netio.TX)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the fault", func() bool { return p.Counters().TX.Faults == 1 })
	l.Vanish()
	await(t, "the wake-up", func() bool { return p.Counters().Wakeups > 0 })
	p.Stop()
}

// A stop in the middle of a busy ring is quick, and leaves no descriptor open.
func TestNoLeaks(t *testing.T) {
	ref := newRef(t, porttest.Config{Size: 64, BufSize: 2048, Window: 1530})
	p := netio.NewPump(ref, newLoop(t), netio.Options{})
	next := func() int {
		fd, err := unix.Eventfd(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		return fd
	}
	before := next()
	for range 50 {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		p.Stop()
	}
	if after := next(); after != before {
		t.Errorf("the next descriptor was %d, is %d", before, after)
	}
}

func TestCountersJSON(t *testing.T) {
	out, err := json.Marshal(netio.Counters{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"rx":{"frames":0`, `"batch_sizes":[0,0,0,0,0]`, `"stalled_ns":0`, `"wakeups":0`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%s lacks %s", out, want)
		}
	}
}
