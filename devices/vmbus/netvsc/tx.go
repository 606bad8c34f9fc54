// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/vmbus"
	"golang.org/x/sys/unix"
)

// maxMessages is how many RNDIS messages the guest may put into one packet, as
// the answer to its INITIALIZE says.
const maxMessages = 8

// sender is the state of a port's direction from the guest.
type sender struct {
	buf    *sendBuffer      // nil: the guest has none
	ready  bool             // RNDIS is initialised
	err    error            // ends the direction
	skip   int              // messages of the next packet that have been sent
	stream stream           // of the packet at hand
	header [packetSize]byte // private copies of the message at hand
	ppi    [maxPPI]byte
	frames [netio.MaxBatch]fetched
	heads  [netio.MaxBatch][vlanLen + maxHead]byte // headers that had to be changed

	refused atomic.Uint64 // frames whose headers contradict what is asked for
}

// fetched is where a frame of the batch came from.
type fetched struct {
	transaction uint64
	position    uint32 // of its packet
	message     int    // its number in the packet
	last        bool   // of its packet, which is then to be completed
	answer      bool   // the guest wants the completion
}

// TxFetch implements netio.Port.
func (p *port) TxFetch(b *netio.TxBatch, max int) error {
	for len(b.Frames) < max && !b.Full() && !p.held && p.answerable(len(b.Frames)+1) {
		if p.send.err != nil {
			return p.send.err
		}
		pk, position, err := p.take()
		if err != nil {
			p.send.err = err
			return err
		}
		if pk == nil || !p.fetch(b, max, pk, position) {
			break
		}
	}
	if len(b.Frames) == 0 {
		p.in.Publish() // the room of receive completions, which may be all there is
	}
	return p.send.err
}

// fetch adds the frames of a packet to b; more is false if it is not finished
// and has to be looked at again.
func (p *port) fetch(b *netio.TxBatch, max int, pk *vmbus.Packet, position uint32) (more bool) {
	typ, ok := parseNVSP(pk.Payload)
	if !ok {
		return p.broken("NVSP message %x is none that a guest sends", pk.Payload[:min(len(pk.Payload), 4)])
	}
	if typ != nvspSendRNDIS {
		return p.hold(b, position)
	}
	if !p.openStream(pk) {
		return false
	}
	first := p.send.header[:min(p.send.stream.size, packetSize)]
	if err := p.send.stream.read(0, first); err != nil {
		return p.broken("RNDIS message: %v", err)
	}
	if len(first) < rndisHeader {
		return p.broken("RNDIS message of %d bytes", len(first))
	}
	if le.Uint32(first) != rndisPacketMsg {
		return p.hold(b, position)
	}
	if !p.send.ready {
		return p.broken("frame before RNDIS was initialised")
	}
	return p.fetchMessages(b, max, fetched{
		transaction: pk.Transaction, position: position, answer: pk.Flags&vmbus.CompletionRequested != 0,
	})
}

func (p *port) broken(format string, args ...any) (more bool) {
	p.send.err = p.ch.Faultf(format, args...)
	return false
}

// hold leaves the packet at position to the session, as soon as all frames
// before it are gone.
func (p *port) hold(b *netio.TxBatch, position uint32) (more bool) {
	if p.attention == nil {
		return p.broken("control message on a sub-channel")
	}
	p.in.Rewind(position)
	if len(b.Frames) == 0 {
		p.held = true
		p.attention()
	}
	return false
}

// openStream makes the stream of a packet.
func (p *port) openStream(pk *vmbus.Packet) (ok bool) {
	s := &p.send
	s.stream.pieces = s.stream.pieces[:0]
	r := parseRNDISPacket(pk.Payload)
	if r.section != noSection {
		if s.buf == nil {
			return p.broken("RNDIS message in section %d without a send buffer", r.section)
		}
		var err error
		if s.stream.pieces, err = s.buf.ranges(s.stream.pieces, r); err != nil {
			return p.broken("RNDIS message: %v", err)
		}
	}
	switch pk.Type {
	case vmbus.PacketInBand:
	case vmbus.PacketGPADirect:
		if s.stream.pieces, ok = pk.GPARanges(s.stream.pieces); !ok {
			return p.broken("page ranges that contradict each other, or more than %d pieces", maxPieces)
		}
	default:
		return p.broken("packet of type %d", pk.Type)
	}
	if !s.stream.measure() {
		return p.broken("packet with more than %d bytes of RNDIS messages", maxStream)
	}
	return true
}

// fetchMessages adds the frames of all messages of the stream that have not been
// sent. of tells of their packet. A packet without a frame is completed at once,
// but only when no frame is before it, because TxComplete may put that one back.
func (p *port) fetchMessages(b *netio.TxBatch, max int, of fetched) (more bool) {
	s := &p.send
	before := len(b.Frames)
	for off := 0; s.stream.size-off >= rndisHeader; of.message++ {
		if of.message == maxMessages {
			return p.broken("more than %d RNDIS messages in a packet", maxMessages)
		}
		if of.message >= s.skip && (b.Full() || len(b.Frames) == max) {
			p.rewind(of.position, of.message)
			return false
		}
		m, info, ok := p.message(off)
		if !ok {
			return false
		}
		if of.message >= s.skip {
			of.last = false
			n := len(b.Frames)
			if ok, err := p.appendFrame(b, off+m.dataOffset, m.dataLen, &info); err != nil {
				return p.broken("frame: %v", err)
			} else if ok {
				s.frames[n] = of
			} else {
				s.refused.Add(1)
			}
		}
		off += m.length
	}
	switch n := len(b.Frames); {
	case n > before:
		s.frames[n-1].last = true
	case n > 0:
		p.rewind(of.position, s.skip)
		return false
	default:
		of.last = true
		p.complete(&of)
		p.in.Publish()
		p.out.Publish()
		p.out.Signal()
	}
	s.skip = 0
	return true
}

