// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/loop"
	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/devices/virtio/virtiotest"
	"github.com/govmm/govmm/internal/guestmem"
)

// stuck is how long a test waits for what must happen before it says that it
// doesn't. It is not a measure of speed.
const stuck = 20 * time.Second

var testMAC = MAC{0x02, 0, 0, 0, 0, 0x01}

// rig is a device on a loop backend with a driver: what one queue pair sends
// comes back on the same pair.
type rig struct {
	t        testing.TB
	dev      *Device
	loop     *loop.Loop
	mem      *guestmem.Memory
	guest    guestConfig
	features uint64 // that the driver accepted
	pairs    []*guest
	control  *controlDriver
	config   *virtiotest.Interrupt
	failed   chan error // calls of Driver.Fail
}

// newRig makes a device that no driver has started.
func newRig(t testing.TB, cfg Config, gc guestConfig) *rig {
	t.Helper()
	queues := max(cfg.Queues, 1)
	l, err := loop.New(queues)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg.Name, cfg.MAC, cfg.Backend = "net0", testMAC, l
	if gc.ring != 0 {
		cfg.RingSize = gc.ring
	}
	dev, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if gc.layout == nil {
		gc.layout = layouts["one descriptor"]
	}
	size := uint64(queues)*guestBytes(gc) + 8<<20
	return &rig{t: t, dev: dev, loop: l, mem: newMemory(t, size, gc.border), guest: gc}
}

// smallGuest has rings of 64 entries and buffers for ordinary frames.
var smallGuest = guestConfig{slots: 64, ring: 64, bufSize: 2048, frameSize: 2048}

// driver lays fresh rings out and returns what a transport would hand to Start.
func (r *rig) driver(features uint64) virtio.Driver {
	r.t.Helper()
	r.features = features
	r.pairs, r.config, r.failed = nil, virtiotest.NewInterrupt(), make(chan error, 8)
	failed := r.failed
	d := virtio.Driver{
		Features: features, Memory: r.mem, ConfigChanged: r.config,
		Queues: make([]virtio.QueueConfig, len(r.dev.QueueSizes())),
		Fail:   func(err error) { failed <- err },
	}
	for i := range d.Queues {
		d.Queues[i].Interrupt, d.Queues[i].KickFD = virtiotest.NewInterrupt(), -1
	}
	gc, base := r.guest, uint64(0)
	gc.features = features
	pairs := 1
	if features&FeatureMQ != 0 {
		pairs = r.dev.cfg.Queues
	}
	for i := range pairs {
		var g *guest
		g, base = newGuest(r.t, r.mem, base, gc)
		d.Queues[2*i], d.Queues[2*i+1] = g.config(netio.RX), g.config(netio.TX)
		r.pairs = append(r.pairs, g)
	}
	r.control = nil
	if features&FeatureCtrlVQ != 0 {
		r.control = newControlDriver(r.t, r.mem, base, features)
		d.Queues[2*pairs] = r.control.ring.Config(r.control.irq, r.control.kick.FD)
	}
	return d
}

// start starts the device with a fresh driver.
func (r *rig) start(features uint64) {
	r.t.Helper()
	r.startDriver(r.driver(features))
}

func (r *rig) startDriver(d virtio.Driver) {
	r.t.Helper()
	if err := r.dev.Start(d); err != nil {
		r.t.Fatal(err)
	}
	// Before what the driver has made is cleaned up.
	r.t.Cleanup(r.dev.Stop)
}

