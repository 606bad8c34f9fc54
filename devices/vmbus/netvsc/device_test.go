// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/loop"
	"github.com/govmm/govmm/devices/vmbus/vmbustest"
)

var testMAC = MAC{2, 0, 0, 0, 0, 0x2a}

// newDevice makes a NIC on one end of a wire and a driver that has opened it.
func newDevice(t *testing.T, queues int) (*Device, *driver, *loop.Loop) {
	t.Helper()
	near, far, err := loop.Pair(queues)
	check(t, err)
	d, err := New(Config{Name: "net0", MAC: testMAC, Backend: near, Queues: queues, MTU: 1500, Offload: true})
	check(t, err)
	dr := startDriver(t, d, 64<<20, 128)
	t.Cleanup(func() {
		dr.guest.Bus.Stop() // before the backend goes
		if near.Close() != nil || far.Close() != nil {
			t.Error("the loop's descriptors were closed by someone else")
		}
	})
	return d, dr, far
}

// TestBringUp does what Linux does, and compares the answers with what its
// structures say.
func TestBringUp(t *testing.T) {
	d, dr, _ := newDevice(t, 4)
	if got := dr.offer.Class.String(); got != "f8615163-df3e-46c5-913f-f2d2f965ed0e" {
		t.Errorf("class %s", got)
	}
	if got := dr.request(1, 0x60002, 0x60002); le.Uint32(got[12:]) == 1 {
		t.Errorf("an unknown version is answered by %x", got)
	}
	dr.connect(version61, 1500, 1024, 255)
	if dr.section != 4096 || dr.sections != 1024 {
		t.Errorf("%d sections of %d bytes", dr.sections, dr.section)
	}
	dr.initialise()
	scale := []byte{0x88, 2, 18, 0, 1, 3, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 128, 0}
	for _, c := range []struct {
		oid    uint32
		in     []byte
		want   []byte
		status uint32
	}{
		{0x00010106, nil, u32s(1500), 0},
		{0x01010101, nil, testMAC[:], 0},
		{0x00020216, nil, []byte("n\x00e\x00t\x000\x00"), 0},
		{0x00010114, nil, u32s(0), 0},
		{0x00010107, nil, u32s(100_000_000), 0},
		{0x00010203, nil, scale, 0},
		{0x00020101, nil, nil, 0xc00000bb},
		{0xfc01020d, []byte{0xa7, 3, 100, 0}, nil, 0xc0010014},
		{0xfc01020d, []byte{0xa6, 3, 156, 0}, nil, 0xc0010015},
		{0xfc01020d, []byte{0xa7}, nil, 0xc0010015},
	} {
		if got, status := dr.query(c.oid, c.in...); status != c.status || !bytes.Equal(got, c.want) {
			t.Errorf("%#x: %x with status %#x, want %x with %#x", c.oid, got, status, c.want, c.status)
		}
	}
	got, status := dr.query(0xfc01020d, 0xa7, 3, 156, 0)
	if status != 0 || len(got) != 156 || got[0] != 0xa7 || le.Uint16(got[2:]) != 156 {
		t.Fatalf("offload capabilities %x, status %#x", got, status)
	}
	for _, f := range []struct {
		at   int
		want uint32 // bits that Linux needs to turn the feature on
	}{{8, 0x14}, {24, 0x15}, {80, 2}, {84, 62780}, {92, 2}, {96, 62780}, {104, 5}, {144, 0x101}} {
		if v := le.Uint32(got[f.at:]); v&f.want != f.want {
			t.Errorf("offload capabilities at %d: %#x lacks bits of %#x", f.at, v, f.want)
		}
	}
	if n := d.Counters().GuestFaults; n != 0 {
		t.Errorf("%d faults", n)
	}
}

