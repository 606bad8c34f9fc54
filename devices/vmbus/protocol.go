// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"slices"

	"github.com/govmm/govmm/internal/guestmem"
)

// Limits that the guest can't exceed.
const (
	// maxRelid is the largest channel number: there are 2047 event flags for
	// channels, far more than devices with 16 queues need.
	maxRelid = 511
	// maxPages bounds the pages of all GPADLs together, claimed or received: 512
	// MiB of buffers, which cost 1 MiB of host memory. A NIC of a Linux guest takes
	// 17 MiB and 1 MiB for each queue.
	maxPages = 1 << 17
	// maxGPADLs bounds their number.
	maxGPADLs = 2048
	// minRing is the least number of pages of each of a channel's two rings: the
	// header and one for data.
	minRing = 2
)

// protocol is the state machine of the VMBus: it takes the guest's messages and
// says what to do. It has no lock, calls nobody, and reads no guest memory.
type protocol struct {
	mem *guestmem.Memory // to know what is RAM
	vps uint32

	version   Version // 0 is no contact
	vp        uint32  // where the guest wants messages
	delivered bool    // the offers were requested
	channels  [maxRelid + 1]channelState
	gpadls    map[uint32]*gpadlState
	pages     int // of all gpadls, as claimed

	actions []action // of the current message
	faults  uint64
}

// phase is how far a channel number has come.
type phase uint8

const (
	phaseFree      phase = iota
	phaseReserved        // will be offered: a primary without contact, a sub-channel that was promised
	phaseOffered         // the guest knows it; it is closed
	phaseOpening         // the device is being started
	phaseOpen            //
	phaseRescinded       // the guest has to release the number
)

// channelState is what a channel number stands for.
type channelState struct {
	phase   phase
	primary uint32 // relid of the primary channel; its own for a primary
	index   int    // sub-channel index
	offer   Offer
	ring    uint32 // GPADL handle while opening or open
}

// gpadlState is a GPADL, complete or not.
type gpadlState struct {
	relid uint32
	pages int // claimed
	list  GPADL
}

func (g *gpadlState) complete() bool { return len(g.list.pages) == g.pages }

// actionKind is what an action does.
type actionKind uint8

const (
	actSend     actionKind = iota // send msg to vp
	actDiscard                    // forget all messages that were not delivered yet
	actOpen                       // open a channel, then tell the outcome by opened
	actClose                      // close a channel
	actRevoke                     // take a GPADL away from an open channel
	actRetarget                   // interrupt vp for an open channel
)

// action is something to be done, in order.
type action struct {
	kind   actionKind
	relid  uint32
	vp     uint32
	msg    []byte
	gpadl  uint32
	openID uint32
	ring   *GPADL
	split  int // of ring: the first page of the ring to the guest
}

func newProtocol(mem *guestmem.Memory, vps int) *protocol {
	return &protocol{mem: mem, vps: uint32(vps), gpadls: map[uint32]*gpadlState{}}
}

// add makes a primary channel; ok is false if there are too many.
func (p *protocol) add(o Offer) (relid uint32, ok bool) {
	relid, ok = p.free()
	if ok {
		p.channels[relid] = channelState{phase: phaseReserved, primary: relid, offer: o}
	}
	return relid, ok
}

// free finds a channel number that stands for nothing. Zero is none.
func (p *protocol) free() (relid uint32, ok bool) {
	for i := uint32(1); i <= maxRelid; i++ {
		if p.channels[i].phase == phaseFree {
			return i, true
		}
	}
	return 0, false
}

// take returns the actions that have gathered.
func (p *protocol) take() []action {
	a := p.actions
	p.actions = nil
	return a
}

func (p *protocol) do(a action) { p.actions = append(p.actions, a) }

func (p *protocol) send(msg []byte) { p.do(action{kind: actSend, vp: p.vp, msg: msg}) }

// fault counts a message that breaks the rules.
func (p *protocol) fault() { p.faults++ }

// handler handles one type of message, of which there are at least size bytes.
type handler struct {
	size     int
	anytime  bool // also without contact
	function func(p *protocol, msg []byte)
}

