// SPDX-License-Identifier: Apache-2.0

package netio

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govmm/govmm/internal/bug"
)

// What one direction may move before the other has its turn, and how many bytes
// at most wait for their publication to the guest. One large frame takes as
// long as about five small ones, hence both kinds of limit.
const (
	burstFrames  = 64
	burstBytes   = 256 << 10
	publishBytes = 128 << 10
)

// DefaultBatch is the number of frames after which a Pump publishes by default.
const DefaultBatch = 64

// Options adjusts a Pump.
type Options struct {
	// Name says in errors which pump this is, such as the backend's name.
	Name string
	// Batch is the number of frames after which used buffers are published to the
	// guest, 1 to MaxBatch; 0 is DefaultBatch. Less is published whenever a burst
	// ends.
	Batch int
	// BusyPoll is how long at most the pump looks for work before it sleeps. The
	// window adapts: it halves, down to a sixteenth, each time it finds none, and
	// doubles when it does. 0 is off.
	BusyPoll time.Duration
	// OnFault, if not nil, learns that a direction ended by a *fault.Guest or
	// another error of the Port, once for each direction and Start. It is called
	// on the pump's thread, and neither blocks nor calls the Pump.
	OnFault func(error)
	// OnBackend, if not nil, learns that the backend is gone, once for each Start,
	// in the same way as OnFault. The guest's link is down from then on.
	OnBackend func(error)
}

// Pump moves frames between one Port and one Queue.
type Pump struct {
	port   Port
	queue  Queue
	opt    Options
	budget int // frames in a burst

	control  sync.Mutex // held by Start and Stop
	stopping atomic.Bool
	done     chan struct{} // closed when the thread ended; nil if there is none
	poll     *poller

	// What follows belongs to the thread.

	txb    *TxBatch
	rxb    *RxBatch
	rxWant int // bytes to have reserved
	dirs   [2]direction
	gone   bool          // the backend is
	window time.Duration // for the next busy-poll
	count  Counters

	published  sync.Mutex // guards the next field
	lastCounts Counters
}

// direction is how one direction of a Pump stands.
type direction struct {
	count   *DirCounters
	dead    bool      // by a fault, or the backend is gone
	stalled bool      // RX: no guest buffers; TX: the backend takes no more
	since   time.Time // of the stall
	kicked  bool      // the guest kicked, and no burst has followed yet
}

// NewPump makes a Pump; Start sets it going. The Port and the Queue are the
// Pump's alone between Start and Stop.
func NewPump(port Port, q Queue, o Options) *Pump {
	if o.Batch == 0 {
		o.Batch = DefaultBatch
	}
	o.Batch = min(max(o.Batch, 1), MaxBatch)
	p := &Pump{
		port: port, queue: q, opt: o,
		budget: max(o.Batch, burstFrames),
		txb:    NewTxBatch(o.Batch),
		rxb:    NewRxBatch(MaxBatch),
		rxWant: MaxFrame + HeaderLen, // until a buffer tells its size
		window: o.BusyPoll,
	}
	p.txb.Limit, p.rxb.Limit = publishBytes, publishBytes
	p.dirs[RX].count, p.dirs[TX].count = &p.count.RX, &p.count.TX
	return p
}

// Start sets the Pump going on a thread of its own; both directions look for
// work at once. It does nothing if the Pump runs. The error names the resource
// that the host refused.
func (p *Pump) Start() error {
	p.control.Lock()
	defer p.control.Unlock()
	if p.done != nil {
		return nil
	}
	rx, tx := p.port.Kicks()
	poll, err := newPoller(p.queue.PollFD(), rx, tx)
	if err != nil {
		return fmt.Errorf("packet pump %s: %w", p.opt.Name, err)
	}
	p.poll = poll
	p.stopping.Store(false)
	p.done = make(chan struct{})
	go p.run(p.done)
	return nil
}

// Stop ends the Pump's work. When it returns, all that was completed has been
// published, all else is back with the guest, and the Port and the Queue are
// free. It is quick, because no call that the thread makes blocks, and it does
// nothing if the Pump doesn't run.
func (p *Pump) Stop() {
	p.control.Lock()
	defer p.control.Unlock()
	if p.done == nil {
		return
	}
	begin := time.Now()
	p.stopping.Store(true)
	p.poll.wake()
	<-p.done
	p.poll.close()
	p.done, p.poll = nil, nil

	p.count.Stops++
	p.count.StopMaxNs = max(p.count.StopMaxNs, uint64(time.Since(begin)))
	p.publishCounters()
}

// Counters returns what was counted up to the last burst. It may be called at
// any time.
func (p *Pump) Counters() Counters {
	p.published.Lock()
	defer p.published.Unlock()
	return p.lastCounts
}

