// SPDX-License-Identifier: Apache-2.0

// Package virtiotest is the driver's side of a split virtqueue, for tests and
// benchmarks of devices. It is written from the specification (virtio 1.2, 2.7)
// and shares no code with the device's side.
package virtiotest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/internal/guestmem"
	"github.com/govmm/govmm/internal/irq"
	"golang.org/x/sys/unix"
)

// Descriptor flags (2.7.5).
const (
	Next     = 1
	Write    = 2
	Indirect = 4
)

// TableEntries is how many descriptors an indirect table of a Ring holds.
const TableEntries = 64

// Buffer is one piece of a chain.
type Buffer struct {
	GPA   uint64
	Len   uint32
	Write bool // by the device
}

// Ring is a driver's virtqueue. It is for one goroutine.
type Ring struct {
	Size              int
	Desc, Avail, Used uint64 // guest physical addresses
	Tables            uint64 // of the indirect tables, one for each descriptor

	desc, avail, used, tables guestmem.View
	eventIdx                  bool

	free  []uint16 // descriptors that are in no chain
	chain [][]uint16
	token []uint64

	added     uint16 // available entries written
	published uint16 // available index
	kicked    uint16 // available index at the last KickNeeded
	seen      uint16 // used elements taken
}

// RingBytes is how much memory a Ring of the given size takes, page aligned.
func RingBytes(size int) uint64 {
	n := uint64(size)
	return pageUp(16*n) + pageUp(6+2*n) + pageUp(6+8*n) + pageUp(n*16*TableEntries)
}

func pageUp(n uint64) uint64 { return (n + 0xffff) &^ 0xffff }

// NewRing lays a ring of size entries out at base, a multiple of 64 KiB, and
// clears it.
func NewRing(mem *guestmem.Memory, base uint64, size int, features uint64) (*Ring, error) {
	r := &Ring{Size: size, eventIdx: features&virtio.FeatureEventIdx != 0}
	n := uint64(size)
	r.Desc = base
	r.Avail = r.Desc + pageUp(16*n)
	r.Used = r.Avail + pageUp(6+2*n)
	r.Tables = r.Used + pageUp(6+8*n)
	if err := mem.Zero(base, RingBytes(size)); err != nil {
		return nil, err
	}
	var errs [4]error
	r.desc, errs[0] = mem.View(r.Desc, 16*n, 16)
	r.avail, errs[1] = mem.View(r.Avail, 6+2*n, 2)
	r.used, errs[2] = mem.View(r.Used, 6+8*n, 4)
	r.tables, errs[3] = mem.View(r.Tables, n*16*TableEntries, 16)
	r.chain, r.token = make([][]uint16, size), make([]uint64, size)
	for i := range size {
		r.free = append(r.free, uint16(size-1-i))
	}
	return r, errors.Join(errs[:]...)
}

// Config is what the transport tells the device of this ring.
func (r *Ring) Config(interrupt irq.Vector, kickfd int) virtio.QueueConfig {
	return virtio.QueueConfig{
		Enabled: true, Size: uint16(r.Size), Desc: r.Desc, Avail: r.Avail, Used: r.Used,
		Interrupt: interrupt, KickFD: kickfd,
	}
}

// SetDescriptor writes one descriptor as it is, for hostile rings too.
func (r *Ring) SetDescriptor(i uint16, gpa uint64, n uint32, flags, next uint16) {
	writeDescriptor(r.desc, uint64(i), gpa, n, flags, next)
}

func writeDescriptor(table guestmem.View, i, gpa uint64, n uint32, flags, next uint16) {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[0:], gpa)
	binary.LittleEndian.PutUint32(b[8:], n)
	binary.LittleEndian.PutUint16(b[12:], flags)
	binary.LittleEndian.PutUint16(b[14:], next)
	table.CopyOut(16*i, b[:])
}

// SetAvail writes an entry of the available ring, and SetAvailIdx its index.
func (r *Ring) SetAvail(pos, head uint16) {
	r.avail.Store16(4+2*uint64(int(pos)%r.Size), head)
}

// SetAvailIdx writes the available index.
func (r *Ring) SetAvailIdx(idx uint16) { r.avail.Store16(2, idx) }

// Break makes a head available that no queue has, after all that was added.
func (r *Ring) Break() {
	r.SetAvail(r.added, 0xffff)
	r.added++
	r.Publish()
}

// Free is how many descriptors are in no chain.
func (r *Ring) Free() int { return len(r.free) }

// Add puts a chain of direct descriptors into the ring; the device sees it with
// the next Publish. token comes back from Take. ok is false if there are too few
// free descriptors.
func (r *Ring) Add(token uint64, bufs ...Buffer) (ok bool) {
	if len(bufs) > len(r.free) || len(bufs) == 0 {
		return false
	}
	used := r.free[len(r.free)-len(bufs):]
	r.free = r.free[:len(r.free)-len(bufs)]
	head := used[0]
	r.chain[head] = append(r.chain[head][:0], used...)
	for i, b := range bufs {
		flags, next := b.flags(), uint16(0)
		if i+1 < len(bufs) {
			flags, next = flags|Next, used[i+1]
		}
		r.SetDescriptor(used[i], b.GPA, b.Len, flags, next)
	}
	r.offer(head, token)
	return true
}

