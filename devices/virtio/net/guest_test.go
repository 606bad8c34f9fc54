// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/porttest"
	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/devices/virtio/virtiotest"
	"github.com/govmm/govmm/internal/guestmem"
)

type bufferPiece = virtiotest.Buffer

// layout splits a buffer of size bytes at gpa into the pieces of a chain.
type layout func(gpa uint64, size int) []virtiotest.Buffer

// cut is a layout with pieces of the given sizes and the rest, with gap bytes
// between one and the next. An empty size makes an empty descriptor.
func cut(gap uint64, sizes ...int) layout {
	return func(gpa uint64, size int) (bufs []virtiotest.Buffer) {
		for _, n := range sizes {
			n = min(n, size)
			bufs = append(bufs, virtiotest.Buffer{GPA: gpa, Len: uint32(n)})
			gpa, size = gpa+uint64(n)+gap, size-n
		}
		if size > 0 || len(sizes) == 0 {
			bufs = append(bufs, virtiotest.Buffer{GPA: gpa, Len: uint32(size)})
		}
		return bufs
	}
}

// Layouts that drivers use, and that they may use.
var layouts = map[string]layout{
	"one descriptor":            cut(0),
	"header apart":              cut(4096, netio.HeaderLen),
	"header joined":             cut(0, netio.HeaderLen),
	"header over descriptors":   cut(64, 7, 0, 20),
	"num_buffers over two":      cut(64, 11),
	"header byte by byte":       cut(2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
	"pages":                     cut(32, 12, 4084, 4096, 4096),
	"empty descriptors between": cut(16, 0, 12, 0, 0, 100, 0),
}

// slotGap is more than a layout adds to a buffer.
const slotGap = 64 << 10

// guest is the driver of one queue pair: a porttest.Guest.
type guest struct {
	t        testing.TB
	mem      *guestmem.Memory
	layout   layout
	indirect bool
	dirs     [2]guestDir
	bufSize  int
}

// guestDir is a ring with a buffer for each of its entries.
type guestDir struct {
	ring *virtiotest.Ring
	irq  *virtiotest.Interrupt
	kick virtiotest.Kick
	base uint64
	size uint64 // bytes from one buffer to the next
	free []uint64
	len  []int // of what is sent, by buffer
	want bool  // interrupts
}

// guestConfig sets a guest up.
type guestConfig struct {
	features  uint64
	slots     int // buffers in each ring
	ring      int // entries; 0: as many as the layout needs
	bufSize   int // of receive buffers
	frameSize int // largest that is sent
	layout    layout
	indirect  bool
	border    uint64 // where two regions of RAM meet; 0: there is one
}

// newGuest makes a guest whose rings and buffers lie in mem from base on, and
// returns the end.
func newGuest(t testing.TB, mem *guestmem.Memory, base uint64, c guestConfig) (*guest, uint64) {
	t.Helper()
	g := &guest{t: t, mem: mem, layout: c.layout, indirect: c.indirect, bufSize: c.bufSize}
	entries := c.ring
	if entries == 0 {
		entries = c.slots
		for !c.indirect && entries < c.slots*len(c.layout(0, 1<<20)) {
			entries *= 2
		}
	}
	for d, size := range [2]int{netio.RX: c.bufSize, netio.TX: c.frameSize} {
		dir := &g.dirs[d]
		var err error
		if dir.ring, err = virtiotest.NewRing(mem, base, entries, c.features); err != nil {
			t.Fatal(err)
		}
		base += virtiotest.RingBytes(entries)
		dir.irq, dir.want = virtiotest.NewInterrupt(), true
		if dir.kick, err = virtiotest.NewKick(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := dir.kick.Close(); err != nil {
				t.Error(err)
			}
		})
		dir.base, dir.size = base, (uint64(size)+slotGap+0xffff)&^0xffff
		base += dir.size * uint64(c.slots)
		dir.len = make([]int, c.slots)
		for i := range c.slots {
			dir.free = append(dir.free, uint64(c.slots-1-i))
		}
	}
	return g, base
}

// guestBytes is how much memory newGuest takes at most.
func guestBytes(c guestConfig) uint64 {
	slots := uint64(c.slots)
	return 2*virtiotest.RingBytes(max(c.slots*16, c.ring)) + slots*(uint64(c.bufSize+c.frameSize)+4*slotGap)
}

func (g *guest) config(d netio.Dir) virtio.QueueConfig {
	return g.dirs[d].ring.Config(g.dirs[d].irq, g.dirs[d].kick.FD)
}

// add puts a buffer of size bytes into a ring; it is not published.
func (g *guest) add(d netio.Dir, slot uint64, size int) bool {
	dir := &g.dirs[d]
	bufs := g.layout(dir.base+slot*dir.size, size)
	for i := range bufs {
		bufs[i].Write = d == netio.RX
	}
	if g.indirect {
		return dir.ring.AddIndirect(slot, bufs...)
	}
	return dir.ring.Add(slot, bufs...)
}

// takeSlot returns a free buffer.
func (dir *guestDir) takeSlot() (slot uint64, ok bool) {
	if len(dir.free) == 0 {
		return 0, false
	}
	slot = dir.free[len(dir.free)-1]
	dir.free = dir.free[:len(dir.free)-1]
	return slot, true
}

