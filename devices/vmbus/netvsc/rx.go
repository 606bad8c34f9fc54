// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"sync/atomic"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// Limits of what the guest holds of a channel's receive buffers.
const (
	// maxRanges is the most sections in one packet. Linux copies a packet into a
	// buffer that has room for 562 ranges; a classic guest takes 375.
	maxRanges = 256
	// maxPackets is the most packets that the guest has not completed.
	maxPackets = 4096
	// packetRoom is what a packet without ranges takes in the ring, bytes:
	// descriptor, header, payload and trailer.
	packetRoom = 16 + transferHeader + nvspSize + 8
)

// controlSections is how many sections are kept for control messages. Linux has
// one under way at a time.
const controlSections = 16

// none ends a list of sections.
const none = -1

// receiver is the state of a port's direction to the guest.
type receiver struct {
	on     bool  // the guest wants frames on this channel
	window int   // bytes that must be free before a frame is read, header included
	group  int   // sections that hold a window
	err    error // ends the direction

	buf      *receiveBuffer
	free     []int32 // sections of this channel that nobody uses
	next     []int32 // of each section of the buffer: the one behind it in its list
	control  []int32 // free sections for control messages
	reserved int     // buffers that the pump has

	packets []packet // that the guest has, by transaction id - 1
	spare   []int32  // of packets: those that it doesn't have
	share   int      // bytes in the ring that all packets together can take
	pending int      // of these: what packets that the guest has took

	// The packet that is being built.
	current int32 // its index, or none
	frames  int
	header  [transferHeader + maxRanges*transferRange]byte
	message [nvspSize]byte

	// framesMax is how many frames a packet has at most.
	framesMax int

	head    [headroom]byte
	scratch [netio.MaxFrame]byte

	dropped atomic.Uint64 // frames for which a small ring had no room
}

// packet is a list of sections, from first to last.
type packet struct {
	first, last int32
	count       int32
	out         bool // the guest has it
	control     bool
}

func (r *receiver) init() {
	r.current, r.framesMax = none, netio.MaxBatch
	r.message = receiveMessage(false)
	le.PutUint16(r.header[0:], receiveBufferID)
}

// attach gives the port the sections [first, end) of a buffer, for the time that
// the guest lends that, and a ring of so many bytes to tell it of them. A nil
// buffer takes them away.
func (r *receiver) attach(buf *receiveBuffer, first, end, ring int) {
	r.buf, r.free, r.control, r.next, r.packets, r.spare = buf, nil, nil, nil, nil, nil
	r.share, r.pending, r.reserved = 0, 0, 0
	if buf == nil {
		return
	}
	r.next = make([]int32, buf.count())
	for s := end - 1; s >= first; s-- {
		r.free = append(r.free, int32(s))
	}
	n := (ring*3/4 - (end-first)*transferRange) / packetRoom
	n = min(max(n, 1), maxPackets) + controlSections
	r.share = n*packetRoom + (end-first)*transferRange
	r.packets = make([]packet, n)
	for i := n - 1; i >= 0; i-- {
		r.spare = append(r.spare, int32(i))
	}
}

// lendControl gives the port sections [first, end) for control messages.
func (r *receiver) lendControl(first, end int) {
	for s := first; s < end; s++ {
		r.control = append(r.control, int32(s))
	}
}

// setWindow sets the largest frame, virtio header included. There is a buffer.
func (r *receiver) setWindow(n int) {
	r.window = n
	r.group = (n - netio.HeaderLen + r.buf.room() - 1) / r.buf.room()
}

// reserve is how many bytes in the ring must stay free for frames that are yet
// to be received.
func (r *receiver) reserve() int { return r.share - r.pending }

// available reports whether one more buffer can be reserved.
func (r *receiver) available() bool {
	return len(r.free) >= r.group && len(r.spare) > r.reserved+controlSections
}

func (r *receiver) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// pop takes a section from the free ones, of which there is one.
func (r *receiver) pop() int32 {
	n := len(r.free) - 1
	s := r.free[n]
	r.free = r.free[:n]
	return s
}

// put frees a list of sections.
func (r *receiver) put(s int32) {
	for ; s != none; s = r.next[s] {
		r.free = append(r.free, s)
	}
}