// TestLargestConfiguration: Linux's receive buffer of 16 MiB is enough for all
// channels at the largest MTU, whose sections are the largest.
func TestLargestConfiguration(t *testing.T) {
	near, far, err := loop.Pair(MaxQueues)
	check(t, err)
	d, err := New(Config{Name: "net0", MAC: testMAC, Backend: near, Queues: MaxQueues, MTU: maxMTU, Offload: true})
	check(t, err)
	dr := startDriver(t, d, 64<<20, 128)
	t.Cleanup(func() {
		dr.guest.Bus.Stop()
		_, _ = near.Close(), far.Close()
	})
	dr.connect(version61, 1500, 4096, 255)
	if dr.section < ethernetLen+maxMTU || dr.sections*dr.section > 16<<20 {
		t.Errorf("%d sections of %d bytes", dr.sections, dr.section)
	}
	dr.up(true)
	want := make([]byte, netio.HeaderLen+ethernetLen+maxMTU)
	want[len(want)-1] = 1
	if !far.Queue(0).WriteFrame(want) {
		t.Fatal("the wire is full")
	}
	got := dr.frames(dr.awaitPacket())
	if len(got) != 1 || !bytes.Equal(got[0].frame, want[netio.HeaderLen:]) {
		t.Errorf("%d frames instead of the largest one", len(got))
	}
}

// TestFrames moves frames both ways: in a send section, several in a packet, with
// a tag, and a large segment to the guest in pieces.
func TestFrames(t *testing.T) {
	_, dr, far := newDevice(t, 1)
	dr.connect(version61, 1500, 1024, 255)
	dr.up(true)
	wire := far.Queue(0)
	frame := bytes.Repeat([]byte("frame ethernet.."), 4)
	section := append(packetMessageOf(frame), packetMessageOf(frame[:20], 6, 5|1<<3|77<<4)...)
	check(t, dr.guest.Mem.WriteAt(dr.sendBuf+6144, section))
	dr.nvsp(99, 1, 107, 0, 1, uint32(len(section)))
	if p := dr.awaitPacket(); p.Type != 11 || p.Transaction != 99 || !bytes.Equal(p.Payload, u32s(108, 1)) {
		t.Errorf("completion %+v", p)
	}
	tagged := append(append(bytes.Clone(frame[:12]), 0x81, 0, 5<<5|1<<4, 77), frame[12:20]...)
	buf := make([]byte, 70000)
	for _, want := range [][]byte{frame, tagged} {
		n := 0
		await(t, "a frame", func() bool { n = wire.ReadFrame(buf); return n > 0 })
		if !bytes.Equal(buf[:n], append(make([]byte, 12), want...)) {
			t.Errorf("the host got %x, want %x", buf[:n], want)
		}
	}
	// To the guest: small, and 64 KiB, whose pieces come in one packet.
	for _, size := range []int{14, 3968, 3969, 65549} {
		want := make([]byte, 12+size)
		for i := range want[12:] {
			want[12+i] = byte(i * 7)
		}
		if size > 4000 {
			want[0], want[1] = 1, 1
		}
		if !wire.WriteFrame(want) {
			t.Fatal("the wire is full")
		}
		p := dr.awaitPacket()
		got := dr.frames(p)
		dr.giveBack(p.Transaction)
		if len(got) != 1 || !bytes.Equal(got[0].frame, want[12:]) {
			t.Fatalf("%d bytes: %d frames", size, len(got))
		}
		if _, good := got[0].ppi[0]; good != (size > 4000) {
			t.Errorf("%d bytes: information %x", size, got[0].ppi)
		}
	}
}

// TestPartialChecksum: a frame to the guest whose checksum the host has left out
// comes with the right one.
func TestPartialChecksum(t *testing.T) {
	_, dr, far := newDevice(t, 1)
	dr.connect(version61, 1500, 1024, 255)
	dr.up(true)
	f := make([]byte, 12+14+20+8+5)
	f[0], f[6], f[8] = 1, 34, 6
	ip := f[26:]
	copy(f[24:], []byte{8, 0, 0x45})
	ip[9] = 17
	udp := ip[20:]
	copy(udp, []byte{0, 1, 0, 2, 0, 13, 0x12, 0x34, 'h', 'e', 'l', 'l', 'o'})
	if !far.Queue(0).WriteFrame(f) {
		t.Fatal("the wire is full")
	}
	got := dr.frames(dr.awaitPacket())
	// RFC 1071 by hand: 0001+0002+000d+1234+6865+6c6c+6f00 = 15615 -> 5616.
	if c := binary.BigEndian.Uint16(got[0].frame[40:]); c != ^uint16(0x5616) {
		t.Errorf("checksum %#x, want %#x", c, ^uint16(0x5616))
	}
	if got[0].ppi[0] != 1<<4 {
		t.Errorf("checksum information %#x, want UDP good", got[0].ppi[0])
	}
}