var handlers = map[uint32]handler{
	typeInitiateContact: {initiateContactSize, true, (*protocol).initiateContact},
	typeUnload:          {messageHeader, true, (*protocol).unload},
	typeRequestOffers:   {messageHeader, false, (*protocol).requestOffers},
	typeOpen:            {openSize, false, (*protocol).open},
	typeClose:           {relidSize, false, (*protocol).close},
	typeGPADLHeader:     {gpadlHeaderSize, false, (*protocol).gpadlHeader},
	typeGPADLBody:       {gpadlBodySize, false, (*protocol).gpadlBody},
	typeGPADLTeardown:   {gpadlTeardownSize, false, (*protocol).gpadlTeardown},
	typeRelidReleased:   {relidSize, false, (*protocol).relidReleased},
	typeModifyChannel:   {modifySize, false, (*protocol).modifyChannel},
}

// handle takes a message of the guest, a private copy, and returns what to do.
// Messages that break the rules are counted; those that the guest awaits an
// answer to are answered.
func (p *protocol) handle(msg []byte) []action {
	if len(msg) < messageHeader {
		p.fault()
		return nil
	}
	h, ok := handlers[le.Uint32(msg)]
	if !ok || len(msg) < h.size || !h.anytime && p.version == 0 {
		p.fault()
		return nil
	}
	h.function(p, msg)
	return p.take()
}

// initiateContact begins anew, at any time: u32 version, u32 target VP, then from
// 5.0 on u8 SINT, before that the address of a page that is not used any more.
func (p *protocol) initiateContact(msg []byte) {
	p.disconnect()
	v, vp := Version(le.Uint32(msg[8:])), le.Uint32(msg[12:])
	if vp >= p.vps {
		p.fault() // there is nobody to answer
		return
	}
	p.vp = vp
	if !slices.Contains(versions, v) || v >= version5_0 && msg[16] != SINT {
		p.send(versionResponse(false, 0))
		return
	}
	p.version = v
	connection := uint32(connectionMessages)
	if v >= version5_0 {
		connection = connectionMessages5
	}
	p.send(versionResponse(true, connection))
}

// unload ends the contact; the guest waits for the answer, even in a panic.
func (p *protocol) unload([]byte) {
	p.disconnect()
	p.send(newMessage(typeUnloadResponse, messageHeader))
}

// disconnect closes and forgets everything but the devices themselves.
func (p *protocol) disconnect() {
	for relid := range p.channels {
		if p.channels[relid].primary == uint32(relid) {
			p.closeTree(uint32(relid))
		}
	}
	for relid := range p.channels {
		c := &p.channels[relid]
		switch {
		case c.phase == phaseFree:
		case c.primary == uint32(relid):
			c.phase = phaseReserved
		default:
			*c = channelState{}
		}
	}
	clear(p.gpadls)
	p.pages, p.version, p.delivered = 0, 0, false
	p.do(action{kind: actDiscard})
}

// closeTree closes a channel if it is open, its sub-channels first.
func (p *protocol) closeTree(relid uint32) {
	for i := range p.channels {
		if c := &p.channels[i]; c.primary == relid && c.index > 0 && c.phase == phaseOpen {
			p.closeOne(uint32(i))
		}
	}
	if p.channels[relid].phase == phaseOpen {
		p.closeOne(relid)
	}
}

func (p *protocol) closeOne(relid uint32) {
	p.channels[relid].phase = phaseOffered
	p.do(action{kind: actClose, relid: relid})
}

// requestOffers offers every device.
func (p *protocol) requestOffers([]byte) {
	if p.delivered {
		p.fault()
		return
	}
	p.delivered = true
	for relid := range p.channels {
		if c := &p.channels[relid]; c.phase == phaseReserved && c.primary == uint32(relid) {
			p.offer(uint32(relid))
		}
	}
	p.send(newMessage(typeAllOffersDelivered, messageHeader))
}

func (p *protocol) offer(relid uint32) {
	c := &p.channels[relid]
	c.phase = phaseOffered
	p.send(offerMessage(c.offer, c.index, relid, connectionOf(relid)))
}

// connectionOf is the connection by which the guest signals a channel: unique,
// and none of the first sixteen, which have meanings of their own.
func connectionOf(relid uint32) uint32 { return relid + 16 }

// known returns the state of a channel that the guest knows, or nil.
func (p *protocol) known(relid uint32) *channelState {
	if relid == 0 || relid > maxRelid {
		return nil
	}
	if c := &p.channels[relid]; c.phase >= phaseOffered {
		return c
	}
	return nil
}