// AddIndirect is Add with one descriptor that refers to a table of up to
// TableEntries.
func (r *Ring) AddIndirect(token uint64, bufs ...Buffer) (ok bool) {
	if len(r.free) == 0 || len(bufs) == 0 || len(bufs) > TableEntries {
		return false
	}
	head := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	r.chain[head] = append(r.chain[head][:0], head)
	first := uint64(head) * TableEntries
	for i, b := range bufs {
		flags, next := b.flags(), uint16(0)
		if i+1 < len(bufs) {
			flags, next = flags|Next, uint16(i+1)
		}
		writeDescriptor(r.tables, first+uint64(i), b.GPA, b.Len, flags, next)
	}
	r.SetDescriptor(head, r.Tables+16*first, uint32(16*len(bufs)), Indirect, 0)
	r.offer(head, token)
	return true
}

func (b Buffer) flags() uint16 {
	if b.Write {
		return Write
	}
	return 0
}

func (r *Ring) offer(head uint16, token uint64) {
	r.token[head] = token
	r.SetAvail(r.added, head)
	r.added++
}

// Publish shows the device all that was added.
func (r *Ring) Publish() {
	r.published = r.added
	r.SetAvailIdx(r.published)
}

// KickNeeded reports whether the device wants a notification for what was
// published since the last call (2.7.10).
func (r *Ring) KickNeeded() bool {
	old, now := r.kicked, r.published
	r.kicked = now
	if !r.eventIdx {
		return old != now && r.used.Load16(0)&1 == 0
	}
	event := r.used.Load16(4 + 8*uint64(r.Size))
	for i := old; i != now; i++ {
		if i == event {
			return true
		}
	}
	return false
}

// Take takes one chain back from the device: its token and how many bytes the
// device says that it wrote. The error says what the device did wrong.
func (r *Ring) Take() (token uint64, n uint32, ok bool, err error) {
	idx := r.UsedIdx()
	if idx == r.seen {
		return 0, 0, false, nil
	}
	if idx-r.seen > uint16(r.Size) && r.Size < 1<<15 {
		return 0, 0, false, fmt.Errorf("used index %d is %d ahead in a ring of %d", idx, idx-r.seen, r.Size)
	}
	id, n := r.usedElem(r.seen)
	if id >= uint32(r.Size) || len(r.chain[id]) == 0 {
		return 0, 0, false, fmt.Errorf("used element %d: head %d is not with the device", r.seen, id)
	}
	r.seen++
	r.free = append(r.free, r.chain[id]...)
	r.chain[id] = r.chain[id][:0]
	return r.token[id], n, true, nil
}

func (r *Ring) usedElem(pos uint16) (id, n uint32) {
	var b [8]byte
	r.used.CopyIn(4+8*uint64(int(pos)%r.Size), b[:])
	return binary.LittleEndian.Uint32(b[:]), binary.LittleEndian.Uint32(b[4:])
}

// UsedIdx is the used index as the device published it, and Seen how many used
// elements were taken.
func (r *Ring) UsedIdx() uint16 { return r.used.Load16(2) }

// Seen is how many used elements were taken, modulo 65536.
func (r *Ring) Seen() uint16 { return r.seen }

// EnableInterrupts asks for an interrupt with the next used element. pending is
// true if there is one already, so that no interrupt may come (2.7.7).
func (r *Ring) EnableInterrupts() (pending bool) {
	if r.eventIdx {
		r.SetUsedEvent(r.seen)
	} else {
		r.avail.Store16(0, 0)
	}
	return r.UsedIdx() != r.seen
}

// DisableInterrupts asks for none. With the event index it is a hint: one that
// is half the indices away.
func (r *Ring) DisableInterrupts() {
	if r.eventIdx {
		r.SetUsedEvent(r.seen - 1<<15)
	} else {
		r.avail.Store16(0, 1)
	}
}

// SetUsedEvent asks for an interrupt when the used index passes event.
func (r *Ring) SetUsedEvent(event uint16) { r.avail.Store16(4+2*uint64(r.Size), event) }

// AvailEvent is what the device asks for in return, and UsedFlags the flags
// that count without the event index.
func (r *Ring) AvailEvent() uint16 { return r.used.Load16(4 + 8*uint64(r.Size)) }

// UsedFlags is the flags of the used ring.
func (r *Ring) UsedFlags() uint16 { return r.used.Load16(0) }

// Interrupt is an irq.Vector that counts, and wakes one waiter.
type Interrupt struct {
	count atomic.Uint64
	C     chan struct{} // holds one element after Raise
}

// NewInterrupt makes an Interrupt.
func NewInterrupt() *Interrupt { return &Interrupt{C: make(chan struct{}, 1)} }

// Raise implements irq.Vector.
func (i *Interrupt) Raise() {
	i.count.Add(1)
	select {
	case i.C <- struct{}{}:
	default:
	}
}

// Count is how often it was raised.
func (i *Interrupt) Count() uint64 { return i.count.Load() }

// Kick is an eventfd that carries notifications to the device.
type Kick struct{ FD int }

// NewKick makes a Kick.
func NewKick() (Kick, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return Kick{fd}, err
}

// Send notifies the device.
func (k Kick) Send() error {
	_, err := unix.Write(k.FD, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return err
}

// Close closes the eventfd.
func (k Kick) Close() error { return unix.Close(k.FD) }
