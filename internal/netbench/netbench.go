// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/virtio"
	virtionet "github.com/govmm/govmm/devices/virtio/net"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// Case is one kind of frame in one direction.
type Case struct {
	Name   string
	Dir    netio.Dir
	Frame  []byte   // header included
	Pieces []uint64 // what each of the guest's chains consists of, bytes
	Merge  bool     // a received frame may span several chains
	// VMBus says that the engine's NIC is a netvsc, not a virtio one. Its frames
	// lie in pages of their own; Pieces and Merge are then for the plain loop.
	VMBus bool
}

// Cases are the frames that are measured: the smallest, and a large segment. The
// guest's buffers are as Linux makes them.
func Cases() []Case {
	small, large := smallFrame(64), largeFrame()
	return []Case{
		{"TX 64 B", netio.TX, small, []uint64{uint64(len(small))}, false, false},
		{"TX 64 B, header apart", netio.TX, small, []uint64{netio.HeaderLen, 64}, false, false},
		{"TX 64 KiB GSO", netio.TX, large, txPages(len(large)), false, false},
		{"RX 64 B", netio.RX, small, []uint64{1536}, true, false},
		{"RX 64 KiB GSO, 4 KiB buffers", netio.RX, large, []uint64{4096}, true, false},
		{"RX 64 KiB GSO, 1.5 KiB buffers", netio.RX, large, []uint64{1536}, true, false},
		{"netvsc TX 64 B", netio.TX, small, []uint64{netio.HeaderLen, 64}, false, true},
		{"netvsc TX 64 KiB GSO", netio.TX, large, txPages(len(large)), false, true},
		{"netvsc RX 64 B", netio.RX, small, []uint64{1536}, true, true},
		{"netvsc RX 64 KiB GSO", netio.RX, large, []uint64{4096}, true, true},
	}
}

// txPages cuts a frame as Linux does: the headers, then pages.
func txPages(size int) []uint64 {
	const head = 128
	p := []uint64{head}
	for left := size - head; left > 0; left -= 4096 {
		p = append(p, uint64(min(left, 4096)))
	}
	return p
}

// Options says how long to measure.
type Options struct {
	Slices int           // of each loop, taken in turn
	Slice  time.Duration // about the CPU time of one
}

// DefaultOptions is what gives steady medians.
var DefaultOptions = Options{Slices: 9, Slice: 120 * time.Millisecond}

// Loop is what one loop took for a frame.
type Loop struct {
	Ns     float64 // median thread CPU time, nanoseconds
	Spread float64 // (third quartile - first quartile) / median
}

// Engine is what the engine took for a frame with one batch size.
type Engine struct {
	Loop
	Batch    int
	Ratio    float64 // the raw loop's time over the engine's
	Linear   float64 // the same for the raw loop with one buffer
	Allocs   float64 // objects
	Syscalls float64
	Notifies float64 // interrupts
}

// Result is one Case measured.
type Result struct {
	Case
	Raw    Loop // read or write of the same pieces as the guest's
	Ring   Loop // of the engine without any system call
	Linear Loop // of one buffer
	Engine []Engine
}

// Batches are the batch sizes that are measured: the used ring published for
// each frame, and as it is by default.
var Batches = []int{64, 1}

// Run measures one case. It must run as root.
func Run(c Case, o Options) (Result, error) {
	type answer struct {
		r   Result
		err error
	}
	ch := make(chan answer)
	go func() { // on a thread of its own, which ends with the goroutine
		runtime.LockOSThread()
		r, err := run(c, o)
		ch <- answer{r, err}
	}()
	a := <-ch
	if a.err != nil {
		return Result{}, fmt.Errorf("%s: %w", c.Name, a.err)
	}
	return a.r, nil
}

// bench is what the loops of one case share.
type bench struct {
	Case
	rig *rig
	mem *guestmem.Memory
	rx  *ring
	tx  *ring

	// What the raw loops use for each frame in turn: the iovecs that the guest
	// would give, and single buffers.
	same, linear [][]unix.Iovec
}

func run(c Case, o Options) (_ Result, err error) {
	b := &bench{Case: c}
	if b.rig, err = newRig(); err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, b.rig.close()) }()
	b.mem, err = guestmem.New(guestmem.Range{GPA: 0, Size: 512 << 20})
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, b.mem.Close()) }()
	if err := b.lay(); err != nil {
		return Result{}, err
	}
	defer b.rx.close()
	defer b.tx.close()
	return b.measure(o)
}

