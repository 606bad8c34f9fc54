// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"github.com/govmm/govmm/devices/vmbus"
)

// answer handles packets of the primary channel up to the first frame, as long
// as there is room for answers. mu is held and no pump runs.
func (s *session) answer() {
	p := s.d.ports[0]
	for p.send.err == nil && p.answerable(controlRoom) {
		pk, position, err := p.take()
		if err != nil {
			p.send.err = err
			return
		}
		if pk == nil {
			return
		}
		typ, ok := parseNVSP(pk.Payload)
		switch {
		case !ok:
			p.broken("NVSP message %x is none that a guest sends", pk.Payload[:min(len(pk.Payload), 4)])
		case typ == nvspSendRNDIS:
			if frame := s.answerRNDIS(pk); frame {
				p.in.Rewind(position)
				return
			}
		default:
			s.answerNVSP(typ, pk)
		}
	}
}

// completion answers a packet, if the guest wants that.
func (s *session) completion(pk *vmbus.Packet, m []byte) {
	if pk.Flags&vmbus.CompletionRequested != 0 {
		s.d.ports[0].out.Append(vmbus.PacketCompletion, 0, pk.Transaction, nil, m)
	}
}

// answerNVSP handles a message that is not RNDIS.
func (s *session) answerNVSP(typ uint32, pk *vmbus.Packet) {
	m := pk.Payload
	s.d.counts.control.Add(1)
	if typ == nvspInit {
		s.initNVSP(pk, le.Uint32(m[4:]), le.Uint32(m[8:]))
		return
	}
	if s.nvsp.version == 0 {
		s.fault("NVSP message %d before a version was agreed on", typ)
		return
	}
	switch typ {
	case nvspSendNDISConfig:
		s.configureNDIS(le.Uint32(m[4:]), le.Uint64(m[12:]))
	case nvspSendReceiveBuf:
		s.takeReceiveBuffer(pk, le.Uint32(m[4:]))
	case nvspSendSendBuf:
		s.takeSendBuffer(pk, le.Uint32(m[4:]))
	case nvspRevokeReceiveBuf:
		s.dropReceiveBuffer()
		s.completion(pk, nil)
	case nvspRevokeSendBuf:
		s.setSendBuffer(nil)
		s.completion(pk, nil)
	case nvspSubchannel:
		s.offerSubchannels(pk, le.Uint32(m[4:]), le.Uint32(m[8:]))
	default:
		// The NDIS version, the data path, which is always this one, and the
		// indirection table, which the backend's own choice of a queue stands for:
		// there is nothing to do.
		s.completion(pk, nil)
	}
}

func (s *session) fault(format string, args ...any) { s.d.ports[0].broken(format, args...) }

// initNVSP agrees on a version, if the guest asks for one that we know.
func (s *session) initNVSP(pk *vmbus.Packet, least, most uint32) {
	if s.nvsp.version != 0 {
		s.fault("NVSP INIT after version %#x was agreed on", s.nvsp.version)
		return
	}
	const maxChain = 34 // of MDLs, which nobody heeds
	if least > most || !knownVersion(most) {
		s.completion(pk, nvspMessage(nvspInitComplete, 0, maxChain, nvspFail))
		return
	}
	s.nvsp.version = most
	s.completion(pk, nvspMessage(nvspInitComplete, most, maxChain, nvspSuccess))
}

// configureNDIS takes the guest's MTU, Ethernet header included, and what it can.
func (s *session) configureNDIS(mtu uint32, capabilities uint64) {
	if mtu < ethernetLen+minMTU || mtu > ethernetLen+maxMTU {
		s.fault("MTU of %d bytes with the Ethernet header", mtu)
		return
	}
	s.nvsp.mtu = min(int(mtu)-ethernetLen, s.d.cfg.MTU)
	s.nvsp.rsc = capabilities&configRSC != 0
}

