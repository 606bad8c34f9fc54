// SPDX-License-Identifier: Apache-2.0

package vmbus_test

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"

	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/devices/vmbus/vmbustest"
)

// faults posts messages, each of which must be counted as a fault.
func faults(t *testing.T, g *vmbustest.Guest, msgs ...[]byte) {
	t.Helper()
	for _, m := range msgs {
		before := g.Bus.Counters().Faults
		g.Post(m)
		if g.Bus.Counters().Faults == before {
			t.Errorf("message %x was no fault", m)
		}
	}
}

// answer is the status of the next message of a type, at an offset.
func answer(t *testing.T, g *vmbustest.Guest, typ uint32, off int) uint32 {
	t.Helper()
	m, err := g.Await(typ)
	check(t, err)
	return binary.LittleEndian.Uint32(m[off:])
}

// TestGPADLOfManyClaims claims 8190 pages with 26 numbers, opens a channel with
// that, and does so 10000 times over: memory is bounded, and a good one fits again
// after a new contact.
func TestGPADLOfManyClaims(t *testing.T) {
	g, offers := newGuest(t, newest, newEcho(1))
	relid := offers[0].Relid
	pages := make([]uint64, 8190)
	header := vmbustest.GPADLMessages(relid, 7, pages)[0]
	if status := g.Post(header); status != 0 {
		t.Fatal("status", status)
	}
	faults(t, g, vmbustest.OpenMessage(relid, 7, 0, 2))
	if answer(t, g, 6, 16) == 0 {
		t.Error("a channel opened on an incomplete GPADL")
	}
	refused := 0
	for i := range uint32(10000) {
		binary.LittleEndian.PutUint32(header[12:], 100+i)
		g.Post(header)
		for m := g.Take(0); m != nil; m = g.Take(0) {
			if binary.LittleEndian.Uint32(m) != 10 || binary.LittleEndian.Uint32(m[16:]) == 0 {
				t.Fatalf("message %x", m)
			}
			refused++
		}
	}
	if refused < 9900 {
		t.Errorf("only %d of 10000 were refused", refused)
	}
	check(t, g.Connect(newest))
	again, err := g.RequestOffers()
	check(t, err)
	c, err := g.Open(again[0], 3, 0)
	check(t, err)
	echoes(t, c, 10)
}

// TestGPADLOutsideRAM names pages that are not RAM.
func TestGPADLOutsideRAM(t *testing.T) {
	g, offers := newGuest(t, newest, newEcho(1))
	relid := offers[0].Relid
	for i, gpa := range []uint64{64 << 20, 1 << 40, 0xfffffffffffff << 12, ^uint64(4095)} {
		for _, pages := range [][]uint64{{gpa}, {0, gpa}, append(make([]uint64, 60), gpa)} {
			handle := uint32(1000 + i)
			for _, m := range vmbustest.GPADLMessages(relid, handle, pages) {
				g.Post(m)
			}
			if answer(t, g, 10, 16) == 0 {
				t.Errorf("page %#x was accepted", gpa)
			}
			faults(t, g, vmbustest.OpenMessage(relid, handle, 0, 1))
			if answer(t, g, 6, 16) == 0 {
				t.Error("a channel opened on it")
			}
		}
	}
	// The page number's shift overflows.
	m := vmbustest.GPADLMessages(relid, 5, []uint64{0})[0]
	binary.LittleEndian.PutUint64(m[28:], 1<<52)
	faults(t, g, m)
}

