// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"encoding/binary"

	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// ringSize is the number of entries in each ring.
const ringSize = 1024

// Layout of a split virtqueue (virtio 1.2, 2.7), bytes.
const (
	descSize    = 16
	ringHeader  = 4 // flags, idx
	availEntry  = 2
	usedEntry   = 8
	idxAt       = 2
	flagNext    = 1
	flagWrite   = 2
	flagIndir   = 4
	availLen    = ringHeader + availEntry*ringSize + 2
	usedLen     = ringHeader + usedEntry*ringSize + 2
	usedEventAt = ringHeader + availEntry*ringSize
)

// arena hands out guest memory.
type arena struct {
	mem  *guestmem.Memory
	next uint64
}

func (a *arena) take(size, align uint64) uint64 {
	gpa := (a.next + align - 1) &^ (align - 1)
	a.next = gpa + size
	return gpa
}

// ring is a virtqueue as its driver sees it. Chain i is for ever the same
// buffers; the driver makes it available again when it comes back.
type ring struct {
	config      virtio.QueueConfig
	avail, used guestmem.View
	availIdx    uint16
	seen        uint16 // used index up to which chains were taken back
	interrupts  *uint64
	vecs        [][]unix.Iovec // host memory of each chain
}

// counter is an interrupt that is only counted.
type counter struct{ n *uint64 }

func (c counter) Raise() { *c.n++ }

// footprint bounds the memory of all frames together, so that it is what the
// caches hold, not the memory's speed, that both loops meet: chains share it in
// turn.
const footprint = 4 << 20

// newRing makes a ring of chains, each in the given pieces: a single piece in a
// descriptor, several in an indirect table, as Linux does it.
func newRing(a *arena, pieces []uint64, writable bool) (*ring, error) {
	r := &ring{interrupts: new(uint64)}
	kick, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	r.config = virtio.QueueConfig{
		Enabled: true, Size: ringSize, Interrupt: counter{r.interrupts}, KickFD: kick,
		Desc:  a.take(descSize*ringSize, 16),
		Avail: a.take(availLen, 4),
		Used:  a.take(usedLen, 4),
	}
	tables := a.take(descSize*uint64(len(pieces))*ringSize, 16)
	buffers := a.next
	for i := range uint64(ringSize) {
		if a.next-buffers > footprint {
			a.next = buffers
		}
		table := r.config.Desc + descSize*i
		if len(pieces) > 1 {
			size := descSize * uint64(len(pieces))
			if err := writeDesc(a.mem, table, tables+i*size, uint32(size), flagIndir, 0); err != nil {
				return nil, err
			}
			table = tables + i*size
		}
		vec, err := newChain(a, table, pieces, writable)
		if err != nil {
			return nil, err
		}
		r.vecs = append(r.vecs, vec)
	}
	a.next = buffers + 2*footprint
	if r.avail, err = a.mem.View(r.config.Avail, availLen, 4); err != nil {
		return nil, err
	}
	r.used, err = a.mem.View(r.config.Used, usedLen, 4)
	return r, err
}

// newChain writes the descriptors of a chain at table and returns its memory.
func newChain(a *arena, table uint64, pieces []uint64, writable bool) (vec []unix.Iovec, err error) {
	for i, size := range pieces {
		flags := uint16(0)
		if writable {
			flags |= flagWrite
		}
		if i < len(pieces)-1 {
			flags |= flagNext
		}
		gpa := a.take(size, 64)
		a.next += 64 // the pieces don't touch each other, like pages of a guest
		if err := writeDesc(a.mem, table+descSize*uint64(i), gpa, uint32(size), flags, uint16(i+1)); err != nil {
			return nil, err
		}
		if vec, err = a.mem.Vec(vec, gpa, size); err != nil {
			return nil, err
		}
	}
	return vec, nil
}

// writeDesc writes a struct virtq_desc.
func writeDesc(m *guestmem.Memory, at, gpa uint64, size uint32, flags, next uint16) error {
	var d [descSize]byte
	binary.LittleEndian.PutUint64(d[0:], gpa)
	binary.LittleEndian.PutUint32(d[8:], size)
	binary.LittleEndian.PutUint16(d[12:], flags)
	binary.LittleEndian.PutUint16(d[14:], next)
	return m.WriteAt(at, d[:])
}

// reset empties the ring and makes all chains available, as a driver does that
// is loaded anew.
func (r *ring) reset(available bool) {
	r.avail.CopyOut(0, make([]byte, availLen))
	r.used.CopyOut(0, make([]byte, usedLen))
	r.availIdx, r.seen, *r.interrupts = 0, 0, 0
	if !available {
		return
	}
	for i := range uint16(ringSize) {
		r.offer(i)
	}
	r.avail.Store16(idxAt, r.availIdx)
}

func (r *ring) offer(head uint16) {
	r.avail.Store16(ringHeader+availEntry*uint64(r.availIdx%ringSize), head)
	r.availIdx++
}

// recycle makes all chains that came back available again, and asks for an
// interrupt with the next one.
func (r *ring) recycle() {
	for now := r.used.Load16(idxAt); r.seen != now; r.seen++ {
		r.offer(uint16(r.used.Load32(ringHeader + usedEntry*uint64(r.seen%ringSize))))
	}
	r.avail.Store16(idxAt, r.availIdx)
	r.avail.Store16(usedEventAt, r.seen)
}

// fill writes p into every chain.
func (r *ring) fill(p []byte) {
	for _, v := range r.vecs {
		guestmem.Scatter(v, p)
	}
}

func (r *ring) close() { _ = unix.Close(r.config.KickFD) }
