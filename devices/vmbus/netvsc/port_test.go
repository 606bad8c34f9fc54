// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"sync"
	"testing"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/porttest"
	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/devices/vmbus/vmbustest"
)

// await waits for what another goroutine is about to make true.
func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !f(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so within 10 s: %s", what)
		}
	}
}

// bare is a device that has a port and nothing else: the test is its pump.
type bare struct {
	mu   sync.Mutex
	port *port
}

func (b *bare) Offer() vmbus.Offer { return vmbus.Offer{Class: classGUID, Instance: vmbus.GUID{1}} }

func (b *bare) Open(ch *vmbus.Channel) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.port = newPort()
	b.port.open(ch)
	return nil
}

func (b *bare) Close(*vmbus.Channel)          {}
func (b *bare) Revoke(*vmbus.Channel, uint32) {}

// portGuest is the driver of a port as porttest wants it: each packet has one
// frame, so that buffers can be posted one by one. To begin with the guest holds
// all buffers.
type portGuest struct {
	*driver
	port   *port
	slots  int
	stride uint64
	next   uint64 // transaction and slot of the next frame to send
	reaped uint64
	frames []parsed
	packet []uint64 // of frames
	wanted bool     // a kick
	counts *[2]int
}

// countingPort attributes interrupts, which are the channel's, to directions.
type countingPort struct {
	*port
	intr *vmbustest.Interrupt
	n    *[2]int
}

func (c countingPort) Notify(d netio.Dir) bool {
	before := c.intr.Count()
	sent := c.port.Notify(d)
	c.n[d] += int(c.intr.Count() - before)
	return sent
}

func newPortGuest(t *testing.T, size, section, window int) *portGuest {
	t.Helper()
	stride := (window + 2*vmbustest.Page) &^ (vmbustest.Page - 1)
	b := &bare{}
	ram := uint64(8<<20 + size*(section+stride))
	d := startDriver(t, b, (ram+65535)&^65535, 128)
	g := &portGuest{driver: d, port: b.port, slots: size, stride: uint64(stride), counts: &[2]int{}}
	d.pages, d.section = (size+1)*section/vmbustest.Page, section
	var err error
	d.recv, err = d.guest.Alloc(d.pages)
	check(t, err)
	handle, err := d.guest.Share(d.offer.Relid, vmbustest.Pages(d.recv, d.pages)...)
	check(t, err)
	d.sendBuf, err = d.guest.Alloc(size * stride / vmbustest.Page)
	check(t, err)
	gp, ok := b.port.ch.GPADL(handle)
	if !ok {
		t.Fatal("no GPADL")
	}
	r, err := newReceiveBuffer(b.port.ch.Memory(), handle, gp, section)
	check(t, err)
	b.port.recv.attach(r, 0, size, b.port.out.Size())
	b.port.recv.framesMax = 1
	b.port.start(&nvspState{}, &rndisState{ready: true, filter: 13}, window)
	batch := netio.NewRxBatch(netio.MaxBatch)
	for len(b.port.recv.free) > 0 {
		check(t, b.port.RxReserve(batch, 1<<30))
		for {
			if _, _, ok := batch.Space(); !ok {
				break
			}
			batch.Accept(netio.HeaderLen + 60)
		}
		b.port.RxCommit(batch)
		b.port.Notify(netio.RX)
	}
	for range size {
		if _, ok := g.Recv(); !ok {
			t.Fatal("the guest did not get all buffers")
		}
	}
	return g
}

// take takes what there is in the ring from the host.
func (g *portGuest) take() {
	g.t.Helper()
	g.ch.Event() // the interrupt is seen
	for {
		p, ok, err := g.ch.Take()
		check(g.t, err)
		if !ok {
			g.ch.Release()
			return
		}
		if p.Type == 11 {
			g.done = append(g.done, p.Transaction)
			continue
		}
		for _, f := range g.driver.frames(p) {
			g.frames = append(g.frames, f)
			g.packet = append(g.packet, p.Transaction)
		}
	}
}

func (g *portGuest) Post(n int) (posted int) {
	for ; posted < n && len(g.held) > 0; posted++ {
		if !g.ch.Append(vmbustest.Packet{Type: 11, Transaction: g.held[0], Payload: u32s(108, 1)}) {
			break
		}
		g.held = g.held[1:]
	}
	g.show()
	return posted
}

// show makes what was appended visible; only Kick notifies.
func (g *portGuest) show() { g.wanted = g.ch.Show() || g.wanted }

func (g *portGuest) Recv() (frame []byte, ok bool) {
	g.take()
	if len(g.frames) == 0 {
		return nil, false
	}
	f := g.frames[0]
	g.held = append(g.held, g.packet[0])
	g.frames, g.packet = g.frames[1:], g.packet[1:]
	return append(make([]byte, netio.HeaderLen), f.frame...), true
}

func (g *portGuest) Send(frame []byte) bool {
	f, ppi := fromVirtio(frame)
	return g.sendMessage(packetMessageOf(f, ppi...))
}

func (g *portGuest) sendMessage(m []byte) bool {
	if g.next-g.reaped >= uint64(g.slots) {
		return false
	}
	at := g.sendBuf + g.next%uint64(g.slots)*g.stride
	check(g.t, g.guest.Mem.WriteAt(at, m))
	ok := g.ch.Append(vmbustest.Packet{
		Type: 9, Flags: 1, Transaction: g.next, Header: gpa(at, len(m)),
		Payload: u32s(107, 0, noSection, 0),
	})
	if ok {
		g.next++
		g.show()
	}
	return ok
}

func (g *portGuest) SendEmpty() bool { return g.sendMessage(packetMessageOf(nil)) }

func (g *portGuest) Reap() int {
	g.take()
	n := len(g.done)
	for _, transaction := range g.done {
		if transaction != g.reaped {
			g.t.Errorf("transaction %d was completed, %d was due", transaction, g.reaped)
		}
		g.reaped++
	}
	g.done = nil
	return n
}

func (g *portGuest) Kick(netio.Dir) {
	if g.wanted {
		g.wanted = false
		g.ch.Kick()
	}
}

func (g *portGuest) SetInterrupts(_ netio.Dir, on bool) { g.ch.Mask(!on) }

func (g *portGuest) Interrupts(d netio.Dir) int { return g.counts[d] }

func (g *portGuest) Break(d netio.Dir) {
	if d == netio.RX {
		g.ch.Append(vmbustest.Packet{Type: 11, Transaction: 1 << 40, Payload: u32s(108, 1)})
	} else {
		g.ch.Append(vmbustest.Packet{Type: 9, Flags: 1, Header: gpa(g.page, 8), Payload: u32s(107, 0, 0, 99)})
	}
	g.show()
}

// TestPort runs the contract of netio.Port.
func TestPort(t *testing.T) {
	porttest.Run(t, porttest.Traits{Coalesced: true, OneInterrupt: true}, func(t *testing.T, c porttest.Config) porttest.Harness {
		section := (c.BufSize + headroom + vmbustest.Page - 1) &^ (vmbustest.Page - 1)
		g := newPortGuest(t, c.Size, section, c.Window)
		return porttest.Harness{Port: countingPort{g.port, g.ch.Interrupt(), g.counts}, Guest: g}
	})
}
