// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/devices/vmbus/vmbustest"
)

// driver is a guest's network driver, as far as the tests need one.
type driver struct {
	t      *testing.T
	guest  *vmbustest.Guest
	offer  vmbustest.Offer
	ch     *vmbustest.Channel
	id     uint32 // of RNDIS requests
	page   uint64 // for control messages
	recv   uint64 // the receive buffer
	pages  int
	handle uint32 // of the receive buffer

	sendBuf    uint64
	sendHandle uint32

	sections, section int      // of the receive buffer
	done              []uint64 // transactions that were completed, in order
	held              []uint64 // received packets that are not returned
}

// startDriver makes a guest that has opened the primary channel of d.
func startDriver(t *testing.T, d vmbus.Device, ram uint64, ringPages int) *driver {
	t.Helper()
	g, err := vmbustest.NewGuest(ram, 2, d)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { g.Bus.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	check(t, g.Connect(5<<16|3))
	offers, err := g.RequestOffers()
	check(t, err)
	dr := &driver{t: t, guest: g, offer: offers[0]}
	dr.page, err = g.Alloc(1)
	check(t, err)
	dr.open(ringPages)
	return dr
}

func (d *driver) open(ringPages int) {
	d.t.Helper()
	var err error
	d.ch, err = d.guest.Open(d.offer, ringPages, 1)
	check(d.t, err)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// u32s is a message of u32 fields.
func u32s(fields ...uint32) (m []byte) {
	for _, f := range fields {
		m = binary.LittleEndian.AppendUint32(m, f)
	}
	return m
}

// nvsp sends an NVSP message of 40 bytes.
func (d *driver) nvsp(transaction uint64, flags uint16, fields ...uint32) {
	d.t.Helper()
	m := append(u32s(fields...), make([]byte, 40-4*len(fields))...)
	check(d.t, d.ch.Send(vmbustest.Packet{Type: 6, Flags: flags, Transaction: transaction, Payload: m}))
}

// awaitPacket returns the next packet from the host, a copy.
func (d *driver) awaitPacket() vmbustest.Packet {
	d.t.Helper()
	var p vmbustest.Packet
	await(d.t, "a packet from the host", func() (ok bool) {
		var err error
		p, ok, err = d.ch.Take()
		check(d.t, err)
		return ok
	})
	p.Header, p.Payload = bytes.Clone(p.Header), bytes.Clone(p.Payload)
	d.ch.Release()
	return p
}

// request sends an NVSP message and returns the completion's payload.
func (d *driver) request(fields ...uint32) []byte {
	d.t.Helper()
	const transaction = 0x1234567890
	d.nvsp(transaction, 1, fields...)
	p := d.awaitPacket()
	if p.Type != 11 || p.Transaction != transaction {
		d.t.Fatalf("answer to NVSP %d: %+v", fields[0], p)
	}
	return p.Payload
}

// connect does what hv_netvsc does up to RNDIS_INITIALIZE: version, MTU, and
// buffers of so many bytes.
func (d *driver) connect(version uint32, mtu, recvPages, sendPages int) {
	d.t.Helper()
	if got := d.request(1, version, version); le.Uint32(got[4:]) != version || le.Uint32(got[12:]) != 1 || len(got) != 40 {
		d.t.Fatalf("INIT_COMPLETE %x", got)
	}
	d.nvsp(0, 0, 125, uint32(mtu+14), 0, 1<<7|1<<3)
	d.nvsp(0, 0, 100, 6, 30)
	var err error
	d.pages = recvPages
	d.recv, err = d.guest.Alloc(recvPages)
	check(d.t, err)
	d.handle, err = d.guest.Share(d.offer.Relid, vmbustest.Pages(d.recv, recvPages)...)
	check(d.t, err)
	got := d.request(101, d.handle, 0xcafe)
	if le.Uint32(got) != 102 || le.Uint32(got[4:]) != 1 || le.Uint32(got[8:]) != 1 || le.Uint32(got[12:]) != 0 {
		d.t.Fatalf("answer to the receive buffer: %x", got)
	}
	d.section, d.sections = int(le.Uint32(got[16:])), int(le.Uint32(got[20:]))
	if d.section < 68 || d.section*d.sections > recvPages*vmbustest.Page {
		d.t.Fatalf("%d sections of %d bytes in %d pages", d.sections, d.section, recvPages)
	}
	d.sendBuf, err = d.guest.Alloc(sendPages)
	check(d.t, err)
	d.sendHandle, err = d.guest.Share(d.offer.Relid, vmbustest.Pages(d.sendBuf, sendPages)...)
	check(d.t, err)
	if got := d.request(104, d.sendHandle, 0); le.Uint32(got) != 105 || le.Uint32(got[4:]) != 1 || le.Uint32(got[8:]) != 6144 {
		d.t.Fatalf("answer to the send buffer: %x", got)
	}
}

// gpa is the header of a GPA-direct packet of one range.
func gpa(at uint64, n int) []byte {
	h := u32s(0, 1, uint32(n), uint32(at%vmbustest.Page))
	for page := at / vmbustest.Page; page*vmbustest.Page < at+uint64(n); page++ {
		h = binary.LittleEndian.AppendUint64(h, page)
	}
	return h
}

// sendRNDIS sends a control message without waiting.
func (d *driver) sendRNDIS(m []byte) {
	d.t.Helper()
	check(d.t, d.guest.Mem.WriteAt(d.page, m))
	check(d.t, d.ch.Send(vmbustest.Packet{
		Type: 9, Flags: 1, Transaction: 7, Header: gpa(d.page, len(m)),
		Payload: u32s(107, 1, noSection, 0),
	}))
}

// rndis sends a control message and returns the answer.
func (d *driver) rndis(typ uint32, body []byte) []byte {
	d.t.Helper()
	m := append(u32s(typ, uint32(8+len(body))), body...)
	d.sendRNDIS(m)
	if p := d.awaitPacket(); p.Type != 11 || p.Transaction != 7 || !bytes.Equal(p.Payload[:8], u32s(108, 1)) {
		d.t.Fatalf("completion of an RNDIS message: %+v", p)
	}
	if typ == 3 {
		return nil
	}
	p := d.awaitPacket()
	got := d.ranges(p)
	d.giveBack(p.Transaction)
	if len(got) != 1 {
		d.t.Fatalf("%d ranges for an answer", len(got))
	}
	if le.Uint32(got[0]) != typ|1<<31 || int(le.Uint32(got[0][4:])) != len(got[0]) || le.Uint32(got[0][8:]) != le.Uint32(body) {
		d.t.Fatalf("answer to RNDIS %d: %x", typ, got[0])
	}
	return got[0][12:]
}

// ranges returns what the ranges of a transfer-page packet hold, with the checks
// of Linux.
func (d *driver) ranges(p vmbustest.Packet) (all [][]byte) {
	d.t.Helper()
	if p.Type != 7 || p.Flags != 1 || le.Uint16(p.Header) != 0xcafe || le.Uint32(p.Payload) != 107 || len(p.Payload) != 40 {
		d.t.Fatalf("transfer pages: %+v", p)
	}
	n := int(le.Uint32(p.Header[4:]))
	if len(p.Header) != 8+8*n || 16+len(p.Header)+len(p.Payload) > 4624 {
		d.t.Fatalf("%d ranges in a header of %d bytes", n, len(p.Header))
	}
	for i := range n {
		size, off := int(le.Uint32(p.Header[8+8*i:])), int(le.Uint32(p.Header[12+8*i:]))
		if size > d.section || off+size > d.pages*vmbustest.Page {
			d.t.Fatalf("range %#x+%#x", off, size)
		}
		b := make([]byte, size)
		check(d.t, d.guest.Mem.ReadAt(d.recv+uint64(off), b))
		all = append(all, b)
	}
	return all
}

// giveBack completes a received packet.
func (d *driver) giveBack(transaction uint64) {
	d.t.Helper()
	check(d.t, d.ch.Send(vmbustest.Packet{Type: 11, Transaction: transaction, Payload: u32s(108, 1)}))
}

func (d *driver) initialise() {
	d.t.Helper()
	d.id++
	got := d.rndis(2, u32s(d.id, 1, 0, 0x4000))
	if want := u32s(0, 1, 0, 1, 0, 8, 0xefffffff, 3, 0, 0); !bytes.Equal(got, want) {
		d.t.Fatalf("INITIALIZE_CMPLT %x, want %x", got, want)
	}
}

// query asks for an object.
func (d *driver) query(oid uint32, in ...byte) (value []byte, status uint32) {
	d.t.Helper()
	d.id++
	got := d.rndis(4, append(u32s(d.id, oid, uint32(len(in)), 20, 0), in...))
	if le.Uint32(got[8:]) != 16 || int(le.Uint32(got[4:])) != len(got)-12 {
		d.t.Fatalf("answer to the query of %#x: %x", oid, got)
	}
	return got[12:], le.Uint32(got)
}

func (d *driver) set(oid uint32, v []byte) (status uint32) {
	d.t.Helper()
	d.id++
	return le.Uint32(d.rndis(5, append(u32s(d.id, oid, uint32(len(v)), 20, 0), v...)))
}

// up is all that hv_netvsc does until a NIC is up.
func (d *driver) up(coalesce bool) {
	d.t.Helper()
	d.initialise()
	v := make([]byte, 28)
	v[0], v[1], v[22], v[23] = 0x80, 3, 1, 1
	if coalesce {
		v[22], v[23] = 2, 2
	}
	if status := d.set(0xfc01020c, v); status != 0 {
		d.t.Fatalf("offload: status %#x", status)
	}
	if status := d.set(0x0001010e, u32s(13)); status != 0 {
		d.t.Fatalf("packet filter: status %#x", status)
	}
}

// packetMessageOf makes an RNDIS message of a frame and per-packet information
// in pairs of type and value.
func packetMessageOf(frame []byte, ppi ...uint32) []byte {
	n := len(ppi) / 2 * 16
	m := u32s(1, uint32(44+n+len(frame)), uint32(36+n), uint32(len(frame)), 0, 0, 0, 36, uint32(n), 0, 0)
	if n == 0 {
		le.PutUint32(m[28:], 0)
	}
	for i := 0; i < len(ppi); i += 2 {
		m = append(m, u32s(16, ppi[i], 12, ppi[i+1])...)
	}
	return append(m, frame...)
}

// parsed is a received frame.
type parsed struct {
	frame []byte
	ppi   map[uint32]uint32
}

// parseRange parses a packet message as Linux does.
func parseRange(b []byte) (p parsed, err error) {
	length, off, n := int(le.Uint32(b[4:])), int(le.Uint32(b[8:])), int(le.Uint32(b[12:]))
	ppi, ppiLen := int(le.Uint32(b[28:])), int(le.Uint32(b[32:]))
	if le.Uint32(b) != 1 || length > len(b) || off >= length-8 && n > 0 || n > length-8-off {
		return p, fmt.Errorf("packet message %x of %d bytes", b[:44], len(b))
	}
	p.ppi = map[uint32]uint32{}
	p.frame = b[8+off:][:n]
	if (ppi == 0) != (ppiLen == 0) || ppiLen > 0 && ppi != 36 {
		return p, fmt.Errorf("%d bytes of information at %d", ppiLen, ppi)
	}
	for info := b[44:][:ppiLen]; len(info) > 0; info = info[16:] {
		if le.Uint32(info) != 16 || le.Uint32(info[8:]) != 12 {
			return p, fmt.Errorf("information %x", info)
		}
		p.ppi[le.Uint32(info[4:])] = le.Uint32(info[12:])
	}
	return p, nil
}

// frames returns the frames of a transfer-page packet, pieces joined as Linux
// does it.
func (d *driver) frames(p vmbustest.Packet) (all []parsed) {
	d.t.Helper()
	whole := true
	for _, b := range d.ranges(p) {
		f, err := parseRange(b)
		check(d.t, err)
		id, pieces := f.ppi[1<<31|1]
		first, last := !pieces || id>>8&2 != 0, !pieces || id>>8&4 != 0
		if first != whole || pieces && id&0xff != 1 {
			d.t.Fatalf("piece with id %#x", id)
		}
		if first {
			all = append(all, f)
		} else {
			all[len(all)-1].frame = append(bytes.Clone(all[len(all)-1].frame), f.frame...)
		}
		whole = last
	}
	if !whole {
		d.t.Fatal("a frame without its last piece")
	}
	return all
}

// fromVirtio makes the frame and information of a frame with a virtio header, as
// hv_netvsc does: for a large send it clears what the host is to fill in.
func fromVirtio(f []byte) (frame []byte, ppi []uint32) {
	frame = bytes.Clone(f[netio.HeaderLen:])
	if len(f) < netio.HeaderLen || f[0]&1 == 0 {
		return frame, nil
	}
	start := uint32(le.Uint16(f[6:]))
	if f[1] == 0 {
		return frame, []uint32{0, 1 | 4 | start<<16}
	}
	tcp := frame[start:]
	s := uint32(binary.BigEndian.Uint16(tcp[16:])) + 0xffff - uint32(len(tcp))&0xffff // ones' complement
	binary.BigEndian.PutUint16(tcp[16:], uint16(s&0xffff+s>>16))
	copy(frame[16:], []byte{0, 0}) // IPv4: length and checksum
	copy(frame[24:], []byte{0, 0})
	return frame, []uint32{2, uint32(le.Uint16(f[4:])) | start<<20 | 1<<30}
}
