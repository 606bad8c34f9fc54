// SPDX-License-Identifier: Apache-2.0

package virtio

import (
	"encoding/binary"

	"github.com/govmm/govmm/internal/fault"
	"github.com/govmm/govmm/internal/guestmem"
	"github.com/govmm/govmm/internal/irq"
)

// MaxQueueSize is the largest size of a split virtqueue, entries (2.7).
const MaxQueueSize = 32768

// Layout of the split virtqueue, bytes (virtio 1.2, 2.7.5 to 2.7.8). All fields
// are little-endian.
const (
	descSize = 16 // struct virtq_desc: le64 addr, le32 len, le16 flags, le16 next

	ringFlags   = 0 // le16 flags, of both rings
	ringIdx     = 2 // le16 idx, of both rings
	ringEntries = 4 // the entries, then used_event or avail_event
	availSize   = 2 // le16 head
	usedSize    = 8 // struct virtq_used_elem: le32 id, le32 len
	eventSize   = 2 // le16 used_event or avail_event
)

// Flags of the rings (2.7.6, 2.7.8).
const (
	availNoInterrupt = 1 // VIRTQ_AVAIL_F_NO_INTERRUPT
	usedNoNotify     = 1 // VIRTQ_USED_F_NO_NOTIFY
)

// Queue is the device's side of a split virtqueue (virtio 1.2, 2.7). It is for
// one goroutine at a time.
//
// It consumes in batches: Next moves a private cursor over the available ring,
// Push writes used elements that the driver doesn't see yet, Publish shows them
// to it with one store, Notify interrupts it if it wants that.
//
// A driver that breaks the queue's rules gets a *fault.Guest, and the queue is
// broken for good: Next returns the same error from then on. All other methods
// may still be called.
type Queue struct {
	name      string
	mem       *guestmem.Memory
	size      uint16
	indirect  bool
	eventIdx  bool
	interrupt irq.Vector

	desc  guestmem.View
	avail guestmem.View
	used  guestmem.View

	next     uint16 // position in the available ring of the next chain
	seen     uint16 // available index as last loaded
	done     uint16 // used index as last published
	pushed   uint16 // used elements written beyond done
	notified uint16 // used index at the last Notify
	quiet    bool   // the used ring's flags say NO_NOTIFY

	chain Chain
	err   *fault.Guest
}

// NewQueue makes the device's side of the queue that the driver describes in
// cfg. features are those that the driver accepted; name is what faults call
// the queue. The error is a *fault.Guest if the size is not a power of two up
// to MaxQueueSize, or one of the three areas is misaligned or not RAM (2.7).
func NewQueue(mem *guestmem.Memory, cfg QueueConfig, features uint64, name string) (*Queue, error) {
	q := &Queue{
		name:      name,
		mem:       mem,
		size:      cfg.Size,
		indirect:  features&FeatureIndirectDesc != 0,
		eventIdx:  features&FeatureEventIdx != 0,
		interrupt: cfg.Interrupt,
	}
	if q.size == 0 || q.size > MaxQueueSize || q.size&(q.size-1) != 0 {
		return nil, q.Faultf("queue size %d is not a power of two from 1 to %d", q.size, MaxQueueSize)
	}
	n := uint64(q.size)
	for _, area := range []struct {
		name       string
		view       *guestmem.View
		gpa        uint64
		len, align uint64
	}{
		{"descriptor table", &q.desc, cfg.Desc, descSize * n, 16},
		{"available ring", &q.avail, cfg.Avail, ringEntries + availSize*n + eventSize, 2},
		{"used ring", &q.used, cfg.Used, ringEntries + usedSize*n + eventSize, 4},
	} {
		view, err := mem.View(area.gpa, area.len, area.align)
		if err != nil {
			return nil, q.Faultf("%s: %v", area.name, err)
		}
		*area.view = view
	}
	q.chain.runs = make([]Run, 0, int(q.size)+q.maxIndirect())
	return q, nil
}

// Size is the queue's size in entries.
func (q *Queue) Size() int { return int(q.size) }

// Err is the fault that broke the queue, or nil.
func (q *Queue) Err() error {
	if q.err == nil {
		return nil
	}
	return q.err
}

