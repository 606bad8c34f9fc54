// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// outbox holds the messages to the guest that found its slot taken.
type outbox struct {
	synic *synic
	wake  chan struct{} // holds an element if the guest's slot was busy

	mu    sync.Mutex
	queue []outMessage
}

type outMessage struct {
	vp  uint32
	msg []byte
}

// maxOut is how many undelivered messages make the bus refuse further ones from
// the guest: offers of all channels, and the answers to as many.
const maxOut = 2 * (maxRelid + 1)

// retryEvery is how often a message is tried again that the guest doesn't
// acknowledge: it may take messages on a processor whose acknowledgements nobody
// reports, and one that masks its interrupt loses it.
const retryEvery = 10 * time.Millisecond

func (o *outbox) init(s *synic) { o.synic, o.wake = s, make(chan struct{}, 1) }

// full reports whether too many messages wait.
func (o *outbox) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue) >= maxOut
}

// send queues a message and delivers what it can.
func (o *outbox) send(vp uint32, msg []byte) {
	o.mu.Lock()
	o.queue = append(o.queue, outMessage{vp, msg})
	o.mu.Unlock()
	o.flush()
}

// discard forgets the messages of a contact that has ended.
func (o *outbox) discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = nil
}

// flush delivers messages, in order, until the guest takes no more.
func (o *outbox) flush() (busySlot bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) > 0 {
		switch o.synic.post(o.queue[0].vp, o.queue[0].msg) {
		case posted:
			o.queue = slices.Delete(o.queue, 0, 1)
		case busy:
			select {
			case o.wake <- struct{}{}:
			default:
			}
			return true
		case disabled:
			return false // WriteSynIC tries again
		}
	}
	return false
}

// run delivers what is left over when the guest makes room.
func (o *outbox) run(ctx context.Context, ackFD int) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		}
		for o.flush() && ctx.Err() == nil {
			awaitAck(ackFD)
		}
	}
}

// awaitAck waits until the eventfd is signalled or it is time to try again. A
// signal from before the wait only makes one more try.
func awaitAck(fd int) {
	if fd < 0 {
		time.Sleep(retryEvery)
		return
	}
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(ready, int(retryEvery.Milliseconds())); err != nil || n == 0 {
		return
	}
	var count [8]byte
	// Fails only if another reader was faster, and there is none.
	_, _ = unix.Read(fd, count[:])
}