// RxReserve implements netio.Port.
func (p *port) RxReserve(b *netio.RxBatch, bytes int) error {
	r := &p.recv
	b.Merge, b.Window = false, r.window
	if !r.on {
		return r.err
	}
	for free := b.Free(); free < bytes && !b.Full(); free += netio.HeaderLen + r.group*r.buf.room() {
		if !r.available() && r.err == nil {
			p.absorb()
		}
		if !r.available() {
			break
		}
		p.reserveBuffer(b)
	}
	return r.err
}

// reserveBuffer adds a group of sections as one buffer. The virtio header goes
// into memory of our own.
func (p *port) reserveBuffer(b *netio.RxBatch) {
	r := &p.recv
	first, list := len(b.Segs), int32(none)
	b.Segs = append(b.Segs, unix.Iovec{Len: netio.HeaderLen})
	var last int32
	for range r.group {
		s := r.pop()
		if list == none {
			list = s
		} else {
			r.next[last] = s
		}
		last = s
		b.Segs = append(b.Segs, r.buf.vec(s)...)
	}
	r.next[last] = none
	buf := b.Add(first, netio.HeaderLen+r.group*r.buf.room(), uint32(list))
	b.Segs[first].Base = &buf.Header[0]
	r.reserved++
}

// RxCommit implements netio.Port.
func (p *port) RxCommit(b *netio.RxBatch) {
	r := &p.recv
	for i := range b.Frames {
		f := &b.Frames[i]
		buf := &b.Bufs[f.Buf]
		r.reserved--
		n := f.Len - netio.HeaderLen
		pieces := max(1, (n+r.buf.room()-1)/r.buf.room())
		if r.current != none && (int(r.packets[r.current].count)+pieces > maxRanges || r.frames == r.framesMax) {
			p.flush()
		}
		p.deliver(int32(buf.Cookie), n, r.checksum(&buf.Header, b.Vec(f), n))
	}
	p.flush()
	p.out.Publish()
	b.Consume()
}

// deliver writes the headers of a frame of n bytes, which lies in the first
// sections of a list, adds it to the packet at hand, and frees the rest.
func (p *port) deliver(list int32, n int, checksum uint32) {
	r := &p.recv
	if r.current == none {
		r.current = r.spare[len(r.spare)-1]
		r.spare = r.spare[:len(r.spare)-1]
		r.packets[r.current] = packet{first: list}
		r.frames = 0
	} else {
		r.next[r.packets[r.current].last] = list
	}
	pk := &r.packets[r.current]
	room := r.buf.room()
	for s, flags := list, uint32(pieceFirst); ; flags = 0 {
		k := min(n, room)
		n -= k
		if n == 0 {
			flags |= pieceLast
		}
		r.writeHead(s, k, flags, checksum)
		at := r.header[transferHeader+int(pk.count)*transferRange:]
		le.PutUint32(at[0:], uint32(headroom+k))
		le.PutUint32(at[4:], uint32(int(s)*r.buf.section))
		pk.count++
		rest := r.next[s]
		if n == 0 {
			pk.last = s
			r.next[s] = none
			r.put(rest)
			break
		}
		s = rest
	}
	r.frames++
}

// writeHead writes the header of a piece of k bytes into its section.
func (r *receiver) writeHead(s int32, k int, flags, checksum uint32) {
	h := r.head[:]
	ppis := 0
	if flags&pieceFirst != 0 && checksum != 0 {
		putPPI(h, ppis, ppiChecksum, checksum)
		ppis++
	}
	if flags != pieceFirst|pieceLast {
		putPPI(h, ppis, ppiPacketID, packetID(flags))
		ppis++
	}
	putPacket(h, k, ppis)
	r.buf.heads[s].CopyOut(0, h[:packetSize+ppis*ppiSize])
}

// flush appends the packet at hand to the ring.
func (p *port) flush() {
	r := &p.recv
	if r.current == none {
		return
	}
	i := r.current
	pk := &r.packets[i]
	r.current = none
	le.PutUint32(r.header[4:], uint32(pk.count))
	header := r.header[:transferHeader+int(pk.count)*transferRange]
	if !p.out.Append(vmbus.PacketTransferPages, vmbus.CompletionRequested, uint64(i)+1, header, r.message[:]) {
		r.dropped.Add(uint64(r.frames))
		r.put(pk.first)
		r.spare = append(r.spare, i)
		return
	}
	pk.out = true
	r.pending += packetRoom + int(pk.count)*transferRange
}

