// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/internal/guestmem"
)

// port is the netio.Port of one channel. The session changes it while its Pump
// doesn't run.
//
// There is one ring from the guest for what it sends and for the receive buffers
// that it returns, so both directions read it: what the other direction waits
// for is handed over, or left there.
type port struct {
	ch  *vmbus.Channel
	in  *vmbus.InRing
	out *vmbus.OutRing

	// attention is called when a packet is found that is no frame; the port then
	// holds still until the session has answered it. It is nil for sub-channels,
	// which carry nothing else.
	attention func()
	held      bool

	armed [2]bool

	// After un-fetching, packets are read a second time, up to where the ring was
	// read before. Receive completions among them have been taken already.
	replay    bool
	replayEnd uint32

	send sender
	recv receiver
}

var _ netio.Port = (*port)(nil)

func newPort() *port {
	p := &port{}
	p.send.stream.pieces = make([]guestmem.Range, 0, maxPieces)
	p.recv.init()
	return p
}

// open gives the port a channel that the guest has opened.
func (p *port) open(ch *vmbus.Channel) {
	p.ch, p.in, p.out = ch, ch.In(), ch.Out()
	p.held, p.armed, p.replay = false, [2]bool{}, false
	p.send.buf, p.send.ready, p.send.err, p.send.skip = nil, false, nil, 0
	p.send.stream.mem = ch.Memory()
	p.recv.on, p.recv.err = false, nil
	p.recv.attach(nil, 0, 0, 0)
}

// close forgets all that is the guest's.
func (p *port) close() {
	p.send.buf = nil
	p.recv.attach(nil, 0, 0, 0)
}

// start prepares the port for its pump.
func (p *port) start(n *nvspState, r *rndisState, window int) {
	p.send.ready = r.ready
	p.recv.on = r.filter != 0
	p.recv.setWindow(window)
}

// publish shows the guest what was read and written.
func (p *port) publish() {
	p.in.Publish()
	p.out.Publish()
	p.Notify(netio.RX)
}

// armControl asks for a kick when there is something to answer, and room for
// that; again is true if there is by now.
func (p *port) armControl() (again bool) {
	pending := p.in.Arm()
	if p.answerable(controlRoom) {
		p.out.Settle()
		return pending
	}
	p.out.Await(0, p.recv.reserve()+controlRoom*completionRoom)
	return p.answerable(controlRoom)
}

// controlRoom is how many completions take as much of the ring as the answers to
// one message.
const controlRoom = 16

// take reads the next packet from the ring that is no receive completion, and
// says where it begins; it is nil if there is none. Completions on the way are
// handled.
func (p *port) take() (pk *vmbus.Packet, position uint32, err error) {
	for {
		position = p.in.Position()
		if p.replay && position == p.replayEnd {
			p.replay = false
		}
		pk, err = p.in.Next()
		if pk == nil || pk.Type != vmbus.PacketCompletion {
			return pk, position, err
		}
		if !p.replay {
			p.completed(pk)
		}
	}
}

// rewind un-fetches all packets from a position on. The first skip messages of
// the one there have been sent.
func (p *port) rewind(position uint32, skip int) {
	if now := p.in.Position(); !p.replay && now != position {
		p.replay, p.replayEnd = true, now
	}
	p.in.Rewind(position)
	p.send.skip = skip
}

// absorb takes the receive completions at the front of the ring.
func (p *port) absorb() {
	pk, position, err := p.take()
	switch {
	case err != nil:
		p.recv.fail(err)
	case pk != nil:
		p.in.Rewind(position)
	}
}

// Kicks implements netio.Port.
func (p *port) Kicks() (rx, tx int) { return p.ch.KickFD(), p.ch.KickFD() }

// Notify implements netio.Port. Both directions share the ring to the guest, and
// the interrupt.
func (p *port) Notify(netio.Dir) (sent bool) {
	sent = p.out.Signal()
	return p.in.Signal() || sent
}

// ArmKick implements netio.Port.
func (p *port) ArmKick(d netio.Dir) (again bool) {
	p.armed[d] = true
	if d == netio.RX {
		return p.armReceive()
	}
	return p.armSend()
}

func (p *port) armSend() (again bool) {
	pending := p.in.Arm()
	switch {
	case p.held || p.send.err != nil:
		return false
	case p.answerable(1):
		return pending
	}
	p.out.Await(0, p.recv.reserve()+netio.MaxBatch*completionRoom)
	return p.answerable(1)
}

func (p *port) armReceive() (again bool) {
	if p.recv.err != nil {
		return false
	}
	p.in.Arm()
	p.absorb()
	return p.recv.on && p.recv.available()
}

// DisarmKick implements netio.Port.
func (p *port) DisarmKick(d netio.Dir) {
	p.armed[d] = false
	if d == netio.TX {
		p.out.Settle()
	}
	if p.armed == [2]bool{} {
		p.in.Disarm()
	}
}

// completionRoom is what the completion of a packet takes in the ring, bytes:
// descriptor, payload and trailer.
const completionRoom = 16 + len(sendDone) + 8

// answerable reports whether there is room in the ring for n completions beside
// all frames that may still be received.
func (p *port) answerable(n int) bool {
	return p.out.Room(p.recv.reserve() + n*completionRoom)
}
