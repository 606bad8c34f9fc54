// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/govmm/govmm/internal/guestmem"
	"pgregory.net/rapid"
)

// testChannel is a channel with a SynIC on VP 0 and a ring each way, whose pages
// are in no order.
func testChannel(t testing.TB) (*Channel, *hostless) {
	t.Helper()
	mem := newRAM(t)
	host := &hostless{}
	b := New(Config{Memory: mem, VPs: 1, Host: host})
	b.WriteSynIC(0, 1, 0x1001, 0x2001)
	host.injected = 0
	ch := &Channel{bus: b, port: &port{relid: 3}}
	in, err1 := newRingMemory(&GPADL{mem, []uint64{0x4000, 0x6000, 0x5000}}, 0, 3)
	out, err2 := newRingMemory(&GPADL{mem, []uint64{0x8000, 0xa000, 0x9000}}, 0, 3)
	if err1 != nil || err2 != nil || ch.in.open(ch, in) != nil || ch.out.open(ch, out) != nil {
		t.Fatal(err1, err2)
	}
	return ch, host
}

// eventFlag takes the channel's event flag.
func eventFlag(t testing.TB, ch *Channel) bool {
	t.Helper()
	v, err := ch.bus.mem.View(0x2000, PageSize, PageSize)
	if err != nil {
		t.Fatal(err)
	}
	flags := v.Load32(sintSlot)
	v.Store32(sintSlot, 0)
	return flags == 1<<3
}

// TestOutRingSignals checks when the guest is told: only for the first packet
// after it had read all, and not while it masks.
func TestOutRingSignals(t *testing.T) {
	ch, host := testChannel(t)
	w, header := ch.Out(), ch.out.mem.header
	send := func() bool {
		if !w.Append(PacketInBand, 0, 1, nil, make([]byte, 8)) {
			t.Fatal("no room")
		}
		w.Publish()
		return w.Signal()
	}
	if w.Signal() || !send() || !eventFlag(t, ch) || host.injected != 1 {
		t.Fatal("no signal for the first packet")
	}
	if send() || eventFlag(t, ch) {
		t.Fatal("a signal although the guest has not read the first one")
	}
	header.Store32(ringReadIndex, header.Load32(ringWriteIndex))
	header.Store32(ringInterruptMask, 1)
	if send() {
		t.Fatal("a signal although the guest masks it")
	}
	header.Store32(ringInterruptMask, 0)
	header.Store32(ringReadIndex, header.Load32(ringWriteIndex))
	// Two batches, and the guest reads the first one between them.
	w.Append(PacketInBand, 0, 1, nil, nil)
	header.Store32(ringInterruptMask, 1)
	w.Publish()
	header.Store32(ringReadIndex, header.Load32(ringWriteIndex))
	header.Store32(ringInterruptMask, 0)
	w.Append(PacketInBand, 0, 1, nil, nil)
	w.Publish()
	if !w.Signal() || w.Signal() {
		t.Fatal("not one signal for the second batch")
	}
	// While the flag is set an interrupt is under way.
	header.Store32(ringReadIndex, header.Load32(ringWriteIndex))
	before := host.injected
	if !send() || host.injected != before {
		t.Fatal("a second interrupt for a flag that is set")
	}
}

// TestInRingRoom checks that a guest that waits for room is signalled when it
// crosses what it asked for, and else not.
func TestInRingRoom(t *testing.T) {
	ch, _ := testChannel(t)
	r, m := ch.In(), &ch.in.mem
	const packet = 1024 // with its trailer
	var d [descriptorSize]byte
	le.PutUint16(d[0:], 6)
	le.PutUint16(d[2:], 2)
	le.PutUint16(d[4:], (packet-trailerSize)/8)
	for i := range uint32(7) {
		m.copyOut(i*packet, d[:])
	}
	m.header.Store32(ringWriteIndex, 7*packet) // 1024 bytes are free
	m.header.Store32(ringPendingSend, 3*packet)
	for i := range 7 {
		if p, err := r.Next(); p == nil || err != nil {
			t.Fatal(i, err)
		}
		r.Publish()
		want := i == 2 // from 3 free packets to 4: more than 3
		if got := r.Signal(); got != want {
			t.Errorf("after packet %d: signal %v", i, got)
		}
	}
	if p, err := r.Next(); p != nil || err != nil {
		t.Error("a packet too many", err)
	}
}

