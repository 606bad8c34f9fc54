// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/loop"
	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/internal/fault"
)

const base = virtio.FeatureVersion1

func TestNewChecksItsConfig(t *testing.T) {
	l, err := loop.New(2)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   string // in the error; empty: none
	}{
		{"defaults", func(*Config) {}, ""},
		{"both queues", func(c *Config) { c.Queues = 2 }, ""},
		{"smallest ring", func(c *Config) { c.RingSize = 64 }, ""},
		{"largest ring", func(c *Config) { c.RingSize = 4096 }, ""},
		{"smallest MTU", func(c *Config) { c.MTU = 68 }, ""},
		{"no backend", func(c *Config) { c.Backend = nil }, "no backend"},
		{"more queues than the backend", func(c *Config) { c.Queues = 3 }, "the backend loop has 2"},
		{"17 queues", func(c *Config) { c.Queues = 17 }, "use 1 to 16"},
		{"negative queues", func(c *Config) { c.Queues = -1 }, "use 1 to 16"},
		{"ring of 32", func(c *Config) { c.RingSize = 32 }, "power of two from 64 to 4096"},
		{"ring of 8192", func(c *Config) { c.RingSize = 8192 }, "power of two from 64 to 4096"},
		{"ring of 1000", func(c *Config) { c.RingSize = 1000 }, "power of two from 64 to 4096"},
		{"largest MTU in a small ring", func(c *Config) { c.RingSize, c.Mergeable, c.MTU = 64, true, 48802 }, ""},
		{"MTU too large for a small ring", func(c *Config) { c.RingSize, c.Mergeable, c.MTU = 64, true, 48803 }, "use 128"},
		{"MTU 67", func(c *Config) { c.MTU = 67 }, "use 68 to 65535"},
		{"MTU 65536", func(c *Config) { c.MTU = 65536 }, "use 68 to 65535"},
		{"no MAC", func(c *Config) { c.MAC = MAC{} }, "unicast"},
		{"multicast MAC", func(c *Config) { c.MAC = MAC{1, 2, 3, 4, 5, 6} }, "MAC address 01:02:03:04:05:06"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{Name: "net7", MAC: testMAC, Backend: l}
			tt.change(&cfg)
			_, err := New(cfg)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "net7") {
				t.Errorf("error %v, want one of net7 that says %q", err, tt.want)
			}
		})
	}
}

// limited is a backend with some offloads only.
type limited struct {
	netio.Backend
	can netio.Offload
	mtu int
}

func (l limited) Offloads() netio.Offload { return l.can }
func (l limited) MTU() int                { return l.mtu }