// open starts a channel: u32 relid, u32 open id, u32 GPADL of the rings, u32
// target VP, u32 first page of the ring to the guest, 120 bytes for the device.
func (p *protocol) open(msg []byte) {
	relid, openID, handle := le.Uint32(msg[8:]), le.Uint32(msg[12:]), le.Uint32(msg[16:])
	vp, split := le.Uint32(msg[20:]), le.Uint32(msg[24:])
	c, ring := p.known(relid), p.gpadls[handle]
	switch {
	case c == nil || c.phase != phaseOffered,
		ring == nil || ring.relid != relid || !ring.complete(),
		split < minRing || ring.pages < minRing || split > uint32(ring.pages-minRing),
		vp >= p.vps && vp != noInterrupt,
		c.index > 0 && p.channels[c.primary].phase != phaseOpen:
		p.fault()
		p.send(words(typeOpenResult, relid, openID, statusFailed))
		return
	}
	c.phase, c.ring = phaseOpening, handle
	p.do(action{kind: actOpen, relid: relid, vp: vp, openID: openID, ring: &ring.list, split: int(split)})
}

// opened says whether the device has started after an actOpen.
func (p *protocol) opened(a action, ok bool) []action {
	c := &p.channels[a.relid]
	c.phase = phaseOffered
	if ok {
		c.phase = phaseOpen
	}
	p.send(words(typeOpenResult, a.relid, a.openID, statusOf(ok)))
	return p.take()
}

// close stops a channel. The sub-channels of a primary one are rescinded: its
// driver makes a new arrangement when it opens it again.
func (p *protocol) close(msg []byte) {
	relid := le.Uint32(msg[8:])
	c := p.known(relid)
	if c == nil || c.phase != phaseOpen {
		p.fault()
		return
	}
	p.closeChannel(relid, c)
}

func (p *protocol) closeChannel(relid uint32, c *channelState) {
	if c.index > 0 {
		p.closeOne(relid)
		return
	}
	p.closeTree(relid)
	for i := range p.channels {
		c := &p.channels[i]
		if c.primary != relid || c.index == 0 {
			continue
		}
		switch c.phase {
		case phaseReserved:
			*c = channelState{}
		case phaseOffered:
			c.phase = phaseRescinded
			p.send(words(typeRescind, uint32(i)))
		}
	}
}

// relidReleased frees the number of a rescinded channel.
func (p *protocol) relidReleased(msg []byte) {
	relid := le.Uint32(msg[8:])
	c := p.known(relid)
	if c == nil || c.phase != phaseRescinded {
		p.fault()
		return
	}
	for handle, g := range p.gpadls {
		if g.relid == relid {
			p.forget(handle, g)
		}
	}
	*c = channelState{}
}

// modifyChannel interrupts another VP for a channel: u32 relid, u32 target VP.
func (p *protocol) modifyChannel(msg []byte) {
	relid, vp := le.Uint32(msg[8:]), le.Uint32(msg[12:])
	if p.version < version4_1 {
		p.fault()
		return
	}
	c := p.known(relid)
	ok := c != nil && c.phase == phaseOpen && (vp < p.vps || vp == noInterrupt)
	if ok {
		p.do(action{kind: actRetarget, relid: relid, vp: vp})
	} else {
		p.fault()
	}
	if p.version >= version5_3 {
		p.send(words(typeModifyResponse, relid, statusOf(ok)))
	}
}

// gpadlHeader begins a GPADL: u32 relid, u32 handle, u16 size of the range in
// bytes, u16 number of ranges, which is 1; then the range: u32 bytes, u32 offset
// in the first page, which is 0, and the first page numbers, u64 each.
func (p *protocol) gpadlHeader(msg []byte) {
	relid, handle := le.Uint32(msg[8:]), le.Uint32(msg[12:])
	size, count := int(le.Uint16(msg[16:])), le.Uint16(msg[18:])
	bytes, offset := le.Uint32(msg[20:]), le.Uint32(msg[24:])
	pages := (size - 8) / 8
	c := p.known(relid)
	switch {
	case c == nil || c.phase == phaseRescinded, p.gpadls[handle] != nil,
		count != 1 || offset != 0 || size < 16 || size%8 != 0 || uint64(bytes) != uint64(pages)*PageSize,
		p.pages+pages > maxPages || len(p.gpadls) >= maxGPADLs:
		p.fault()
		p.created(relid, handle, false)
		return
	}
	g := &gpadlState{relid: relid, pages: pages, list: GPADL{mem: p.mem}}
	p.gpadls[handle] = g
	p.pages += pages
	pfns := msg[gpadlHeaderSize:]
	p.addPages(handle, g, pfns[:min(len(pfns), 8*pages)])
}

