// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"encoding/binary"

	"github.com/govmm/govmm/internal/fault"
	"github.com/govmm/govmm/internal/guestmem"
)

// Packet is a private, checked copy of a packet from the guest.
type Packet struct {
	Type        PacketType
	Flags       uint16 // CompletionRequested
	Transaction uint64 // to be echoed by the completion
	// Header is the type-specific header between descriptor and payload. Payload
	// ends with up to seven bytes of padding.
	Header, Payload []byte
}

// InRing is the ring from the guest. It reads in batches: Next moves a private
// cursor, Publish gives the room of all packets up to the cursor back with one
// store. It is for one goroutine at a time.
//
// A guest that breaks the ring's rules gets a *fault.Guest, and the ring is
// broken for good, because nothing tells where the next packet begins: Next
// returns the same error from then on. The other methods may still be called.
type InRing struct {
	ch     *Channel
	mem    ringMemory
	read   uint32 // read index as last published
	cursor uint32 // index of the next packet
	seen   uint32 // write index as last loaded
	masked bool
	notify bool // the guest waits for room, and there is by now
	packet Packet
	buf    [MaxPacket]byte
	err    *fault.Guest
}

// open takes the indices over from the guest, which starts with an empty ring.
func (r *InRing) open(ch *Channel, mem ringMemory) error {
	*r = InRing{ch: ch, mem: mem, read: mem.header.Load32(ringReadIndex)}
	if !mem.good(r.read) {
		return r.Faultf("read index %#x in a ring of %#x bytes", r.read, mem.size)
	}
	r.cursor, r.seen = r.read, r.read
	return nil
}

// Faultf breaks the ring, for a device that finds a packet against its rules. It
// returns the fault.
func (r *InRing) Faultf(format string, args ...any) error {
	if r.err == nil {
		r.err = r.ch.Faultf(format, args...)
	}
	return r.err
}

// Next reads the next packet. It returns nil and no error if there is none. The
// packet is valid until the next call of Next.
func (r *InRing) Next() (*Packet, error) {
	if r.err != nil {
		return nil, r.err
	}
	if r.cursor == r.seen && !r.look() {
		return nil, r.errOrNil()
	}
	return r.parse()
}

func (r *InRing) errOrNil() error {
	if r.err == nil {
		return nil
	}
	return r.err
}

// look loads the write index and reports whether there is a packet. The loads
// of packet data come after it.
func (r *InRing) look() bool {
	w := r.mem.header.Load32(ringWriteIndex)
	if !r.mem.good(w) {
		_ = r.Faultf("write index %#x in a ring of %#x bytes", w, r.mem.size)
		return false
	}
	if w == r.cursor {
		return false
	}
	// The guest's room ends where the published read index is: data from the
	// cursor on can't reach around it.
	if r.mem.between(r.read, w) < r.mem.between(r.read, r.cursor) {
		_ = r.Faultf("write index %#x moved back behind %#x", w, r.cursor)
		return false
	}
	r.seen = w
	return true
}

// firstCopy is how many bytes of a packet are copied before its length is known:
// as many as most packets have, because each copy costs more than its bytes.
const firstCopy = 128

// parse copies the packet at the cursor and checks the copy.
func (r *InRing) parse() (*Packet, error) {
	available := r.mem.between(r.cursor, r.seen)
	if available < descriptorSize+trailerSize {
		return nil, r.Faultf("%d bytes in the ring are no packet", available)
	}
	first := min(available, firstCopy)
	d := r.buf[:first]
	r.mem.copyIn(r.cursor, d)
	payload := int(binary.LittleEndian.Uint16(d[2:])) * align
	length := int(binary.LittleEndian.Uint16(d[4:])) * align
	switch {
	case payload < descriptorSize || length < payload:
		return nil, r.Faultf("packet of %d bytes with its payload at %d", length, payload)
	case uint32(length)+trailerSize > available:
		return nil, r.Faultf("packet of %d bytes with %d in the ring", length, available)
	case length > MaxPacket:
		return nil, r.Faultf("packet of %d bytes: at most %d are read", length, MaxPacket)
	}
	if uint32(length) > first {
		r.mem.copyIn(r.mem.advance(r.cursor, first), r.buf[first:length])
	}
	r.cursor = r.mem.advance(r.cursor, uint32(length)+trailerSize)
	r.packet = Packet{
		Type:        PacketType(binary.LittleEndian.Uint16(d)),
		Flags:       binary.LittleEndian.Uint16(d[6:]),
		Transaction: binary.LittleEndian.Uint64(d[8:]),
		Header:      r.buf[descriptorSize:payload],
		Payload:     r.buf[payload:length],
	}
	return &r.packet, nil
}