// TestFeatures has the bits by number, as the specification has them.
func TestFeatures(t *testing.T) {
	l, err := loop.New(4)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// INDIRECT_DESC, EVENT_IDX, VERSION_1; MAC, STATUS, CTRL_VQ, CTRL_RX, CTRL_MAC_ADDR.
	always := []int{28, 29, 32, 5, 16, 17, 18, 23}
	csum := []int{0, 1, 2}
	tso := []int{7, 8, 9, 11, 12, 13}
	uso := []int{54, 55, 56}
	const tsoOffloads = netio.OffloadTSO4 | netio.OffloadTSO6 | netio.OffloadTSOECN
	for _, tt := range []struct {
		name string
		cfg  Config
		can  netio.Offload
		mtu  int
		want [][]int
	}{
		{"nothing", Config{}, 0, 0, nil},
		{"MTU", Config{}, 0, 1500, [][]int{{3}}},
		{"MTU given", Config{MTU: 9000}, 0, 0, [][]int{{3}}},
		{"mergeable", Config{Mergeable: true}, 0, 0, [][]int{{15}}},
		{"queues", Config{Queues: 4}, 0, 0, [][]int{{22}}},
		{"one queue", Config{Queues: 1}, 0, 0, nil},
		{"offloads off", Config{}, netio.OffloadCsum | tsoOffloads, 0, nil},
		{"checksum", Config{Offload: true}, netio.OffloadCsum, 0, [][]int{csum}},
		{"TSO", Config{Offload: true}, netio.OffloadCsum | tsoOffloads, 0, [][]int{csum, tso}},
		{"TSO and USO", Config{Offload: true}, netio.OffloadCsum | tsoOffloads | netio.OffloadUSO4 | netio.OffloadUSO6, 0, [][]int{csum, tso, uso}},
		{"half of USO", Config{Offload: true}, netio.OffloadCsum | netio.OffloadUSO4, 0, [][]int{csum}},
		// A small ring of mergeable buffers may never hold 64 KiB (lateRefill): the
		// guest may send such frames, but is told not to expect them.
		{"TSO in a small ring", Config{Offload: true, Mergeable: true, RingSize: 64}, netio.OffloadCsum | tsoOffloads, 0, [][]int{csum, {11, 12, 13}, {15}}},
		{"TSO in the next larger ring", Config{Offload: true, Mergeable: true, RingSize: 128}, netio.OffloadCsum | tsoOffloads, 0, [][]int{csum, tso, {15}}},
		{"TSO in a small ring of large buffers", Config{Offload: true, RingSize: 64}, netio.OffloadCsum | tsoOffloads, 0, [][]int{csum, tso}},
		{"TSO without checksum", Config{Offload: true}, tsoOffloads, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want uint64
			for _, bits := range append(tt.want, always) {
				for _, bit := range bits {
					want |= 1 << bit
				}
			}
			cfg := tt.cfg
			cfg.Name, cfg.MAC, cfg.Backend = "net0", testMAC, limited{l, tt.can, tt.mtu}
			d, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := d.Features(); got != want {
				t.Errorf("features %#x, want %#x", got, want)
			}
			if got := consistent(d.Features()); got != d.Features() {
				t.Errorf("what is offered is not consistent: %#x of %#x is", got, d.Features())
			}
		})
	}
}

// TestConsistent takes each requirement of 5.1.3.1 away from all features.
func TestConsistent(t *testing.T) {
	const all = 1<<0 | 1<<1 | 1<<2 | 1<<7 | 1<<8 | 1<<9 | 1<<11 | 1<<12 | 1<<13 | 1<<17 | 1<<18 | 1<<22 | 1<<23 | 1<<54 | 1<<55 | 1<<56
	for _, tt := range []struct{ missing, gone uint64 }{
		{0, 0},
		{1 << 0, 1<<11 | 1<<12 | 1<<13 | 1<<56}, // CSUM
		{1 << 1, 1<<7 | 1<<8 | 1<<9 | 1<<54 | 1<<55}, // GUEST_CSUM
		{1 << 7, 0},                             // one TSO is enough for ECN
		{1<<7 | 1<<8, 1 << 9},                   // GUEST_ECN
		{1 << 12, 0},                            //
		{1<<11 | 1<<12, 1 << 13},                // HOST_ECN
		{1 << 17, 1<<2 | 1<<18 | 1<<22 | 1<<23}, // CTRL_VQ
	} {
		if got, want := consistent(all&^tt.missing), uint64(all)&^tt.missing&^tt.gone; got != want {
			t.Errorf("without %#x: %#x, want %#x", tt.missing, got, want)
		}
	}
}

func TestReceiveWindow(t *testing.T) {
	const tso, merge, mtu = FeatureGuestCsum | FeatureGuestTSO4, FeatureMrgRxbuf, FeatureMTU
	for _, tt := range []struct {
		features uint64
		mtu      int
		want     int
	}{
		{0, 1500, 1526}, // 5.1.6.3.1: 1514 and a header of 12
		{0, 9000, 1526}, // the driver doesn't know
		{mtu, 9000, 9026},
		{mtu, 576, 1526},
		{merge, 1500, 1530},
		{merge, 9000, 9030},
		{merge | mtu, 65535, 65565},
		{tso, 1500, 65562}, // 5.1.6.3.1
		{tso | merge, 1500, 65565},
		{FeatureGuestCsum, 1500, 1526},
		{FeatureGuestTSO4, 1500, 1526}, // TSO without checksum is none
		{FeatureGuestCsum | FeatureGuestUSO4, 1500, 1526},
		{FeatureGuestCsum | FeatureGuestUSO4 | FeatureGuestUSO6, 1500, 65562},
	} {
		f := consistent(tt.features)
		if got := receiveWindow(f, offloadsOf(f), tt.mtu); got != tt.want {
			t.Errorf("features %#x, MTU %d: %d bytes, want %d", tt.features, tt.mtu, got, tt.want)
		}
	}
}

