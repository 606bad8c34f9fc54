// SPDX-License-Identifier: Apache-2.0

package netio

import (
	"github.com/govmm/govmm/internal/fault"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// HeaderLen is the size of struct virtio_net_hdr_v1 before every frame, bytes.
const HeaderLen = 12

// Header is one struct virtio_net_hdr_v1: flags, gso_type, hdr_len, gso_size,
// csum_start, csum_offset, num_buffers; 16-bit fields are little-endian.
type Header [HeaderLen]byte

// MaxFrame is the largest frame without its header: a 64-KiB GSO packet with an
// Ethernet header and a VLAN tag, in bytes.
const MaxFrame = 65535 + 14 + 4

// Batch limits.
const (
	MaxBatch = 256     // frames or buffers in one batch
	maxSegs  = 8 * 256 // iovecs in one batch
	maxIOV   = 1024    // UIO_MAXIOV: iovecs in one readv or writev
)

// TxFrame is one frame that the guest sends.
type TxFrame struct {
	Seg, NSeg int    // its iovecs: Segs[Seg:Seg+NSeg]; the first HeaderLen bytes are the header
	Len       int    // bytes with the header
	Cookie    uint32 // the Port's own: descriptor head, transaction
	Header    Header // where a Port whose guest has no virtio header puts one
}

// TxBatch is what a Port fetched and a Queue sends, in order.
type TxBatch struct {
	Segs   []unix.Iovec
	Frames []TxFrame

	// Limit is the number of bytes, headers included, from which on the batch is
	// Full, so that one batch of large frames doesn't hold up its publication.
	// 0 is no limit.
	Limit int

	summed, bytes int // bytes is the length of Frames[:summed]
}

// NewTxBatch makes an empty batch for max frames, 1 to MaxBatch.
func NewTxBatch(max int) *TxBatch {
	return &TxBatch{Segs: make([]unix.Iovec, 0, maxSegs), Frames: make([]TxFrame, 0, max)}
}

// Reset empties the batch.
func (b *TxBatch) Reset() {
	b.Segs, b.Frames = b.Segs[:0], b.Frames[:0]
	b.summed, b.bytes = 0, 0
}

// Full reports whether the batch is at its limit of bytes, or no further frame
// surely fits: a frame takes up to maxIOV iovecs.
func (b *TxBatch) Full() bool {
	return len(b.Frames) == cap(b.Frames) || cap(b.Segs)-len(b.Segs) < maxIOV ||
		b.Limit > 0 && b.Bytes() >= b.Limit
}

// Add appends a frame of size bytes, header included, whose iovecs are
// Segs[first:]. It must not be called when the batch is Full.
func (b *TxBatch) Add(first, size int, cookie uint32) *TxFrame {
	n := len(b.Frames)
	b.Frames = b.Frames[:n+1]
	// Field by field: a literal would be built elsewhere and copied.
	f := &b.Frames[n]
	f.Seg, f.NSeg, f.Len, f.Cookie = first, len(b.Segs)-first, size, cookie
	return f
}

// Bytes is the length of all frames, headers included.
func (b *TxBatch) Bytes() int {
	for ; b.summed < len(b.Frames); b.summed++ {
		b.bytes += b.Frames[b.summed].Len
	}
	return b.bytes
}

// prefix is the length of the first n frames, headers included.
func (b *TxBatch) prefix(n int) (size int) {
	if n == len(b.Frames) {
		return b.Bytes()
	}
	for i := range b.Frames[:n] {
		size += b.Frames[i].Len
	}
	return size
}

// Vec returns the iovecs of frame i.
func (b *TxBatch) Vec(i int) []unix.Iovec {
	f := &b.Frames[i]
	return b.Segs[f.Seg : f.Seg+f.NSeg]
}

// RxBuf is one buffer that the guest lends for receiving.
type RxBuf struct {
	Seg, NSeg int    // its iovecs
	Cap       int    // bytes
	Cookie    uint32 // the Port's own
	Header    Header // where a Port whose guest has no virtio header points the first iovec
}

// RxFrame is one received frame: it fills the buffers Bufs[Buf:Buf+NBuf] in
// order. NBuf is 1 unless the batch merges.
type RxFrame struct {
	Buf, NBuf int
	Len       int // bytes with the header
}

// RxBatch holds the buffers that a Port reserved and the frames that a Queue
// has put into them. A Port appends to Segs and Bufs by Add. The first iovec of a
// buffer may point at the buffer's Header. Buffers that were consumed stay at the
// front until Compact or Reset.
type RxBatch struct {
	Segs   []unix.Iovec
	Bufs   []RxBuf
	Frames []RxFrame

	// Merge lets a frame span several buffers (VIRTIO_NET_F_MRG_RXBUF).
	Merge bool
	// Window is how many bytes, header included, must be free before a frame is
	// read: the largest frame that can come. Without Merge it must fit in one
	// buffer.
	Window int
	// Limit is the number of bytes in Frames, headers included, from which on
	// there is no Space. 0 is no limit.
	Limit int

	bytes int // length of Frames
	next  int // first buffer without a frame
	end   int // the next frame's window is Bufs[next:end]
	room  int // bytes in Bufs[next:end]
}

// NewRxBatch makes an empty batch for max buffers, 1 to MaxBatch.
func NewRxBatch(max int) *RxBatch {
	return &RxBatch{
		Segs:   make([]unix.Iovec, 0, maxSegs),
		Bufs:   make([]RxBuf, 0, max),
		Frames: make([]RxFrame, 0, max),
	}
}

// Full reports whether no further buffer surely fits.
func (b *RxBatch) Full() bool {
	return len(b.Bufs) == cap(b.Bufs) || cap(b.Segs)-len(b.Segs) < maxIOV
}

// Reset forgets all buffers and frames.
func (b *RxBatch) Reset() {
	b.Segs, b.Bufs, b.Frames = b.Segs[:0], b.Bufs[:0], b.Frames[:0]
	b.bytes, b.next, b.end, b.room = 0, 0, 0, 0
}

// Add appends a buffer of size bytes whose iovecs are Segs[first:]. It must not
// be called when the batch is Full.
func (b *RxBatch) Add(first, size int, cookie uint32) *RxBuf {
	n := len(b.Bufs)
	b.Bufs = b.Bufs[:n+1]
	buf := &b.Bufs[n]
	buf.Seg, buf.NSeg, buf.Cap, buf.Cookie = first, len(b.Segs)-first, size, cookie
	return buf
}

// Space returns the iovecs into which the next frame is to be read: buffers of
// at least Window bytes together, and how many bytes that is. ok is false if
// the batch is at a limit, the reserved buffers don't suffice, of which room
// then tells the size, or a frame would need more iovecs than the kernel takes.
func (b *RxBatch) Space() (vec []unix.Iovec, room int, ok bool) {
	if len(b.Frames) == cap(b.Frames) || b.AtLimit() {
		return nil, 0, false
	}
	for b.end == b.next || b.room < b.Window && b.Merge {
		if b.end == len(b.Bufs) {
			return nil, b.room, false
		}
		b.room += b.Bufs[b.end].Cap
		b.end++
	}
	last := &b.Bufs[b.end-1]
	vec = b.Segs[b.Bufs[b.next].Seg : last.Seg+last.NSeg]
	return vec, b.room, b.room >= b.Window && len(vec) <= maxIOV
}

// AtLimit reports whether the frames have reached Limit.
func (b *RxBatch) AtLimit() bool { return b.Limit > 0 && b.bytes >= b.Limit }

// Accept notes that a frame of n bytes, header included, was read into Space;
// n is at most the room there.
func (b *RxBatch) Accept(n int) {
	f := RxFrame{Buf: b.next, Len: n}
	for left := n; ; {
		size := b.Bufs[b.next].Cap
		b.next++
		b.room -= size
		f.NBuf++
		if left <= size {
			break
		}
		left -= size
	}
	b.bytes += n
	b.Frames = append(b.Frames, f)
}

// Bytes is the length of all frames, headers included.
func (b *RxBatch) Bytes() int { return b.bytes }

// Unused returns the buffers that are reserved and hold no frame.
func (b *RxBatch) Unused() []RxBuf { return b.Bufs[b.next:] }

// Free is the number of bytes in the unused buffers.
func (b *RxBatch) Free() int {
	n := b.room
	for i := b.end; i < len(b.Bufs); i++ {
		n += b.Bufs[i].Cap
	}
	return n
}

// Consume forgets the frames and their buffers; the unused buffers stay. It is
// how a Port's RxCommit ends.
func (b *RxBatch) Consume() {
	if b.next == len(b.Bufs) {
		b.Reset()
		return
	}
	b.Frames, b.bytes = b.Frames[:0], 0
}

// crowded reports whether consumed buffers take up half of the batch.
func (b *RxBatch) crowded() bool { return b.next >= cap(b.Bufs)/2 }

// Compact moves the unused buffers to the front, over those that were consumed.
// There are no frames.
func (b *RxBatch) Compact() {
	if b.next == 0 || len(b.Frames) > 0 {
		return
	}
	if b.next == len(b.Bufs) {
		b.Reset()
		return
	}
	first := b.Bufs[b.next].Seg
	b.Segs = b.Segs[:copy(b.Segs, b.Segs[first:])]
	for i := range b.Bufs[b.next:] {
		to, from := &b.Bufs[i], &b.Bufs[b.next+i]
		to.Seg, to.NSeg, to.Cap, to.Cookie = from.Seg-first, from.NSeg, from.Cap, from.Cookie
		if to.NSeg > 0 && b.Segs[to.Seg].Base == &from.Header[0] {
			b.Segs[to.Seg].Base = &to.Header[0]
		}
	}
	b.Bufs = b.Bufs[:len(b.Bufs)-b.next]
	b.end -= b.next
	b.next = 0
}

// SetHeader writes p into the frame f from byte off of its header on, wherever
// the guest has put that. A NIC with virtio headers needs it for num_buffers.
func (b *RxBatch) SetHeader(f *RxFrame, off uint64, p []byte) {
	guestmem.ScatterAt(b.Vec(f), off, p)
}

// Vec returns the iovecs of the buffers that hold f.
func (b *RxBatch) Vec(f *RxFrame) []unix.Iovec {
	first, last := &b.Bufs[f.Buf], &b.Bufs[f.Buf+f.NBuf-1]
	return b.Segs[first.Seg : last.Seg+last.NSeg]
}

// tooSmall is the fault of a guest whose buffers can never hold a frame.
func tooSmall(name string, b *RxBatch, room int) error {
	return fault.Guestf(name, "receive buffers are too small: %d of them hold %d bytes, a frame needs %d",
		len(b.Unused()), room, b.Window)
}