// takeReceiveBuffer cuts a buffer of the guest up into sections.
func (s *session) takeReceiveBuffer(pk *vmbus.Packet, handle uint32) {
	if s.nvsp.recv != nil {
		s.fault("a second receive buffer")
		return
	}
	g, ok := s.ch.GPADL(handle)
	if !ok {
		s.completion(pk, nvspMessage(nvspReceiveBufDone, nvspFail))
		return
	}
	r, err := newReceiveBuffer(s.ch.Memory(), handle, g, sectionSize(s.d.cfg.MTU))
	if err != nil || r.count() < controlSections+s.d.cfg.Queues*r.leastSections() {
		s.completion(pk, nvspMessage(nvspReceiveBufDone, nvspFail))
		return
	}
	s.nvsp.recv = r
	s.lendAll()
	const sections = 1
	s.completion(pk, nvspMessage(nvspReceiveBufDone, nvspSuccess, sections,
		0, uint32(r.section), uint32(r.count()), uint32(r.count()*r.section)))
}

func (s *session) takeSendBuffer(pk *vmbus.Packet, handle uint32) {
	if s.nvsp.send != nil {
		s.fault("a second send buffer")
		return
	}
	g, ok := s.ch.GPADL(handle)
	if !ok || g.Size() < sendSection {
		s.completion(pk, nvspMessage(nvspSendBufDone, nvspFail))
		return
	}
	s.setSendBuffer(&sendBuffer{handle: handle, gpadl: g})
	s.completion(pk, nvspMessage(nvspSendBufDone, nvspSuccess, sendSection))
}

// offerSubchannels grants the guest sub-channels, and offers them after it has
// learnt how many to wait for.
func (s *session) offerSubchannels(pk *vmbus.Packet, operation, n uint32) {
	const allocate = 1
	if operation != allocate || s.nvsp.offered || s.nvsp.version < version5 {
		s.completion(pk, nvspMessage(nvspSubchannel, nvspFail))
		return
	}
	granted := s.ch.ReserveSubchannels(min(int(n), s.d.cfg.Queues-1))
	s.nvsp.offered = granted > 0
	s.completion(pk, nvspMessage(nvspSubchannel, nvspSuccess, uint32(granted)))
	s.d.ports[0].publish()
	s.ch.OfferSubchannels()
}

// maxControl is the largest RNDIS message that is no frame, bytes.
const maxControl = 4096

// answerRNDIS handles an RNDIS message, if it is not a frame. A frame is left to
// the pump; one that comes before its time is a fault.
func (s *session) answerRNDIS(pk *vmbus.Packet) (frame bool) {
	p := s.d.ports[0]
	if !p.openStream(pk) {
		return false
	}
	var buf [maxControl]byte
	m := buf[:min(p.send.stream.size, maxControl)]
	if err := p.send.stream.read(0, m); err != nil {
		s.fault("RNDIS message: %v", err)
		return false
	}
	if len(m) < rndisHeader {
		s.fault("RNDIS message of %d bytes", len(m))
		return false
	}
	if le.Uint32(m) == rndisPacketMsg {
		if s.nvsp.recv == nil || !s.rndis.ready {
			s.fault("frame before buffers and RNDIS were set up")
			return false
		}
		if s.d.lost.Load() {
			// Nobody takes it, but the guest waits for its completion.
			s.completion(pk, sendDone[:])
			return false
		}
		return true
	}
	n := le.Uint32(m[4:])
	if n < rndisHeader || n > uint32(len(m)) {
		s.fault("RNDIS control message of %d bytes in %d", n, len(m))
		return false
	}
	if s.nvsp.recv == nil {
		s.fault("RNDIS control message without a receive buffer")
		return false
	}
	s.d.counts.control.Add(1)
	s.completion(pk, sendDone[:])
	reply, ok := s.rndisControl(m[:n])
	if !ok {
		s.fault("RNDIS control message %x", m[:min(n, 32)])
		return false
	}
	if reply != nil && !p.deliverControl(reply) {
		s.fault("%d RNDIS answers that the guest has not returned", controlSections)
	}
	return false
}

// tellLink tells the guest of a change of its link.
func (s *session) tellLink() {
	up := !s.d.linkDown.Load()
	if !s.rndis.ready || s.nvsp.recv == nil || s.rndis.linkTold == up {
		return
	}
	status := uint32(statusMediaLost)
	if up {
		status = statusMediaConnect
	}
	m := rndisMessage(rndisIndicate, status, 0, 0)
	if s.d.ports[0].answerable(controlRoom) && s.d.ports[0].deliverControl(m) {
		s.rndis.linkTold = up
		s.d.ports[0].publish()
	}
}
