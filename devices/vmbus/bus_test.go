// SPDX-License-Identifier: Apache-2.0

package vmbus_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/devices/vmbus/vmbustest"
)

const newest = 5<<16 | 3

// TestVersions opens a channel and echoes with each version that Linux asks for.
func TestVersions(t *testing.T) {
	for _, v := range []uint32{2<<16 | 4, 3 << 16, 4 << 16, 4<<16 | 1, 5 << 16, 5<<16 | 1, 5<<16 | 2, newest} {
		g, offers := newGuest(t, v, newEcho(1), newEcho(2))
		for _, o := range offers {
			c, err := g.Open(o, 4, 1)
			check(t, err)
			echoes(t, c, 100)
			check(t, c.Close())
		}
	}
	g, _ := newGuest(t, newest, newEcho(1))
	for _, v := range []uint32{0, 1, 2<<16 | 3, 5<<16 | 4, 6 << 16, 0xffffffff} {
		if err := g.Connect(v); err == nil {
			t.Errorf("version %#x was accepted", v)
		}
	}
	check(t, g.Connect(newest))
}

// echoes sends n packets of different sizes and takes the answers, sleeping in
// between as a guest's driver does.
func echoes(t *testing.T, c *vmbustest.Channel, n int) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	sent, got := 0, 0
	for got < n {
		for sent < n && c.Append(vmbustest.Packet{Type: 6, Flags: 1, Transaction: uint64(sent), Payload: payload(sent)}) {
			sent++
		}
		c.Publish()
		for {
			p, ok, err := c.Take()
			check(t, err)
			if !ok {
				break
			}
			want := payload(got)
			if p.Type != 11 || p.Transaction != uint64(got) || !bytes.HasPrefix(p.Payload, want) || len(p.Payload)-len(want) > 7 {
				t.Fatalf("packet %d: %+v", got, p)
			}
			got++
		}
		c.Release()
		// With nothing under way nobody would interrupt: there is room to go on.
		if got < sent && !c.Mask(false) {
			select {
			case <-c.Interrupt().C:
			case <-deadline:
				t.Fatalf("%d of %d packets came back, %d were sent", got, n, sent)
			}
		}
		c.Mask(true)
		c.Event()
	}
}

func payload(i int) []byte { return bytes.Repeat([]byte{byte(i)}, i*7%251) }

func TestEchoThroughSmallRings(t *testing.T) {
	g, offers := newGuest(t, newest, newEcho(1))
	c, err := g.Open(offers[0], 2, 3)
	check(t, err)
	echoes(t, c, 20000)
	check(t, c.Close())
}

// TestOpenClose opens and closes many times; nothing must be left over.
func TestOpenClose(t *testing.T) {
	e := newEcho(1)
	g, offers := newGuest(t, newest, e)
	for i := range 50 {
		c, err := g.Open(offers[0], 3, uint32(i)%4)
		check(t, err)
		echoes(t, c, 20)
		if e.open() != 1 {
			t.Fatal("not one channel is open")
		}
		check(t, c.Close())
		if e.open() != 0 {
			t.Fatal("the device has a channel that is closed")
		}
	}
}

func TestRefusedOpen(t *testing.T) {
	e := newEcho(1)
	g, offers := newGuest(t, newest, e)
	e.refuse = bytes.ErrTooLarge
	if _, err := g.Open(offers[0], 3, 0); err == nil {
		t.Error("the guest opened what the device refused")
	}
	e.refuse = nil
	c, err := g.Open(offers[0], 3, 0)
	check(t, err)
	echoes(t, c, 10)
}

// TestContactAnew connects again in the middle: the channel is closed at once.
func TestContactAnew(t *testing.T) {
	e := newEcho(1)
	g, offers := newGuest(t, newest, e)
	for range 5 {
		c, err := g.Open(offers[0], 3, 2)
		check(t, err)
		check(t, c.Send(vmbustest.Packet{Type: 6, Payload: payload(9)}))
		check(t, g.Connect(4<<16))
		if e.open() != 0 {
			t.Fatal("the channel survived a new contact")
		}
		again, err := g.RequestOffers()
		check(t, err)
		if len(again) != 1 || again[0] != offers[0] {
			t.Fatalf("offers %+v after %+v", again, offers)
		}
	}
}

// TestContactAnewWithSubchannels does so while sub-channels are open: all are
// closed, those first, and are not offered again.
func TestContactAnewWithSubchannels(t *testing.T) {
	e := newEcho(1)
	g, offers := newGuest(t, newest, e)
	for round := range 4 {
		_, err := g.Open(offers[0], 3, 0)
		check(t, err)
		host := e.only(t).ch
		if n := host.ReserveSubchannels(2); n != 2 {
			t.Fatalf("%d sub-channels granted", n)
		}
		host.OfferSubchannels()
		for range 2 {
			o, err := g.AwaitOffer()
			check(t, err)
			if round < 3 {
				_, err = g.Open(o, 3, 1)
				check(t, err)
			}
		}
		switch round {
		case 0:
			check(t, g.Connect(newest))
		case 1:
			g.Post(vmbustest.Message(16))
			_, err := g.Await(17)
			check(t, err)
			check(t, g.Connect(newest))
		case 2:
			g.Bus.Stop() // as a reset does
			for vp := range 4 {
				g.EnableSynIC(vp)
			}
			check(t, g.Connect(newest))
		default:
			return // with channels open and offered
		}
		if e.open() != 0 {
			t.Fatalf("%d channels survived", e.open())
		}
		again, err := g.RequestOffers()
		check(t, err)
		if len(again) != 1 || again[0] != offers[0] {
			t.Fatalf("offers %+v", again)
		}
	}
}