func TestConfigSpace(t *testing.T) {
	r := newRig(t, Config{Queues: 3, MTU: 9000}, smallGuest)
	// u8 mac[6]; le16 status, max_virtqueue_pairs, mtu (5.1.4).
	want := []byte{2, 0, 0, 0, 0, 1, 1, 0, 3, 0, 0x28, 0x23}
	whole := make([]byte, 16)
	r.dev.ReadConfig(0, whole)
	if !bytes.Equal(whole, append(bytes.Clone(want), 0, 0, 0, 0)) {
		t.Errorf("configuration % x, want % x and zeros", whole, want)
	}
	for off := range uint64(20) {
		for n := 1; n <= 8; n++ {
			got := bytes.Repeat([]byte{0xff}, n)
			r.dev.ReadConfig(off, got)
			for i, b := range got {
				if at := off + uint64(i); at < 12 && b != want[at] || at >= 12 && b != 0 {
					t.Fatalf("byte %d of %d at %d is %#x", i, n, off, b)
				}
			}
		}
	}
	r.dev.ReadConfig(1<<63, whole)
	if !bytes.Equal(whole, make([]byte, 16)) {
		t.Errorf("far past the end: % x", whole)
	}
	r.dev.WriteConfig(0, []byte{1, 2, 3, 4, 5, 6})
	r.dev.ReadConfig(0, whole)
	if !bytes.Equal(whole[:12], want) {
		t.Error("a write changed the configuration")
	}
	if r.dev.ID() != 1 {
		t.Errorf("device ID %d", r.dev.ID())
	}
	if got := fmt.Sprint(r.dev.QueueSizes()); got != "[64 64 64 64 64 64 64]" {
		t.Errorf("queue sizes %v", got)
	}
}

// TestEveryFeatureAndLayout sends frames of all sizes there and back through
// each combination of what shapes a frame's header and buffers.
func TestEveryFeatureAndLayout(t *testing.T) {
	const tso = FeatureGuestCsum | FeatureGuestTSO4 | FeatureCsum | FeatureHostTSO4
	for name, l := range layouts {
		for bits := range 16 {
			features := uint64(base)
			for i, f := range []uint64{FeatureMrgRxbuf, virtio.FeatureEventIdx, virtio.FeatureIndirectDesc, tso} {
				if bits>>i&1 != 0 {
					features |= f
				}
			}
			t.Run(fmt.Sprintf("%s/%#x", name, features), func(t *testing.T) {
				t.Parallel()
				gc := guestConfig{slots: 64, ring: 1024, bufSize: 2048, frameSize: maxSend, layout: l, indirect: features&virtio.FeatureIndirectDesc != 0}
				sizes := []int{minSend, 27, 60, 1514, 1526, 1530}
				if features&tso != 0 {
					sizes = append(sizes, 9000, 65562)
					if features&FeatureMrgRxbuf != 0 {
						sizes = append(sizes, maxSend)
					} else {
						gc.bufSize, gc.slots = 65562, 16
					}
				}
				r := newRig(t, Config{Mergeable: true, Offload: true, MTU: 1500}, gc)
				r.start(features)
				for _, size := range sizes {
					r.echo(0, testFrame(size))
				}
				r.dev.Stop()
				c := r.dev.Counters()
				if n := uint64(len(sizes)); c.Pairs[0].TX.Frames != n || c.Pairs[0].RX.Frames != n || c.GuestFaults != 0 {
					t.Errorf("counters %+v, want %d frames each way", c, n)
				}
				if o, _ := r.loop.State(); o != offloadsOf(features) {
					t.Errorf("backend set to %#x, want %#x", o, offloadsOf(features))
				}
			})
		}
	}
}