// completed takes back the sections of a packet that the guest has completed.
func (p *port) completed(c *vmbus.Packet) {
	r := &p.recv
	i := c.Transaction - 1
	if i >= uint64(len(r.packets)) || !r.packets[i].out {
		r.fail(p.ch.Faultf("completion of received packet %#x, which the guest doesn't have", c.Transaction))
		return
	}
	if len(c.Payload) < 8 || le.Uint32(c.Payload) != nvspSendRNDISDone {
		r.fail(p.ch.Faultf("completion %x of a received packet", c.Payload[:min(len(c.Payload), 8)]))
		return
	}
	pk := &r.packets[i]
	pk.out = false
	r.pending -= packetRoom + int(pk.count)*transferRange
	if pk.control {
		r.control = append(r.control, pk.first)
	} else {
		r.put(pk.first)
	}
	r.spare = append(r.spare, int32(i))
}

// deliverControl sends the guest an RNDIS message that is no frame, shorter than
// a section. ok is false if it has not returned enough of those before.
func (p *port) deliverControl(m []byte) (ok bool) {
	r := &p.recv
	if len(r.control) == 0 || len(r.spare) == 0 {
		return false
	}
	s, i := r.control[len(r.control)-1], r.spare[len(r.spare)-1]
	off := int(s) * r.buf.section
	if err := r.buf.gpadl.WriteAt(uint64(off), m); err != nil {
		return false
	}
	header := r.header[:transferHeader+transferRange]
	le.PutUint32(header[4:], 1)
	le.PutUint32(header[transferHeader:], uint32(len(m)))
	le.PutUint32(header[transferHeader+4:], uint32(off))
	message := receiveMessage(true)
	if !p.out.Append(vmbus.PacketTransferPages, vmbus.CompletionRequested, uint64(i)+1, header, message[:]) {
		return false
	}
	r.control, r.spare = r.control[:len(r.control)-1], r.spare[:len(r.spare)-1]
	r.packets[i] = packet{first: s, last: s, count: 1, out: true, control: true}
	r.pending += packetRoom + transferRange
	return true
}

// RxRelease implements netio.Port.
func (p *port) RxRelease(b *netio.RxBatch) {
	unused := b.Unused()
	for i := range unused {
		p.recv.put(int32(unused[i].Cookie))
	}
	p.recv.reserved = 0
	b.Reset()
}

// checksum returns what the guest is told of the checksum of a frame of n bytes,
// with vec and its header: 0 is nothing. A partial one is completed here: a
// guest that passes the frame on would pass a wrong one on with it. For a large
// segment that can't be; but a guest that takes such ones passes none on (Linux
// turns large receive off when it forwards).
func (r *receiver) checksum(h *netio.Header, vec []unix.Iovec, n int) uint32 {
	switch {
	case h[1] != 0:
		return checksumTCPGood
	case h[0]&vnetNeedsCsum != 0:
		return r.completeChecksum(vec, n, int(le.Uint16(h[6:])), int(le.Uint16(h[8:])))
	case h[0]&vnetDataValid != 0:
		head := r.scratch[:min(n, ethernetLen+vlanLen+ipv6Len)]
		guestmem.Gather(head, vec[1:])
		switch transportOf(head) {
		case protoTCP:
			return checksumTCPGood
		case protoUDP:
			return checksumUDPGood
		}
	}
	return 0
}

// completeChecksum sums the frame from start on up and puts the checksum at the
// given offset from there.
func (r *receiver) completeChecksum(vec []unix.Iovec, n, start, offset int) uint32 {
	if start+offset+2 > n {
		return 0
	}
	frame := r.scratch[:n]
	guestmem.Gather(frame, vec[1:])
	c := ^fold(sum(0, frame[start:]))
	if c == 0 && offset == udpChecksumAt {
		c = 0xffff // zero would be none (RFC 768)
	}
	guestmem.ScatterAt(vec, uint64(netio.HeaderLen+start+offset), []byte{byte(c >> 8), byte(c)})
	switch offset {
	case tcpChecksumAt:
		return checksumTCPGood
	case udpChecksumAt:
		return checksumUDPGood
	}
	return 0
}
