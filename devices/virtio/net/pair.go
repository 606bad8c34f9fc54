// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"sync/atomic"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/virtio"
	"golang.org/x/sys/unix"
)

// Limits of a frame that the guest sends, header included, bytes.
const (
	minSend = netio.HeaderLen + ethernetLen
	maxSend = netio.HeaderLen + netio.MaxFrame
)

// maxPieces is the most iovecs of a chain: UIO_MAXIOV, what one readv or writev
// takes.
const maxPieces = 1024

// Where fields of struct virtio_net_hdr lie in a frame (virtio 1.2, 5.1.6).
const (
	flagsOff      = 0  // u8 flags
	numBuffersOff = 10 // le16 num_buffers
)

// pair is one receive and one transmit queue: the netio.Port of a virtio
// network card. It lives as long as the device; its queues as long as a driver.
type pair struct {
	rx, tx         *virtio.Queue // nil if the driver has not set them up
	rxKick, txKick int

	merge  bool
	window int // bytes that must be free before a frame is read
	// minBuffer is the least that a receive buffer must hold: a header if frames
	// can be merged from several, else a whole window (5.1.6.3.1).
	minBuffer int
	// plain says that the driver has not accepted GUEST_CSUM.
	plain bool

	refusedShort atomic.Uint64 // chains without a whole header and Ethernet header
	refusedLong  atomic.Uint64 // chains longer, or in more pieces, than a frame can be
}

var _ netio.Port = (*pair)(nil)

// attach gives the pair the queues of a new driver. The pump must not run.
func (p *pair) attach(rx, tx *virtio.Queue, rxKick, txKick int) {
	p.rx, p.tx = rx, tx
	p.rxKick, p.txKick = rxKick, txKick
}

// detach forgets the queues.
func (p *pair) detach() { p.rx, p.tx = nil, nil }

// ready reports whether the driver has set the pair up.
func (p *pair) ready() bool { return p.rx != nil && p.tx != nil }

// setReceive says what received frames need, with the features that the driver
// accepted and a window of so many bytes. The pump must not run.
func (p *pair) setReceive(features uint64, window int) {
	p.merge = features&FeatureMrgRxbuf != 0
	p.plain = features&FeatureGuestCsum == 0
	p.window, p.minBuffer = window, window
	if p.merge {
		p.minBuffer = netio.HeaderLen
	}
}

func (p *pair) queue(d netio.Dir) *virtio.Queue {
	if d == netio.RX {
		return p.rx
	}
	return p.tx
}

// Kicks implements netio.Port.
func (p *pair) Kicks() (rx, tx int) { return p.rxKick, p.txKick }

// Notify implements netio.Port.
func (p *pair) Notify(d netio.Dir) (sent bool) { return p.queue(d).Notify() }

// ArmKick implements netio.Port.
func (p *pair) ArmKick(d netio.Dir) (again bool) { return p.queue(d).ArmKick() }

// DisarmKick implements netio.Port.
func (p *pair) DisarmKick(d netio.Dir) { p.queue(d).DisarmKick() }

// TxFetch implements netio.Port. A chain that is no frame is given back unsent
// and counted. It waits for the frames before it, because TxComplete may put
// these back, and all that were fetched after them.
func (p *pair) TxFetch(b *netio.TxBatch, max int) error {
	for n := 0; n < max && !b.Full(); n++ {
		c, err := p.tx.Next()
		if c == nil {
			return err
		}
		ok, err := p.appendFrame(b, c)
		switch {
		case err != nil:
			return err
		case ok:
		case len(b.Frames) > 0:
			p.tx.Unfetch(1)
			return nil
		default:
			p.refuse(c)
		}
	}
	return nil
}