func TestArm(t *testing.T) {
	ch, _ := testChannel(t)
	r, header := ch.In(), ch.in.mem.header
	r.Disarm()
	if header.Load32(ringInterruptMask) != 1 {
		t.Error("Disarm does not mask")
	}
	if r.Arm() || header.Load32(ringInterruptMask) != 0 {
		t.Error("an empty ring, but Arm says go on, or does not unmask")
	}
	header.Store32(ringWriteIndex, 40)
	if !r.Arm() {
		t.Error("a packet is there, but Arm says sleep")
	}
}

// TestAwait fills the ring, and asks for room.
func TestAwait(t *testing.T) {
	ch, _ := testChannel(t)
	w, header := ch.Out(), ch.out.mem.header
	n := 0
	for w.Append(PacketInBand, 0, 0, nil, make([]byte, 1000)) {
		n++
	}
	if want := (2*PageSize - 1) / 1024; n != want {
		t.Fatalf("%d packets of 1024 bytes fit, want %d", n, want)
	}
	w.Publish()
	if w.Await(0, 1000) || header.Load32(ringPendingSend) != 1024 {
		t.Errorf("pending send size %d", header.Load32(ringPendingSend))
	}
	header.Store32(ringReadIndex, 1024)
	if !w.Await(0, 1000) || header.Load32(ringPendingSend) != 0 {
		t.Error("there is room, but Await waits for more")
	}
	if w.Fits(0, MaxPacket) || w.Append(PacketInBand, 0, 0, make([]byte, 4), nil) {
		t.Error("a packet that is too long, or has a header of four bytes, fits")
	}
}

// TestRingAgainstModel appends packets at random and reads them as the guest
// does, over the ring's end, with the bytes compared.
func TestRingAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ch, _ := testChannel(t)
		w, m := ch.Out(), &ch.out.mem
		var want [][]byte
		read := uint32(0)
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			header := make([]byte, 8*rapid.IntRange(0, 4).Draw(rt, "header"))
			payload := rapid.SliceOfN(rapid.Byte(), 0, 700).Draw(rt, "payload")
			if w.Append(PacketTransferPages, 1, 77, header, payload) {
				image := binary.LittleEndian.AppendUint16(nil, 7)
				image = binary.LittleEndian.AppendUint16(image, uint16(2+len(header)/8))
				image = binary.LittleEndian.AppendUint16(image, uint16(2+len(header)/8+(len(payload)+7)/8))
				image = binary.LittleEndian.AppendUint16(image, 1)
				image = binary.LittleEndian.AppendUint64(image, 77)
				image = append(append(image, header...), payload...)
				want = append(want, append(image, make([]byte, -len(payload)&7)...))
			}
			w.Publish()
			for range rapid.IntRange(0, 2).Draw(rt, "takes") {
				if len(want) == 0 {
					break
				}
				got := make([]byte, len(want[0])+trailerSize)
				m.copyIn(read, got)
				if !bytes.Equal(got[:len(want[0])], want[0]) || le.Uint64(got[len(want[0]):]) != uint64(read)<<32 {
					rt.Fatalf("packet at %#x is %x, want %x", read, got, want[0])
				}
				read = (read + uint32(len(got))) % m.size
				want = want[1:]
				m.header.Store32(ringReadIndex, read)
			}
			used := 0
			for _, p := range want {
				used += len(p) + trailerSize
			}
			if got := (m.header.Load32(ringWriteIndex) + m.size - read) % m.size; got != uint32(used) {
				rt.Fatalf("%d bytes are in the ring, want %d", got, used)
			}
		}
		if w.Err() != nil {
			rt.Fatal(w.Err())
		}
	})
}

