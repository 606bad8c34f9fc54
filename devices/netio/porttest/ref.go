// SPDX-License-Identifier: Apache-2.0

package porttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/internal/fault"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// Ref is the reference Port together with its driver: two rings of buffers in
// guest memory, whose indices are Go atomics. It shows what a Port must do, with
// no device in the way; it lets the Pump be tested by itself.
type Ref struct {
	c      Config
	mem    *guestmem.Memory
	rx, tx *ring
}

var (
	_ netio.Port = (*Ref)(nil)
	_ Guest      = (*Ref)(nil)
)

// ring is one direction. All indices run freely; entry i is slots[i%Size].
type ring struct {
	slots []slot

	avail atomic.Uint32 // driver: entries made available
	used  atomic.Uint32 // device: entries given back
	next  uint32        // device: entries fetched
	told  uint32        // device: used at the last Notify
	taken uint32        // driver: entries taken back

	kickFD     int
	wantKick   atomic.Bool
	wantIntr   atomic.Bool
	interrupts atomic.Uint32
	broken     atomic.Bool
}

// slot is one entry and the memory that belongs to it.
type slot struct {
	gpa uint64
	len int // driver to device: bytes to send; device to driver: bytes received
}

// numBuffersOff is where num_buffers lies in the virtio header.
const numBuffersOff = 10

func (r *ring) at(i uint32) *slot { return &r.slots[int(i)%len(r.slots)] }

