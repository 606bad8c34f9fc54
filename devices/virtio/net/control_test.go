// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/devices/virtio/virtiotest"
	"github.com/govmm/govmm/internal/fault"
)

const (
	guestOffloadBits = FeatureGuestCsum | FeatureGuestTSO4 | FeatureGuestTSO6 | FeatureGuestECN | FeatureGuestUSO4 | FeatureGuestUSO6
	allControl       = base | FeatureCtrlVQ | FeatureCtrlRX | FeatureMQ | FeatureCtrlMACAddr | FeatureCtrlGuestOffloads | guestOffloadBits
)

// macs is n addresses, as they lie in a table.
func macs(n int, first byte) (p []byte) {
	for i := range n {
		p = append(p, first, 0, 0, 0, byte(i>>8), byte(i))
	}
	return p
}

func table(n uint32, entries ...byte) []byte {
	return append([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}, entries...)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// TestCommands has the numbers of the specification (5.1.6.5).
func TestCommands(t *testing.T) {
	type state = State
	for _, tt := range []struct {
		name     string
		features uint64 // missing from allControl
		class    byte
		command  byte
		data     []byte
		ok       bool
		check    func(state) bool // nil: as before
	}{
		{"promiscuous off", 0, 0, 0, []byte{0}, true, func(s state) bool { return !s.Mode.Promiscuous }},
		{"promiscuous on", 0, 0, 0, []byte{1}, true, func(s state) bool { return s.Mode.Promiscuous }},
		{"all multicast on", 0, 0, 1, []byte{1}, true, func(s state) bool { return s.Mode.AllMulticast }},
		{"promiscuous without a byte", 0, 0, 0, nil, false, nil},
		{"promiscuous with two", 0, 0, 0, []byte{0, 0}, false, nil},
		{"all unicast, of CTRL_RX_EXTRA", 0, 0, 2, []byte{1}, false, nil},
		{"no broadcast, of CTRL_RX_EXTRA", 0, 0, 5, []byte{1}, false, nil},
		{"promiscuous without CTRL_RX", FeatureCtrlRX, 0, 0, []byte{0}, false, nil},

		{"tables", 0, 1, 0, join(table(1, macs(1, 2)...), table(2, macs(2, 0x33)...)), true, func(s state) bool {
			return reflect.DeepEqual(s.Mode.Unicast, []MAC{{2}}) && reflect.DeepEqual(s.Mode.Multicast, []MAC{{0x33}, {0x33, 5: 1}})
		}},
		{"empty tables", 0, 1, 0, join(table(0), table(0)), true, func(s state) bool { return len(s.Mode.Unicast)+len(s.Mode.Multicast) == 0 }},
		{"64 addresses", 0, 1, 0, join(table(64, macs(64, 2)...), table(0)), true, func(s state) bool {
			return len(s.Mode.Unicast) == 64 && !s.Mode.UnicastOverflow
		}},
		{"65 addresses", 0, 1, 0, join(table(65, macs(65, 2)...), table(1, macs(1, 0x33)...)), true, func(s state) bool {
			return len(s.Mode.Unicast) == 0 && s.Mode.UnicastOverflow && len(s.Mode.Multicast) == 1
		}},
		{"4000 multicast addresses", 0, 1, 0, join(table(0), table(4000, macs(4000, 0x33)...)), true, func(s state) bool {
			return len(s.Mode.Multicast) == 0 && s.Mode.MulticastOverflow
		}},
		{"no tables", 0, 1, 0, nil, false, nil},
		{"one table", 0, 1, 0, table(0), false, nil},
		{"table cut short", 0, 1, 0, join(table(1, macs(1, 2)...), table(2, macs(1, 0x33)...)), false, nil},
		{"table with more than its size", 0, 1, 0, join(table(0), table(1, macs(2, 0x33)...)), false, nil},
		{"table of 2^32-1", 0, 1, 0, join(table(0xffffffff), table(0)), false, nil},
		// 6 * 715827883 is 2 modulo 2^32.
		{"table whose size wraps", 0, 1, 0, join(table(715827883, 0, 0), table(0)), false, nil},
		{"tables without CTRL_RX", FeatureCtrlRX, 1, 0, join(table(0), table(0)), false, nil},

		{"address", 0, 1, 1, []byte{0x0a, 1, 2, 3, 4, 5}, true, func(s state) bool { return s.Mode.MAC == MAC{0x0a, 1, 2, 3, 4, 5} }},
		{"multicast address", 0, 1, 1, []byte{0x0b, 1, 2, 3, 4, 5}, false, nil},
		{"address of zeros", 0, 1, 1, make([]byte, 6), false, nil},
		{"address of 5 bytes", 0, 1, 1, make([]byte, 5), false, nil},
		{"address without CTRL_MAC_ADDR", FeatureCtrlMACAddr, 1, 1, []byte{0x0a, 1, 2, 3, 4, 5}, false, nil},

		{"2 pairs", 0, 4, 0, le16(2), true, func(s state) bool { return s.Pairs == 2 }},
		{"1 pair", 0, 4, 0, le16(1), true, func(s state) bool { return s.Pairs == 1 }},
		{"no pairs", 0, 4, 0, le16(0), false, nil},
		{"3 pairs of 2", 0, 4, 0, le16(3), false, nil},
		{"65535 pairs", 0, 4, 0, le16(0xffff), false, nil},
		{"pairs in a byte", 0, 4, 0, []byte{1}, false, nil},
		{"pairs in 3 bytes", 0, 4, 0, []byte{1, 0, 0}, false, nil},
		{"pairs without MQ", FeatureMQ, 4, 0, le16(1), false, nil},
		{"RSS", 0, 4, 1, make([]byte, 16), false, nil},

		{"no offloads", 0, 5, 0, le64(0), true, func(s state) bool { return s.Offload == 0 }},
		{"checksum", 0, 5, 0, le64(1 << 1), true, func(s state) bool { return s.Offload == 1 }},
		{"TSO4", 0, 5, 0, le64(1<<1 | 1<<7), true, func(s state) bool { return s.Offload == 3 }},
		{"all", 0, 5, 0, le64(guestOffloadBits), true, func(s state) bool { return s.Offload == 0x6f }},
		{"TSO without checksum", 0, 5, 0, le64(1 << 7), true, func(s state) bool { return s.Offload == 0 }},
		{"UFO, which is not on offer", 0, 5, 0, le64(1<<1 | 1<<10), false, nil},
		{"TSO6, which was not accepted", FeatureGuestTSO6, 5, 0, le64(1<<1 | 1<<8), false, nil},
		{"a bit that is none", 0, 5, 0, le64(1 << 63), false, nil},
		{"offloads in 4 bytes", 0, 5, 0, []byte{0, 0, 0, 0}, false, nil},
		{"offloads without CTRL_GUEST_OFFLOADS", FeatureCtrlGuestOffloads, 5, 0, le64(0), false, nil},

		{"VLAN", 0, 2, 0, le16(1), false, nil},
		{"announce", 0, 3, 0, nil, false, nil},
		{"coalescing", 0, 6, 0, make([]byte, 8), false, nil},
		{"unknown class", 0, 255, 255, nil, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Config{Queues: 2, Offload: true}, guestConfig{slots: 8, ring: 64, bufSize: 65562, frameSize: 2048})
			r.start(allControl &^ tt.features)
			before := r.dev.State()
			want := byte(ctrlErr)
			if tt.ok {
				want = ctrlOK
			}
			if got := r.control.command(tt.class, tt.command, tt.data...); got != want {
				t.Errorf("answer %d, want %d", got, want)
			}
			after := r.dev.State()
			switch {
			case tt.check == nil && !reflect.DeepEqual(after, before):
				t.Errorf("state %+v, was %+v", after, before)
			case tt.check != nil && !tt.check(after):
				t.Errorf("state %+v", after)
			}
			if o, active := r.loop.State(); uint32(o) != after.Offload || active != after.Pairs {
				t.Errorf("backend has offloads %#x and %d queues, state is %+v", o, active, after)
			}
			c := r.dev.Counters()
			if c.ControlCommands+c.ControlErrors != 1 || (c.ControlCommands == 1) != tt.ok {
				t.Errorf("counters %+v", c)
			}
			r.echo(0, testFrame(100))
			if _, err := json.Marshal(after); err != nil {
				t.Error(err)
			}
			// A reset takes it all back.
			r.dev.Stop()
			if s := r.dev.State(); s.Mode.MAC != testMAC || !s.Mode.Promiscuous || s.Mode.AllMulticast || s.Mode.Unicast != nil || s.Mode.MulticastOverflow {
				t.Errorf("state after reset %+v", s)
			}
		})
	}
}

