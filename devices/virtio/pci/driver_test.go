// SPDX-License-Identifier: Apache-2.0

package virtiopci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/govmm/govmm/devices/pci"
	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/internal/bus"
	"github.com/govmm/govmm/internal/irq"
)

// fakeDevice is a virtio.Device that checks the order of the transport's calls.
type fakeDevice struct {
	tb       rapid.TB
	t        *Transport
	features uint64
	sizes    []uint16
	config   [64]byte
	startErr error
	onStart  func(virtio.Driver)
	onStop   func()

	running bool
	calls   []string
	driver  virtio.Driver
}

func (d *fakeDevice) ID() uint16           { return 1 }
func (d *fakeDevice) Features() uint64     { return d.features }
func (d *fakeDevice) QueueSizes() []uint16 { return slices.Clone(d.sizes) }

func (d *fakeDevice) ReadConfig(off uint64, p []byte) {
	clear(p)
	if off < uint64(len(d.config)) {
		copy(p, d.config[off:])
	}
}

func (d *fakeDevice) WriteConfig(off uint64, p []byte) {
	if off < uint64(len(d.config)) {
		copy(d.config[off:], p)
	}
}

func (d *fakeDevice) Start(v virtio.Driver) error {
	d.calls = append(d.calls, "start")
	if d.running {
		d.tb.Error("Start while running")
	}
	d.running, d.driver = true, v
	if v.Features&^d.features != 0 || v.Features&virtio.FeatureVersion1 == 0 {
		d.tb.Errorf("started with features %#x of %#x", v.Features, d.features)
	}
	if len(v.Queues) != len(d.sizes) {
		d.tb.Errorf("started with %d queues", len(v.Queues))
	}
	for i, q := range v.Queues {
		if q.Size == 0 || q.Size&(q.Size-1) != 0 || q.Size > d.sizes[i] || q.Interrupt == nil {
			d.tb.Errorf("started with queue %d %+v", i, q)
		}
	}
	if d.onStart != nil {
		d.onStart(v)
	}
	return d.startErr
}

// Stop finds all that it was given still there.
func (d *fakeDevice) Stop() {
	d.calls = append(d.calls, "stop")
	if !d.running {
		d.tb.Error("Stop while not running")
	}
	if d.onStop != nil {
		d.onStop()
	}
	for i, q := range d.driver.Queues {
		if _, err := unix.FcntlInt(uintptr(q.KickFD), unix.F_GETFD, 0); err != nil {
			d.tb.Errorf("queue %d: the doorbell is gone before Stop: %v", i, err)
		}
		if now := d.t.queues[i].setup(); now != q {
			d.tb.Errorf("queue %d changed before Stop: %+v, was %+v", i, now, q)
		}
	}
	if d.t.signals.getStatus()&statusDriverOK == 0 {
		d.tb.Error("the status is cleared before Stop")
	}
	d.running = false
}

func (d *fakeDevice) expectCalls(want ...string) {
	d.tb.Helper()
	if !slices.Equal(d.calls, want) {
		d.tb.Errorf("calls %v, want %v", d.calls, want)
	}
	d.calls = nil
}

// board is the machine around the transport.
type board struct {
	mu        sync.Mutex
	sent      []irq.Message
	line      bool
	onLine    func() // runs once, when the line goes up
	doorbells map[uint64]int
}

func (b *board) Send(m irq.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = append(b.sent, m)
}

func (b *board) Set(level bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.line = level
	if f := b.onLine; f != nil && level {
		b.onLine = nil
		f()
	}
}

func (b *board) AddDoorbell(addr uint64, fd int)    { b.doorbells[addr] = fd }
func (b *board) RemoveDoorbell(addr uint64, fd int) { delete(b.doorbells, addr) }

func (b *board) level() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.line
}

func (b *board) take() []irq.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	sent := b.sent
	b.sent = nil
	return sent
}