// TestSubchannels: as many as are granted are offered, and take part when the
// guest has set how frames are spread.
func TestSubchannels(t *testing.T) {
	d, dr, far := newDevice(t, 3)
	dr.connect(version61, 1500, 2048, 255)
	dr.initialise()
	if got := dr.request(133, 1, 7); le.Uint32(got[4:]) != 1 || le.Uint32(got[8:]) != 2 {
		t.Fatalf("answer to 7 sub-channels: %x", got)
	}
	var subs []*vmbustest.Channel
	for range 2 {
		o, err := dr.guest.AwaitOffer()
		check(t, err)
		c, err := dr.guest.Open(o, 64, 0)
		check(t, err)
		subs = append(subs, c)
	}
	params := make([]byte, 40+4*128+40)
	copy(params, []byte{0x89, 2, 40, 0})
	le.PutUint16(params[12:], 4*128)
	le.PutUint32(params[16:], 40)
	le.PutUint16(params[20:], 40)
	le.PutUint32(params[24:], 40+4*128)
	params[41] = 1
	if status := dr.set(0x00010204, params); status != statusInvalidData {
		t.Errorf("table with channel 256: status %#x", status)
	}
	params[41] = 0
	if status := dr.set(0x00010204, params); status != 0 {
		t.Errorf("receive scale: status %#x", status)
	}
	if status := dr.set(0x0001010e, u32s(13)); status != 0 {
		t.Errorf("filter: status %#x", status)
	}
	if !far.Queue(2).WriteFrame(make([]byte, 12+60)) {
		t.Fatal("the wire is full")
	}
	await(t, "a frame on sub-channel 2", func() bool {
		p, ok, err := subs[1].Take()
		check(t, err)
		return ok && p.Type == 7
	})
	check(t, dr.ch.Close())
	for range 2 {
		_, err := dr.guest.AwaitRescind()
		check(t, err)
	}
	if n := d.Counters().GuestFaults; n != 0 {
		t.Errorf("%d faults", n)
	}
}

