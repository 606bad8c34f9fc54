// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/porttest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// etherTypeTest is the IEEE 802 local experimental EtherType 1.
const etherTypeTest = 0x88b5

// host is a packet socket on the tap: the host's stack in miniature.
type host struct {
	t  *testing.T
	fd int
}

// newHost opens a packet socket for frames of the given EtherType. With vnet
// they have a virtio header of 10 bytes before them.
func newHost(t *testing.T, name string, etherType uint16, vnet bool) host {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if vnet {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		t.Fatal(err)
	}
	var be [2]byte
	binary.BigEndian.PutUint16(be[:], etherType)
	addr := &unix.SockaddrLinklayer{Ifindex: linkOf(t, name).Attrs().Index, Protocol: binary.NativeEndian.Uint16(be[:])}
	if err := unix.Bind(fd, addr); err != nil {
		t.Fatal(err)
	}
	return host{t, fd}
}

func (h host) send(frame []byte) {
	h.t.Helper()
	if _, err := unix.Write(h.fd, frame); err != nil {
		h.t.Fatalf("send %d bytes to the tap: %v", len(frame), err)
	}
}

// recv waits for a frame from the guest.
func (h host) recv() []byte {
	h.t.Helper()
	p := make([]byte, 1<<17)
	n := 0
	await(h.t, "a frame from the guest", func() (ok bool) {
		var err error
		n, err = unix.Read(h.fd, p)
		return err == nil
	})
	return p[:n]
}

func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("stuck waiting for %s", what)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// ether makes a frame with an Ethernet header and n bytes of payload, without a
// virtio header.
func ether(n int, fill byte) []byte {
	f := bytes.Repeat([]byte{fill}, 14+n)
	copy(f, "\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x88\xb5")
	return f
}

// withHeader puts an empty virtio header before f.
func withHeader(f []byte) []byte { return append(make([]byte, netio.HeaderLen), f...) }

// nic is a pump between a tap and the reference port.
type nic struct {
	t     *testing.T
	tap   *Tap
	guest *porttest.Ref
	pump  *netio.Pump
	gone  atomic.Pointer[error]
	lost  atomic.Int32
}

const jumbo = netio.MaxFrame + netio.HeaderLen

func newNIC(t *testing.T, tap *Tap, c porttest.Config) *nic {
	t.Helper()
	ref, err := porttest.NewRef(c)
	if err != nil {
		t.Fatal(err)
	}
	n := &nic{t: t, tap: tap, guest: ref}
	n.pump = netio.NewPump(ref, tap.Queues()[0], netio.Options{Name: tap.Name(), OnBackend: func(err error) {
		n.gone.Store(&err)
		n.lost.Add(1)
	}})
	t.Cleanup(func() {
		n.pump.Stop()
		ref.Close()
	})
	ref.Post(1 << 20)
	if err := n.pump.Start(); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *nic) send(frame []byte) {
	n.t.Helper()
	n.guest.Reap()
	if !n.guest.Send(frame) {
		n.t.Fatal("the guest's ring is full")
	}
	n.guest.Kick(netio.TX)
}

func (n *nic) recv() (frame []byte) {
	n.t.Helper()
	await(n.t, "a frame to the guest", func() (ok bool) {
		frame, ok = n.guest.Recv()
		return ok
	})
	n.guest.Post(1 << 20)
	n.guest.Kick(netio.RX)
	return frame
}

var configs = map[string]porttest.Config{
	"merged":     {Size: 128, BufSize: 1536, Window: jumbo, Merge: true},
	"not merged": {Size: 16, BufSize: jumbo, Window: jumbo},
}

