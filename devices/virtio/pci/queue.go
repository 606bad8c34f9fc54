// SPDX-License-Identifier: Apache-2.0

package virtiopci

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/devices/virtio"
)

// queue is what the driver has set up of one virtqueue.
type queue struct {
	max       uint16
	size      uint16
	enabled   bool
	addr      [3]uint64 // descriptor table, driver area, device area
	interrupt interrupt
	kick      int // eventfd, -1 when closed
}

func (q *queue) init(t *Transport, size uint16) (err error) {
	q.max = size
	q.interrupt.init(t, isrQueue)
	if q.kick, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		q.kick = -1
		return fmt.Errorf("eventfd for a doorbell: %w; raise the limit of open files", err)
	}
	return nil
}

func (q *queue) close() error {
	if q.kick < 0 {
		return nil
	}
	fd := q.kick
	q.kick = -1
	return unix.Close(fd)
}

// reset forgets the ring, and notifications meant for it.
func (q *queue) reset() {
	q.size, q.enabled, q.addr = q.max, false, [3]uint64{}
	q.interrupt.vector.Store(noVector)
	if q.kick >= 0 {
		var count [8]byte
		unix.Read(q.kick, count[:]) // EAGAIN: there was none
	}
}

// ring signals the doorbell. A write fails only when the eventfd's count is at
// its limit: it is signalled then.
func (q *queue) ring() {
	if q.kick >= 0 {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		unix.Write(q.kick, one[:])
	}
}

func (q *queue) setup() virtio.QueueConfig {
	return virtio.QueueConfig{
		Enabled: q.enabled, Size: q.size,
		Desc: q.addr[0], Avail: q.addr[1], Used: q.addr[2],
		Interrupt: &q.interrupt, KickFD: q.kick,
	}
}