func TestBadGPADLMessages(t *testing.T) {
	g, offers := newGuest(t, newest, newEcho(1))
	relid := offers[0].Relid
	good := vmbustest.GPADLMessages(relid, 9, []uint64{0x1000, 0x2000})[0]
	for name, change := range map[string]func(m []byte){
		"unknown channel":        func(m []byte) { binary.LittleEndian.PutUint32(m[8:], relid+1) },
		"channel number huge":    func(m []byte) { binary.LittleEndian.PutUint32(m[8:], 0xffffffff) },
		"two ranges":             func(m []byte) { binary.LittleEndian.PutUint16(m[18:], 2) },
		"no range":               func(m []byte) { binary.LittleEndian.PutUint16(m[18:], 0) },
		"empty range":            func(m []byte) { binary.LittleEndian.PutUint16(m[16:], 8) },
		"odd size":               func(m []byte) { binary.LittleEndian.PutUint16(m[16:], 23) },
		"tiny size":              func(m []byte) { binary.LittleEndian.PutUint16(m[16:], 0) },
		"byte count":             func(m []byte) { binary.LittleEndian.PutUint32(m[20:], 0x1fff) },
		"byte count of one page": func(m []byte) { binary.LittleEndian.PutUint32(m[20:], 0x1000) },
		"byte offset":            func(m []byte) { binary.LittleEndian.PutUint32(m[24:], 8) },
	} {
		m := bytes.Clone(good)
		change(m)
		before := g.Bus.Counters().Faults
		g.Post(m)
		if g.Bus.Counters().Faults == before {
			t.Errorf("%s: no fault", name)
		}
		if answer(t, g, 10, 16) == 0 {
			t.Errorf("%s: accepted", name)
		}
	}
	g.Post(good)
	if answer(t, g, 10, 16) != 0 {
		t.Error("the good one was refused")
	}
	faults(t, g, good) // the handle is taken
	if answer(t, g, 10, 16) == 0 {
		t.Error("a handle was made twice")
	}
	faults(t, g,
		vmbustest.Message(9, 0, 9, 1, 0),  // a body for a complete GPADL
		vmbustest.Message(9, 0, 77, 1, 0), // and for none
		vmbustest.Message(11, relid+5, 9), // of another channel: no answer
		good[:27],
	)
	// A body that brings more than was claimed spoils the whole.
	long := vmbustest.GPADLMessages(relid, 10, make([]uint64, 27))
	g.Post(long[0])
	faults(t, g, vmbustest.Message(9, 0, 10, 1, 0, 2, 0))
	if answer(t, g, 10, 16) == 0 {
		t.Error("a GPADL with too many pages")
	}
	faults(t, g, vmbustest.Message(11, relid, 1234))
	if answer(t, g, 12, 8) != 1234 {
		t.Error("no answer to the teardown of what never was")
	}
}

// TestBadOpen tries places for the second ring where there is no room for one,
// and what else an OPEN can name wrongly.
func TestBadOpen(t *testing.T) {
	e := newEcho(1)
	g, offers := newGuest(t, newest, e)
	relid := offers[0].Relid
	const pages = 8
	handle, err := g.Share(relid, vmbustest.Pages(0x60_0000, pages)...)
	check(t, err)
	for _, m := range [][]byte{
		vmbustest.OpenMessage(relid, handle, 0, 0),
		vmbustest.OpenMessage(relid, handle, 0, 1),
		vmbustest.OpenMessage(relid, handle, 0, pages-1),
		vmbustest.OpenMessage(relid, handle, 0, pages),
		vmbustest.OpenMessage(relid, handle, 0, 0xffffffff),
		vmbustest.OpenMessage(relid, handle, 4, 4), // VP
		vmbustest.OpenMessage(relid, handle+1, 0, 4),
		vmbustest.OpenMessage(relid+1, handle, 0, 4),
		vmbustest.OpenMessage(0, handle, 0, 4),
		vmbustest.OpenMessage(1<<31, handle, 0, 4),
	} {
		faults(t, g, m)
		if answer(t, g, 6, 16) == 0 {
			t.Errorf("OPEN %x succeeded", m[:28])
		}
	}
	// Indices of a ring that can't be any.
	ring, err := g.Mem.View(0x60_0000, vmbustest.Page, 8)
	check(t, err)
	for _, index := range []uint32{3 * vmbustest.Page, 4, 0xffffffff} {
		ring.Store32(vmbustest.ReadIndex, index)
		faults(t, g, vmbustest.OpenMessage(relid, handle, 0, 4))
		if answer(t, g, 6, 16) == 0 {
			t.Errorf("OPEN with a read index of %#x succeeded", index)
		}
	}
	ring.Store32(vmbustest.ReadIndex, 0)
	g.Post(vmbustest.OpenMessage(relid, handle, 0, 4))
	if answer(t, g, 6, 16) != 0 {
		t.Fatal("a good OPEN failed")
	}
	faults(t, g, vmbustest.OpenMessage(relid, handle, 0, 4))
	if answer(t, g, 6, 16) == 0 || e.open() != 1 {
		t.Error("OPEN twice")
	}
	faults(t, g, vmbustest.Message(11, relid, handle)) // the rings' GPADL of an open channel
	if answer(t, g, 12, 8) != handle || e.open() != 0 {
		t.Error("the channel lives without its rings")
	}
	faults(t, g, vmbustest.Message(7, relid), vmbustest.Message(13, relid))
}

func TestMessagesOutOfOrder(t *testing.T) {
	g := startGuest(t, newEcho(1))
	faults(t, g, // without contact
		vmbustest.Message(3), vmbustest.OpenMessage(1, 1, 0, 2), vmbustest.Message(7, 1), vmbustest.Message(11, 1, 1),
		vmbustest.GPADLMessages(1, 1, []uint64{0})[0], vmbustest.Message(22, 1, 0), vmbustest.Message(13, 1))
	check(t, g.Connect(4<<16))
	faults(t, g, // before the offers
		vmbustest.OpenMessage(1, 1, 0, 2), vmbustest.Message(7, 1), vmbustest.Message(13, 1),
		vmbustest.GPADLMessages(1, 1, []uint64{0})[0],
		vmbustest.Message(22, 1, 0), // not in this version
		vmbustest.Message(1), vmbustest.Message(0), vmbustest.Message(21, 1, 2, 3), vmbustest.Message(0xffffffff),
		nil, []byte{14}, vmbustest.Message(14, 5<<16), vmbustest.InitiateContact(newest, 4))
	check(t, g.Connect(newest))
	_, err := g.RequestOffers()
	check(t, err)
	faults(t, g, vmbustest.Message(3))
}

