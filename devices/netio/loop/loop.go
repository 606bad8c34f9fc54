// SPDX-License-Identifier: Apache-2.0

// Package loop is a netio.Backend without a network: what the guest sends on
// queue i comes back on queue i, or comes out of the same queue of the other
// half of a pair. It needs no privilege, and a test can make it fail.
//
// Each queue is a Unix datagram socket, connected to itself or to its peer, so
// that order, frame borders, a bound on what waits, and readiness for poll are
// the kernel's. Frames are copied on their way.
package loop

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// offloads is all that a guest can be given: nobody finishes the frames here.
const offloads = netio.OffloadCsum | netio.OffloadTSO4 | netio.OffloadTSO6 |
	netio.OffloadTSOECN | netio.OffloadUSO4 | netio.OffloadUSO6

// Loop is the backend.
type Loop struct {
	name   string
	queues []*Queue

	mu     sync.Mutex
	set    netio.Offload
	active int
}

// Queue is one queue of a Loop.
type Queue struct {
	name    string
	fd      int
	scratch []byte // one frame on its way
	count   netio.QueueCounters

	// What a test asks for: how many of the next calls find no room or no frame,
	// and how many frames are refused.
	sendAgain, recvAgain, refuse atomic.Int32

	// vanished is needed because a read of a datagram socket that was shut down
	// only says that nothing is there.
	vanished atomic.Bool
}

// New makes a loop of the given number of queues on which frames come back.
func New(queues int) (*Loop, error) {
	l := &Loop{name: "loop", active: queues}
	for i := range queues {
		fd, err := selfConnected()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("loop backend: queue %d: %w", i, err), l.Close())
		}
		l.add(fd)
	}
	return l, nil
}

// Pair makes two loops of the given number of queues, each of which receives
// what the other sends.
func Pair(queues int) (a, b *Loop, err error) {
	a, b = &Loop{name: "loop a", active: queues}, &Loop{name: "loop b", active: queues}
	for i := range queues {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			err = fmt.Errorf("loop backend: queue %d: %w", i, os.NewSyscallError("socketpair", err))
			return nil, nil, errors.Join(err, a.Close(), b.Close())
		}
		a.add(fds[0])
		b.add(fds[1])
	}
	return a, b, nil
}