// Offsets, statuses and features as a driver knows them (virtio 1.2, 4.1.4.3,
// 2.1 and 6), not taken from the code under test.
const (
	cDevFeatSel = 0x00
	cDevFeat    = 0x04
	cDrvFeatSel = 0x08
	cDrvFeat    = 0x0c
	cConfigVec  = 0x10
	cNumQueues  = 0x12
	cStatus     = 0x14
	cGeneration = 0x15
	cSelect     = 0x16
	cSize       = 0x18
	cVector     = 0x1a
	cEnable     = 0x1c
	cNotifyOff  = 0x1e
	cDesc       = 0x20
	cAvail      = 0x28
	cUsed       = 0x30

	sAck        = 0x01
	sDriver     = 0x02
	sDriverOK   = 0x04
	sFeaturesOK = 0x08
	sNeedsReset = 0x40
	sFailed     = 0x80

	fNetMAC   = 1 << 5
	fVersion1 = 1 << 32
	offered   = fVersion1 | fNetMAC | 1<<28 | 1<<29
)

const slot = 3

// guest is a driver that knows only what PCI and virtio tell it.
type guest struct {
	tb    rapid.TB
	dev   *fakeDevice
	board *board
	t     *Transport
	root  *pci.Root
	mem   *bus.Bus

	caps       map[byte]capInfo
	msixCap    int
	multiplier uint64
}

type capInfo struct {
	pos    int
	bar    int
	off    uint64
	length uint64
}

func newDevice(tb rapid.TB) *fakeDevice {
	d := &fakeDevice{tb: tb, features: offered, sizes: []uint16{256, 256, 64}}
	for i := range d.config {
		d.config[i] = byte(i + 1)
	}
	return d
}

// newGuest puts a device on a bus and finds it again as a driver does.
func newGuest(tb rapid.TB, change ...func(*Options)) *guest {
	g := &guest{tb: tb, dev: newDevice(tb), board: &board{doorbells: map[uint64]int{}}}
	opt := Options{Name: "net0", MSI: g.board, Line: g.board, InterruptLine: 10}
	for _, f := range change {
		f(&opt)
	}
	t, err := New(g.dev, opt)
	if err != nil {
		tb.Fatal(err)
	}
	g.t, g.dev.t = t, t
	if tb, ok := tb.(testing.TB); ok {
		tb.Cleanup(func() {
			if err := t.Close(); err != nil {
				tb.Error(err)
			}
		})
	}
	g.mem = bus.New(g.board)
	g.root, err = pci.NewRoot(pci.RootConfig{
		MMIO: g.mem, PIO: bus.New(nil),
		MMIO32: pci.Range{Base: 0xc000_0000, Size: 0x1000_0000},
		MMIO64: pci.Range{Base: 0x80_0000_0000, Size: 0x1_0000_0000},
	})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := g.root.Add(slot, t.Function()); err != nil {
		tb.Fatal(err)
	}
	g.probe()
	return g
}

func (g *guest) probe() {
	g.caps = map[byte]capInfo{}
	g.cfgWrite(4, 2, 6)
	for at := int(g.cfg(0x34, 1)); at != 0; at = int(g.cfg(at+1, 1)) {
		switch g.cfg(at, 1) {
		case 0x09:
			kind := byte(g.cfg(at+3, 1))
			g.caps[kind] = capInfo{at, int(g.cfg(at+4, 1)), g.cfg(at+8, 4), g.cfg(at+12, 4)}
			if kind == 2 {
				g.multiplier = g.cfg(at+16, 4)
			}
		case 0x11:
			g.msixCap = at
		}
	}
}

func (g *guest) cfg(reg, n int) uint64 {
	p := make([]byte, 8)
	g.root.ECAM().BusRead(slot<<15|uint64(reg), p[:n])
	return binary.LittleEndian.Uint64(p)
}

func (g *guest) cfgWrite(reg, n int, v uint64) {
	g.root.ECAM().BusWrite(slot<<15|uint64(reg), binary.LittleEndian.AppendUint64(nil, v)[:n])
}

func (g *guest) barAddr(i int) uint64 {
	v := g.cfg(0x10+4*i, 4)
	if v&4 != 0 {
		v |= g.cfg(0x14+4*i, 4) << 32
	}
	return v &^ 0xf
}

// addr is the guest physical address of a structure.
func (g *guest) addr(kind byte) uint64 {
	c, ok := g.caps[kind]
	if !ok {
		g.tb.Fatalf("no capability of type %d", kind)
	}
	return g.barAddr(c.bar) + c.off
}

func (g *guest) read(kind byte, off uint64, n int) uint64 {
	p := make([]byte, 8)
	if !g.mem.Read(g.addr(kind)+off, p[:n]) {
		g.tb.Errorf("nothing answers at structure %d offset %#x", kind, off)
	}
	return binary.LittleEndian.Uint64(p)
}