// Frames of all sizes pass both ways unchanged: those that are staged and those
// that are not, those that are guessed right and those that are not.
func TestFrames(t *testing.T) {
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			inNetns(t)
			tap := mustOpen(t, Options{Create: true, MTU: MaxMTU})
			n := newNIC(t, tap, c)
			h := newHost(t, tap.Name(), etherTypeTest, false)
			sizes := []int{46, 498, 499, 500, 1500, 60, 1522, 1523, 2022, 2023, 9000, 46, MaxMTU, 46, 46, MaxMTU, MaxMTU - 1, 20000, 600, 600, 46}
			for i, size := range sizes {
				f := ether(size, byte(i))
				n.send(withHeader(f))
				if got := h.recv(); !bytes.Equal(got, f) {
					t.Fatalf("frame %d, %d bytes: the host got %d bytes", i, len(f), len(got))
				}
				h.send(f)
				if got := n.recv(); !bytes.Equal(got[netio.HeaderLen:], f) {
					t.Fatalf("frame %d, %d bytes: the guest got %d bytes", i, len(f), len(got))
				}
			}
			n.pump.Stop()
			count := n.pump.Counters()
			want := uint64(len(sizes))
			if count.TX.Frames != want || count.RX.Frames != want || count.TX.Errors+count.RX.Errors != 0 {
				t.Errorf("counters = %+v", count)
			}
			// One large buffer is larger than any frame, so that nothing is guessed.
			if count.TX.Copied == 0 || count.TX.Copied == want || (count.RX.Copied > 0) != c.Merge {
				t.Errorf("%d and %d frames were copied", count.TX.Copied, count.RX.Copied)
			}
		})
	}
}

// A frame that fills the guest's buffers exactly is whole; one byte more doesn't
// fit, is counted, and the next one is whole again.
func TestExactFit(t *testing.T) {
	for _, merge := range []bool{false, true} {
		inNetns(t)
		tap := mustOpen(t, Options{Create: true, MTU: 1500})
		// 1500 bytes with the headers, as a driver without VLAN would do it.
		c := porttest.Config{Size: 64, BufSize: netio.HeaderLen + 14 + 1500, Window: netio.HeaderLen + 14 + 1500, Merge: merge}
		n := newNIC(t, tap, c)
		h := newHost(t, tap.Name(), etherTypeTest, false)
		fits := ether(1500, 1)
		for range 3 {
			h.send(fits)
			if got := n.recv(); !bytes.Equal(got[netio.HeaderLen:], fits) {
				t.Fatalf("the guest got %d bytes of %d", len(got)-netio.HeaderLen, len(fits))
			}
		}
		run(t, "ip", "link", "set", tap.Name(), "mtu", "1501")
		h.send(ether(1501, 2))
		h.send(ether(46, 3))
		if got := n.recv(); !bytes.Equal(got[netio.HeaderLen:], ether(46, 3)) {
			t.Fatalf("after a frame that is too long the guest got %d bytes", len(got))
		}
		n.pump.Stop()
		if got := n.pump.Counters().RX.Errors; got != 1 {
			t.Errorf("%d errors, one frame was too long", got)
		}
	}
}

// Frames for a guest without buffers wait in the kernel, up to the interface's
// txqueuelen; what is more is dropped there and counted there, not here.
func TestBackPressure(t *testing.T) {
	inNetns(t)
	tap := mustOpen(t, Options{Create: true})
	run(t, "ip", "link", "set", tap.Name(), "txqueuelen", "200")
	ref, err := porttest.NewRef(porttest.Config{Size: 256, BufSize: 1536, Window: 1530})
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	pump := netio.NewPump(ref, tap.Queues()[0], netio.Options{})
	if err := pump.Start(); err != nil {
		t.Fatal(err)
	}
	defer pump.Stop()
	h := newHost(t, tap.Name(), etherTypeTest, false)
	await(t, "a stall", func() bool { return pump.Counters().RX.Stalls == 1 })
	const sent, fit = 250, 200
	for i := range sent {
		// A full queue is ENOBUFS or silence, as the queueing discipline likes it.
		if _, err := unix.Write(h.fd, ether(46, byte(i))); err != nil && !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
	}
	ref.Post(256)
	ref.Kick(netio.RX)
	for i := range fit {
		var f []byte
		await(t, "a frame that waited", func() (ok bool) { f, ok = ref.Recv(); return ok })
		if f[len(f)-1] != byte(i) {
			t.Fatalf("frame %d came, %d was expected", f[len(f)-1], i)
		}
	}
	stats := linkOf(t, tap.Name()).Attrs().Statistics
	if stats.TxDropped == 0 || stats.TxPackets+stats.TxDropped != sent {
		t.Errorf("the interface counts %d frames and %d drops", stats.TxPackets, stats.TxDropped)
	}
}