// selfConnected makes a datagram socket that receives what it sends. The
// kernel gives it a name of its own to connect to.
func selfConnected() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrUnix{}))
	if err == nil {
		var self unix.Sockaddr
		if self, err = unix.Getsockname(fd); err == nil {
			err = os.NewSyscallError("connect", unix.Connect(fd, self))
		}
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func (l *Loop) add(fd int) {
	l.queues = append(l.queues, &Queue{
		name: l.name, fd: fd,
		scratch: make([]byte, netio.MaxFrame+netio.HeaderLen+1),
	})
}

// Name implements netio.Backend.
func (l *Loop) Name() string { return l.name }

// Queues implements netio.Backend; each is a *Queue.
func (l *Loop) Queues() []netio.Queue {
	qs := make([]netio.Queue, len(l.queues))
	for i, q := range l.queues {
		qs[i] = q
	}
	return qs
}

// Queue returns queue i.
func (l *Loop) Queue(i int) *Queue { return l.queues[i] }

// Offloads implements netio.Backend: all of them.
func (l *Loop) Offloads() netio.Offload { return offloads }

// SetOffloads implements netio.Backend: it notes o, and discards what waits.
func (l *Loop) SetOffloads(o netio.Offload) error {
	if o != o.Normalise() || o&^offloads != 0 {
		return fmt.Errorf("%s: offloads %#x: invalid combination", l.name, o)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set = o
	for _, q := range l.queues {
		for q.ReadFrame(q.scratch) > 0 {
		}
	}
	return nil
}

// State returns what SetOffloads and SetActive set last.
func (l *Loop) State() (o netio.Offload, active int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.set, l.active
}

// MTU implements netio.Backend: the largest there is.
func (l *Loop) MTU() int { return 65535 }

// SetActive implements netio.Backend: it notes n.
func (l *Loop) SetActive(n int) error {
	if n < 1 || n > len(l.queues) {
		return fmt.Errorf("%s: %d active queues: it has 1 to %d", l.name, n, len(l.queues))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active = n
	return nil
}

// Vanish makes the backend go away, as a tap does when someone deletes it, even
// under a running Pump.
func (l *Loop) Vanish() {
	for _, q := range l.queues {
		q.vanished.Store(true)
		_ = unix.Shutdown(q.fd, unix.SHUT_RDWR) // fails only if the peer did it
	}
}

// Close implements netio.Backend.
func (l *Loop) Close() error {
	var errs []error
	for _, q := range slices.Backward(l.queues) {
		errs = append(errs, os.NewSyscallError("close", unix.Close(q.fd)))
	}
	l.queues = nil
	return errors.Join(errs...)
}

// InjectSendAgain makes the next n calls of Send take nothing.
func (q *Queue) InjectSendAgain(n int) { q.sendAgain.Store(int32(n)) }

// InjectRecvAgain makes the next n calls of Recv find nothing.
func (q *Queue) InjectRecvAgain(n int) { q.recvAgain.Store(int32(n)) }

// InjectRefusals makes Send refuse the next n frames, as a tap does those with a
// bad header: they are counted and gone.
func (q *Queue) InjectRefusals(n int) { q.refuse.Store(int32(n)) }

// take uses up one injection.
func take(n *atomic.Int32) bool {
	return n.Load() > 0 && n.Add(-1) >= 0
}

// WriteFrame sends one frame, header included, from outside of a Pump, and
// reports whether there was room. It may be called while a Pump runs.
func (q *Queue) WriteFrame(frame []byte) bool {
	_, err := unix.Write(q.fd, frame)
	return err == nil
}

// ReadFrame receives one frame, header included, outside of a Pump, and returns
// its length, or 0 if there is none.
func (q *Queue) ReadFrame(p []byte) int {
	n, err := unix.Read(q.fd, p)
	if err != nil {
		return 0
	}
	return n
}

// PollFD implements netio.Queue.
func (q *Queue) PollFD() int { return q.fd }

// Counters implements netio.Queue.
func (q *Queue) Counters() netio.QueueCounters { return q.count }

// Send implements netio.Queue.
func (q *Queue) Send(b *netio.TxBatch, from int) (n int, err error) {
	if take(&q.sendAgain) {
		return 0, netio.ErrAgain
	}
	c := &q.count[netio.TX]
	for i := from; i < len(b.Frames); i++ {
		frame := q.scratch[:guestmem.Gather(q.scratch, b.Vec(i))]
		if take(&q.refuse) {
			c.Errors++
			n++
			continue
		}
		c.Syscalls++
		_, err := unix.Write(q.fd, frame)
		switch {
		case err == nil:
			note(c, frame)
		case isAgain(err):
			return n, netio.ErrAgain
		case isGone(err):
			return n, fmt.Errorf("%s is gone: %w", q.name, err)
		default:
			c.Errors++
		}
		n++
	}
	return n, nil
}

// Recv implements netio.Queue.
func (q *Queue) Recv(b *netio.RxBatch, max int) (n int, err error) {
	if take(&q.recvAgain) {
		return 0, netio.ErrAgain
	}
	c := &q.count[netio.RX]
	for n < max {
		vec, room, ok := b.Space()
		if !ok {
			return n, nil
		}
		c.Syscalls++
		size, err := unix.Read(q.fd, q.scratch)
		switch {
		case q.vanished.Load():
			return n, fmt.Errorf("%s is gone: %w", q.name, unix.EPIPE)
		case isAgain(err):
			return n, netio.ErrAgain
		case err != nil:
			return n, fmt.Errorf("%s is gone: %w", q.name, err)
		case size > room || size < netio.HeaderLen:
			c.Errors++
			continue
		}
		guestmem.Scatter(vec, q.scratch[:size])
		note(c, q.scratch[:size])
		b.Accept(size)
		n++
	}
	return n, nil
}

// note counts a frame that was copied through; its second byte is gso_type.
func note(c *netio.QueueDirCounters, frame []byte) {
	c.Copied++
	if frame[1] != 0 {
		c.GSO++
	}
}

func isAgain(err error) bool { return err == unix.EAGAIN || err == unix.EINTR || err == unix.ENOBUFS }

func isGone(err error) bool {
	return err == unix.EPIPE || err == unix.ECONNRESET || err == unix.ECONNREFUSED
}