// TestCommandShapes sends one command in all the chains that are allowed, and
// some that are not.
func TestCommandShapes(t *testing.T) {
	type B = bufferPiece
	const r, w = false, true
	read := func(sizes ...uint32) (bufs []B) {
		off := uint64(0)
		for _, n := range sizes {
			bufs = append(bufs, B{GPA: off, Len: n, Write: r})
			off += uint64(n)
		}
		return bufs
	}
	answer := B{GPA: 0x8000, Len: 1, Write: w}
	for _, tt := range []struct {
		name   string
		bufs   []B // with GPAs from the command on
		answer int // -1: a fault
	}{
		{"as Linux", append(read(2, 6), answer), ctrlOK},
		{"in one", append(read(8), answer), ctrlOK},
		{"byte by byte", append(read(1, 1, 1, 1, 1, 1, 1, 1), answer), ctrlOK},
		{"with empty descriptors", append(read(0, 2, 0, 6, 0), B{Write: w}, answer), ctrlOK},
		{"more room for the answer", append(read(8), B{GPA: 0x8000, Len: 100, Write: w}), ctrlOK},
		{"class alone", append(read(1), answer), ctrlErr},
		{"class and command alone", append(read(2), answer), ctrlErr},
		{"nothing to read", []B{answer}, ctrlErr},
		{"one byte too many", append(read(9), answer), ctrlErr},
		{"no room for the answer", read(8), -1},
		{"an empty room for the answer", append(read(8), B{GPA: 0x8000, Write: w}), -1},
		{"nothing at all", read(0), -1},
		{"command not in RAM", []B{{GPA: 1 << 40, Len: 8}, answer}, -1},
		{"address not in RAM", append(read(2), B{GPA: 1 << 40, Len: 6}, answer), -1},
		{"answer not in RAM", append(read(8), B{GPA: 1 << 40, Len: 1, Write: w}), -1},
		{"4 GiB of answer", append(read(8), B{GPA: 0, Len: 0xffffffff, Write: w}), -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rg := newRig(t, Config{}, smallGuest)
			rg.start(base | FeatureCtrlVQ | FeatureCtrlMACAddr)
			c := rg.control
			c.write(0, []byte{1, 1, 0x0a, 9, 8, 7, 6, 5})
			for i := range tt.bufs {
				tt.bufs[i].GPA += c.data
			}
			c.send(tt.bufs...)
			if tt.answer >= 0 {
				if got := c.answer(); got != byte(tt.answer) {
					t.Errorf("answer %d, want %d", got, tt.answer)
				}
				want := testMAC
				if tt.answer == ctrlOK {
					want = MAC{0x0a, 9, 8, 7, 6, 5}
				}
				var got [6]byte
				if rg.dev.ReadConfig(0, got[:]); MAC(got) != want {
					t.Errorf("address %v, want %v", MAC(got), want)
				}
				return
			}
			select {
			case err := <-rg.failed:
				var guest *fault.Guest
				if !errors.As(err, &guest) || !strings.HasSuffix(guest.Device, " control") {
					t.Errorf("error %v, want a guest fault of the control queue", err)
				}
			case <-time.After(stuck):
				t.Fatal("no fault")
			}
			rg.echo(0, testFrame(100)) // traffic goes on
			rg.dev.Stop()
			rg.start(base | FeatureCtrlVQ | FeatureCtrlMACAddr)
			if rg.control.command(1, 1, 2, 3, 4, 5, 6, 7) != ctrlOK {
				t.Error("no answer after a reset")
			}
		})
	}
}

