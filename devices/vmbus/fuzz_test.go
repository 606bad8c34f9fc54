// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"encoding/binary"
	"testing"

	"github.com/govmm/govmm/internal/guestmem"
)

// fuzzRAM is 1 MiB, in which the fuzzers' guests live.
const fuzzRAM = 1 << 20

func newRAM(t testing.TB) *guestmem.Memory {
	t.Helper()
	mem, err := guestmem.New(guestmem.Range{Size: fuzzRAM})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mem.Close(); err != nil {
			t.Error(err)
		}
	})
	return mem
}

// hostless is a Host without interrupts.
type hostless struct{ injected int }

func (h *hostless) Inject(uint32)                { h.injected++ }
func (h *hostless) Connect(uint32, int) error    { return nil }
func (h *hostless) Disconnect(uint32, int) error { return nil }
func (h *hostless) AckFD() int                   { return -1 }

// checker is a device that checks how the bus treats it.
type checker struct {
	t    *testing.T
	open map[*Channel]bool
}

func (c *checker) Offer() Offer { return Offer{Class: GUID{1}, Instance: GUID{2}} }

func (c *checker) Open(ch *Channel) error {
	if c.open[ch] {
		c.t.Fatal("opened twice")
	}
	for other := range c.open {
		if other.Index() == ch.Index() {
			c.t.Fatal("two channels of an index are open")
		}
	}
	c.open[ch] = true
	if ch.Index() == 0 {
		// Whatever comes of it: the channel is not open yet in the bus's eyes.
		ch.ReserveSubchannels(1)
	}
	return nil
}

func (c *checker) Close(ch *Channel) {
	if !c.open[ch] {
		c.t.Fatal("closed, but not open")
	}
	delete(c.open, ch)
	if ch.Index() == 0 && len(c.open) > 0 {
		c.t.Fatal("a primary channel closed before its sub-channels")
	}
}

func (c *checker) Revoke(ch *Channel, gpadl uint32) {
	if !c.open[ch] {
		c.t.Fatal("a GPADL of a closed channel was revoked")
	}
	if _, ok := ch.GPADL(gpadl); ok {
		c.t.Fatal("a revoked GPADL is still there")
	}
}