// message parses the packet message at off of the stream.
func (p *port) message(off int) (m packetMessage, info packetInfo, ok bool) {
	s := &p.send.stream
	h := &p.send.header
	if s.size-off < packetSize {
		return m, info, p.broken("RNDIS packet message of %d bytes", s.size-off)
	}
	if off > 0 { // the first one has been read
		if err := s.read(off, h[:]); err != nil {
			return m, info, p.broken("RNDIS message: %v", err)
		}
	}
	if typ := le.Uint32(h[:]); typ != rndisPacketMsg {
		return m, info, p.broken("RNDIS message of type %#x among frames", typ)
	}
	if m, ok = parsePacket(h, s.size-off); !ok {
		return m, info, p.broken("RNDIS packet message %x in %d bytes", h[:], s.size-off)
	}
	if m.ppiLen == 0 {
		return m, info, true
	}
	ppi := p.send.ppi[:m.ppiLen]
	if err := s.read(off+m.ppiOffset, ppi); err != nil {
		return m, info, p.broken("RNDIS message: %v", err)
	}
	if info, ok = parsePPI(ppi); !ok {
		return m, info, p.broken("per-packet information %x", ppi)
	}
	return m, info, true
}

// appendFrame adds the n bytes at off of the stream to b as a frame. ok is false
// if it can't be one.
func (p *port) appendFrame(b *netio.TxBatch, off, n int, info *packetInfo) (ok bool, err error) {
	most := netio.MaxFrame
	if info.has&hasVLAN != 0 {
		most -= vlanLen
	}
	if n < ethernetLen || n > most {
		return false, nil
	}
	var h netio.Header
	first := len(b.Segs)
	segs := append(b.Segs, unix.Iovec{Len: netio.HeaderLen})
	size, copied := n, 0
	if info.has&(hasLSO|hasVLAN) != 0 || info.checksum&checksumIPHeader != 0 {
		head, taken, ok, err := p.changeHead(len(b.Frames), off, n, info, &h)
		if !ok || err != nil {
			return false, err
		}
		size, copied = n-taken+len(head), taken
		segs = append(segs, unix.Iovec{Base: &head[0], Len: uint64(len(head))})
	} else if !checksumHeader(&h, info.checksum, n) {
		return false, nil
	}
	if segs, err = p.send.stream.vec(segs, off+copied, n-copied); err != nil {
		return false, err
	}
	if len(segs) > cap(b.Segs) {
		return false, nil
	}
	b.Segs = segs
	f := b.Add(first, netio.HeaderLen+size, 0)
	f.Header = h
	b.Segs[first].Base = &f.Header[0]
	return true, nil
}

// changeHead copies the first bytes of frame number i of the batch and changes
// the copy as info wants it. It returns it, and how many bytes of the frame it
// stands for.
func (p *port) changeHead(i, off, n int, info *packetInfo, h *netio.Header) (head []byte, taken int, ok bool, err error) {
	buf := &p.send.heads[i]
	taken = min(n, maxHead)
	head = buf[vlanLen : vlanLen+taken]
	if err := p.send.stream.read(off, head); err != nil {
		return nil, 0, false, err
	}
	if info.has&hasLSO != 0 {
		ok = largeSend(h, head, n, info.lso)
	} else {
		if info.checksum&checksumIPHeader != 0 {
			completeIPv4(head)
		}
		ok = checksumHeader(h, info.checksum, n)
	}
	if !ok || info.has&hasVLAN == 0 {
		return head, taken, ok, nil
	}
	copy(buf[:etherTypeAt], head[:etherTypeAt])
	binary.BigEndian.PutUint16(buf[etherTypeAt:], etherVLAN)
	binary.BigEndian.PutUint16(buf[etherTypeAt+2:], tag(info.vlan))
	shift(h, vlanLen)
	return buf[:vlanLen+taken], taken, true, nil
}

// shift moves what a virtio header points at by n bytes.
func shift(h *netio.Header, n uint16) {
	if h[0]&vnetNeedsCsum == 0 {
		return
	}
	for _, at := range [2]int{2, 6} { // hdr_len, csum_start
		if v := le.Uint16(h[at:]); v > 0 {
			le.PutUint16(h[at:], v+n)
		}
	}
}

// complete appends the completion of a frame's packet to the ring. TxFetch saw to
// the room.
func (p *port) complete(f *fetched) {
	if f.last && f.answer {
		p.out.Append(vmbus.PacketCompletion, 0, f.transaction, nil, sendDone[:])
	}
}

// TxComplete implements netio.Port.
func (p *port) TxComplete(b *netio.TxBatch, n int) {
	for i := range n {
		p.complete(&p.send.frames[i])
	}
	if n < len(b.Frames) {
		p.rewind(p.send.frames[n].position, p.send.frames[n].message)
	}
	p.in.Publish()
	p.out.Publish()
}