// run is the pump's thread. Its backend calls are raw, non-blocking system
// calls, which the Go scheduler doesn't see; it sleeps in epoll_wait alone.
func (p *Pump) run(done chan<- struct{}) {
	defer bug.Catch()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(done)

	p.gone = false
	for d := range p.dirs {
		p.dirs[d] = direction{count: p.dirs[d].count}
		p.port.DisarmKick(Dir(d))
	}
	for !p.stopping.Load() {
		if p.round() || p.spin() {
			continue
		}
		p.sleep()
	}
	for d := range p.dirs {
		p.resume(&p.dirs[d])
	}
	p.port.RxRelease(p.rxb)
}

// round moves one burst in each direction and reports whether anything moved.
// After a burst with a notification the next round looks again before anyone
// sleeps: much arrives in that time.
func (p *Pump) round() bool {
	tx := p.txBurst()
	rx := p.rxBurst()
	if tx || rx {
		p.tryPublishCounters()
	}
	return tx || rx
}

// probeEvery is how often a busy-poll makes system calls; the rings, which are
// memory, it looks at all the time.
const probeEvery = 2 * time.Microsecond

// spin looks for work for as long as the busy-poll window lasts, and reports
// whether there was some.
func (p *Pump) spin() bool {
	if p.window == 0 || p.dirs[RX].dead && p.dirs[TX].dead {
		return false
	}
	begin, probed := time.Now(), time.Duration(0)
	for !p.stopping.Load() {
		elapsed := time.Since(begin)
		if elapsed >= p.window {
			break
		}
		probe := elapsed-probed >= probeEvery
		if probe {
			probed = elapsed
		}
		if (probe || !p.dirs[TX].stalled) && p.txBurst() || probe && p.rxBurst() {
			p.count.SpinHits++
			p.window = min(2*p.window, p.opt.BusyPoll)
			return true
		}
	}
	p.count.SpinMisses++
	p.window = max(p.window/2, p.opt.BusyPoll/16)
	return false
}

// sleep waits for something to do. The order matters, or a wake-up is lost: ask
// for kicks, then look again (ArmKick does), then sleep. A kick between the two
// is not lost, because the eventfd keeps it.
func (p *Pump) sleep() {
	rx, tx := &p.dirs[RX], &p.dirs[TX]
	armTX := !tx.dead && !tx.stalled
	armRX := !rx.dead && rx.stalled
	again := armTX && p.port.ArmKick(TX)
	again = armRX && p.port.ArmKick(RX) || again
	if !again {
		p.publishCounters()
		p.wait(!rx.dead && !rx.stalled, !tx.dead && tx.stalled)
	}
	if armTX {
		p.port.DisarmKick(TX)
	}
	if armRX {
		p.port.DisarmKick(RX)
	}
}

// wait sleeps until a kick, a Stop, or the backend is readable or writable as
// asked for.
func (p *Pump) wait(readable, writable bool) {
	ev, err := p.poll.wait(readable, writable)
	p.count.Wakeups++
	if err != nil {
		p.lost(fmt.Errorf("packet pump %s: %w", p.opt.Name, err))
		return
	}
	p.kicked(RX, ev.rxKick)
	p.kicked(TX, ev.txKick)
	if ev.broken {
		p.lost(fmt.Errorf("network backend %s is gone: its interface was deleted", p.opt.Name))
	}
}

func (p *Pump) kicked(d Dir, yes bool) {
	if yes {
		p.dirs[d].count.Kicks++
		p.dirs[d].kicked = true
	}
}

// txBurst sends what the guest has, up to the budget, and reports whether any
// frame went.
func (p *Pump) txBurst() bool {
	d := &p.dirs[TX]
	frames, bytes := 0, 0
	for !d.dead && frames < p.budget && bytes < burstBytes {
		n, size, more := p.txBatch(d)
		frames, bytes = frames+n, bytes+size
		if !more {
			break
		}
	}
	d.settleKick(frames)
	return frames > 0
}

// txBatch sends one batch and returns its frames and bytes. more is false if the
// guest or the backend can't go on.
func (p *Pump) txBatch(d *direction) (n, size int, more bool) {
	b := p.txb
	b.Reset()
	fault := p.port.TxFetch(b, p.opt.Batch)
	if len(b.Frames) == 0 {
		p.faulted(d, fault)
		return 0, 0, false
	}
	n, err := p.queue.Send(b, 0)
	p.port.TxComplete(b, n)
	if n > 0 {
		p.resume(d)
		size = b.prefix(n)
		d.count.published(n, size)
		p.notify(TX)
	}
	switch {
	case err == ErrAgain || err == nil && n < len(b.Frames):
		d.count.Again++
		d.stall()
		return n, size, false // what the fetch says will be said again
	case err != nil:
		p.lost(err)
		return n, size, false
	}
	p.faulted(d, fault)
	return n, size, fault == nil
}