// await waits for cond.
func (r *rig) await(what string, cond func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(stuck); !cond(); {
		if time.Now().After(deadline) {
			r.t.Fatalf("stuck waiting for %s; counters %+v", what, r.dev.Counters())
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// echo sends frame on pair i and checks that it comes back.
func (r *rig) echo(i int, frame []byte) {
	r.t.Helper()
	g := r.pairs[i]
	g.Post(1 << 20)
	g.Kick(netio.RX)
	if !g.Send(frame) {
		r.t.Fatal("the ring is full")
	}
	g.Kick(netio.TX)
	var got []byte
	r.await("the frame to come back", func() (ok bool) {
		got, ok = g.Recv()
		return ok
	})
	r.await("the frame's completion", func() bool { return g.Reap() == 1 })
	// num_buffers is the device's; Recv has followed it. Flags, in the first byte,
	// are for drivers with GUEST_CSUM (5.1.6.4.1).
	want := bytes.Clone(frame)
	copy(want[numBuffersOff:], got[numBuffersOff:netio.HeaderLen])
	if r.features&FeatureGuestCsum == 0 {
		want[0] = 0
	}
	if !bytes.Equal(got, want) {
		r.t.Fatalf("sent %d bytes, %d came back changed: header % x, want % x", len(frame), len(got), got[:netio.HeaderLen], want[:netio.HeaderLen])
	}
}

// testFrame makes a frame of size bytes, header included. The header's fields
// are different from each other; num_buffers is 0, as drivers must set it.
func testFrame(size int) []byte {
	f := make([]byte, size)
	for i := range f {
		f[i] = byte(i*7 + size)
	}
	copy(f, []byte{1, 0, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0})
	return f
}

// controlDriver is the driver's side of the control queue.
type controlDriver struct {
	t    testing.TB
	mem  *guestmem.Memory
	ring *virtiotest.Ring
	irq  *virtiotest.Interrupt
	kick virtiotest.Kick
	data uint64
}

func newControlDriver(t testing.TB, mem *guestmem.Memory, base, features uint64) *controlDriver {
	t.Helper()
	ring, err1 := virtiotest.NewRing(mem, base, controlRingSize, features)
	kick, err2 := virtiotest.NewKick()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kick.Close(); err != nil {
			t.Error(err)
		}
	})
	return &controlDriver{t, mem, ring, virtiotest.NewInterrupt(), kick, base + virtiotest.RingBytes(controlRingSize)}
}

// command sends one command as Linux does, header, data and answer in
// descriptors of their own, and returns the answer.
func (c *controlDriver) command(class, command byte, data ...byte) byte {
	c.t.Helper()
	c.write(0, append([]byte{class, command}, data...))
	c.send(
		virtiotest.Buffer{GPA: c.data, Len: 2},
		virtiotest.Buffer{GPA: c.data + 2, Len: uint32(len(data))},
		virtiotest.Buffer{GPA: c.answerAt(), Len: 1, Write: true},
	)
	return c.answer()
}

// answerAt is where command puts the answer.
func (c *controlDriver) answerAt() uint64 { return c.data + 0x8000 }

func (c *controlDriver) write(off uint64, p []byte) {
	c.t.Helper()
	// 0xee is no answer.
	if err := errors.Join(c.mem.WriteAt(c.data+off, p), c.mem.WriteAt(c.answerAt(), []byte{0xee})); err != nil {
		c.t.Fatal(err)
	}
}

func (c *controlDriver) send(bufs ...virtiotest.Buffer) {
	c.t.Helper()
	if !c.ring.Add(0, bufs...) {
		c.t.Fatal("the control queue is full")
	}
	c.ring.EnableInterrupts()
	c.ring.Publish()
	if c.ring.KickNeeded() {
		if err := c.kick.Send(); err != nil {
			c.t.Fatal(err)
		}
	}
}

// answer waits, by interrupt, for the answer to the one command.
func (c *controlDriver) answer() byte {
	c.t.Helper()
	for {
		_, n, ok, err := c.ring.Take()
		if err != nil {
			c.t.Fatal(err)
		}
		if ok {
			if n != 1 {
				c.t.Fatalf("the device wrote %d bytes, want the answer's one", n)
			}
			var b [1]byte
			if err := c.mem.ReadAt(c.answerAt(), b[:]); err != nil {
				c.t.Fatal(err)
			}
			return b[0]
		}
		select {
		case <-c.irq.C:
		case <-time.After(stuck):
			c.t.Fatal("no answer to a command of the control queue")
		}
	}
}

func le16(v uint16) []byte { return binary.LittleEndian.AppendUint16(nil, v) }
func le64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