// TestUnload does so with the guest's messages off and on again, as in a panic.
func TestUnload(t *testing.T) {
	e := newEcho(1)
	g, offers := newGuest(t, newest, e)
	_, err := g.Open(offers[0], 3, 2)
	check(t, err)
	if status := g.Post(vmbustest.Message(16)); status != 0 {
		t.Fatal("status", status)
	}
	if e.open() != 0 {
		t.Error("a channel is open after UNLOAD")
	}
	_, err = g.Await(17)
	check(t, err)
	check(t, g.Connect(newest))
}

func TestModifyChannel(t *testing.T) {
	g, offers := newGuest(t, newest, newEcho(1))
	c, err := g.Open(offers[0], 3, 0)
	check(t, err)
	for _, vp := range []uint32{3, 1, 2} {
		if status := g.Post(vmbustest.Message(22, c.Offer.Relid, vp)); status != 0 {
			t.Fatal("status", status)
		}
		m, err := g.Await(24)
		check(t, err)
		if got := binary.LittleEndian.Uint32(m[12:]); got != 0 {
			t.Fatalf("MODIFY_CHANNEL_RESPONSE status %#x", got)
		}
		c.VP = vp
		before := g.Interrupt(int(vp)).Count()
		c.Mask(false)
		check(t, c.Send(vmbustest.Packet{Type: 6}))
		await(t, "an interrupt", func() bool { return g.Interrupt(int(vp)).Count() > before })
		echoesAfter(t, c)
	}
	for _, vp := range []uint32{4, 0x7fffffff} {
		g.Post(vmbustest.Message(22, c.Offer.Relid, vp))
		m, err := g.Await(24)
		check(t, err)
		if binary.LittleEndian.Uint32(m[12:]) == 0 {
			t.Errorf("VP %d was accepted", vp)
		}
	}
}

// TestSubchannels has the device offer sub-channels, and the guest close the
// primary channel: they are rescinded, and fresh ones come.
func TestSubchannels(t *testing.T) {
	e := newEcho(1)
	g, offers := newGuest(t, newest, e)
	for round := range 3 {
		primary, err := g.Open(offers[0], 3, 0)
		check(t, err)
		host := e.only(t).ch
		if n := host.ReserveSubchannels(3); n != 3 {
			t.Fatalf("%d sub-channels granted", n)
		}
		host.OfferSubchannels()
		seen := map[uint32]bool{}
		for i := range 3 {
			o, err := g.AwaitOffer()
			check(t, err)
			if o.SubIndex != i+1 || o.Class != offers[0].Class || o.Instance != offers[0].Instance || seen[o.Relid] || o.Relid == offers[0].Relid {
				t.Fatalf("offer %+v", o)
			}
			seen[o.Relid] = true
			c, err := g.Open(o, 3, uint32(i+1))
			check(t, err)
			echoes(t, c, 30)
			if i != 1 || round == 1 {
				check(t, c.Close())
			}
		}
		check(t, primary.Close())
		if e.open() != 0 {
			t.Error("a sub-channel outlived its primary")
		}
		for range 3 {
			relid, err := g.AwaitRescind()
			check(t, err)
			if !seen[relid] {
				t.Errorf("channel %d was rescinded", relid)
			}
			delete(seen, relid)
		}
		if host.ReserveSubchannels(1) != 0 {
			t.Error("a closed channel got a sub-channel")
		}
	}
}

// TestRevoke shares a buffer, which the device sees at its pages, and takes it
// back.
func TestRevoke(t *testing.T) {
	e := newEcho(1)
	g, offers := newGuest(t, 3<<16, e)
	_, err := g.Open(offers[0], 3, 0)
	check(t, err)
	gpa, err := g.Alloc(100)
	check(t, err)
	pages := vmbustest.Pages(gpa, 100)
	pages[0], pages[99] = pages[99], pages[0]
	handle, err := g.Share(offers[0].Relid, pages...)
	check(t, err)
	host := e.only(t).ch
	buffer, ok := host.GPADL(handle)
	if !ok || buffer.Size() != 100*vmbustest.Page {
		t.Fatalf("GPADL %v, %v", buffer, ok)
	}
	check(t, buffer.WriteAt(vmbustest.Page-1, []byte{1, 2}))
	got := make([]byte, 1)
	check(t, g.Mem.ReadAt(pages[0]+vmbustest.Page-1, got))
	check(t, g.Mem.ReadAt(pages[1], got))
	if got[0] != 2 {
		t.Error("the second page does not follow the first")
	}
	if _, ok := host.GPADL(handle + 1); ok {
		t.Error("a GPADL that was never made")
	}
	check(t, g.Unshare(offers[0].Relid, handle))
	if len(e.revoked) != 1 || e.revoked[0] != handle {
		t.Errorf("revoked %v", e.revoked)
	}
	if _, ok := host.GPADL(handle); ok {
		t.Error("the GPADL is still there")
	}
}

var _ vmbus.Device = (*echo)(nil)