// FuzzMessages posts any messages: each byte string is a sequence of a length
// byte and a message. The device must see each channel opened and closed in
// order, and the bus keep its bounds.
func FuzzMessages(f *testing.F) {
	seq := func(msgs ...[]byte) (b []byte) {
		for _, m := range msgs {
			b = append(append(b, byte(len(m))), m...)
		}
		return b
	}
	contact := make([]byte, initiateContactSize)
	contact[0], contact[8], contact[10], contact[16] = typeInitiateContact, 3, 5, SINT
	header := append(words(typeGPADLHeader, 1, 9, 1<<16|8+8*4, 4*PageSize, 0), make([]byte, 32)...)
	for i := range 4 {
		header[28+8*i] = byte(i + 1)
	}
	open := append(words(typeOpen, 1, 1, 9, 0, 2), make([]byte, 120)...)
	subHeader := append([]byte(nil), header...)
	subHeader[8], subHeader[12] = 2, 10
	subOpen := append([]byte(nil), open...)
	subOpen[8], subOpen[16] = 2, 10
	begin := seq(contact, newMessage(typeRequestOffers, 8), header, open)
	f.Add(begin)
	f.Add(append(begin, seq(words(typeModifyChannel, 1, 0), words(typeClose, 1), words(typeGPADLTeardown, 1, 9))...))
	f.Add(append(begin, seq([]byte{0xff}, subHeader, subOpen, words(typeClose, 1), words(typeRelidReleased, 2))...))
	f.Add(append(begin, seq(words(typeGPADLTeardown, 1, 9), contact, newMessage(typeUnload, 8))...))
	f.Fuzz(func(t *testing.T, data []byte) {
		mem := newRAM(t)
		dev := &checker{t: t, open: map[*Channel]bool{}}
		b := New(Config{Memory: mem, VPs: 2, Host: &hostless{}})
		if err := b.Add(dev); err != nil {
			t.Fatal(err)
		}
		for len(data) > 0 {
			n := min(int(data[0]), len(data)-1, maxPayload)
			b.handleMessage(append([]byte(nil), data[1:1+n]...))
			if data[0] == 0xff || n == 1 { // what the device does by itself
				for ch := range dev.open {
					if ch.Index() == 0 {
						ch.ReserveSubchannels(2)
						ch.OfferSubchannels()
					}
				}
			}
			data = data[1+n:]
		}
		checkBounds(t, b.proto)
		b.Stop()
		if len(dev.open) > 0 {
			t.Fatal("a channel outlived the bus")
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// checkBounds checks what must always be so.
func checkBounds(t *testing.T, p *protocol) {
	pages := 0
	for handle, g := range p.gpadls {
		pages += g.pages
		if len(g.list.pages) > g.pages {
			t.Fatalf("GPADL %d has %d pages of %d", handle, len(g.list.pages), g.pages)
		}
		for _, gpa := range g.list.pages {
			if gpa%PageSize != 0 || !p.mem.Contains(gpa, PageSize) {
				t.Fatalf("GPADL %d has the page %#x", handle, gpa)
			}
		}
	}
	if pages != p.pages || pages > maxPages || len(p.gpadls) > maxGPADLs {
		t.Fatalf("%d pages in %d GPADLs, counted %d", pages, len(p.gpadls), p.pages)
	}
	for relid, c := range p.channels {
		if c.phase == phaseOpen && p.gpadls[c.ring] == nil {
			t.Fatalf("channel %d is open on pages that were given back", relid)
		}
	}
}

// ringRAM is where the fuzzer's ring lies: a header page and two data pages, the
// second of which comes first in memory.
var ringRAM = []uint64{0x4000, 0x6000, 0x5000}

// FuzzInRing reads whatever the guest has put into the ring, at any indices.
func FuzzInRing(f *testing.F) {
	good := binary.LittleEndian.AppendUint64(nil, 9|4<<16|6<<32) // GPA-direct, payload at 32, 48 bytes
	good = append(good, make([]byte, 56)...)
	f.Add(uint32(0), uint32(56), good)
	f.Add(uint32(2*PageSize-16), uint32(40), good)
	f.Add(uint32(8), uint32(0), good)
	f.Add(uint32(0), uint32(3), []byte{6})
	f.Fuzz(func(t *testing.T, read, write uint32, data []byte) {
		mem := newRAM(t)
		b := New(Config{Memory: mem, VPs: 1, Host: &hostless{}})
		m, err := newRingMemory(&GPADL{mem, ringRAM}, 0, 3)
		if err != nil {
			t.Fatal(err)
		}
		if m.good(read) {
			m.copyOut(read, data[:min(len(data), int(m.size))])
		}
		m.header.Store32(ringReadIndex, read)
		m.header.Store32(ringWriteIndex, write)
		ch := &Channel{bus: b, port: &port{relid: 1}}
		if ch.in.open(ch, m) != nil {
			return
		}
		consumed := uint32(0)
		ranges := make([]guestmem.Range, 0, 40)
		for {
			p, err := ch.in.Next()
			if p == nil || err != nil {
				break
			}
			n := uint32(descriptorSize + len(p.Header) + len(p.Payload) + trailerSize)
			if consumed += n; consumed > m.size {
				t.Fatalf("%d bytes of packets in a ring of %d", consumed, m.size)
			}
			if _, ok := p.GPARanges(ranges); ok && p.Type != PacketGPADirect {
				t.Fatal("ranges of another type of packet")
			}
		}
		ch.in.Arm()
		ch.in.Publish()
		if got := m.header.Load32(ringReadIndex); !m.good(got) {
			t.Fatalf("the read index is %#x", got)
		}
	})
}
