// SPDX-License-Identifier: Apache-2.0

package vmbustest

import (
	"errors"
	"fmt"

	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// Where fields of a ring's header are.
const (
	WriteIndex    = 0
	ReadIndex     = 4
	InterruptMask = 8
	PendingSend   = 12
	features      = 64
)

// Ring is one ring as the guest sees it, contiguous in guest RAM.
type Ring struct {
	Header guestmem.View
	data   guestmem.View
	size   uint32
	index  uint32 // the guest's own: where it writes or reads next
	old    uint32 // Out: the write index before what was appended
}

func newRing(mem *guestmem.Memory, gpa uint64, pages int) (*Ring, error) {
	r := &Ring{size: uint32(pages-1) * Page}
	var err1, err2 error
	r.Header, err1 = mem.View(gpa, Page, Page)
	r.data, err2 = mem.View(gpa+Page, uint64(r.size), Page)
	r.Header.Store32(features, 1)
	return r, errors.Join(err1, err2)
}

// Size is the size of the data area, bytes.
func (r *Ring) Size() uint32 { return r.size }

// SetData writes raw bytes of the data area, for hostile rings.
func (r *Ring) SetData(off uint32, p []byte) { r.data.CopyOut(uint64(off), p) }

func (r *Ring) put(p []byte) {
	n := min(len(p), int(r.size-r.index))
	r.data.CopyOut(uint64(r.index), p[:n])
	r.data.CopyOut(0, p[n:])
	r.index = (r.index + uint32(len(p))) % r.size
}

func (r *Ring) get(off uint32, p []byte) {
	off %= r.size
	n := min(len(p), int(r.size-off))
	r.data.CopyIn(uint64(off), p[:n])
	r.data.CopyIn(0, p[n:])
}

// Channel is an open channel as the guest sees it: Out is its ring to the host,
// In that from the host.
type Channel struct {
	Offer   Offer
	VP      uint32
	GPADL   uint32 // of the rings
	KickFD  int
	Out, In *Ring

	guest *Guest
	buf   [8192]byte
}

// Packet is one packet in a ring. What In returns is valid until the next Take.
type Packet struct {
	Type        uint16
	Flags       uint16
	Transaction uint64
	Header      []byte // type-specific, a multiple of 8 bytes
	Payload     []byte
}

// Append writes a packet to Out, which the host sees with the next Publish. ok is
// false if there is no room.
func (c *Channel) Append(p Packet) (ok bool) {
	r := c.Out
	pad := -len(p.Payload) & 7
	n := 16 + len(p.Header) + len(p.Payload) + pad
	used := (r.index + r.size - r.Header.Load32(ReadIndex)) % r.size
	if uint32(n)+8 >= r.size-used {
		return false
	}
	start := r.index
	var d, tail [16]byte
	le.PutUint16(d[0:], p.Type)
	le.PutUint16(d[2:], uint16((16+len(p.Header))/8))
	le.PutUint16(d[4:], uint16(n/8))
	le.PutUint16(d[6:], p.Flags)
	le.PutUint64(d[8:], p.Transaction)
	le.PutUint32(tail[pad+4:], start)
	r.put(d[:])
	r.put(p.Header)
	r.put(p.Payload)
	r.put(tail[:pad+8])
	return true
}

// Publish shows the host what was appended, and signals it if it needs that.
func (c *Channel) Publish() (signalled bool) {
	if !c.Show() {
		return false
	}
	c.Kick()
	return true
}

// Show shows the host what was appended, and reports whether it needs a signal:
// it had read all before, and has not masked the interrupt.
func (c *Channel) Show() (wanted bool) {
	r := c.Out
	if r.index == r.old {
		return false
	}
	old := r.old
	r.old = r.index
	r.Header.Store32(WriteIndex, r.index)
	return r.Header.Load32(InterruptMask) == 0 && r.Header.Load32(ReadIndex) == old
}

// Kick signals the host, needed or not.
func (c *Channel) Kick() {
	_, _ = unix.Write(c.KickFD, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only if it is signalled anyway
}

// Send appends and publishes one packet.
func (c *Channel) Send(p Packet) error {
	if !c.Append(p) {
		return errors.New("the ring is full")
	}
	c.Publish()
	return nil
}

// Take takes the next packet from In; the host sees its room with the next
// Release. ok is false if there is none. The error says what is wrong with it.
func (c *Channel) Take() (p Packet, ok bool, err error) {
	r := c.In
	available := (r.Header.Load32(WriteIndex) + r.size - r.index) % r.size
	if available == 0 {
		return p, false, nil
	}
	var d [16]byte
	r.get(r.index, d[:])
	offset, length := uint32(le.Uint16(d[2:]))*8, uint32(le.Uint16(d[4:]))*8
	if offset < 16 || length < offset || length+8 > available || int(length) > len(c.buf) {
		return p, false, fmt.Errorf("packet of %d bytes, payload at %d, with %d in the ring", length, offset, available)
	}
	r.get(r.index, c.buf[:length])
	var tail [8]byte
	r.get(r.index+length, tail[:])
	if le.Uint32(tail[:]) != 0 || le.Uint32(tail[4:]) != r.index {
		return p, false, fmt.Errorf("trailer %x of the packet at %#x", tail, r.index)
	}
	r.index = (r.index + length + 8) % r.size
	return Packet{
		Type: le.Uint16(d[0:]), Flags: le.Uint16(d[6:]), Transaction: le.Uint64(d[8:]),
		Header: c.buf[16:offset], Payload: c.buf[offset:length],
	}, true, nil
}

// Release gives the room of all taken packets back, and signals a host that waits
// for more room than there was before.
func (c *Channel) Release() (signalled bool) {
	r := c.In
	free := func(read uint32) uint32 {
		return r.size - (r.Header.Load32(WriteIndex)+r.size-read)%r.size
	}
	old := r.Header.Load32(ReadIndex)
	r.Header.Store32(ReadIndex, r.index)
	want := r.Header.Load32(PendingSend)
	if want == 0 || free(r.index) <= want || free(old) > want {
		return false
	}
	c.Kick()
	return true
}

// Mask tells the host whether interrupts are needed, and reports whether there
// are packets to take.
func (c *Channel) Mask(mask bool) (pending bool) {
	v := uint32(0)
	if mask {
		v = 1
	}
	c.In.Header.Store32(InterruptMask, v)
	return c.In.Header.Load32(WriteIndex) != c.In.index
}

// Interrupt is that of the channel's virtual processor.
func (c *Channel) Interrupt() *Interrupt { return c.guest.Hyp.interrupts[c.VP] }

// Event takes the channel's event flag.
func (c *Channel) Event() bool { return c.guest.Event(int(c.VP), c.Offer.Relid) }

// Close closes the channel and tears its rings' GPADL down.
func (c *Channel) Close() error {
	if status := c.guest.Post(Message(7, c.Offer.Relid)); status != 0 {
		return fmt.Errorf("CLOSE: status %d", status)
	}
	return c.guest.Unshare(c.Offer.Relid, c.GPADL)
}