// TestHostile: each breach ends the work and is counted, and the next open is
// unharmed.
func TestHostile(t *testing.T) {
	packet := func(dr *driver, header, payload []byte) {
		typ := uint16(6)
		if header != nil {
			typ = 9
		}
		check(t, dr.ch.Send(vmbustest.Packet{Type: typ, Flags: 1, Header: header, Payload: payload}))
	}
	frame := func(change func(m []byte)) func(*driver) {
		return func(dr *driver) {
			m := packetMessageOf(make([]byte, 60), 0, 0)
			change(m)
			check(t, dr.guest.Mem.WriteAt(dr.page, m))
			packet(dr, gpa(dr.page, len(m)), u32s(107, 0, noSection, 0))
		}
	}
	field := func(at int, v uint32) func(*driver) {
		return frame(func(m []byte) { le.PutUint32(m[at:], v) })
	}
	control := func(m ...uint32) func(*driver) { return func(dr *driver) { dr.sendRNDIS(u32s(m...)) } }
	d, dr, _ := newDevice(t, 1)
	for name, breach := range map[string]func(*driver){
		"short NVSP":                    func(dr *driver) { packet(dr, nil, nil) },
		"unknown NVSP":                  func(dr *driver) { packet(dr, nil, u32s(9999, 0, 0, 0)) },
		"second INIT":                   func(dr *driver) { dr.nvsp(0, 1, 1, version61, version61) },
		"second receive buffer":         func(dr *driver) { dr.nvsp(0, 1, 101, dr.handle, 0xcafe) },
		"second send buffer":            func(dr *driver) { dr.nvsp(0, 1, 104, dr.sendHandle, 0) },
		"MTU of 0":                      func(dr *driver) { dr.nvsp(0, 0, 125, 0, 0, 0) },
		"section that overflows":        func(dr *driver) { dr.nvsp(0, 1, 107, 0, 0x2aaaaaab, 100) },
		"section too long":              func(dr *driver) { dr.nvsp(0, 1, 107, 0, 0, 6145) },
		"no data at all":                func(dr *driver) { dr.nvsp(0, 1, 107, 0, noSection, 0) },
		"ranges without end":            func(dr *driver) { packet(dr, u32s(0, ^uint32(0), 1, 0, 0, 0), u32s(107, 0, noSection, 0)) },
		"range offset past a page":      func(dr *driver) { packet(dr, u32s(0, 1, 100, 4096, 1, 0), u32s(107, 0, noSection, 0)) },
		"pages outside of RAM":          func(dr *driver) { packet(dr, u32s(0, 1, 100, 0, 1<<30, 0), u32s(107, 0, noSection, 0)) },
		"message of 0 bytes":            field(4, 0),
		"message of 7 bytes":            field(4, 7),
		"data behind the end":           field(12, 0xfffffff0),
		"data offset that wraps":        field(8, 0xfffffff0),
		"information of 0 bytes":        field(44, 0),
		"information of 8 bytes":        field(44, 8),
		"information's data at its end": field(52, 17),
		"information before the body":   field(28, 4),
		"a thousand tiny messages": func(dr *driver) {
			m := bytes.Repeat(packetMessageOf(nil), 100)
			check(t, dr.guest.Mem.WriteAt(dr.sendBuf, m))
			dr.nvsp(0, 1, 107, 0, 0, uint32(len(m)))
		},
		"unknown completion": func(dr *driver) { dr.giveBack(12345) },
		"completion twice":   func(dr *driver) { dr.giveBack(1) },
		"control of 7 bytes": control(4, 7),
		"control too long":   control(4, 1<<31, 1, 1),
		"unknown control":    control(99, 12, 1),
		"query past the end": control(4, 28, 1, 0x10106, 4, 0xfffffff0, 0),
		"control without answers taken": func(dr *driver) {
			for range controlSections + 1 {
				dr.sendRNDIS(u32s(8, 12, 1))
			}
		},
	} {
		before := d.Counters().GuestFaults
		dr.connect(version61, 1500, 256, 32)
		dr.up(true)
		breach(dr)
		await(t, name+": a fault", func() bool { return d.Counters().GuestFaults == before+1 })
		check(t, dr.ch.Close())
		check(t, dr.guest.Unshare(dr.offer.Relid, dr.handle))
		check(t, dr.guest.Unshare(dr.offer.Relid, dr.sendHandle))
		dr.open(16)
	}
}

// TestBackendGone: the guest learns that its link is down, and neither its frames
// nor its messages remain unanswered.
func TestBackendGone(t *testing.T) {
	near, far, err := loop.Pair(1)
	check(t, err)
	d, err := New(Config{Name: "net0", MAC: testMAC, Backend: near, MTU: 1500, Offload: true})
	check(t, err)
	dr := startDriver(t, d, 64<<20, 128)
	t.Cleanup(func() {
		dr.guest.Bus.Stop()
		_, _ = near.Close(), far.Close()
	})
	dr.connect(version61, 1500, 1024, 255)
	dr.up(true)
	near.Vanish()
	p := dr.awaitPacket()
	if got := dr.ranges(p); !bytes.Equal(got[0], u32s(7, 20, 0x4001000c, 0, 0)) {
		t.Errorf("indication %x", got)
	}
	dr.giveBack(p.Transaction)
	m := packetMessageOf(make([]byte, 60))
	check(t, dr.guest.Mem.WriteAt(dr.sendBuf, m))
	dr.nvsp(5, 1, 107, 0, 0, uint32(len(m)))
	if p := dr.awaitPacket(); p.Type != 11 || p.Transaction != 5 {
		t.Errorf("completion of a frame: %+v", p)
	}
	if v, status := dr.query(oidMediaConnect); status != 0 || le.Uint32(v) != 1 {
		t.Errorf("link %x, status %#x", v, status)
	}
	dr.rndis(rndisHalt, u32s(1))
}