// TestBuffersOverRegions receives into buffers whose header lies in two regions
// of RAM, at each possible place.
func TestBuffersOverRegions(t *testing.T) {
	// The rings take 320 KiB; the first receive buffer lies after it.
	const first = 0x50000
	for shift := uint64(1); shift <= netio.HeaderLen+1; shift++ {
		gc := guestConfig{slots: 64, ring: 128, bufSize: 1600, frameSize: maxSend, border: first + 0x10000}
		gc.layout = func(gpa uint64, size int) []bufferPiece { return cut(0)(gpa+0x10000-shift, size) }
		r := newRig(t, Config{Mergeable: true, Offload: true}, gc)
		r.start(base | FeatureMrgRxbuf | FeatureGuestCsum | FeatureGuestTSO6)
		if got := r.pairs[0].dirs[netio.RX].base; got != first {
			t.Fatalf("the receive buffers begin at %#x", got)
		}
		// Twice around, so that the buffer is a frame's first and a later one.
		for range 20 {
			for _, size := range []int{60, 1600, 1601, 20000} {
				r.echo(0, testFrame(size))
			}
		}
		r.dev.Stop()
	}
}

// TestHostileFrames has what is wrong with a frame or buffer although its ring
// is good.
func TestHostileFrames(t *testing.T) {
	ones := func(n int, size uint32, write bool) (bufs []bufferPiece) {
		for i := range n {
			bufs = append(bufs, bufferPiece{GPA: 0x200000 + uint64(i)*0x2000, Len: size, Write: write})
		}
		return bufs
	}
	for _, tt := range []struct {
		name        string
		features    uint64
		dir         netio.Dir
		bufs        []bufferPiece
		fault       string // empty: none
		short, long uint64 // refused
	}{
		{"no bytes", 0, netio.TX, ones(1, 0, false), "", 1, 0},
		{"one byte", 0, netio.TX, ones(1, 1, false), "", 1, 0},
		{"header less a byte", 0, netio.TX, ones(1, 11, false), "", 1, 0},
		{"header alone", 0, netio.TX, ones(1, 12, false), "", 1, 0},
		{"no whole Ethernet header", 0, netio.TX, ones(1, 25, false), "", 1, 0},
		{"one byte too long", 0, netio.TX, ones(1, maxSend+1, false), "", 0, 1},
		{"256 buffers of 16 MiB less a byte", 0, netio.TX, ones(256, 1<<24-1, false), "", 0, 1},
		{"256 buffers of 4 GiB", 0, netio.TX, ones(256, 0xffffffff, false), "longer than 4 GiB", 0, 0},
		{"1000 pieces", 0, netio.TX, ones(1000, 1, false), "", 0, 0},
		{"1100 pieces", 0, netio.TX, ones(1100, 1, false), "", 0, 1},
		{"writable", 0, netio.TX, ones(1, 100, true), "device-writable", 0, 0},
		{"writable at the end", 0, netio.TX, append(ones(1, 100, false), ones(1, 1, true)...), "device-writable", 0, 0},

		{"readable", 0, netio.RX, ones(1, 2000, false), "device-readable", 0, 0},
		{"readable at first", 0, netio.RX, append(ones(1, 12, false), ones(1, 1600, true)...), "device-readable", 0, 0},
		{"no bytes", 0, netio.RX, ones(1, 0, true), "receive buffer of 0 bytes", 0, 0},
		{"less than a frame", 0, netio.RX, ones(1, 1525, true), "receive buffer of 1525 bytes", 0, 0},
		{"a frame", 0, netio.RX, ones(1, 1526, true), "", 0, 0},
		{"merged, less than a header", FeatureMrgRxbuf, netio.RX, ones(1, 11, true), "receive buffer of 11 bytes", 0, 0},
		{"merged, a header", FeatureMrgRxbuf, netio.RX, ones(1, 12, true), "", 0, 0},
		{"1000 pieces", 0, netio.RX, ones(1000, 2, true), "", 0, 0},
		{"1100 pieces", 0, netio.RX, ones(1100, 2, true), "more than 1024 pieces", 0, 0},
		{"not RAM", 0, netio.RX, []bufferPiece{{GPA: 1 << 40, Len: 2000, Write: true}}, "not guest RAM", 0, 0},
	} {
		t.Run(fmt.Sprintf("%v %s", tt.dir, tt.name), func(t *testing.T) {
			features := base | tt.features
			gc := guestConfig{features: features, slots: 4, ring: 2048, bufSize: 2048, frameSize: 2048, layout: cut(0)}
			g, _ := newGuest(t, newMemory(t, 32<<20, 0), 4<<20, gc)
			p := newPair(t, g, features)
			ring := g.dirs[tt.dir].ring
			if !ring.Add(99, tt.bufs...) {
				t.Fatal("the ring is full")
			}
			ring.Publish()
			tb, rb := netio.NewTxBatch(64), netio.NewRxBatch(64)
			err := p.TxFetch(tb, 64)
			if tt.dir == netio.RX {
				err = p.RxReserve(rb, 1)
			}
			var guest *fault.Guest
			switch {
			case tt.fault == "" && err != nil:
				t.Fatal(err)
			case tt.fault != "" && (!errors.As(err, &guest) || !strings.Contains(guest.Reason, tt.fault)):
				t.Fatalf("error %v, want a guest fault that says %q", err, tt.fault)
			}
			if short, long := p.refusedShort.Load(), p.refusedLong.Load(); short != tt.short || long != tt.long {
				t.Errorf("%d short and %d long frames refused, want %d and %d", short, long, tt.short, tt.long)
			}
			p.TxComplete(tb, len(tb.Frames))
			p.RxRelease(rb)
			if tt.dir == netio.TX && tt.fault == "" {
				if token, n, ok, err := ring.Take(); token != 99 || n != 0 || !ok || err != nil {
					t.Errorf("the chain was not given back: %d, %d, %v, %v", token, n, ok, err)
				}
			}
		})
	}
}