func (g *guest) write(kind byte, off uint64, n int, v uint64) {
	if !g.mem.Write(g.addr(kind)+off, binary.LittleEndian.AppendUint64(nil, v)[:n]) {
		g.tb.Errorf("nothing takes a write to structure %d offset %#x", kind, off)
	}
}

// width is the width of a common register.
func width(off uint64) int {
	switch off {
	case cStatus, cGeneration:
		return 1
	case cConfigVec, cNumQueues, cSelect, cSize, cVector, cEnable, cNotifyOff:
		return 2
	}
	return 4
}

func (g *guest) common(off uint64) uint64 { return g.read(1, off, width(off)) }
func (g *guest) set(off, v uint64)        { g.write(1, off, width(off), v) }
func (g *guest) set64(off, v uint64) {
	g.write(1, off, 4, v)
	g.write(1, off+4, 4, v>>32)
}

func (g *guest) expect(what string, got, want uint64) {
	g.tb.Helper()
	if got != want {
		g.tb.Errorf("%s is %#x, want %#x", what, got, want)
	}
}

func (g *guest) accept(features uint64) {
	for i := range uint64(2) {
		g.set(cDrvFeatSel, i)
		g.set(cDrvFeat, features>>(32*i))
	}
}

// negotiate goes as far as FEATURES_OK.
func (g *guest) negotiate() {
	g.set(cStatus, 0)
	g.set(cStatus, sAck)
	g.set(cStatus, sAck|sDriver)
	g.accept(offered)
	g.set(cStatus, sAck|sDriver|sFeaturesOK)
	g.expect("status", g.common(cStatus), sAck|sDriver|sFeaturesOK)
}

// ringAddr is where the driver has an area of a queue.
func ringAddr(q, area int) uint64 { return 0x1_0000_0000*uint64(area+1) + 0x10000*uint64(q) }

func (g *guest) setUpQueues() {
	for q := range g.common(cNumQueues) {
		g.set(cSelect, q)
		g.set(cSize, 32)
		for area, off := range []uint64{cDesc, cAvail, cUsed} {
			g.set64(off, ringAddr(int(q), area))
		}
		g.set(cEnable, 1)
	}
}

// live brings the device up.
func (g *guest) live() {
	g.negotiate()
	g.setUpQueues()
	g.set(cStatus, g.common(cStatus)|sDriverOK)
	g.expect("status", g.common(cStatus), sAck|sDriver|sFeaturesOK|sDriverOK)
}

// enableMSIX enables MSI-X and unmasks every vector; vector i has data 0x40+i.
func (g *guest) enableMSIX() {
	g.cfgWrite(g.msixCap+2, 2, 0x8000)
	for i := range g.cfg(g.msixCap+2, 2)&0x7ff + 1 {
		entry := make([]byte, 16)
		binary.LittleEndian.PutUint64(entry, 0xfee0_0000)
		binary.LittleEndian.PutUint32(entry[8:], 0x40+uint32(i))
		for w := 0; w < 16; w += 4 {
			g.mem.Write(g.barAddr(barMSIX)+16*i+uint64(w), entry[w:w+4])
		}
	}
}

// expectSent checks which vectors have fired since the last call.
func (g *guest) expectSent(what string, vectors ...uint32) {
	g.tb.Helper()
	var want []irq.Message
	for _, v := range vectors {
		want = append(want, irq.Message{Addr: 0xfee0_0000, Data: 0x40 + v})
	}
	if got := g.board.take(); !slices.Equal(got, want) {
		g.tb.Errorf("%s: messages %x, want %x", what, got, want)
	}
}

// kicks empties a doorbell and returns its count.
func kicks(tb rapid.TB, fd int) uint64 {
	var p [8]byte
	if _, err := unix.Read(fd, p[:]); errors.Is(err, unix.EAGAIN) {
		return 0
	} else if err != nil {
		tb.Error(err)
	}
	return binary.NativeEndian.Uint64(p[:])
}

// commonState is all of the common registers that can be read, for each queue.
func (g *guest) commonState() string {
	p := make([]byte, 0x38)
	s := ""
	for q := range 4 {
		g.set(cSelect, uint64(q))
		g.mem.Read(g.addr(1), p)
		s += fmt.Sprintf("%x\n", p)
	}
	return s
}