// largeSegment is a TCP segment of 45 times 1448 bytes, with the virtio header
// of hdr bytes.
func largeSegment(hdr int) []byte {
	const mss, headers = 1448, 14 + 20 + 20
	f := make([]byte, hdr+headers+45*mss)
	f[0], f[1] = 1, 1 // NEEDS_CSUM, GSO_TCPV4
	binary.LittleEndian.PutUint16(f[2:], headers)
	binary.LittleEndian.PutUint16(f[4:], mss)
	binary.LittleEndian.PutUint16(f[6:], 34)
	binary.LittleEndian.PutUint16(f[8:], 16)
	e := f[hdr:]
	copy(e, "\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x08\x00")
	e[14] = 0x45
	binary.BigEndian.PutUint16(e[16:], uint16(len(e)-14))
	e[14+8], e[14+9] = 64, 6
	copy(e[14+12:], "\x0a\x00\x00\x02\x0a\x00\x00\x01")
	e[34+12], e[34+13] = 5<<4, 0x10
	for i := headers; i < len(e); i++ {
		e[i] = byte(i * 31)
	}
	return f
}

// What the guest accepts is what the tap hands out: a large segment in one piece
// or, without the offload, in 45 with whole checksums.
func TestOffloads(t *testing.T) {
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			inNetns(t)
			tap := mustOpen(t, Options{Create: true})
			seg := largeSegment(netio.HeaderLen)
			for _, o := range []netio.Offload{netio.OffloadCsum | netio.OffloadTSO4, 0} {
				if err := tap.SetOffloads(o); err != nil {
					t.Fatal(err)
				}
				n := newNIC(t, tap, c)
				h := newHost(t, tap.Name(), unix.ETH_P_IP, true)
				n.send(seg)
				if got := h.recv(); !bytes.Equal(got[10:], seg[netio.HeaderLen:]) || got[1] != 1 {
					t.Errorf("offloads %#x: the host got %d bytes, gso_type %d", o, len(got), got[1])
				}
				h.send(largeSegment(10))
				if o != 0 {
					if got := n.recv(); !bytes.Equal(got[netio.HeaderLen:], seg[netio.HeaderLen:]) || got[1] != 1 || binary.LittleEndian.Uint16(got[4:]) != 1448 {
						t.Errorf("the guest got %d bytes, gso_type %d, gso_size %d", len(got), got[1], binary.LittleEndian.Uint16(got[4:]))
					}
				} else {
					for i := range 45 {
						if got := n.recv(); len(got) != netio.HeaderLen+54+1448 || got[0]&1 != 0 || got[1] != 0 {
							t.Fatalf("segment %d: %d bytes, flags %#x, gso_type %d", i, len(got), got[0], got[1])
						}
					}
				}
				n.pump.Stop()
				if got := n.pump.Counters().TX.GSO; got == 0 {
					t.Error("no segment was counted")
				}
			}
			if err := tap.SetOffloads(netio.OffloadTSO4); err == nil || !strings.Contains(err.Error(), tap.Name()) {
				t.Errorf("TSO without checksum offload: %v", err)
			}
		})
	}
}

// Frames that wait when offloads are taken back are discarded, others are kept.
func TestStaleFrames(t *testing.T) {
	inNetns(t)
	tap := mustOpen(t, Options{Create: true})
	h := newHost(t, tap.Name(), etherTypeTest, false)
	set := func(o netio.Offload) {
		t.Helper()
		if err := tap.SetOffloads(o); err != nil {
			t.Fatal(err)
		}
	}
	h.send(ether(46, 1))
	set(netio.OffloadCsum)
	h.send(ether(46, 2))
	set(netio.OffloadCsum)
	n := newNIC(t, tap, configs["merged"])
	for i := range 2 {
		if got := n.recv(); got[len(got)-1] != byte(i+1) {
			t.Errorf("frame %d is gone", i+1)
		}
	}
	n.pump.Stop()
	h.send(ether(46, 3))
	set(0)
	h.send(ether(46, 4))
	if err := n.pump.Start(); err != nil {
		t.Fatal(err)
	}
	if got := n.recv(); got[len(got)-1] != 4 {
		t.Errorf("frame %d outlived the offloads that it needs", got[len(got)-1])
	}
}