func TestBadHypercalls(t *testing.T) {
	g, _ := newGuest(t, newest, newEcho(1))
	page := uint64(0x50_0000)
	put := func(connection, typ, size uint32) {
		var in [16]byte
		binary.LittleEndian.PutUint32(in[0:], connection)
		binary.LittleEndian.PutUint32(in[8:], typ)
		binary.LittleEndian.PutUint32(in[12:], size)
		check(t, g.Mem.WriteAt(page, in[:]))
	}
	for _, c := range []struct {
		name                  string
		input                 uint64
		param                 uint64
		connection, typ, size uint32
		want                  uint64
	}{
		{"good", 0x5c, page, 4, 1, 8, 0},
		{"fast", 0x1005c, page, 4, 1, 8, 3},
		{"unknown code", 0x5b, page, 4, 1, 8, 2},
		{"misaligned", 0x5c, page + 4, 4, 1, 8, 4},
		{"crosses a page", 0x5c, page + 4096 - 248, 4, 1, 8, 5},
		{"not RAM", 0x5c, 1 << 45, 4, 1, 8, 5},
		{"address wraps", 0x5c, ^uint64(7), 4, 1, 8, 5},
		{"long", 0x5c, page, 4, 1, 241, 5},
		{"huge", 0x5c, page, 4, 1, 0xffffffff, 5},
		{"connection", 0x5c, page, 2, 1, 8, 18},
		{"message type", 0x5c, page, 4, 2, 8, 5},
		{"slow signal", 0x5d, page, 0, 0, 0, 3},
		{"signal to nobody", 0x1005d, 0x123456, 0, 0, 0, 18},
		{"signal to a reserved connection", 0x1005d, 3, 0, 0, 0, 18},
		{"signal", 0x1005d, 17, 0, 0, 0, 0},
	} {
		put(c.connection, c.typ, c.size)
		if got := g.Bus.Hypercall(c.input, [2]uint64{c.param}); got != c.want {
			t.Errorf("%s: status %d, want %d", c.name, got, c.want)
		}
	}
}

// brokenRing opens a channel, lets the guest break its ring, and checks that the
// device got a fault, while the bus lives: the channel closes and opens again.
func brokenRing(t *testing.T, name string, breakIt func(c *vmbustest.Channel)) {
	t.Helper()
	e := newEcho(1)
	g, offers := newGuest(t, newest, e)
	c, err := g.Open(offers[0], 3, 0)
	check(t, err)
	echoes(t, c, 3)
	before := g.Bus.Counters().Faults
	breakIt(c)
	c.Kick()
	await(t, name+": a fault", func() bool { return g.Bus.Counters().Faults > before })
	check(t, c.Close())
	c, err = g.Open(offers[0], 3, 0)
	check(t, err)
	echoes(t, c, 3)
}

func TestBadRingIndices(t *testing.T) {
	size := uint32(2 * vmbustest.Page)
	for _, index := range []uint32{size, size + 8, 4, 1, 0xfffffff8, 0xffffffff, 8} {
		brokenRing(t, "write index", func(c *vmbustest.Channel) {
			c.Out.Header.Store32(vmbustest.WriteIndex, index)
		})
	}
	for _, index := range []uint32{size, 4, 0xffffffff, size - 8} {
		brokenRing(t, "read index", func(c *vmbustest.Channel) {
			c.In.Header.Store32(vmbustest.ReadIndex, index)
			for c.Append(vmbustest.Packet{Type: 6, Payload: make([]byte, 256)}) {
			}
			c.Publish()
		})
	}
}

func TestBadDescriptors(t *testing.T) {
	for _, d := range []struct{ offset, length uint16 }{{0, 4}, {1, 4}, {3, 2}, {2, 0}, {2, 1}, {2, 0xffff}, {0xffff, 0xffff}, {2, 5}, {5, 4}} {
		brokenRing(t, "descriptor", func(c *vmbustest.Channel) {
			at := c.Out.Header.Load32(vmbustest.WriteIndex)
			c.Append(vmbustest.Packet{Type: 6, Payload: make([]byte, 16)})
			var b [4]byte
			binary.LittleEndian.PutUint16(b[0:], d.offset)
			binary.LittleEndian.PutUint16(b[2:], d.length)
			c.Out.SetData(at+2, b[:])
			c.Publish()
		})
	}
}