// TestFaultInAWindow breaks the ring behind buffers that are already reserved
// for a frame that needs more of them: none is lost, none is used.
func TestFaultInAWindow(t *testing.T) {
	features := base | FeatureMrgRxbuf | FeatureGuestCsum | FeatureGuestTSO4
	gc := guestConfig{features: features, slots: 64, ring: 64, bufSize: 1536, frameSize: 2048, layout: cut(0)}
	g, _ := newGuest(t, newMemory(t, guestBytes(gc), 0), 0, gc)
	p := newPair(t, g, features)
	g.Post(3)
	g.Break(netio.RX)
	b := netio.NewRxBatch(64)
	var guest *fault.Guest
	if err := p.RxReserve(b, 1<<20); !errors.As(err, &guest) {
		t.Fatalf("error %v, want a guest fault", err)
	}
	if len(b.Unused()) != 3 {
		t.Errorf("%d buffers reserved, want 3", len(b.Unused()))
	}
	if _, _, ok := b.Space(); ok {
		t.Error("space for a frame of 64 KiB in 3 buffers")
	}
	p.RxRelease(b)
	if got := p.rx.Pending(); got {
		t.Error("a broken queue has something to fetch")
	}
	if idx := g.dirs[netio.RX].ring.UsedIdx(); idx != 0 {
		t.Errorf("%d buffers were used", idx)
	}
}

func TestStartRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*virtio.Driver)
		want   string
		guest  bool // the guest's fault
	}{
		{"no VERSION_1", func(d *virtio.Driver) { d.Features = 0 }, "VIRTIO_F_VERSION_1", true},
		{"ring larger than offered", func(d *virtio.Driver) { d.Queues[1].Size = 128 }, "128 is more than the 64", true},
		{"ring of no entries", func(d *virtio.Driver) { d.Queues[0].Size = 0 }, "queue size 0", true},
		{"used ring misaligned", func(d *virtio.Driver) { d.Queues[0].Used |= 2 }, "rx0: guest fault: used ring", true},
		{"descriptors not in RAM", func(d *virtio.Driver) { d.Queues[1].Desc = 1 << 40 }, "tx0: guest fault: descriptor table", true},
		{"control queue not in RAM", func(d *virtio.Driver) { d.Queues[2].Avail = 1 << 40 }, "control: guest fault: available ring", true},
		{"too few queues", func(d *virtio.Driver) { d.Queues = d.Queues[:2] }, "started with 2 queues", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Config{}, smallGuest)
			driver := r.driver(base | FeatureCtrlVQ)
			tt.change(&driver)
			err := r.dev.Start(driver)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one that says %q", err, tt.want)
			}
			var guest *fault.Guest
			if got := errors.As(err, &guest); got != tt.guest {
				t.Errorf("%v is a guest fault: %v", err, got)
			}
			if r.dev.State().Driver {
				t.Error("the device says that it has a driver")
			}
			r.dev.Stop()
			r.start(base | FeatureCtrlVQ)
			r.echo(0, testFrame(60))
		})
	}
}

// TestQueuesNotSetUp starts with all or half of a queue pair disabled.
func TestQueuesNotSetUp(t *testing.T) {
	for disabled := 1; disabled < 4; disabled++ {
		r := newRig(t, Config{}, smallGuest)
		driver := r.driver(base | FeatureCtrlVQ)
		for i := range 2 {
			driver.Queues[i].Enabled = disabled>>i&1 == 0
		}
		r.startDriver(driver)
		r.control.command(0, 0, 1)
		r.dev.Stop()
		if c := r.dev.Counters(); c.GuestFaults != 0 || c.BackendErrors != 0 {
			t.Errorf("counters %+v", c)
		}
	}
}

func TestFaultReachesTheTransportOnce(t *testing.T) {
	r := newRig(t, Config{}, smallGuest)
	r.start(base)
	g := r.pairs[0]
	g.Post(10)
	g.Break(netio.RX)
	g.Kick(netio.RX)
	g.Send(testFrame(60))
	g.Break(netio.TX)
	g.Kick(netio.TX)
	r.await("both faults", func() bool { return r.dev.Counters().GuestFaults == 2 })
	var guest *fault.Guest
	if err := <-r.failed; !errors.As(err, &guest) || !strings.HasPrefix(guest.Device, "virtio-net net0 ") {
		t.Errorf("error %v, want a guest fault of net0", err)
	}
	r.dev.Stop()
	if len(r.failed) != 0 {
		t.Errorf("a second report: %v", <-r.failed)
	}
	// The next driver starts afresh.
	r.start(base)
	r.echo(0, testFrame(60))
}

func TestLink(t *testing.T) {
	r := newRig(t, Config{}, smallGuest)
	status := func() byte {
		var b [2]byte
		r.dev.ReadConfig(6, b[:])
		return b[0]
	}
	r.start(base | FeatureStatus)
	if status() != 1 {
		t.Error("the link is not up at first")
	}
	for _, step := range []struct {
		up         bool
		status     byte
		interrupts uint64
	}{{true, 1, 0}, {false, 0, 1}, {false, 0, 1}, {true, 1, 2}, {false, 0, 3}} {
		r.dev.SetLink(step.up)
		if status() != step.status || r.config.Count() != step.interrupts {
			t.Errorf("SetLink(%v): status %d after %d interrupts, want %d and %d", step.up, status(), r.config.Count(), step.status, step.interrupts)
		}
	}
	r.dev.Stop()
	before := r.config.Count()
	r.dev.SetLink(true)
	r.dev.SetLink(false)
	if r.config.Count() != before {
		t.Error("an interrupt after Stop")
	}
	r.start(base)
	if status() != 0 {
		t.Error("the link came up by a reset")
	}
	r.dev.SetLink(true)
	if r.config.Count() != 0 {
		t.Error("an interrupt for a driver without VIRTIO_NET_F_STATUS")
	}
}

// broken is a backend that is gone.
type broken struct{ limited }

func (broken) SetOffloads(netio.Offload) error { return errors.New("it was deleted") }