// appendFrame adds chain c to b; ok is false if it is no frame.
func (p *pair) appendFrame(b *netio.TxBatch, c *virtio.Chain) (ok bool, err error) {
	if len(c.Write) > 0 {
		return false, p.tx.Faultf("frame to send with a device-writable buffer (5.1.6.2)")
	}
	if c.ReadLen < minSend || c.ReadLen > maxSend {
		return false, nil
	}
	first := len(b.Segs)
	segs, err := p.tx.Vec(room(b.Segs), c.Read)
	if err == virtio.ErrSegments {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	b.Segs = b.Segs[:len(segs)]
	b.Add(first, int(c.ReadLen), uint32(c.Head))
	return true, nil
}

// room is segs with capacity for one chain.
func room(segs []unix.Iovec) []unix.Iovec {
	n := len(segs)
	return segs[:n:min(n+maxPieces, cap(segs))]
}

// refuse gives c back unsent. It is rare, so it notifies by itself.
func (p *pair) refuse(c *virtio.Chain) {
	if c.ReadLen < minSend {
		p.refusedShort.Add(1)
	} else {
		p.refusedLong.Add(1)
	}
	p.tx.Push(c.Head, 0)
	p.tx.Publish()
	p.tx.Notify()
}

// TxComplete implements netio.Port.
func (p *pair) TxComplete(b *netio.TxBatch, n int) {
	for i := range b.Frames[:n] {
		p.tx.Push(uint16(b.Frames[i].Cookie), 0)
	}
	p.tx.Publish()
	p.tx.Unfetch(len(b.Frames) - n)
}

// RxReserve implements netio.Port.
func (p *pair) RxReserve(b *netio.RxBatch, bytes int) error {
	b.Merge, b.Window = p.merge, p.window
	for free := b.Free(); free < bytes && !b.Full(); {
		c, err := p.rx.Next()
		if c == nil {
			return err
		}
		if err := p.appendBuffer(b, c); err != nil {
			return err
		}
		free += int(c.WriteLen)
	}
	return nil
}

func (p *pair) appendBuffer(b *netio.RxBatch, c *virtio.Chain) error {
	if len(c.Read) > 0 {
		return p.rx.Faultf("receive buffer with a device-readable part (5.1.6.3)")
	}
	if c.WriteLen < uint64(p.minBuffer) {
		return p.rx.Faultf("receive buffer of %d bytes, less than the %d that are needed (5.1.6.3.1)", c.WriteLen, p.minBuffer)
	}
	first := len(b.Segs)
	segs, err := p.rx.Vec(room(b.Segs), c.Write)
	if err == virtio.ErrSegments {
		return p.rx.Faultf("receive buffer in more than %d pieces", maxPieces)
	}
	if err != nil {
		return err
	}
	b.Segs = b.Segs[:len(segs)]
	b.Add(first, int(c.WriteLen), uint32(c.Head))
	return nil
}

// RxCommit implements netio.Port.
func (p *pair) RxCommit(b *netio.RxBatch) {
	for i := range b.Frames {
		f := &b.Frames[i]
		bufs := b.Bufs[f.Buf : f.Buf+f.NBuf]
		p.finishHeader(b, f)
		left := f.Len
		for j := range bufs {
			n := min(left, bufs[j].Cap)
			p.rx.Push(uint16(bufs[j].Cookie), uint32(n))
			left -= n
		}
	}
	p.rx.Publish()
	b.Consume()
}

// finishHeader writes what only the device knows: num_buffers, and that there
// are no flags for a driver without GUEST_CSUM (5.1.6.4.1), to which a tap says
// all the same that it has seen a good checksum.
func (p *pair) finishHeader(b *netio.RxBatch, f *netio.RxFrame) {
	b.SetHeader(f, numBuffersOff, []byte{byte(f.NBuf), byte(f.NBuf >> 8)})
	if p.plain {
		b.SetHeader(f, flagsOff, []byte{0})
	}
}

// RxRelease implements netio.Port.
func (p *pair) RxRelease(b *netio.RxBatch) {
	p.rx.Unfetch(len(b.Unused()))
	b.Reset()
}
