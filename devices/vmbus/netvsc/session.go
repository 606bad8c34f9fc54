// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"errors"
	"os"
	"sync"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/internal/bug"
	"golang.org/x/sys/unix"
)

// session is the time from an open of the primary channel to its close.
//
// Its goroutine owns the primary channel's rings, or has lent them to the pumps.
// It takes them back to answer what is no frame, and whenever something of the
// NIC changes.
type session struct {
	d      *Device
	ch     *vmbus.Channel
	wakeFD int
	done   chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // guards what follows, and the ports while no pump runs
	closed  bool
	broken  bool // the guest has broken the contract
	running int  // pumps that run, those of the first ports
	subs    []bool
	nvsp    nvspState
	rndis   rndisState
	offload netio.Offload // as the backend is set; only if configured
	active  int           // as the backend is set; 0: it isn't yet
}

// nvspState is what NVSP has agreed on.
type nvspState struct {
	version uint32 // 0: none yet
	mtu     int    // the guest's, bytes without the Ethernet header
	rsc     bool   // the guest takes coalesced segments if told that there are
	recv    *receiveBuffer
	send    *sendBuffer
	offered bool // sub-channels were
}

func newSession(d *Device, ch *vmbus.Channel) (*session, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	s := &session{d: d, ch: ch, wakeFD: fd, done: make(chan struct{}), subs: make([]bool, d.cfg.Queues)}
	s.nvsp.mtu = d.cfg.MTU
	d.ports[0].open(ch)
	return s, nil
}