// publish shows the device what was added, and asks for the interrupt of the
// next chain that comes back.
func (dir *guestDir) publish() {
	if dir.want {
		dir.ring.EnableInterrupts()
	}
	dir.ring.Publish()
}

// copy moves p to or from the buffer in slot, which the layout spreads.
func (g *guest) copy(d netio.Dir, slot uint64, size int, p []byte, move func(uint64, []byte) error) {
	g.t.Helper()
	for _, b := range g.layout(g.dirs[d].base+slot*g.dirs[d].size, size) {
		n := min(int(b.Len), len(p))
		if err := move(b.GPA, p[:n]); err != nil {
			g.t.Fatal(err)
		}
		p = p[n:]
	}
}

// Post implements porttest.Guest.
func (g *guest) Post(n int) (posted int) {
	dir := &g.dirs[netio.RX]
	for ; posted < n; posted++ {
		slot, ok := dir.takeSlot()
		if !ok {
			break
		}
		if !g.add(netio.RX, slot, g.bufSize) {
			dir.free = append(dir.free, slot)
			break
		}
	}
	dir.publish()
	return posted
}

// take takes one chain back.
func (g *guest) take(d netio.Dir) (slot uint64, n int, ok bool) {
	g.t.Helper()
	dir := &g.dirs[d]
	slot, written, ok, err := dir.ring.Take()
	if err != nil {
		g.t.Fatal(err)
	}
	if ok {
		dir.free = append(dir.free, slot)
	}
	return slot, int(written), ok
}

// Recv implements porttest.Guest.
func (g *guest) Recv() (frame []byte, ok bool) {
	g.t.Helper()
	for left := 1; left > 0; left-- {
		slot, n, ok := g.take(netio.RX)
		if !ok {
			if frame != nil {
				g.t.Fatalf("%d buffers of a merged frame are missing", left)
			}
			return nil, false
		}
		piece := make([]byte, n)
		g.copy(netio.RX, slot, g.bufSize, piece, g.mem.ReadAt)
		if frame == nil {
			if n < netio.HeaderLen {
				g.t.Fatalf("received %d bytes, less than a header", n)
			}
			left = int(binary.LittleEndian.Uint16(piece[numBuffersOff:]))
			if left < 1 || left > 64 {
				g.t.Fatalf("num_buffers is %d", left)
			}
		}
		frame = append(frame, piece...)
	}
	return frame, true
}

// Send implements porttest.Guest.
func (g *guest) Send(frame []byte) bool {
	g.t.Helper()
	dir := &g.dirs[netio.TX]
	slot, ok := dir.takeSlot()
	if !ok {
		return false
	}
	if !g.add(netio.TX, slot, len(frame)) {
		dir.free = append(dir.free, slot)
		return false
	}
	g.copy(netio.TX, slot, len(frame), frame, g.mem.WriteAt)
	dir.publish()
	return true
}

// SendEmpty implements porttest.Guest.
func (g *guest) SendEmpty() bool { return g.Send(make([]byte, netio.HeaderLen)) }

// Reap implements porttest.Guest.
func (g *guest) Reap() (n int) {
	for {
		_, written, ok := g.take(netio.TX)
		if !ok {
			return n
		}
		if written != 0 {
			g.t.Fatalf("the device wrote %d bytes to a frame to send", written)
		}
		n++
	}
}

// Kick implements porttest.Guest.
func (g *guest) Kick(d netio.Dir) {
	if g.dirs[d].ring.KickNeeded() {
		if err := g.dirs[d].kick.Send(); err != nil {
			g.t.Error(err)
		}
	}
}

// SetInterrupts implements porttest.Guest.
func (g *guest) SetInterrupts(d netio.Dir, on bool) {
	g.dirs[d].want = on
	if on {
		g.dirs[d].ring.EnableInterrupts()
	} else {
		g.dirs[d].ring.DisableInterrupts()
	}
}

// Interrupts implements porttest.Guest.
func (g *guest) Interrupts(d netio.Dir) int { return int(g.dirs[d].irq.Count()) }

// Break implements porttest.Guest.
func (g *guest) Break(d netio.Dir) { g.dirs[d].ring.Break() }

var _ porttest.Guest = (*guest)(nil)

// newMemory makes RAM of size bytes from 0 on. If border is not 0, two regions
// meet there.
func newMemory(t testing.TB, size, border uint64) *guestmem.Memory {
	t.Helper()
	size = (size + 0xffff) &^ 0xffff
	ranges := []guestmem.Range{{GPA: 0, Size: size}}
	if border != 0 {
		ranges = []guestmem.Range{{GPA: 0, Size: border}, {GPA: border, Size: size - border}}
	}
	mem, err := guestmem.New(ranges...)
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

// newPair makes the device's side of a guest's queue pair.
func newPair(t testing.TB, g *guest, features uint64) *pair {
	t.Helper()
	rx, err1 := virtio.NewQueue(g.mem, g.config(netio.RX), features, "virtio-net test rx0")
	tx, err2 := virtio.NewQueue(g.mem, g.config(netio.TX), features, "virtio-net test tx0")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	p := &pair{}
	p.attach(rx, tx, g.dirs[netio.RX].kick.FD, g.dirs[netio.TX].kick.FD)
	p.setReceive(features, receiveWindow(features, offloadsOf(features), 1500))
	return p
}