// Frames that the host refuses are counted and dropped, whatever the reason, and
// the pump doesn't spin.
func TestRefusedFrames(t *testing.T) {
	inNetns(t)
	tap := mustOpen(t, Options{Create: true})
	n := newNIC(t, tap, configs["merged"])
	h := newHost(t, tap.Name(), etherTypeTest, false)

	bad := withHeader(ether(46, 1))
	bad[1] = 0x7f // no such gso_type
	n.send(bad)
	n.send(make([]byte, netio.HeaderLen+1)) // no whole Ethernet header
	n.send(withHeader(ether(46, 2)))
	if got := h.recv(); got[len(got)-1] != 2 {
		t.Errorf("frame %d came", got[len(got)-1])
	}
	await(t, "refusals", func() bool { return n.pump.Counters().TX.Errors == 2 })

	run(t, "ip", "link", "set", tap.Name(), "down")
	for range 10 {
		n.send(withHeader(ether(46, 3)))
	}
	await(t, "refusals", func() bool { return n.pump.Counters().TX.Errors == 12 })
	if got := n.pump.Counters(); got.Wakeups > 50 || n.lost.Load() != 0 {
		t.Errorf("an interface that is down isn't gone; counters %+v", got)
	}
	run(t, "ip", "link", "set", tap.Name(), "up")
	n.send(withHeader(ether(46, 4)))
	if got := h.recv(); got[len(got)-1] != 4 {
		t.Errorf("frame %d came", got[len(got)-1])
	}
}

// A tap that someone deletes is reported once, by name; the pump sleeps then.
func TestDeleted(t *testing.T) {
	for name, c := range map[string]porttest.Config{
		"idle":       configs["merged"],
		"no buffers": {Size: 2, BufSize: 1536, Window: jumbo, Merge: true},
	} {
		t.Run(name, func(t *testing.T) {
			inNetns(t)
			tap := mustOpen(t, Options{Create: true})
			n := newNIC(t, tap, c)
			n.send(withHeader(ether(46, 1)))
			await(t, "the first frame", func() bool { return n.guest.Reap() == 1 })
			if err := netlink.LinkDel(linkOf(t, tap.Name())); err != nil {
				t.Fatal(err)
			}
			await(t, "the loss", func() bool { return n.lost.Load() > 0 })
			if err := *n.gone.Load(); !strings.Contains(err.Error(), "govmm0 is gone") {
				t.Errorf("error = %v", err)
			}
			n.send(withHeader(ether(46, 2)))
			n.pump.Stop()
			if err := n.pump.Start(); err != nil { // the guest reboots
				t.Fatal(err)
			}
			await(t, "the loss again", func() bool { return n.lost.Load() == 2 })
			n.pump.Stop()
			if got := n.pump.Counters(); got.Wakeups > 50 {
				t.Errorf("counters = %+v", got)
			}
			if tap.MTU() != defaultMTU {
				t.Errorf("MTU = %d", tap.MTU())
			}
			if err := tap.SetOffloads(0); !errors.Is(err, unix.EBADFD) {
				t.Errorf("SetOffloads = %v", err)
			}
		})
	}
}

// The host spreads frames over the queues that take part, and no others.
func TestSetActive(t *testing.T) {
	inNetns(t)
	tap := mustOpen(t, Options{Create: true, Queues: 4})
	for _, n := range []int{1, 4, 2, 1, 3} {
		if err := tap.SetActive(n); err != nil {
			t.Fatal(err)
		}
		link, ok := linkOf(t, tap.Name()).(*netlink.Tuntap)
		if !ok || link.Queues != n || link.DisabledQueues != 4-n {
			t.Errorf("SetActive(%d): %d queues, %d disabled", n, link.Queues, link.DisabledQueues)
		}
	}
	for _, n := range []int{0, 5, -1} {
		if err := tap.SetActive(n); err == nil || !strings.Contains(err.Error(), tap.Name()) {
			t.Errorf("SetActive(%d) = %v", n, err)
		}
	}
	single := mustOpen(t, Options{Create: true})
	if err := single.SetActive(1); err != nil {
		t.Error(err)
	}
}

