// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"encoding/binary"

	"github.com/govmm/govmm/internal/fault"
)

// OutRing is the ring to the guest. It writes in batches: Append writes packets
// that the guest doesn't see yet, Publish shows them with one store, Signal
// interrupts the guest if it needs to know. It is for one goroutine at a time.
//
// A read index that can't be one breaks the ring for good: Append then refuses
// all packets, and Err tells why.
type OutRing struct {
	ch      *Channel
	mem     ringMemory
	write   uint32 // write index as last published
	cursor  uint32 // where the next packet goes
	read    uint32 // read index as last loaded
	notify  bool
	pending bool // ringPendingSend is not 0
	err     *fault.Guest
	buf     [MaxPacket + trailerSize]byte // the packet that is being appended
}

func (w *OutRing) open(ch *Channel, mem ringMemory) error {
	*w = OutRing{ch: ch, mem: mem, write: mem.header.Load32(ringWriteIndex), read: mem.header.Load32(ringReadIndex)}
	if !mem.good(w.write) || !mem.good(w.read) {
		w.err = ch.Faultf("indices %#x and %#x in a ring of %#x bytes", w.write, w.read, mem.size)
		return w.err
	}
	w.cursor = w.write
	mem.header.Store32(ringPendingSend, 0)
	mem.header.Store32(ringFeatures, featurePendingSend)
	return nil
}

// Err is the fault that broke the ring, or nil.
func (w *OutRing) Err() error {
	if w.err == nil {
		return nil
	}
	return w.err
}

// look loads the read index.
func (w *OutRing) look() {
	r := w.mem.header.Load32(ringReadIndex)
	// What the guest has yet to read ends at the published write index.
	if w.err == nil && (!w.mem.good(r) || w.mem.between(r, w.write) > w.mem.between(w.read, w.write)) {
		w.err = w.ch.Faultf("read index %#x after %#x, with the write index at %#x in a ring of %#x bytes", r, w.read, w.write, w.mem.size)
	}
	if w.err == nil {
		w.read = r
	}
}

// free is the number of bytes that can be written. One more would make the ring
// look empty.
func (w *OutRing) free() int {
	if w.err != nil {
		return 0
	}
	return int(w.mem.size-w.mem.between(w.read, w.cursor)) - 1
}

// packetRoom is what a packet takes in the ring, bytes.
func packetRoom(header, payload int) int {
	return descriptorSize + header + roundUp(payload) + trailerSize
}

// Fits reports whether a packet with a header and a payload of so many bytes can
// be appended now.
func (w *OutRing) Fits(header, payload int) bool {
	n := packetRoom(header, payload)
	if n-trailerSize > MaxPacket {
		return false
	}
	if w.free() < n {
		w.look()
	}
	return w.free() >= n
}

// Size is the size of the ring's data, bytes.
func (w *OutRing) Size() int { return int(w.mem.size) }

// Room reports whether packets that take n bytes in all, descriptors and trailers
// included, can be appended now.
func (w *OutRing) Room(n int) bool {
	if w.free() < n {
		w.look()
	}
	return w.free() >= n
}

// Append writes a packet. The header's length is a multiple of 8; the payload is
// padded with zeroes. ok is false if there is no room, and the ring is as before.
func (w *OutRing) Append(typ PacketType, flags uint16, transaction uint64, header, payload []byte) (ok bool) {
	if len(header)%align != 0 || !w.Fits(len(header), len(payload)) {
		return false
	}
	start, length := w.cursor, descriptorSize+len(header)+roundUp(len(payload))
	// Put together here and copied at once: most packets are small, and a copy into
	// the ring costs more than its bytes.
	p := w.buf[:length+trailerSize]
	binary.LittleEndian.PutUint16(p[0:], uint16(typ))
	binary.LittleEndian.PutUint16(p[2:], uint16((descriptorSize+len(header))/align))
	binary.LittleEndian.PutUint16(p[4:], uint16(length/align))
	binary.LittleEndian.PutUint16(p[6:], flags)
	binary.LittleEndian.PutUint64(p[8:], transaction)
	n := descriptorSize + copy(p[descriptorSize:], header)
	n += copy(p[n:], payload)
	clear(p[n : length+4]) // padding, and the trailer's first half
	binary.LittleEndian.PutUint32(p[length+4:], start)
	w.mem.copyOut(w.cursor, p)
	w.cursor = w.mem.advance(w.cursor, uint32(len(p)))
	return true
}

// Publish shows the guest all packets that were appended.
//
// The guest unmasks and then looks at the write index a last time, while we
// store it and then look at the mask: one of both must see the other's store.
// View's accesses are sequentially consistent, so that holds. The guest has to
// be told if it had read all that was there before (hv_signal_on_write of the
// Linux driver), which each Publish decides for itself.
func (w *OutRing) Publish() {
	if w.cursor == w.write || w.err != nil {
		return
	}
	old := w.write
	w.write = w.cursor
	w.mem.header.Store32(ringWriteIndex, w.write)
	if w.mem.header.Load32(ringInterruptMask) == 0 && w.mem.header.Load32(ringReadIndex) == old {
		w.notify = true
	}
}

// Signal interrupts the guest if it needs to know of what was published since
// the last Signal; sent tells if it did.
func (w *OutRing) Signal() (sent bool) {
	if !w.notify {
		return false
	}
	w.notify = false
	w.ch.signal()
	return true
}

// Await asks the guest for a kick when there is room for a packet of the given
// sizes. again is true if there is by now, so that the caller must not wait. The
// room may not be enough for a packet that is larger than the ring.
func (w *OutRing) Await(header, payload int) (again bool) {
	n := packetRoom(header, payload)
	// The guest signals when more than this is free, and the last byte is never
	// written: n free bytes are enough if more than n are free.
	w.mem.header.Store32(ringPendingSend, uint32(n))
	w.pending = true
	if !w.Fits(header, payload) {
		return false
	}
	w.Settle()
	return true
}

// Settle withdraws Await's request.
func (w *OutRing) Settle() {
	if w.pending {
		w.pending = false
		w.mem.header.Store32(ringPendingSend, 0)
	}
}
