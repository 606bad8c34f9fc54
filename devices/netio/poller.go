// SPDX-License-Identifier: Apache-2.0

package netio

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// poller is the one place where a pump sleeps: epoll on the backend, the guest's
// kicks and an eventfd for Stop.
//
// The eventfds are watched edge-triggered and never read: each write to one
// makes one event, which waits in the kernel until the next epoll_wait takes it,
// so reading would only cost a system call. The backend is level-triggered, and
// watched for what the pump waits for.
type poller struct {
	epfd, stopfd int
	queuefd      int    // -1 once forgotten
	interest     uint32 // of queuefd
	events       [4]unix.EpollEvent
}

// What the events carry to tell whence they come.
const (
	tokenQueue = iota
	tokenRxKick
	tokenTxKick
	tokenStop
)

// watchErrors is what of a backend is always watched. Errors are reported
// unasked, but the deletion of a tap wakes the waiters with the kinds of event
// that data has, and epoll ignores a wake-up of kinds that nobody asked for.
// This one is among them and a tap never has it, so that frames don't end the
// wait.
const watchErrors = unix.EPOLLPRI

// readiness is why wait returned.
type readiness struct {
	rxKick, txKick bool
	broken         bool // the backend has an error or hung up
}

// newPoller watches queuefd, for nothing yet, and the kicks. A negative kick is
// none; both may be the same, which then counts as TX.
func newPoller(queuefd, rxKick, txKick int) (_ *poller, err error) {
	p := &poller{epfd: -1, stopfd: -1, queuefd: queuefd}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if p.stopfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	if rxKick == txKick {
		rxKick = -1
	}
	for _, w := range []struct {
		what   string
		fd     int
		token  int32
		events uint32
	}{
		{"the backend", queuefd, tokenQueue, 0},
		{"the guest's receive notifications", rxKick, tokenRxKick, unix.EPOLLIN | unix.EPOLLET},
		{"the guest's transmit notifications", txKick, tokenTxKick, unix.EPOLLIN | unix.EPOLLET},
		{"the stop request", p.stopfd, tokenStop, unix.EPOLLIN | unix.EPOLLET},
	} {
		if w.fd < 0 {
			continue
		}
		ev := unix.EpollEvent{Events: w.events, Fd: w.token}
		if err = unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, w.fd, &ev); err != nil {
			return nil, fmt.Errorf("watch %s: %w", w.what, os.NewSyscallError("epoll_ctl", err))
		}
	}
	return p, nil
}

// wait sleeps until something happened. readable and writable say what of the
// backend counts.
func (p *poller) wait(readable, writable bool) (r readiness, err error) {
	if err := p.watch(readable, writable); err != nil {
		return r, err
	}
	n, err := unix.EpollWait(p.epfd, p.events[:], -1)
	if errors.Is(err, unix.EINTR) {
		return r, nil
	}
	if err != nil {
		return r, os.NewSyscallError("epoll_wait", err)
	}
	for _, ev := range p.events[:n] {
		switch ev.Fd {
		case tokenQueue:
			r.broken = ev.Events&(unix.EPOLLERR|unix.EPOLLHUP) != 0
		case tokenRxKick:
			r.rxKick = true
		case tokenTxKick:
			r.txKick = true
		}
	}
	return r, nil
}

// watch sets what of the backend ends a wait. The kernel looks at once whether
// it is so already.
func (p *poller) watch(readable, writable bool) error {
	interest := uint32(watchErrors)
	if readable {
		interest |= unix.EPOLLIN
	}
	if writable {
		interest |= unix.EPOLLOUT
	}
	if interest == p.interest || p.queuefd < 0 {
		return nil
	}
	p.interest = interest
	ev := unix.EpollEvent{Events: interest, Fd: tokenQueue}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.epfd, unix.EPOLL_CTL_MOD, p.queuefd, &ev))
}

// forgetQueue stops watching a backend that is gone: its error condition would
// end every wait.
func (p *poller) forgetQueue() {
	if p.queuefd >= 0 {
		// A failure means that nothing watches it, which is the aim.
		_ = unix.EpollCtl(p.epfd, unix.EPOLL_CTL_DEL, p.queuefd, nil)
		p.queuefd = -1
	}
}

// wake ends the current or next wait. It may be called from another thread.
func (p *poller) wake() {
	// Fails only if the counter is full, when the event is already there.
	_, _ = unix.Write(p.stopfd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (p *poller) close() {
	for _, fd := range []int{p.epfd, p.stopfd} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