// gpadlBody continues a GPADL: u32 message number, which Linux leaves 0, u32
// handle, and further page numbers.
func (p *protocol) gpadlBody(msg []byte) {
	handle := le.Uint32(msg[12:])
	g := p.gpadls[handle]
	if g == nil || g.complete() {
		p.fault()
		return
	}
	p.addPages(handle, g, msg[gpadlBodySize:])
}

// addPages adds page numbers to a GPADL and answers when it is complete or
// wrong.
func (p *protocol) addPages(handle uint32, g *gpadlState, pfns []byte) {
	for ; len(pfns) >= 8; pfns = pfns[8:] {
		pfn := le.Uint64(pfns)
		if g.complete() || pfn > maxPFN || !p.mem.Contains(pfn*PageSize, PageSize) {
			p.fault()
			p.forget(handle, g)
			p.created(g.relid, handle, false)
			return
		}
		g.list.pages = append(g.list.pages, pfn*PageSize)
	}
	if g.complete() {
		p.created(g.relid, handle, true)
	}
}

func (p *protocol) created(relid, handle uint32, ok bool) {
	p.send(words(typeGPADLCreated, relid, handle, statusOf(ok)))
}

func (p *protocol) forget(handle uint32, g *gpadlState) {
	delete(p.gpadls, handle)
	p.pages -= g.pages
}

// gpadlTeardown gives the guest its pages back: u32 relid, u32 handle. It waits
// for the answer without end, so there is one for a handle that doesn't exist.
func (p *protocol) gpadlTeardown(msg []byte) {
	relid, handle := le.Uint32(msg[8:]), le.Uint32(msg[12:])
	if g := p.gpadls[handle]; g != nil {
		if g.relid != relid {
			p.fault()
			return
		}
		p.revoke(handle, g)
	} else {
		p.fault()
	}
	p.send(words(typeGPADLTorndown, handle))
}

// revoke takes a GPADL away from whoever uses it. A channel whose rings it holds
// is closed.
func (p *protocol) revoke(handle uint32, g *gpadlState) {
	c := &p.channels[g.relid]
	switch {
	case c.phase != phaseOpen:
	case c.ring == handle:
		p.fault()
		p.closeChannel(g.relid, c)
	default:
		p.do(action{kind: actRevoke, relid: g.relid, gpadl: handle})
	}
	p.forget(handle, g)
}

// gpadl finds a complete GPADL of a channel that is open.
func (p *protocol) gpadl(relid, handle uint32) (*GPADL, bool) {
	g := p.gpadls[handle]
	if g == nil || g.relid != relid || !g.complete() {
		return nil, false
	}
	if c := p.known(relid); c == nil || c.phase != phaseOpening && c.phase != phaseOpen {
		return nil, false
	}
	return &g.list, true
}

// reserve sets sub-channels of an open primary aside, with the lowest indexes
// that it has none for, and returns their numbers.
func (p *protocol) reserve(primary uint32, n int) (relids []uint32) {
	c := p.known(primary)
	if c == nil || c.phase != phaseOpen || c.index > 0 {
		return nil
	}
	for index := 1; len(relids) < n; index++ {
		if p.hasSub(primary, index) {
			continue
		}
		relid, ok := p.free()
		if !ok {
			break
		}
		p.channels[relid] = channelState{phase: phaseReserved, primary: primary, index: index, offer: c.offer}
		relids = append(relids, relid)
	}
	return relids
}

// hasSub reports whether a sub-channel of that index is promised or offered.
func (p *protocol) hasSub(primary uint32, index int) bool {
	for i := range p.channels {
		c := &p.channels[i]
		if c.primary == primary && c.index == index && c.phase != phaseFree && c.phase != phaseRescinded {
			return true
		}
	}
	return false
}

// unreserve takes a reservation back.
func (p *protocol) unreserve(relid uint32) { p.channels[relid] = channelState{} }

// offerReserved offers the sub-channels of a primary that were reserved.
func (p *protocol) offerReserved(primary uint32) []action {
	for i := range p.channels {
		if c := &p.channels[i]; c.phase == phaseReserved && c.primary == primary && c.index > 0 {
			p.offer(uint32(i))
		}
	}
	return p.take()
}