// rxBurst receives what the backend has, up to the budget and the guest's
// buffers, and reports whether any frame came.
func (p *Pump) rxBurst() bool {
	d := &p.dirs[RX]
	frames, bytes := 0, 0
	for !d.dead && frames < p.budget && bytes < burstBytes && p.reserve(d) {
		n, size, more := p.rxBatch(d)
		frames, bytes = frames+n, bytes+size
		if !more {
			break
		}
	}
	d.settleKick(frames)
	return frames > 0
}

// rxBatch receives one batch, as txBatch sends one.
func (p *Pump) rxBatch(d *direction) (n, size int, more bool) {
	b := p.rxb
	n, err := p.queue.Recv(b, p.opt.Batch)
	if n > 0 {
		size = b.Bytes()
		p.port.RxCommit(b)
		d.count.published(n, size)
		p.notify(RX)
	}
	switch {
	case err == ErrAgain || err == nil && n == 0:
		d.count.Again++
		return n, size, false
	case err != nil:
		p.lost(err)
		return n, size, false
	}
	return n, size, true
}

// reserve sees to it that one frame surely fits in the guest's buffers, and a
// whole batch if the guest has that many. If it is false, the direction stalls
// until the guest kicks: the frames wait in the kernel.
func (p *Pump) reserve(d *direction) bool {
	room, ok := p.tryReserve(d)
	if !ok && !d.dead && p.rxb.Full() {
		p.rxb.Compact() // if consumed buffers are in the way
		room, ok = p.tryReserve(d)
	}
	if ok {
		p.resume(d)
		return true
	}
	if d.dead {
		return false
	}
	b := p.rxb
	if len(b.Unused()) > 0 && (b.Full() || room >= b.Window || !b.Merge) {
		p.faulted(d, tooSmall(p.opt.Name, b, room))
		return false
	}
	d.stall()
	return false
}

// tryReserve reserves and returns the room for the next frame.
func (p *Pump) tryReserve(d *direction) (room int, ok bool) {
	b := p.rxb
	if b.crowded() {
		b.Compact()
	}
	if err := p.port.RxReserve(b, p.rxWant); err != nil {
		p.faulted(d, err)
		return 0, false
	}
	if n := len(b.Bufs); n > 0 {
		p.rxWant = b.Window + p.opt.Batch*b.Bufs[n-1].Cap
	}
	_, room, ok = b.Space()
	return room, ok
}

// notify interrupts the guest for what was just published.
func (p *Pump) notify(d Dir) {
	if p.port.Notify(d) {
		p.dirs[d].count.Notified++
	} else {
		p.dirs[d].count.Suppressed++
	}
}

// stall marks the direction as waiting for the other side's room.
func (d *direction) stall() {
	if !d.stalled {
		d.stalled, d.since = true, time.Now()
		d.count.Stalls++
	}
}

// resume ends a stall, if there is one.
func (p *Pump) resume(d *direction) {
	if d.stalled {
		d.stalled = false
		d.count.StalledNs += uint64(time.Since(d.since))
	}
}

// settleKick decides whether the last kick was worth it.
func (d *direction) settleKick(frames int) {
	if d.kicked && frames == 0 {
		d.count.SpuriousKicks++
	}
	d.kicked = false
}

// faulted ends the direction if err is not nil.
func (p *Pump) faulted(d *direction, err error) {
	if err == nil || d.dead {
		return
	}
	d.dead = true
	d.count.Faults++
	if p.opt.OnFault != nil {
		p.opt.OnFault(err)
	}
}

// lost ends both directions because the backend is gone.
func (p *Pump) lost(err error) {
	if p.gone {
		return
	}
	p.gone = true
	p.dirs[RX].dead, p.dirs[TX].dead = true, true
	p.poll.forgetQueue()
	if p.opt.OnBackend != nil {
		p.opt.OnBackend(err)
	}
}

// tryPublishCounters makes the counters visible, unless someone looks at them
// right now: the next burst or sleep will do.
func (p *Pump) tryPublishCounters() {
	if p.published.TryLock() {
		p.copyCounters()
		p.published.Unlock()
	}
}

func (p *Pump) publishCounters() {
	p.published.Lock()
	p.copyCounters()
	p.published.Unlock()
}

func (p *Pump) copyCounters() {
	q := p.queue.Counters()
	p.lastCounts = p.count
	p.lastCounts.RX.add(&q[RX])
	p.lastCounts.TX.add(&q[TX])
}