// NewRef makes a Ref whose rings are empty.
func NewRef(c Config) (*Ref, error) {
	page := os.Getpagesize()
	stride := max(c.BufSize, jumbo) // a slot of either ring
	stride = (stride + page - 1) / page * page
	mem, err := guestmem.New(guestmem.Range{GPA: 0, Size: uint64(2 * c.Size * stride)})
	if err != nil {
		return nil, err
	}
	r := &Ref{c: c, mem: mem}
	r.rx, err = newRing(c.Size, 0, stride)
	if err == nil {
		r.tx, err = newRing(c.Size, c.Size*stride, stride)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func newRing(size, base, stride int) (*ring, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	r := &ring{slots: make([]slot, size), kickFD: fd}
	for i := range r.slots {
		r.slots[i].gpa = uint64(base + i*stride)
	}
	r.wantIntr.Store(true)
	return r, nil
}

// Close frees the memory and the eventfds.
func (r *Ref) Close() error {
	errs := []error{r.mem.Close()}
	for _, ring := range []*ring{r.rx, r.tx} {
		if ring != nil {
			errs = append(errs, unix.Close(ring.kickFD))
		}
	}
	return errors.Join(errs...)
}

func (r *Ref) ring(d netio.Dir) *ring {
	if d == netio.RX {
		return r.rx
	}
	return r.tx
}

// The device's side.

// Kicks implements netio.Port.
func (r *Ref) Kicks() (rx, tx int) { return r.rx.kickFD, r.tx.kickFD }

// available returns how many entries the device may fetch.
func (r *ring) available(name string) (uint32, error) {
	n := r.avail.Load() - r.next
	if n == 0 && r.broken.Load() {
		return 0, fault.Guestf(name, "the ring is broken")
	}
	return n, nil
}

// TxFetch implements netio.Port. A frame has two iovecs, the header's and the
// payload's. What is no frame is given back at once, but only when no frame is
// before it, because TxComplete may put that one back.
func (r *Ref) TxFetch(b *netio.TxBatch, max int) error {
	for ; max > 0 && !b.Full(); max-- {
		n, err := r.tx.available("ref tx")
		if n == 0 {
			return err
		}
		s := r.tx.at(r.tx.next)
		if s.len <= netio.HeaderLen {
			if len(b.Frames) > 0 {
				return nil
			}
			r.tx.next++
			r.tx.used.Add(1)
			continue
		}
		first := len(b.Segs)
		if b.Segs, err = r.mem.Vec(b.Segs, s.gpa, netio.HeaderLen); err != nil {
			return err
		}
		if b.Segs, err = r.mem.Vec(b.Segs, s.gpa+netio.HeaderLen, uint64(s.len-netio.HeaderLen)); err != nil {
			return err
		}
		b.Add(first, s.len, 0)
		r.tx.next++
	}
	return nil
}

// TxComplete implements netio.Port.
func (r *Ref) TxComplete(b *netio.TxBatch, n int) {
	used := r.tx.used.Load() + uint32(n)
	r.tx.next = used
	r.tx.used.Store(used)
}

// RxReserve implements netio.Port.
func (r *Ref) RxReserve(b *netio.RxBatch, bytes int) error {
	b.Merge, b.Window = r.c.Merge, r.c.Window
	for free := b.Free(); free < bytes && !b.Full(); free += r.c.BufSize {
		n, err := r.rx.available("ref rx")
		if n == 0 {
			return err
		}
		first := len(b.Segs)
		if b.Segs, err = r.mem.Vec(b.Segs, r.rx.at(r.rx.next).gpa, uint64(r.c.BufSize)); err != nil {
			return err
		}
		b.Add(first, r.c.BufSize, 0)
		r.rx.next++
	}
	return nil
}

// RxCommit implements netio.Port.
func (r *Ref) RxCommit(b *netio.RxBatch) {
	used := r.rx.used.Load()
	for i := range b.Frames {
		f := &b.Frames[i]
		left := f.Len
		for _, buf := range b.Bufs[f.Buf : f.Buf+f.NBuf] {
			n := min(left, buf.Cap)
			r.rx.at(used).len = n
			left -= n
			used++
		}
		b.SetHeader(f, numBuffersOff, []byte{byte(f.NBuf), byte(f.NBuf >> 8)})
	}
	r.rx.used.Store(used)
	b.Consume()
}

// RxRelease implements netio.Port.
func (r *Ref) RxRelease(b *netio.RxBatch) {
	r.rx.next -= uint32(len(b.Unused()))
	b.Reset()
}

// Notify implements netio.Port.
func (r *Ref) Notify(d netio.Dir) bool {
	ring := r.ring(d)
	old, now := ring.told, ring.used.Load()
	ring.told = now
	if old == now || !ring.wantIntr.Load() {
		return false
	}
	ring.interrupts.Add(1)
	return true
}

// ArmKick implements netio.Port.
func (r *Ref) ArmKick(d netio.Dir) bool {
	ring := r.ring(d)
	ring.wantKick.Store(true)
	return ring.avail.Load() != ring.next || ring.broken.Load()
}

// DisarmKick implements netio.Port.
func (r *Ref) DisarmKick(d netio.Dir) { r.ring(d).wantKick.Store(false) }

// The driver's side.

// free returns how many entries the driver may fill: those that it took back.
func (r *ring) free() int { return len(r.slots) - int(r.avail.Load()-r.taken) }

// Post implements Guest.
func (r *Ref) Post(n int) int {
	n = min(n, r.rx.free())
	r.rx.avail.Add(uint32(n))
	return n
}

// Recv implements Guest.
func (r *Ref) Recv() (frame []byte, ok bool) {
	for left := uint16(1); left > 0; left-- {
		if r.rx.taken == r.rx.used.Load() {
			return nil, false
		}
		s := r.rx.at(r.rx.taken)
		piece := make([]byte, s.len)
		if err := r.mem.ReadAt(s.gpa, piece); err != nil {
			panic(fmt.Sprintf("reference ring left its memory: %v", err))
		}
		if frame == nil {
			left = binary.LittleEndian.Uint16(piece[numBuffersOff:])
		}
		frame = append(frame, piece...)
		r.rx.taken++
	}
	return frame, true
}

// Send implements Guest.
func (r *Ref) Send(frame []byte) bool {
	if r.tx.free() == 0 {
		return false
	}
	s := r.tx.at(r.tx.avail.Load())
	s.len = len(frame)
	if err := r.mem.WriteAt(s.gpa, frame); err != nil {
		panic(fmt.Sprintf("reference ring left its memory: %v", err))
	}
	r.tx.avail.Add(1)
	return true
}

// SendEmpty implements Guest.
func (r *Ref) SendEmpty() bool { return r.Send(make([]byte, netio.HeaderLen)) }

// Reap implements Guest.
func (r *Ref) Reap() int {
	n := r.tx.used.Load() - r.tx.taken
	r.tx.taken += n
	return int(n)
}

// Kick implements Guest.
func (r *Ref) Kick(d netio.Dir) {
	if r.ring(d).wantKick.Load() {
		// Fails only if the counter is full, when the event is there already.
		_, _ = unix.Write(r.ring(d).kickFD, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// SetInterrupts implements Guest.
func (r *Ref) SetInterrupts(d netio.Dir, on bool) { r.ring(d).wantIntr.Store(on) }

// Interrupts implements Guest.
func (r *Ref) Interrupts(d netio.Dir) int { return int(r.ring(d).interrupts.Load()) }

// Break implements Guest.
func (r *Ref) Break(d netio.Dir) { r.ring(d).broken.Store(true) }