// lay makes the rings and puts the frames in.
func (b *bench) lay() (err error) {
	a := &arena{mem: b.mem, next: 1 << 20}
	tx, rx := []uint64{64}, []uint64{1536}
	if b.Dir == netio.TX {
		tx = b.Pieces
	} else {
		rx = b.Pieces
	}
	if b.tx, err = newRing(a, tx, false); err != nil {
		return err
	}
	if b.rx, err = newRing(a, rx, true); err != nil {
		return err
	}
	if b.Dir == netio.TX {
		b.tx.fill(b.Frame)
		b.same = b.tx.vecs
		return b.layLinear(a, len(b.Frame), len(b.Frame))
	}
	b.layWindows()
	return b.layLinear(a, b.perFrame()*int(b.Pieces[0]), netio.MaxFrame+netio.HeaderLen)
}

// perFrame is how many receive buffers a frame takes.
func (b *bench) perFrame() int {
	size := int(b.Pieces[0])
	return (len(b.Frame) + size - 1) / size
}

// layWindows finds what iovecs each received frame would get if all the buffers
// that the largest frame needs were given to the kernel.
func (b *bench) layWindows() {
	need := (netio.MaxFrame+netio.HeaderLen)/int(b.Pieces[0]) + 1
	for i := range ringSize {
		var v []unix.Iovec
		for j := range need {
			v = append(v, b.rx.vecs[(i*b.perFrame()+j)%ringSize]...)
		}
		b.same = append(b.same, v)
	}
}

// layLinear makes single buffers of the given size, stride bytes apart, in as
// much memory as the guest's buffers have.
func (b *bench) layLinear(a *arena, stride, size int) error {
	base, at := a.next, a.next
	for range ringSize {
		if at-base > footprint || at-base > uint64(ringSize*b.bytesPerChain()) {
			at = base
		}
		v, err := b.mem.Vec(nil, at, uint64(size))
		if err != nil {
			return err
		}
		guestmem.Scatter(v, b.Frame)
		b.linear = append(b.linear, v)
		at = (at + uint64(stride) + 63) &^ 63
	}
	return nil
}

func (b *bench) bytesPerChain() (n int) {
	for _, p := range b.Pieces {
		n += int(p)
	}
	return n
}

// measure takes the slices in turn.
func (b *bench) measure(o Options) (Result, error) {
	r := Result{Case: b.Case}
	frames, err := b.calibrate(o.Slice)
	if err != nil {
		return r, err
	}
	var raw, linear, ring []float64
	engine := make([][]float64, len(Batches))
	r.Engine = make([]Engine, len(Batches))
	for range o.Slices {
		t, err := b.raw(frames, b.same)
		if err != nil {
			return r, err
		}
		raw = append(raw, t)
		if t, err = b.raw(frames, b.linear); err != nil {
			return r, err
		}
		linear = append(linear, t)
		alone := Engine{Batch: Batches[0]}
		if err := b.engine(frames, nothing{b.rig.tap.Queues()[0], len(b.Frame)}, &alone); err != nil {
			return r, err
		}
		ring = append(ring, alone.Ns)
		for i, batch := range Batches {
			e := &r.Engine[i]
			e.Batch = batch
			if err := b.engine(frames, b.rig.tap.Queues()[0], e); err != nil {
				return r, err
			}
			engine[i] = append(engine[i], e.Ns)
		}
	}
	r.Raw, r.Linear, r.Ring = summary(raw), summary(linear), summary(ring)
	for i := range r.Engine {
		e := &r.Engine[i]
		e.Loop = summary(engine[i])
		e.Ratio, e.Linear = r.Raw.Ns/e.Ns, r.Linear.Ns/e.Ns
		e.Allocs /= float64(o.Slices)
		e.Syscalls /= float64(o.Slices)
		e.Notifies /= float64(o.Slices)
	}
	return r, nil
}

// calibrate finds how many frames make a slice.
func (b *bench) calibrate(slice time.Duration) (int, error) {
	n := 2 * queueLen(b.Frame)
	t, err := b.raw(n, b.same)
	if err != nil {
		return 0, err
	}
	return max(n, int(float64(slice)/t)), nil
}

// raw moves frames with nothing but system calls and returns nanoseconds a frame.
func (b *bench) raw(frames int, vecs [][]unix.Iovec) (float64, error) {
	offload := netio.OffloadCsum | netio.OffloadTSO4
	if err := b.rig.tap.SetOffloads(offload); err != nil {
		return 0, err
	}
	var w stopwatch
	if b.Dir == netio.TX {
		w.start()
		for i := range frames {
			if errno := b.rig.fd.Send(vecs[i%ringSize]); errno != 0 {
				return 0, errno
			}
		}
		w.stop()
		return float64(w.spent) / float64(frames), nil
	}
	b.rig.drain()
	batch := queueLen(b.Frame)
	for done := 0; done < frames; done += batch {
		if err := b.rig.fill(b.Frame, batch); err != nil {
			return 0, err
		}
		w.start()
		for i := range batch {
			if n, errno := b.rig.fd.Recv(vecs[(done+i)%ringSize]); errno != 0 || n != len(b.Frame) {
				return 0, fmt.Errorf("read %d of %d bytes: %w", n, len(b.Frame), errno)
			}
		}
		w.stop()
	}
	rounds := (frames + batch - 1) / batch
	return float64(w.spent) / float64(rounds*batch), nil
}