// TestControlQueueIndex: the queue follows the pairs that the driver knows of.
func TestControlQueueIndex(t *testing.T) {
	for _, features := range []uint64{allControl, allControl &^ FeatureMQ} {
		r := newRig(t, Config{Queues: 4, Offload: true}, guestConfig{slots: 8, ring: 64, bufSize: 65562, frameSize: 2048})
		r.start(features)
		if r.control.command(0, 0, 1) != ctrlOK {
			t.Errorf("features %#x: no good answer", features)
		}
	}
}

// TestPairsUnderTraffic changes the number of pairs while all of them carry
// frames.
func TestPairsUnderTraffic(t *testing.T) {
	const pairs = 4
	r := newRig(t, Config{Queues: pairs, Mergeable: true, MTU: 9000}, smallGuest)
	r.start(base | FeatureCtrlVQ | FeatureMQ | FeatureMrgRxbuf | virtio.FeatureEventIdx)
	quit, done := make(chan struct{}), make(chan int)
	for _, g := range r.pairs {
		go func() { done <- traffic(g, quit) }()
	}
	for i := range 60 {
		n := i%pairs + 1
		if r.control.command(4, 0, le16(uint16(n))...) != ctrlOK {
			t.Errorf("%d pairs: an error", n)
		}
		if _, active := r.loop.State(); active != n || r.dev.State().Pairs != n {
			t.Errorf("%d queues are active, want %d", active, n)
		}
	}
	close(quit)
	for range r.pairs {
		<-done
	}
	r.control.command(4, 0, le16(pairs)...)
	// All that was on its way arrives, and each pair works by itself.
	for i, g := range r.pairs {
		r.await("what is on its way", func() bool {
			g.Post(1 << 20)
			g.Kick(netio.RX)
			g.Kick(netio.TX)
			for {
				if _, ok := g.Recv(); !ok {
					break
				}
			}
			g.Reap()
			c := r.dev.Counters().Pairs[i]
			return len(g.dirs[netio.TX].free) == smallGuest.slots && c.RX.Frames == c.TX.Frames
		})
		for {
			if _, ok := g.Recv(); !ok {
				break
			}
		}
		r.echo(i, testFrame(700))
	}
	if c := r.dev.Counters(); c.GuestFaults != 0 || c.BackendErrors != 0 {
		t.Errorf("counters %+v", c)
	}
}

