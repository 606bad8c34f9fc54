// SPDX-License-Identifier: Apache-2.0

package netio

import "golang.org/x/sys/unix"

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
}

// NewTxBatch makes an empty batch for max frames, 1 to MaxBatch.
func NewTxBatch(max int) *TxBatch {
	return &TxBatch{Segs: make([]unix.Iovec, 0, maxSegs), Frames: make([]TxFrame, 0, max)}
}

// Reset empties the batch.
func (b *TxBatch) Reset() { b.Segs, b.Frames = b.Segs[:0], b.Frames[:0] }

// Full reports whether no further frame surely fits: a frame takes up to
// maxIOV iovecs.
func (b *TxBatch) Full() bool {
	return len(b.Frames) == cap(b.Frames) || cap(b.Segs)-len(b.Segs) < maxIOV
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
// has put into them.
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

	next int // first buffer without a frame
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
	b.Segs, b.Bufs, b.Frames, b.next = b.Segs[:0], b.Bufs[:0], b.Frames[:0], 0
}

// Space returns the iovecs into which the next frame is to be read: buffers of
// at least Window bytes together. ok is false if the reserved buffers don't
// suffice, or a frame would need more iovecs than the kernel takes.
func (b *RxBatch) Space() (vec []unix.Iovec, ok bool) {
	if len(b.Frames) == cap(b.Frames) {
		return nil, false
	}
	room := 0
	for i := b.next; i < len(b.Bufs); i++ {
		buf := &b.Bufs[i]
		room += buf.Cap
		if room >= b.Window {
			first := b.Bufs[b.next].Seg
			vec = b.Segs[first : buf.Seg+buf.NSeg]
			return vec, len(vec) <= maxIOV
		}
		if !b.Merge {
			break
		}
	}
	return nil, false
}

// Accept notes that a frame of n bytes, header included, was read into Space.
func (b *RxBatch) Accept(n int) {
	f := RxFrame{Buf: b.next, Len: n}
	for left := n; ; left -= b.Bufs[b.next].Cap {
		f.NBuf++
		if left <= b.Bufs[b.next].Cap {
			b.next++
			break
		}
		b.next++
	}
	b.Frames = append(b.Frames, f)
}

// Used is the number of buffers that hold frames; the rest are still free.
func (b *RxBatch) Used() int { return b.next }