// TestTeardown takes the card down while frames come, again and again at
// different moments: nothing is written to pages after the guest was told that
// they are its own again.
func TestTeardown(t *testing.T) {
	d, dr, far := newDevice(t, 1)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		f := make([]byte, 12+60)
		for {
			select {
			case <-stop:
				return
			default:
				far.Queue(0).WriteFrame(f)
			}
		}
	}()
	defer func() { close(stop); <-done }()
	poison := bytes.Repeat([]byte{0xa5}, 256*vmbustest.Page)
	for round := range 20 {
		dr.connect(version61, 1500, 256, 2)
		// Frames come from the filter on, among the answer: only the last request
		// of up is not awaited.
		dr.initialise()
		dr.sendRNDIS(append(u32s(5, 32, 9, 0x0001010e, 4, 20, 0), u32s(13)...))
		for range round % 4 { // completion, answer, frames
			dr.awaitPacket()
		}
		if round%3 == 0 {
			dr.nvsp(0, 0, 103, 0xcafe)
		}
		switch round % 4 {
		case 3:
			check(t, dr.guest.Connect(5<<16|3))
			offers, err := dr.guest.RequestOffers()
			check(t, err)
			dr.offer = offers[0]
		case 2: // the pages go first
			check(t, dr.guest.Unshare(dr.offer.Relid, dr.handle))
			check(t, dr.ch.Close())
		default:
			check(t, dr.ch.Close())
			check(t, dr.guest.Unshare(dr.offer.Relid, dr.handle))
		}
		check(t, dr.guest.Mem.WriteAt(dr.recv, poison))
		got := make([]byte, len(poison))
		check(t, dr.guest.Mem.ReadAt(dr.recv, got))
		if !bytes.Equal(got, poison) {
			t.Fatalf("round %d: the host wrote to pages that it had given back", round)
		}
		dr.open(16)
	}
	if n := d.Counters().GuestFaults; n != 0 {
		t.Errorf("%d faults", n)
	}
}

// TestChangingHeaders: another processor of the guest writes to a message's
// headers while the device looks at them. Each packet is completed, or the card
// stops with a fault; what is sent is a frame.
func TestChangingHeaders(t *testing.T) {
	d, dr, far := newDevice(t, 1)
	segment := append(unhex(t, largeIPv4+largeTCP4), make([]byte, 3000)...)
	good := packetMessageOf(segment, ppiLSO, lsoInfo(1448, 34, lsoV2), ppiVLAN, 1<<4)
	buf := make([]byte, netio.HeaderLen+netio.MaxFrame+1)
	// Each round has a field of its own that changes between good and bad.
	for round, change := range []struct {
		at  int
		bad byte
	}{
		{0, 4}, {5, 0}, {8, 0xff}, {14, 0xff}, {28, 4}, {32, 8}, {44, 0}, {52, 17}, // the message's
		{56, 1}, {59, 0}, // large send
		{76 + 12, 0x86}, {76 + 14, 0x40}, {76 + 46, 0xf0}, // the frame's
	} {
		faults := d.Counters().GuestFaults
		dr.connect(version61, 1500, 256, 2)
		dr.up(true)
		check(t, dr.guest.Mem.WriteAt(dr.sendBuf, good))
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			values := [2][1]byte{{change.bad}, {good[change.at]}}
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					_ = dr.guest.Mem.WriteAt(dr.sendBuf+uint64(change.at), values[i%2][:])
				}
			}
		}()
		for range 100 {
			dr.nvsp(5, 1, 107, 0, 0, uint32(len(good)))
			completed := false
			await(t, "a completion or a fault", func() bool {
				p, ok, err := dr.ch.Take()
				check(t, err)
				completed = ok && p.Type == 11
				return completed || d.Counters().GuestFaults > faults
			})
			for n := far.Queue(0).ReadFrame(buf); n > 0; n = far.Queue(0).ReadFrame(buf) {
				if n < netio.HeaderLen+ethernetLen || n > netio.HeaderLen+len(segment)+vlanLen {
					t.Errorf("round %d: a frame of %d bytes", round, n)
				}
			}
			if !completed {
				break
			}
			dr.ch.Release()
		}
		close(stop)
		<-done
		check(t, dr.ch.Close())
		check(t, dr.guest.Unshare(dr.offer.Relid, dr.handle))
		check(t, dr.guest.Unshare(dr.offer.Relid, dr.sendHandle))
		dr.open(16)
	}
}