// TestOffloadsUnderTraffic switches what the guest receives.
func TestOffloadsUnderTraffic(t *testing.T) {
	gc := smallGuest
	gc.slots, gc.ring = 60, 128
	r := newRig(t, Config{Mergeable: true, Offload: true}, gc)
	r.start(base | FeatureCtrlVQ | FeatureCtrlGuestOffloads | FeatureMrgRxbuf | guestOffloadBits)
	quit, done := make(chan struct{}), make(chan int)
	go func() { done <- traffic(r.pairs[0], quit) }()
	for i := range 40 {
		bits := []uint64{0, FeatureGuestCsum, FeatureGuestCsum | FeatureGuestTSO4, guestOffloadBits}[i%4]
		if r.control.command(5, 0, le64(bits)...) != ctrlOK {
			t.Errorf("offloads %#x: an error", bits)
		}
		if o, _ := r.loop.State(); o != offloadsOf(bits) {
			t.Errorf("backend set to %#x, want %#x", o, offloadsOf(bits))
		}
	}
	close(quit)
	<-done
	g := r.pairs[0]
	r.await("completion", func() bool {
		g.Post(1 << 20)
		g.Kick(netio.RX)
		for {
			if _, ok := g.Recv(); !ok {
				break
			}
		}
		g.Reap()
		return len(g.dirs[netio.TX].free) == gc.slots
	})
	if c := r.dev.Counters(); c.GuestFaults != 0 || c.BackendErrors != 0 || c.Pairs[0].RX.Errors != 0 {
		t.Errorf("counters %+v", c)
	}
}

// FuzzControl sends the fuzzer's command in a chain that it cuts, without the
// goroutine.
func FuzzControl(f *testing.F) {
	f.Add([]byte{0, 0, 1}, uint8(2), uint8(1), uint64(allControl))
	f.Add(append([]byte{1, 0}, join(table(1, macs(1, 2)...), table(0))...), uint8(7), uint8(2), uint64(allControl))
	f.Add(append([]byte{4, 0}, le16(2)...), uint8(1), uint8(1), uint64(allControl))
	f.Add(append([]byte{5, 0}, le64(guestOffloadBits)...), uint8(3), uint8(0), uint64(allControl))
	r := newRig(f, Config{Queues: 2, Offload: true}, guestConfig{slots: 8, ring: 64, bufSize: 65562, frameSize: 2048})
	f.Fuzz(func(t *testing.T, command []byte, cut, room uint8, features uint64) {
		failed := 0
		d := virtio.Driver{
			Features: features&allControl | base | FeatureCtrlVQ, Memory: r.mem,
			ConfigChanged: virtiotest.NewInterrupt(), Fail: func(error) { failed++ },
		}
		run := &run{driver: d, features: consistent(d.Features)}
		r.dev.run = run
		defer func() { r.dev.run = nil }()
		ring, err := virtiotest.NewRing(r.mem, 0, controlRingSize, d.Features)
		if err != nil {
			t.Fatal(err)
		}
		q, err := virtio.NewQueue(r.mem, ring.Config(virtiotest.NewInterrupt(), -1), d.Features, "control")
		if err != nil {
			t.Fatal(err)
		}
		const data, answerAt = 0x400000, 0x800000 - 1
		command = command[:min(len(command), 1<<16)]
		if err := r.mem.WriteAt(data, command); err != nil {
			t.Fatal(err)
		}
		first := min(int(cut), len(command))
		ring.Add(0,
			bufferPiece{GPA: data, Len: uint32(first)},
			bufferPiece{GPA: data + uint64(first), Len: uint32(len(command) - first)},
			bufferPiece{GPA: answerAt, Len: uint32(room), Write: true})
		ring.Publish()
		c := newControl(r.dev, run, q, -1)
		for c.next() {
		}
		if room == 0 {
			if failed != 1 {
				t.Error("no fault without room for the answer")
			}
			return
		}
		var b [1]byte
		if err := r.mem.ReadAt(answerAt, b[:]); err != nil {
			t.Fatal(err)
		}
		_, n, ok, err := ring.Take()
		if !ok || n != 1 || err != nil || b[0] > 1 {
			t.Errorf("answer %d: %d bytes, %v, %v", b[0], n, ok, err)
		}
		if m := r.dev.State().Mode; len(m.Unicast) > maxFilter || len(m.Multicast) > maxFilter || !m.MAC.valid() {
			t.Errorf("mode %+v", m)
		}
	})
}