func TestBackendLost(t *testing.T) {
	r := newRig(t, Config{}, smallGuest)
	r.start(base | FeatureStatus | FeatureCtrlVQ | FeatureCtrlRX)
	r.echo(0, testFrame(60))
	r.loop.Vanish()
	select {
	case <-r.config.C:
	case <-time.After(stuck):
		t.Fatal("no interrupt for the lost link")
	}
	if s := r.dev.State(); s.Link {
		t.Error("the link is up")
	}
	if c := r.dev.Counters(); c.BackendErrors != 1 || c.GuestFaults != 0 {
		t.Errorf("counters %+v", c)
	}
	if r.control.command(0, 0, 0) != ctrlOK {
		t.Error("the control queue does not answer")
	}

	// A reboot with a backend that refuses everything still works.
	r.dev.Stop()
	r.dev.cfg.Backend = broken{limited{r.loop, 0, 1500}}
	r.start(base | FeatureStatus | FeatureCtrlVQ | FeatureCtrlRX)
	if r.control.command(0, 0, 0) != ctrlOK {
		t.Error("the control queue does not answer")
	}
	if s := r.dev.State(); s.Link || !s.Driver {
		t.Errorf("state %+v", s)
	}
	if len(r.failed) != 0 {
		t.Errorf("the guest was blamed: %v", <-r.failed)
	}
}

// TestRestartUnderTraffic resets the device again and again while the driver
// goes on, and checks that nothing of a past driver is touched.
func TestRestartUnderTraffic(t *testing.T) {
	gc := smallGuest
	gc.indirect, gc.ring = true, 128
	r := newRig(t, Config{Queues: 2, Mergeable: true, Offload: true}, gc)
	features := base | FeatureCtrlVQ | FeatureMQ | FeatureMrgRxbuf | virtio.FeatureEventIdx | virtio.FeatureIndirectDesc
	for round := range 100 {
		r.start(features)
		quit, done := make(chan struct{}), make(chan int)
		go func() { done <- traffic(r.pairs[0], quit) }()
		if round%3 == 0 {
			r.control.command(4, 0, le16(uint16(1+round%2))...)
		}
		if round%2 == 0 {
			r.await("traffic", func() bool { return r.dev.Counters().Pairs[0].TX.Frames > uint64(round) })
		}
		r.dev.Stop()
		r.dev.Stop()
		var after [2]uint16
		for d := range after {
			after[d] = r.pairs[0].dirs[d].ring.UsedIdx()
		}
		interrupts := r.pairs[0].Interrupts(netio.RX) + r.pairs[0].Interrupts(netio.TX)
		r.pairs[0].dirs[netio.TX].kick.Send()
		close(quit)
		<-done
		for d := range after {
			if got := r.pairs[0].dirs[d].ring.UsedIdx(); got != after[d] {
				t.Fatalf("round %d: used index moved from %d to %d after Stop", round, after[d], got)
			}
		}
		if got := r.pairs[0].Interrupts(netio.RX) + r.pairs[0].Interrupts(netio.TX); got != interrupts {
			t.Fatalf("round %d: an interrupt after Stop", round)
		}
		if s := r.dev.State(); s.Driver || s.Pairs != 0 {
			t.Fatalf("state after Stop: %+v", s)
		}
	}
	r.start(features)
	r.echo(0, testFrame(1000))
	if c := r.dev.Counters(); c.Starts != 101 || c.GuestFaults != 0 || c.BackendErrors != 0 {
		t.Errorf("counters %+v", c)
	}
}

// traffic sends and receives until quit is closed, and returns how many frames
// came.
func traffic(g *guest, quit <-chan struct{}) (n int) {
	frame := testFrame(500)
	for {
		select {
		case <-quit:
			return n
		default:
		}
		g.Post(8)
		g.Kick(netio.RX)
		g.Send(frame)
		g.Kick(netio.TX)
		for {
			if _, ok := g.Recv(); !ok {
				break
			}
			n++
		}
		g.Reap()
		time.Sleep(10 * time.Microsecond)
	}
}