func (s *session) wake() {
	// Fails only if the counter is full, when the event is there already.
	_, _ = unix.Write(s.wakeFD, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// run is the session's goroutine.
func (s *session) run() {
	defer bug.Catch()
	defer close(s.done)
	for {
		s.mu.Lock()
		s.step()
		closed, kicks := s.closed, s.running == 0 && !s.broken
		s.mu.Unlock()
		if closed {
			return
		}
		s.wait(kicks)
	}
}

// wait sleeps until it is woken, or, if kicks is set, the guest kicks.
func (s *session) wait(kicks bool) {
	fds := []unix.PollFd{{Fd: int32(s.wakeFD), Events: unix.POLLIN}}
	if kicks {
		fds = append(fds, unix.PollFd{Fd: int32(s.ch.KickFD()), Events: unix.POLLIN})
	}
	for {
		if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	var p [8]byte
	for _, fd := range fds {
		_, _ = unix.Read(int(fd.Fd), p[:]) // only to reset it; it doesn't block
	}
}

// step answers all that is no frame, and then lets the pumps run if the guest
// has come so far. mu is held.
func (s *session) step() {
	if s.closed {
		return
	}
	s.pause()
	for !s.broken {
		s.answer()
		s.d.ports[0].publish()
		s.tellLink()
		if s.failed() || s.resume() {
			return
		}
		if !s.d.ports[0].armControl() {
			return
		}
	}
}

// failed reports whether a port has met a fault, which ends the session's work.
func (s *session) failed() bool {
	for i, p := range s.d.ports {
		if i > 0 && !s.subs[i] {
			continue
		}
		for _, err := range []error{p.send.err, p.recv.err, p.out.Err()} {
			if err != nil && !s.broken {
				s.broken = true
				s.d.counts.faults.Add(1)
				s.d.cfg.Log.Warn("the guest has broken its network card", "device", s.d.cfg.Name, "err", err)
			}
		}
	}
	return s.broken
}

// pause stops all pumps. mu is held.
func (s *session) pause() {
	for _, p := range s.d.pumps[:s.running] {
		p.Stop()
	}
	s.running = 0
	s.d.ports[0].held = false
}

// resume starts the pumps, if the guest may send frames and there is somebody to
// take them. mu is held.
func (s *session) resume() (running bool) {
	if s.nvsp.recv == nil || !s.rndis.ready || s.d.lost.Load() {
		return false
	}
	n := s.lanes()
	if err := s.configure(n); err != nil {
		s.d.backendLost(err)
		return false
	}
	for i, pump := range s.d.pumps[:n] {
		s.d.ports[i].start(&s.nvsp, &s.rndis, s.window())
		if err := pump.Start(); err != nil {
			s.d.backendLost(err)
			break
		}
		s.running++
	}
	return s.running > 0
}

// lanes is how many channels take part: those that are open, if the guest has
// set how received frames are spread.
func (s *session) lanes() int {
	n := 1
	for s.rndis.spread && n < len(s.subs) && s.subs[n] {
		n++
	}
	return n
}

// configure sets the backend up. No pump runs.
func (s *session) configure(n int) error {
	if o := s.offloads(); s.active == 0 || o != s.offload {
		if err := s.d.cfg.Backend.SetOffloads(o); err != nil {
			return err
		}
		s.offload = o
	}
	if n != s.active {
		if err := s.d.cfg.Backend.SetActive(n); err != nil {
			return err
		}
		s.active = n
	}
	return nil
}

// offloads is what the guest can receive unfinished. There is a way to give it
// large segments, in pieces that it coalesces, but none to tell it that a
// checksum is partial: without coalescing the host finishes all frames, since
// such a guest may pass them on.
func (s *session) offloads() netio.Offload {
	if !s.coalesces() {
		return 0
	}
	o := s.d.cfg.Backend.Offloads() & largeOffloads
	return o.Normalise()
}

const largeOffloads = netio.OffloadCsum | netio.OffloadTSO4 | netio.OffloadTSO6

// coalesces reports whether the guest takes large segments now.
func (s *session) coalesces() bool { return s.mayCoalesce() && s.rndis.coalesce }

// mayCoalesce reports whether the guest is offered that.
func (s *session) mayCoalesce() bool {
	return s.d.cfg.Offload && s.nvsp.rsc && s.nvsp.version >= version61 &&
		s.d.cfg.Backend.Offloads()&largeOffloads == largeOffloads
}

// window is the largest frame that can be received, virtio header included.
func (s *session) window() int {
	if s.offload&(netio.OffloadTSO4|netio.OffloadTSO6) != 0 {
		return netio.HeaderLen + netio.MaxFrame
	}
	return netio.HeaderLen + ethernetLen + vlanLen + s.d.cfg.MTU
}

// openSub starts a sub-channel; it takes part when the guest spreads frames.
func (s *session) openSub(ch *vmbus.Channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := ch.Index()
	s.d.ports[i].open(ch)
	s.lend(i)
	s.subs[i] = true
}

// closeSub ends a sub-channel.
func (s *session) closeSub(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause()
	s.subs[i] = false
	s.d.ports[i].close()
	s.wake()
}

// close ends the session.
func (s *session) close() {
	s.mu.Lock()
	s.pause()
	s.closed = true
	s.mu.Unlock()
	s.wake()
	<-s.done
	_ = unix.Close(s.wakeFD) // an eventfd
	s.d.ports[0].close()
}

// revoke takes a buffer away.
func (s *session) revoke(handle uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause()
	if r := s.nvsp.recv; r != nil && r.handle == handle {
		s.dropReceiveBuffer()
	}
	if b := s.nvsp.send; b != nil && b.handle == handle {
		s.setSendBuffer(nil)
	}
	s.wake()
}

// lend gives port i what the guest has lent: its share of the receive buffer, and
// the send buffer. The primary's also has the sections for control messages.
func (s *session) lend(i int) {
	p := s.d.ports[i]
	p.send.buf = s.nvsp.send
	r := s.nvsp.recv
	if r == nil {
		p.recv.attach(nil, 0, 0, 0)
		return
	}
	frames := r.count() - controlSections
	p.recv.attach(r, i*frames/s.d.cfg.Queues, (i+1)*frames/s.d.cfg.Queues, p.out.Size())
	if i == 0 {
		p.recv.lendControl(frames, r.count())
	}
}

// lendAll does so for all open ports.
func (s *session) lendAll() {
	for i := range s.d.ports {
		if i == 0 || s.subs[i] {
			s.lend(i)
		}
	}
}

func (s *session) dropReceiveBuffer() {
	s.nvsp.recv = nil
	s.lendAll()
}

// setSendBuffer gives all ports a send buffer, or takes it away.
func (s *session) setSendBuffer(b *sendBuffer) {
	s.nvsp.send = b
	for _, p := range s.d.ports {
		p.send.buf = b
	}
}