// Position is where the next packet begins, for Rewind.
func (r *InRing) Position() uint32 { return r.cursor }

// Rewind makes Next return the packets from a Position on again. None of them
// may have been published since.
func (r *InRing) Rewind(position uint32) { r.cursor = position }

// Publish gives the room of all packets that were read back to the guest. A
// guest that waits for room is signalled by the next Signal if it has now more
// than it asked for and had not before.
func (r *InRing) Publish() {
	if r.cursor == r.read || r.err != nil {
		return
	}
	freed := r.mem.between(r.read, r.cursor)
	r.read = r.cursor
	r.mem.header.Store32(ringReadIndex, r.read)
	want := r.mem.header.Load32(ringPendingSend) &^ (align - 1)
	if want == 0 {
		return
	}
	w := r.mem.header.Load32(ringWriteIndex)
	if !r.mem.good(w) {
		return // the next look finds it
	}
	free := r.mem.size - r.mem.between(r.read, w)
	if free > want && free-min(freed, free) <= want {
		r.notify = true
	}
}

// Signal interrupts the guest if it waits for the room that was published since
// the last Signal; sent tells if it did.
func (r *InRing) Signal() (sent bool) {
	if !r.notify {
		return false
	}
	r.notify = false
	r.ch.signal()
	return true
}

// Arm publishes, and asks the guest for a kick when it puts a packet into the
// ring. again is true if there is one already: the guest signals only for the
// first packet of an empty ring, so the caller must not wait.
func (r *InRing) Arm() (again bool) {
	r.Publish()
	if r.masked {
		r.masked = false
		r.mem.header.Store32(ringInterruptMask, 0)
	}
	return r.err == nil && r.mem.header.Load32(ringWriteIndex) != r.cursor
}

// Disarm tells the guest that kicks are not needed for now.
func (r *InRing) Disarm() {
	if !r.masked && r.err == nil {
		r.masked = true
		r.mem.header.Store32(ringInterruptMask, 1)
	}
}

// gpaDirectHeader is the fixed part of a GPA-direct packet's header: u32
// reserved, u32 range count. Each range has u32 byte count, u32 byte offset and
// one u64 page number for each page that it touches.
const (
	gpaDirectHeader = 8
	gpaRangeHeader  = 8
	gpaPageNumber   = 8
)

// GPARanges appends the guest memory that a PacketGPADirect refers to, in order,
// to dst, contiguous pages merged. ok is false if the header's counts and sizes
// contradict each other, or there are more pieces than dst has capacity for.
// Whether it is RAM shows when it is accessed.
func (p *Packet) GPARanges(dst []guestmem.Range) (_ []guestmem.Range, ok bool) {
	h := p.Header
	if p.Type != PacketGPADirect || len(h) < gpaDirectHeader {
		return dst, false
	}
	count := binary.LittleEndian.Uint32(h[4:])
	h = h[gpaDirectHeader:]
	if uint64(count) > uint64(len(h)/(gpaRangeHeader+gpaPageNumber)) {
		return dst, false
	}
	for range count {
		if len(h) < gpaRangeHeader {
			return dst, false
		}
		n, off := uint64(binary.LittleEndian.Uint32(h)), uint64(binary.LittleEndian.Uint32(h[4:]))
		h = h[gpaRangeHeader:]
		pages := (off + n + PageSize - 1) / PageSize
		if off >= PageSize || n == 0 || pages > uint64(len(h)/gpaPageNumber) {
			return dst, false
		}
		if dst, ok = appendPages(dst, h[:pages*gpaPageNumber], off, n); !ok {
			return dst, false
		}
		h = h[pages*gpaPageNumber:]
	}
	return dst, true
}

// appendPages adds the n bytes at off of the pages to dst.
func appendPages(dst []guestmem.Range, pages []byte, off, n uint64) (_ []guestmem.Range, ok bool) {
	for ; n > 0; pages = pages[gpaPageNumber:] {
		pfn := binary.LittleEndian.Uint64(pages)
		if pfn > maxPFN {
			return dst, false
		}
		r := guestmem.Range{GPA: pfn*PageSize + off, Size: min(n, PageSize-off)}
		n, off = n-r.Size, 0
		if last := len(dst) - 1; last >= 0 && dst[last].End() == r.GPA {
			dst[last].Size += r.Size
			continue
		}
		if len(dst) == cap(dst) {
			return dst, false
		}
		dst = append(dst, r)
	}
	return dst, true
}

// maxPFN is the largest page number whose addresses fit 64 bits.
const maxPFN = ^uint64(0) / PageSize