// An active queue of several sends and receives.
func TestQueues(t *testing.T) {
	inNetns(t)
	tap := mustOpen(t, Options{Create: true, Queues: 2})
	if err := tap.SetActive(1); err != nil {
		t.Fatal(err)
	}
	n := newNIC(t, tap, configs["merged"])
	h := newHost(t, tap.Name(), etherTypeTest, false)
	for i := range 20 {
		f := ether(46, byte(i))
		h.send(f) // whatever the flow, there is one queue to take it
		if got := n.recv(); !bytes.Equal(got[netio.HeaderLen:], f) {
			t.Fatalf("frame %d: %d bytes", i, len(got))
		}
		n.send(withHeader(f))
		if got := h.recv(); !bytes.Equal(got, f) {
			t.Fatalf("frame %d: %d bytes", i, len(got))
		}
	}
}

func TestMergeAdjacent(t *testing.T) {
	p := make([]byte, 100)
	at := func(from, to int) unix.Iovec { return iovec(p[from:to]) }
	for _, test := range []struct{ in, want []unix.Iovec }{
		{nil, nil},
		{[]unix.Iovec{at(0, 10)}, []unix.Iovec{at(0, 10)}},
		{[]unix.Iovec{at(0, 10), at(10, 20), at(20, 30)}, []unix.Iovec{at(0, 30)}},
		{[]unix.Iovec{at(0, 10), at(11, 20), at(20, 30)}, []unix.Iovec{at(0, 10), at(11, 30)}},
		{[]unix.Iovec{at(10, 20), at(0, 10)}, []unix.Iovec{at(10, 20), at(0, 10)}},
	} {
		got := mergeAdjacent(nil, test.in)
		if len(got) != len(test.want) {
			t.Errorf("%v pieces, want %v", len(got), len(test.want))
			continue
		}
		for i := range got {
			if got[i] != test.want[i] {
				t.Errorf("piece %d is %v, want %v", i, got[i], test.want[i])
			}
		}
	}
}

// The data path allocates nothing.
func TestAllocations(t *testing.T) {
	inNetns(t)
	tap := mustOpen(t, Options{Create: true, MTU: MaxMTU})
	h := newHost(t, tap.Name(), etherTypeTest, false)
	q := tap.queues[0]
	for _, size := range []int{46, 1500, 60000} {
		f := withHeader(ether(size, 1))
		tx := netio.NewTxBatch(8)
		for range 8 {
			first := len(tx.Segs)
			tx.Segs = append(tx.Segs, iovec(f[:12]), iovec(f[12:]))
			tx.Add(first, len(f), 0)
		}
		if n := testing.AllocsPerRun(5, func() {
			if n, err := q.Send(tx, 0); n != 8 || err != nil {
				t.Fatalf("Send = %d, %v", n, err)
			}
		}); n != 0 {
			t.Errorf("%d bytes: Send makes %v allocations", size, n)
		}
		buf := make([]byte, 1<<16)
		rx := netio.NewRxBatch(8)
		rx.Window, rx.Merge = len(f), true
		if n := testing.AllocsPerRun(5, func() {
			h.send(f[netio.HeaderLen:])
			rx.Reset()
			for i := range 8 {
				first := len(rx.Segs)
				rx.Segs = append(rx.Segs, iovec(buf[i<<13:(i+1)<<13]))
				rx.Add(first, 1<<13, 0)
			}
			if n, err := q.Recv(rx, 1); n != 1 || err != nil {
				t.Fatalf("Recv = %d, %v", n, err)
			}
		}); n != 0 {
			t.Errorf("%d bytes: Recv makes %v allocations", size, n)
		}
	}
}