// TestIndexFlips changes the write index all the time while the host reads: it
// must end in a fault or in packets, and in nothing worse.
func TestIndexFlips(t *testing.T) {
	e := newEcho(1)
	g, offers := newGuest(t, newest, e)
	for range 20 {
		c, err := g.Open(offers[0], 3, 0)
		check(t, err)
		for c.Append(vmbustest.Packet{Type: 6, Payload: make([]byte, 40)}) {
		}
		var flip sync.WaitGroup
		flip.Go(func() {
			for i := range uint32(3000) {
				c.Out.Header.Store32(vmbustest.WriteIndex, i*2654435761>>19)
				if i%64 == 0 {
					c.Kick()
				}
			}
		})
		flip.Wait()
		check(t, c.Close())
	}
	c, err := g.Open(offers[0], 3, 0)
	check(t, err)
	echoes(t, c, 10)
}

// TestPoisonedPages closes channels in the middle of traffic, a new contact
// included, and checks that no byte is written after the guest got its pages
// back.
func TestPoisonedPages(t *testing.T) {
	e := newEcho(1)
	g, offers := newGuest(t, newest, e)
	for round := range 30 {
		c, err := g.Open(offers[0], 3, uint32(round)%4)
		check(t, err)
		for c.Append(vmbustest.Packet{Type: 6, Payload: make([]byte, 40)}) {
		}
		c.Publish()
		if round%3 == 2 {
			check(t, g.Connect(newest))
			if offers, err = g.RequestOffers(); err != nil {
				t.Fatal(err)
			}
		} else {
			check(t, c.Close())
		}
		poison := bytes.Repeat([]byte{0x6b}, vmbustest.Page)
		c.In.SetData(0, poison)
		c.In.Header.CopyOut(0, poison)
		c.Out.Header.CopyOut(0, poison)
		c.Kick()
		echo2, err := g.Open(offers[0], 3, 0)
		check(t, err)
		echoes(t, echo2, 5)
		check(t, echo2.Close())
		got := make([]byte, vmbustest.Page)
		for _, v := range []interface{ CopyIn(uint64, []byte) }{c.In.Header, c.Out.Header} {
			v.CopyIn(0, got)
			if !bytes.Equal(got, poison) {
				t.Fatal("the host wrote into pages that it gave back")
			}
		}
	}
}

// TestUnreadMessages posts requests whose answers the guest does not take: the
// host refuses more, and delivers all when it does.
func TestUnreadMessages(t *testing.T) {
	g, offers := newGuest(t, newest, newEcho(1))
	relid := offers[0].Relid
	posted := uint32(0)
	for ; posted < 5000; posted++ {
		if status := g.Post(vmbustest.Message(11, relid, 70000+posted)); status == 19 {
			break
		} else if status != 0 {
			t.Fatal("status", status)
		}
	}
	if posted == 5000 {
		t.Fatal("the host queues without limit")
	}
	for i := range posted {
		if got := answer(t, g, 12, 8); got != 70000+i {
			t.Fatalf("answer %d is for %d", i, got)
		}
	}
}

// TestSynICPages sets pages that are not RAM, and takes them away.
func TestSynICPages(t *testing.T) {
	g, offers := newGuest(t, newest, newEcho(1))
	before := g.Bus.Counters().Faults
	g.Bus.WriteSynIC(1, 1, 1<<50|1, 64<<20|1)
	g.Bus.WriteSynIC(99, 1, 1, 1)
	if got := g.Bus.Counters().Faults; got != before+2 {
		t.Errorf("%d faults, want 2", got-before)
	}
	c, err := g.Open(offers[0], 3, 1)
	check(t, err)
	check(t, c.Send(vmbustest.Packet{Type: 6}))
	await(t, "an answer", func() bool { return c.Mask(false) })
	g.EnableSynIC(1)
	echoesAfter(t, c)
	// Messages wait until the page is back.
	g.DisableSynIC(0)
	g.Post(vmbustest.Message(11, c.Offer.Relid, 4711))
	if g.Take(0) != nil {
		t.Error("a message came to a SynIC that is off")
	}
	g.EnableSynIC(0)
	if answer(t, g, 12, 8) != 4711 {
		t.Error("the message was lost")
	}
}

// echoesAfter takes what was pending, then echoes.
func echoesAfter(t *testing.T, c *vmbustest.Channel) {
	t.Helper()
	_, ok, err := c.Take()
	check(t, err)
	if !ok {
		t.Error("no packet")
	}
	c.Release()
	echoes(t, c, 10)
}

var _ vmbus.Host = (*vmbustest.Hypervisor)(nil)
