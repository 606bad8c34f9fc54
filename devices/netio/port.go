// SPDX-License-Identifier: Apache-2.0

package netio

// Dir is a direction, seen from the guest.
type Dir uint8

// The directions of a queue pair.
const (
	RX Dir = iota // host to guest
	TX            // guest to host
)

func (d Dir) String() string {
	if d == RX {
		return "rx"
	}
	return "tx"
}

// Port is the guest's side of one queue pair. Only the Pump's thread calls it,
// between Start and Stop of the Pump. A *fault.Guest from a fetch or reservation
// means that the guest broke the ring: the Pump stops using that direction for
// good, until it is stopped and started again; any Port method may still be
// called after it.
type Port interface {
	// Kicks returns the eventfds that the guest signals when it has made receive
	// buffers or frames to send available. The device owns them; the Pump doesn't
	// read them. They may be the same; a negative one is none.
	Kicks() (rx, tx int)

	// TxFetch appends frames to b, in the guest's order, until b is Full, the
	// guest has no more, or max frames were added. Frames that it added before
	// an error count: they are sent.
	TxFetch(b *TxBatch, max int) error
	// TxComplete gives the first n frames of b back to the guest, published
	// together, and un-fetches the rest, so that the next TxFetch returns them again.
	TxComplete(b *TxBatch, n int)

	// RxReserve appends buffers to b in the guest's order until b is Full, the
	// guest has no more, or b.Free() is at least bytes. It sets b.Merge and
	// b.Window.
	RxReserve(b *RxBatch, bytes int) error
	// RxCommit publishes the frames of b to the guest and removes them and their
	// buffers from b by b.Consume; the unused buffers stay reserved.
	RxCommit(b *RxBatch)
	// RxRelease un-reserves b.Unused(), all of which lie after the frames that
	// were committed, and resets b.
	RxRelease(b *RxBatch)

	// Notify interrupts the guest if it wants to know of what was published in
	// this direction since the last Notify; sent tells if it did. The Pump calls
	// it once for each TxComplete of at least one frame and each RxCommit.
	Notify(d Dir) (sent bool)
	// ArmKick asks the guest for a kick when it makes more available; again is
	// true if it has by now, so that the caller must not sleep.
	ArmKick(d Dir) (again bool)
	// DisarmKick tells the guest that kicks are not needed for now.
	DisarmKick(d Dir)
}