// Faultf breaks the queue, for a device that finds the driver breaking a rule of
// the device's own. It returns the fault.
func (q *Queue) Faultf(format string, args ...any) error {
	q.err = fault.Guestf(q.name, format, args...)
	return q.err
}

// Next fetches and checks the next available chain. It returns nil and no error
// if there is none. The chain is valid until the next call of Next.
func (q *Queue) Next() (*Chain, error) {
	if q.err != nil {
		return nil, q.err
	}
	if q.next == q.seen {
		if err := q.look(); err != nil {
			return nil, err
		}
		if q.next == q.seen {
			return nil, nil
		}
	}
	head := q.avail.Load16(ringEntries + availSize*uint64(q.next&(q.size-1)))
	if err := q.fetch(head); err != nil {
		return nil, err
	}
	q.next++
	return &q.chain, nil
}

// look loads the available index. The driver can have no more chains out than
// the queue has entries, because each takes a descriptor that it gets back with
// the used index only: one further ahead is a breach, and would make the same
// entries be read again and again.
func (q *Queue) look() error {
	idx := q.avail.Load16(ringIdx)
	if idx-q.done > q.size {
		return q.Faultf("available index %d is more than the queue's size, %d, ahead of the used index %d", idx, q.size, q.done)
	}
	q.seen = idx
	return nil
}

// Unfetch puts the n chains that were fetched last back, so that Next returns
// them again. They must not have been pushed.
func (q *Queue) Unfetch(n int) { q.next -= uint16(n) }

// Push gives a chain back to the driver, with n bytes written to it. The driver
// sees it with the next Publish. Each chain that was fetched, and not unfetched,
// is pushed once.
func (q *Queue) Push(head uint16, n uint32) {
	// One store of both fields, because the copy loads them as one.
	var elem [usedSize]byte
	binary.LittleEndian.PutUint64(elem[:], uint64(head)|uint64(n)<<32)
	slot := (q.done + q.pushed) & (q.size - 1)
	q.used.CopyOut(ringEntries+usedSize*uint64(slot), elem[:])
	q.pushed++
}

// Publish shows the driver all chains that were pushed.
func (q *Queue) Publish() {
	if q.pushed == 0 {
		return
	}
	q.done += q.pushed
	q.pushed = 0
	q.used.Store16(ringIdx, q.done)
}

// Notify interrupts the driver if something was published since the last Notify
// and it wants to know (2.7.7.2). sent tells if it did.
//
// The driver may enable interrupts and then look at the used index a last time
// while we publish and then look at what it enabled: one of both must see the
// other's store. View's accesses are sequentially consistent, so that holds.
func (q *Queue) Notify() (sent bool) {
	old, now := q.notified, q.done
	if old == now {
		return false
	}
	q.notified = now
	if q.eventIdx {
		event := q.avail.Load16(ringEntries + availSize*uint64(q.size))
		if !needEvent(event, now, old) {
			return false
		}
	} else if q.avail.Load16(ringFlags)&availNoInterrupt != 0 {
		return false
	}
	q.interrupt.Raise()
	return true
}

// needEvent tells whether an index that moved from old to now passed event: it
// is vring_need_event of the specification (2.7.7.2), modulo 65536.
func needEvent(event, now, old uint16) bool { return now-event-1 < now-old }

// Pending reports whether the driver has made a chain available that was not
// fetched.
func (q *Queue) Pending() bool { return q.err == nil && q.avail.Load16(ringIdx) != q.next }

// ArmKick asks the driver for a notification when it makes a chain available
// (2.7.10.2). again is true if one is available already: the driver may
// have looked before the request, so the caller must not wait for it.
func (q *Queue) ArmKick() (again bool) {
	if q.eventIdx {
		q.used.Store16(ringEntries+usedSize*uint64(q.size), q.next)
	} else if q.quiet {
		q.used.Store16(ringFlags, 0)
		q.quiet = false
	}
	return q.Pending()
}

// DisarmKick tells the driver that notifications are not needed for now. With
// the event index there is nothing to do: the driver notifies only when it
// passes the index of the last ArmKick.
func (q *Queue) DisarmKick() {
	if q.eventIdx || q.quiet {
		return
	}
	q.used.Store16(ringFlags, usedNoNotify)
	q.quiet = true
}