func TestRingsDoNotAllocate(t *testing.T) {
	ch, _ := testChannel(t)
	in, out := &ch.in.mem, &ch.out.mem
	var d [24]byte
	le.PutUint16(d[0:], 6)
	le.PutUint16(d[2:], 2)
	le.PutUint16(d[4:], 3)
	at := uint32(0)
	ranges := make([]guestmem.Range, 0, 8)
	payload := make([]byte, 40)
	if n := testing.AllocsPerRun(1000, func() {
		in.copyOut(at, d[:])
		at = in.advance(at, 32)
		in.header.Store32(ringWriteIndex, at)
		p, err := ch.In().Next()
		if p == nil || err != nil {
			t.Fatal(err)
		}
		_, _ = p.GPARanges(ranges)
		if !ch.Out().Append(PacketCompletion, 0, 1, nil, payload) {
			t.Fatal("no room")
		}
		ch.In().Publish()
		ch.Out().Publish()
		ch.In().Signal()
		ch.Out().Signal()
		ch.In().Arm()
		ch.In().Disarm()
		out.header.Store32(ringReadIndex, out.header.Load32(ringWriteIndex))
	}); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// gpaHeader builds the header of a GPA-direct packet.
func gpaHeader(count uint32, words ...uint64) []byte {
	h := le.AppendUint64(nil, uint64(count)<<32)
	for _, w := range words {
		h = le.AppendUint64(h, w)
	}
	return h
}

// rangeWord is a range's byte count and byte offset.
func rangeWord(n, off uint32) uint64 { return uint64(off)<<32 | uint64(n) }

func TestGPARanges(t *testing.T) {
	for _, c := range []struct {
		name   string
		header []byte
		want   []guestmem.Range // nil: refused
	}{
		{"none", gpaHeader(0), []guestmem.Range{}},
		{"one page", gpaHeader(1, rangeWord(100, 50), 7), []guestmem.Range{{GPA: 0x7032, Size: 100}}},
		{"two pages that touch", gpaHeader(1, rangeWord(0x1000, 0x800), 7, 8), []guestmem.Range{{GPA: 0x7800, Size: 0x1000}}},
		{"two pages apart", gpaHeader(1, rangeWord(0x1000, 0x800), 7, 9), []guestmem.Range{{GPA: 0x7800, Size: 0x800}, {GPA: 0x9000, Size: 0x800}}},
		{"two ranges that touch", gpaHeader(2, rangeWord(8, 0xff8), 7, rangeWord(16, 0), 8), []guestmem.Range{{GPA: 0x7ff8, Size: 24}}},
		{"count huge", gpaHeader(0xffffffff, rangeWord(8, 0), 7), nil},
		{"count of two, one there", gpaHeader(2, rangeWord(8, 0), 7), nil},
		{"offset of a page", gpaHeader(1, rangeWord(8, 4096), 7), nil},
		{"offset huge", gpaHeader(1, rangeWord(8, 0xffffffff), 7), nil},
		{"empty", gpaHeader(1, rangeWord(0, 0), 7), nil},
		{"bytes past the pages", gpaHeader(1, rangeWord(4096, 8), 7), nil},
		{"bytes huge", gpaHeader(1, rangeWord(0xffffffff, 4095), 7), nil},
		{"page number overflows", gpaHeader(1, rangeWord(8, 0), 1<<52), nil},
		{"pages past the packet", gpaHeader(2, rangeWord(0x1800, 0), 7, 8, rangeWord(8, 0)), nil},
		{"five pieces", gpaHeader(1, rangeWord(5*4096, 0), 1, 3, 5, 7, 9), nil},
		{"no count", make([]byte, 4), nil},
	} {
		p := Packet{Type: PacketGPADirect, Header: c.header}
		got, ok := p.GPARanges(make([]guestmem.Range, 0, 4))
		if ok != (c.want != nil) || ok && !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.name, got, ok, c.want)
		}
	}
}

func TestGPADLPieces(t *testing.T) {
	g := &GPADL{newRAM(t), []uint64{0x3000, 0x4000, 0x8000, 0x5000}}
	got, err := g.Ranges(nil, 0x800, 0x3000)
	want := []guestmem.Range{{GPA: 0x3800, Size: 0x1800}, {GPA: 0x8000, Size: 0x1000}, {GPA: 0x5000, Size: 0x800}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if v, err := g.Vec(nil, 0x800, 0x3000); err != nil || len(v) != 3 || v[2].Len != 0x800 {
		t.Errorf("%v, %v", v, err)
	}
	for _, c := range []struct{ off, n uint64 }{{0, 0x4001}, {0x4000, 1}, {^uint64(0), 2}, {8, ^uint64(0)}, {0x4001, 0}} {
		if _, err := g.Ranges(nil, c.off, c.n); err == nil {
			t.Errorf("%#x+%#x was accepted", c.off, c.n)
		}
		if _, err := g.Vec(nil, c.off, c.n); err == nil {
			t.Errorf("%#x+%#x was accepted", c.off, c.n)
		}
	}
	if err := g.WriteAt(0x3fff, []byte{1, 2}); err == nil {
		t.Error("a write past the end")
	}
}
