// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"golang.org/x/sys/unix"
)

// stopwatch sums up the CPU time of the calling thread.
type stopwatch struct {
	spent time.Duration
	begin time.Duration
}

func threadTime() time.Duration {
	var ts unix.Timespec
	// The clock is always there.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

func (s *stopwatch) start() { s.begin = threadTime() }
func (s *stopwatch) stop()  { s.spent += threadTime() - s.begin }

// meter is a backend around the tap that measures the pump's thread from the
// first frame to the last. On that same thread, with the clock stopped, it keeps
// the guest's ring and the tap's queue going, so that the pump never waits.
type meter struct {
	netio.Backend
	queue netio.Queue

	dir    netio.Dir
	frames int    // to measure
	refill func() // the driver's work
	source func() // fills the tap's queue; nil for TX
	supply int    // frames that source puts there

	watch    stopwatch
	running  bool
	done     int // frames so far
	recycled int // done at the last refill
	queued   int // frames in the tap's queue
	every    int // frames between two refills
	mallocs  uint64
	end      chan struct{} // closed when all is done
	over     atomic.Bool
	release  chan struct{} // closed when the pump may go on
}

func (m *meter) Queues() []netio.Queue { return []netio.Queue{m} }

func (m *meter) PollFD() int { return m.queue.PollFD() }

func (m *meter) Counters() netio.QueueCounters { return m.queue.Counters() }

// Send implements netio.Queue.
func (m *meter) Send(b *netio.TxBatch, from int) (n int, err error) {
	if m.dir != netio.TX {
		return m.queue.Send(b, from)
	}
	if m.over.Load() {
		return 0, netio.ErrAgain
	}
	m.prepare()
	n, err = m.queue.Send(b, from)
	m.done += n
	return n, err
}

// Recv implements netio.Queue.
func (m *meter) Recv(b *netio.RxBatch, max int) (n int, err error) {
	if m.dir != netio.RX {
		return m.queue.Recv(b, max)
	}
	if m.over.Load() {
		return 0, netio.ErrAgain
	}
	m.prepare()
	n, err = m.queue.Recv(b, max)
	m.done += n
	m.queued -= n
	return n, err
}

// prepare starts the clock at the first frame, stops it after the last, and does
// the work of driver and source when it is due.
func (m *meter) prepare() {
	switch {
	case !m.running:
		m.mallocs = mallocs()
		m.supplyAll()
		m.running = true
		m.watch.start()
	case m.done >= m.frames:
		m.watch.stop()
		m.mallocs = mallocs() - m.mallocs
		m.over.Store(true)
		close(m.end)
		<-m.release
	case m.done-m.recycled >= m.every || m.source != nil && m.queued < netio.MaxBatch/4:
		m.watch.stop()
		m.supplyAll()
		m.watch.start()
	}
}

func (m *meter) supplyAll() {
	m.refill()
	m.recycled = m.done
	if m.source != nil && m.queued < netio.MaxBatch/4 {
		m.source()
		m.queued += m.supply
	}
}

// nothing is a queue that takes every frame and has one of the given size
// whenever asked: with it, all time is the engine's own.
type nothing struct {
	netio.Queue // for PollFD and Counters
	size        int
}

// Send implements netio.Queue.
func (q nothing) Send(b *netio.TxBatch, from int) (int, error) { return len(b.Frames) - from, nil }

// Recv implements netio.Queue.
func (q nothing) Recv(b *netio.RxBatch, max int) (n int, err error) {
	for range max {
		if _, _, ok := b.Space(); !ok {
			break
		}
		b.Accept(q.size)
		n++
	}
	return n, nil
}

// mallocs returns how many objects the process has allocated.
func mallocs() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.Mallocs
}