// engine moves frames between the guest and q with the device and its pump, and
// adds what it counted to e.
func (b *bench) engine(frames int, q netio.Queue, e *Engine) error {
	if b.VMBus {
		return b.engineVMBus(frames, q, e)
	}
	b.rig.drain()
	b.tx.reset(b.Dir == netio.TX)
	b.rx.reset(true)
	m := &meter{
		Backend: b.rig.tap, queue: q,
		dir: b.Dir, frames: frames,
		end: make(chan struct{}), release: make(chan struct{}),
	}
	var fillErr error
	if b.Dir == netio.TX {
		m.refill, m.every = b.tx.recycle, ringSize/2
	} else {
		m.supply = queueLen(b.Frame)
		m.refill = b.rx.recycle
		m.every = ringSize / 2 / b.perFrame()
		m.source = func() { fillErr = errors.Join(fillErr, b.rig.fill(b.Frame, m.supply)) }
		if _, ok := q.(nothing); ok {
			m.supply, m.source = 0, nil
		}
	}
	d, err := virtionet.New(virtionet.Config{
		Name: "bench", MAC: virtionet.MAC{2, 0, 0, 0, 0, 1}, Backend: m,
		RingSize: ringSize, Mergeable: true, Offload: true, Batch: e.Batch,
	})
	if err != nil {
		return err
	}
	before := m.queue.Counters()[b.Dir].Syscalls
	if err := d.Start(b.driver(d)); err != nil {
		return err
	}
	<-m.end
	close(m.release)
	d.Stop()
	count := d.Counters().Pairs[0]
	dir := count.RX
	if b.Dir == netio.TX {
		dir = count.TX
	}
	if dir.Errors > 0 || count.RX.Faults+count.TX.Faults > 0 || fillErr != nil {
		return fmt.Errorf("the engine met errors: %+v, %w", count, fillErr)
	}
	e.count(m, before, dir.Notified)
	return nil
}

// count adds what a meter has measured, whose queue had made so many system calls
// before.
func (e *Engine) count(m *meter, before, notified uint64) {
	n := float64(m.done)
	e.Ns = float64(m.watch.spent) / n
	e.Allocs += float64(m.mallocs) / n
	e.Syscalls += float64(m.queue.Counters()[m.dir].Syscalls-before) / n
	e.Notifies += float64(notified) / n
}

// driver is what a Linux guest negotiates and sets up.
func (b *bench) driver(d *virtionet.Device) virtio.Driver {
	features := d.Features() &^ (virtionet.FeatureCtrlVQ | virtionet.FeatureMQ)
	if !b.Merge && b.Dir == netio.RX {
		features &^= virtionet.FeatureMrgRxbuf
	}
	control := virtio.QueueConfig{Interrupt: counter{new(uint64)}, KickFD: -1}
	return virtio.Driver{
		Features: features, Memory: b.mem,
		Queues:        []virtio.QueueConfig{b.rx.config, b.tx.config, control},
		ConfigChanged: counter{new(uint64)},
		Fail:          func(error) {},
	}
}

// summary is the median of the slices and how far they are apart.
func summary(ns []float64) Loop {
	s := slices.Sorted(slices.Values(ns))
	m := s[len(s)/2]
	return Loop{Ns: m, Spread: (s[len(s)*3/4] - s[len(s)/4]) / m}
}

// Table writes the results as a table.
func Table(w io.Writer, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "case\tbatch\traw ns\tone buffer ns\tring ns\tengine ns\tspread\tratio\tof one buffer\tallocs/frame\tsyscalls/frame\tinterrupts/1000\t")
	for _, r := range results {
		for _, e := range r.Engine {
			fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f %%\t%.2f\t%.2f\t%.4f\t%.2f\t%.1f\t\n",
				r.Name, e.Batch, r.Raw.Ns, r.Linear.Ns, r.Ring.Ns, e.Ns, 100*max(r.Raw.Spread, e.Spread),
				e.Ratio, e.Linear, e.Allocs, e.Syscalls, 1000*e.Notifies)
		}
	}
	return t.Flush()
}
