// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/vmbus/netvsc"
	"github.com/govmm/govmm/devices/vmbus/vmbustest"
)

// Sizes of what the driver of a netvsc shares, as Linux has them: pages of each
// ring, and of the receive buffer.
const (
	vscRing    = 128
	vscReceive = 4096
	vscRAM     = 64 << 20

	// vscFrames is how many frames the driver has under way. They share vscSlots
	// slots, so that it is caches that they meet; a slot is a page for the RNDIS
	// header, which is a range of its own, and the frame.
	vscFrames = 128
	vscStride = 20 * vmbustest.Page
	vscSlots  = footprint / vscStride
)

// vsc is the driver of a netvsc in the same process.
type vsc struct {
	guest   *vmbustest.Guest
	channel *vmbustest.Channel
	page    uint64 // for control messages
	frames  uint64 // to send
	headers [vscFrames][]byte
	free    []uint64 // frames that are not under way
	err     error    // of recycle, on the pump's thread
}

// newVSC opens the NIC, and sets it up as Linux does.
func newVSC(g *vmbustest.Guest) (*vsc, error) {
	if err := g.Connect(5<<16 | 3); err != nil {
		return nil, err
	}
	offers, err := g.RequestOffers()
	if err != nil {
		return nil, err
	}
	v := &vsc{guest: g}
	if v.channel, err = g.Open(offers[0], vscRing, 0); err != nil {
		return nil, err
	}
	var receive uint64
	var errs [3]error
	v.page, errs[0] = g.Alloc(1)
	v.frames, errs[1] = g.Alloc(vscSlots * vscStride / vmbustest.Page)
	receive, errs[2] = g.Alloc(vscReceive)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	handle, err := g.Share(offers[0].Relid, vmbustest.Pages(receive, vscReceive)...)
	if err != nil {
		return nil, err
	}
	const version, mtu, coalesce = 0x60001, 1514, 1 << 7
	offload := make([]byte, 28)
	offload[0], offload[22], offload[23] = 0x80, 2, 2
	for _, step := range []struct {
		m       []byte
		answers int
	}{
		{fields(1, version, version), 1},
		{fields(125, mtu, 0, coalesce, 0), 0},
		{fields(101, handle, 0xcafe), 1},
		{v.control(2, fields(1, 1, 0, 0x4000)), 2},
		{v.control(5, append(fields(2, 0xfc01020c, 28, 20, 0), offload...)), 2},
		{v.control(5, fields(3, 0x0001010e, 4, 20, 0, 13)), 2},
	} {
		if err := v.step(step.m, step.answers); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// fields is a message of little-endian u32.
func fields(f ...uint32) (m []byte) {
	for _, x := range f {
		m = binary.LittleEndian.AppendUint32(m, x)
	}
	return m
}

// control is an RNDIS message of a type, without its length.
func (v *vsc) control(typ uint32, body []byte) []byte {
	return append(fields(typ, uint32(8+len(body))), body...)
}

// step sends a message, NVSP or RNDIS by its number of answers, and awaits these.
func (v *vsc) step(m []byte, answers int) error {
	p := vmbustest.Packet{Type: 6, Flags: uint16(min(answers, 1)), Payload: append(m, make([]byte, 40)...)[:40]}
	if answers == 2 {
		if err := v.guest.Mem.WriteAt(v.page, m); err != nil {
			return err
		}
		p.Type, p.Payload = 9, fields(107, 1, ^uint32(0), 0)
		p.Header = pageRanges(nil, v.page, len(m))
	}
	if err := v.channel.Send(p); err != nil {
		return err
	}
	for got := 0; got < answers; {
		p, ok, err := v.channel.Take()
		switch {
		case err != nil:
			return err
		case !ok:
			<-v.channel.Interrupt().C
			v.channel.Event()
			continue
		case p.Type == 7:
			v.giveBack(p.Transaction)
		}
		v.channel.Release()
		got++
	}
	v.channel.Publish()
	return nil
}

// pageRanges is the header of a GPA-direct packet: a range for each page-aligned
// memory at, with n bytes.
func pageRanges(h []byte, at uint64, n int) []byte {
	if h == nil {
		h = fields(0, 0)
	}
	binary.LittleEndian.PutUint32(h[4:], binary.LittleEndian.Uint32(h[4:])+1)
	h = append(h, fields(uint32(n), 0)...)
	for page := at / vmbustest.Page; page*vmbustest.Page < at+uint64(n); page++ {
		h = binary.LittleEndian.AppendUint64(h, page)
	}
	return h
}

// giveBack returns a received packet.
func (v *vsc) giveBack(transaction uint64) {
	if !v.channel.Append(vmbustest.Packet{Type: 11, Transaction: transaction, Payload: sendDone}) {
		v.err = errors.New("no room for a completion")
	}
}

var (
	sendDone    = fields(108, 1)
	sendMessage = fields(107, 0, ^uint32(0), 0)
)

// lay puts the frame, virtio header and all, into every slot, as Linux hands it
// over: a large one with what to cut it into, and without IP length and checksum.
func (v *vsc) lay(frame []byte) error {
	body := append([]byte(nil), frame[netio.HeaderLen:]...)
	var information []byte
	if frame[1] != 0 {
		const version2 = 1 << 30
		mss, start := binary.LittleEndian.Uint16(frame[4:]), binary.LittleEndian.Uint16(frame[6:])
		information = fields(16, 2, 12, uint32(mss)|uint32(start)<<20|version2)
		copy(body[16:18], []byte{0, 0})
	}
	head := packetHeader(len(body), information)
	for i := range uint64(vscFrames) {
		at := v.frames + i%vscSlots*vscStride
		if err := errors.Join(v.guest.Mem.WriteAt(at, head), v.guest.Mem.WriteAt(at+vmbustest.Page, body)); err != nil {
			return err
		}
		v.headers[i] = pageRanges(pageRanges(nil, at, len(head)), at+vmbustest.Page, len(body))
		v.free = append(v.free, i)
	}
	return nil
}

// packetHeader is a REMOTE_NDIS_PACKET_MSG with n bytes of data behind it.
func packetHeader(n int, information []byte) []byte {
	const body = 36
	k := len(information)
	at := 0
	if k > 0 {
		at = body
	}
	m := fields(1, uint32(8+body+k+n), uint32(body+k), uint32(n), 0, 0, 0, uint32(at), uint32(k), 0, 0)
	return append(m, information...)
}

// recycle is the driver's work: it takes what the device has completed or
// received, returns the latter, and sends all free frames if asked to.
func (v *vsc) recycle(send bool) {
	v.channel.Event()
	for {
		p, ok, err := v.channel.Take()
		if err != nil {
			v.err = err
		}
		if !ok {
			break
		}
		if p.Type == 11 {
			v.free = append(v.free, p.Transaction)
		} else {
			v.giveBack(p.Transaction)
		}
	}
	v.channel.Release()
	for send && len(v.free) > 0 {
		i := v.free[len(v.free)-1]
		v.free = v.free[:len(v.free)-1]
		if !v.channel.Append(vmbustest.Packet{Type: 9, Flags: 1, Transaction: i, Header: v.headers[i], Payload: sendMessage}) {
			v.err = errors.New("no room for a frame")
		}
	}
	v.channel.Publish()
}

// gate is a meter that moves nothing before it is open, while the driver and the
// device agree on what they do.
type gate struct {
	*meter
	open atomic.Bool
}

// Queues implements netio.Backend.
func (g *gate) Queues() []netio.Queue { return []netio.Queue{g} }

// Send implements netio.Queue.
func (g *gate) Send(b *netio.TxBatch, from int) (int, error) {
	if !g.open.Load() {
		return 0, netio.ErrAgain
	}
	return g.meter.Send(b, from)
}

// Recv implements netio.Queue.
func (g *gate) Recv(b *netio.RxBatch, max int) (int, error) {
	if _, endless := g.queue.(nothing); !g.open.Load() || endless && g.dir == netio.TX {
		return 0, netio.ErrAgain
	}
	return g.meter.Recv(b, max)
}

// engineVMBus is engine with a netvsc.
func (b *bench) engineVMBus(frames int, q netio.Queue, e *Engine) (err error) {
	b.rig.drain()
	m := &meter{
		Backend: b.rig.tap, queue: q,
		dir: b.Dir, frames: frames,
		end: make(chan struct{}), release: make(chan struct{}),
	}
	var v *vsc
	var fillErr error
	m.refill, m.every = func() { v.recycle(b.Dir == netio.TX) }, vscFrames/2
	if _, ok := q.(nothing); b.Dir == netio.RX && !ok {
		m.supply = queueLen(b.Frame)
		m.source = func() { fillErr = errors.Join(fillErr, b.rig.fill(b.Frame, m.supply)) }
	}
	gate := &gate{meter: m}
	d, err := netvsc.New(netvsc.Config{
		Name: "bench", MAC: netvsc.MAC{2, 0, 0, 0, 0, 1}, Backend: gate, MTU: 1500, Offload: true, Batch: e.Batch,
	})
	if err != nil {
		return err
	}
	g, err := vmbustest.NewGuest(vscRAM, 1, d)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { g.Bus.Run(ctx) })
	defer func() {
		cancel()
		running.Wait()
		err = errors.Join(err, g.Close())
	}()
	if v, err = newVSC(g); err != nil {
		return err
	}
	if err := v.lay(b.Frame); err != nil {
		return err
	}
	before := q.Counters()[b.Dir].Syscalls
	v.recycle(b.Dir == netio.TX)
	gate.open.Store(true)
	v.channel.Kick() // the pump may have found the gate closed, and sleep
	<-m.end
	close(m.release)
	g.Bus.Stop()
	count := d.Counters()
	dir := count.Channels[0].RX
	if b.Dir == netio.TX {
		dir = count.Channels[0].TX
	}
	if dir.Errors > 0 || count.GuestFaults > 0 || fillErr != nil || v.err != nil {
		return fmt.Errorf("the engine met errors: %+v, %w", count, errors.Join(fillErr, v.err))
	}
	e.count(m, before, dir.Notified)
	return nil
}
