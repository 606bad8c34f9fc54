// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/govmm/govmm/internal/bus"
	"github.com/govmm/govmm/internal/irq"
)

// The windows of the bus under test.
var (
	win32 = Range{0xc000_0000, 0x1000_0000}
	win64 = Range{0x80_0000_0000, 0x10_0000_0000}
	winIO = Range{0xc000, 0x1000}
)

// where records, for each doorbell, the address it has: the whole map of an
// address space if every window has one.
type where struct {
	mu sync.Mutex
	at map[int]uint64
}

func (w *where) AddDoorbell(addr uint64, fd int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[fd] = addr
}

func (w *where) RemoveDoorbell(addr uint64, fd int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at[fd] == addr {
		delete(w.at, fd)
	}
}

func (w *where) all() map[int]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.at)
}

// regs is a device's window: it has one doorbell at its start and answers every
// read with its number.
type regs byte

func (r regs) BusRead(_ uint64, p []byte) {
	for i := range p {
		p[i] = byte(r)
	}
}
func (regs) BusWrite(uint64, []byte)     {}
func (r regs) Doorbells() []bus.Doorbell { return []bus.Doorbell{{Offset: 0, FD: int(r)}} }

// sink collects messages and the level of a line.
type sink struct {
	mu    sync.Mutex
	sent  []irq.Message
	level bool
	sets  int
}

func (s *sink) Send(m irq.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, m)
}

func (s *sink) Set(level bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level = level
	s.sets++
}

func (s *sink) take() []irq.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.sent = nil
	return sent
}

// rig is a bus with what is around it.
type rig struct {
	t         rapid.TB
	mmio, pio where
	root      *Root
	mem, io   *bus.Bus
}

func newRig(t rapid.TB) *rig {
	r := &rig{t: t, mmio: where{at: map[int]uint64{}}, pio: where{at: map[int]uint64{}}}
	r.mem, r.io = bus.New(&r.mmio), bus.New(&r.pio)
	root, err := NewRoot(RootConfig{MMIO: r.mem, PIO: r.io, MMIO32: win32, MMIO64: win64, IO: winIO})
	if err != nil {
		t.Fatal(err)
	}
	r.root = root
	return r
}

func (r *rig) add(slot int, c Config) *Function {
	r.t.Helper()
	f, err := NewFunction(c)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.root.Add(slot, f); err != nil {
		r.t.Fatal(err)
	}
	return f
}

func ecamAddr(slot, reg int) uint64 { return uint64(slot)<<15 | uint64(reg) }

func (r *rig) read(slot, reg, n int) uint64 {
	p := make([]byte, 8)
	r.root.ECAM().BusRead(ecamAddr(slot, reg), p[:n])
	return binary.LittleEndian.Uint64(p)
}

func (r *rig) write(slot, reg, n int, v uint64) {
	p := binary.LittleEndian.AppendUint64(nil, v)
	r.root.ECAM().BusWrite(ecamAddr(slot, reg), p[:n])
}

func (r *rig) expect(what string, got, want uint64) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s is %#x, want %#x", what, got, want)
	}
}

// expectMap checks where the MMIO windows are, by their numbers.
func (r *rig) expectMap(want map[int]uint64) {
	r.t.Helper()
	if got := r.mmio.all(); !maps.Equal(got, want) {
		r.t.Errorf("windows are at %#x, want %#x", got, want)
	}
}

func memBAR(n byte, size uint64, k Kind) BAR { return BAR{Size: size, Kind: k, Handler: regs(n)} }

func TestHostBridge(t *testing.T) {
	r := newRig(t)
	r.expect("ID", r.read(0, 0, 4), 0x0008_1b36)
	r.expect("class and revision", r.read(0, 8, 4), 0x06000000)
	r.expect("header type", r.read(0, 0x0e, 1), 0)
	r.expect("capability bit", r.read(0, 6, 2), 0)
}

func TestHeader(t *testing.T) {
	r := newRig(t)
	s := &sink{}
	r.add(3, Config{
		VendorID: 0x1af4, DeviceID: 0x1041, Class: 0x020000, Revision: 1,
		SubsystemVendorID: 0x1234, SubsystemID: 0x5678,
		InterruptPin: 1, InterruptLine: 11, Line: s,
	})
	for _, c := range []struct {
		name string
		reg  int
		n    int
		want uint64
	}{
		{"vendor", 0, 2, 0x1af4}, {"device", 2, 2, 0x1041}, {"command", 4, 2, 0},
		{"revision", 8, 1, 1}, {"class", 9, 1, 0}, {"class", 10, 2, 0x0200},
		{"subsystem", 0x2c, 4, 0x56781234}, {"line", 0x3c, 1, 11}, {"pin", 0x3d, 1, 1},
		{"odd dword", 1, 4, 0x0010411a}, {"last", 0xfc, 4, 0}, {"past the end", 0xfe, 4, 0xffff0000},
		{"extended", 0x100, 4, 0xffffffff}, {"qword", 0, 8, 0x1041_1af4},
	} {
		r.expect(c.name, r.read(3, c.reg, c.n), c.want)
	}
	r.write(3, 0, 8, ^uint64(0))
	r.expect("ID after a write", r.read(3, 0, 4), 0x1041_1af4)
	r.expect("command", r.read(3, 4, 2), 0x407)
	r.write(3, 0x3c, 2, 0xffff)
	r.expect("line and pin", r.read(3, 0x3c, 2), 0x01ff)
}

func TestNothingReadsAsOnes(t *testing.T) {
	r := newRig(t)
	r.add(1, Config{VendorID: 1})
	for _, addr := range []uint64{
		ecamAddr(2, 0), ecamAddr(31, 0), ecamAddr(1, 0x1000), ecamAddr(1, 0xffd),
		1 << 20, 5<<20 | ecamAddr(1, 0), 1<<28 - 4,
	} {
		p := make([]byte, 4)
		r.root.ECAM().BusWrite(addr, p)
		r.root.ECAM().BusRead(addr, p)
		if binary.LittleEndian.Uint32(p) != 0xffffffff {
			t.Errorf("%#x reads as %x", addr, p)
		}
	}
}

func TestMechanism1(t *testing.T) {
	r := newRig(t)
	r.add(2, Config{VendorID: 0xabcd, DeviceID: 0x1234, Class: 0x112233, Revision: 0x44})
	for port, h := range map[uint64]bus.Handler{ConfigAddressPort: r.root.ConfigAddress(), ConfigDataPort: r.root.ConfigData()} {
		if err := r.io.Map(port, 4, h); err != nil {
			t.Fatal(err)
		}
	}
	out := func(port uint64, n int, v uint32) {
		r.io.Write(port, binary.LittleEndian.AppendUint32(nil, v)[:n])
	}
	in := func(port uint64, n int) uint64 {
		p := make([]byte, 8)
		r.io.Read(port, p[:n])
		return binary.LittleEndian.Uint64(p)
	}
	out(0xcf8, 4, 1<<31|2<<11)
	r.expect("address", in(0xcf8, 4), 1<<31|2<<11)
	r.expect("dword", in(0xcfc, 4), 0x1234abcd)
	r.expect("word", in(0xcfe, 2), 0x1234)
	r.expect("odd word", in(0xcfd, 2), 0x34ab)
	r.expect("byte", in(0xcff, 1), 0x12)
	r.expect("word that leaves the port", in(0xcff, 2), 0xffff)

	out(0xcf8, 4, 0xffffffff)
	r.expect("reserved bits", in(0xcf8, 4), 0x80fffffc)
	out(0xcf8, 4, 1<<31|2<<11|8)
	r.expect("class", in(0xcfc, 4), 0x11223344)
	for _, c := range []struct {
		port uint64
		n    int
	}{{0xcf8, 1}, {0xcf9, 1}, {0xcf8, 2}, {0xcfa, 2}} {
		out(c.port, c.n, 0)
		r.expect("address after a narrow write", in(0xcf8, 4), 1<<31|2<<11|8)
		r.expect("narrow read", in(c.port, c.n), 1<<(8*c.n)-1)
	}
	out(0xcf8, 4, 1<<31|2<<11|4)
	out(0xcfc, 2, 0x0004)
	r.expect("command", r.read(2, 4, 2), 4)
	out(0xcfd, 1, 0x04)
	r.expect("command", r.read(2, 4, 2), 0x404)
	out(0xcf8, 4, 2<<11)
	r.expect("disabled", in(0xcfc, 4), 0xffffffff)
	out(0xcf8, 4, 1<<31|1<<16|2<<11)
	r.expect("bus 1", in(0xcfc, 4), 0xffffffff)
	out(0xcf8, 4, 1<<31|2<<11|1<<8)
	r.expect("function 1", in(0xcfc, 4), 0xffffffff)
}

func TestPlacement(t *testing.T) {
	r := newRig(t)
	var c Config
	c.BARs[0] = memBAR(1, 0x100, Mem32)
	c.BARs[1] = memBAR(2, 0x10000, Mem64)
	c.BARs[3] = BAR{Size: 32, Kind: IO, Handler: regs(3)}
	c.BARs[4] = BAR{Size: 0x2000, Kind: Mem32, Prefetchable: true, Handler: regs(4)}
	r.add(1, c)
	r.add(2, c)
	for slot, want := range map[int][6]uint64{
		1: {0xc000_0000, 0x0000_0004, 0x80, 0xc001, 0xc000_2008, 0},
		2: {0xc000_1000, 0x0001_0004, 0x80, 0xc021, 0xc000_4008, 0},
	} {
		for i, v := range want {
			r.expect("BAR", r.read(slot, 0x10+4*i, 4), v)
		}
	}
	r.expectMap(map[int]uint64{})
}

func TestPlacementFallsBackBelow4G(t *testing.T) {
	root, err := NewRoot(RootConfig{MMIO: bus.New(nil), PIO: bus.New(nil), MMIO32: win32})
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewFunction(Config{BARs: [6]BAR{memBAR(1, 0x1000, Mem64)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.Add(AutoSlot, f); err != nil {
		t.Fatal(err)
	}
	if f.bars[0].home != win32.Base {
		t.Errorf("the BAR is at %#x", f.bars[0].home)
	}
}

func TestSizing(t *testing.T) {
	r := newRig(t)
	var c Config
	c.BARs[0] = memBAR(1, 0x4000, Mem32)
	c.BARs[2] = memBAR(2, 0x2_0000_0000, Mem64)
	c.BARs[5] = BAR{Size: 8, Kind: IO, Handler: regs(3)}
	r.add(1, c)
	for i := range 6 {
		r.write(1, 0x10+4*i, 4, 0xffffffff)
	}
	r.expect("32-bit BAR", r.read(1, 0x10, 4), 0xffffc000)
	r.expect("no BAR", r.read(1, 0x14, 4), 0)
	r.expect("64-bit BAR", r.read(1, 0x18, 8), 0xfffffffe_00000004)
	r.expect("I/O BAR", r.read(1, 0x24, 4), 0xfffffff9)
	r.expect("ROM", r.read(1, 0x30, 4), 0)
}

func TestDecodeAndMove(t *testing.T) {
	r := newRig(t)
	r.add(1, Config{BARs: [6]BAR{memBAR(1, 0x1000, Mem32)}})
	r.expectMap(map[int]uint64{})
	r.write(1, 4, 2, commandMemory)
	r.expectMap(map[int]uint64{1: 0xc000_0000})
	r.write(1, 0x10, 4, 0xc123_4567)
	r.expectMap(map[int]uint64{1: 0xc123_4000})
	r.write(1, 0x13, 1, 0xc2)
	r.expectMap(map[int]uint64{1: 0xc223_4000})
	r.write(1, 4, 2, commandIO)
	r.expectMap(map[int]uint64{})
	r.write(1, 0x10, 4, 0xc000_0000)
	r.expectMap(map[int]uint64{})
	r.write(1, 4, 1, 0xff)
	r.expectMap(map[int]uint64{1: 0xc000_0000})
	p := []byte{0}
	if !r.mem.Read(0xc000_0fff, p) || p[0] != 1 {
		t.Errorf("the window does not answer at its end: %x", p)
	}
	r.expect("refusals", r.root.RefusedBARs(), 0)
}

func TestIOBAR(t *testing.T) {
	r := newRig(t)
	r.add(1, Config{BARs: [6]BAR{{Size: 64, Kind: IO, Handler: regs(7)}}})
	r.write(1, 4, 2, commandMemory)
	if at := r.pio.all(); len(at) != 0 {
		t.Errorf("decoded by the wrong bit: %#x", at)
	}
	r.write(1, 4, 2, commandIO)
	r.expect("I/O window", r.pio.all()[7], 0xc000)
	r.write(1, 0x10, 4, 0xc7ff)
	r.expect("I/O window", r.pio.all()[7], 0xc7c0)
	r.write(1, 0x10, 4, 0x1c7c0)
	if at := r.pio.all(); len(at) != 0 {
		t.Errorf("decoded above 64 KiB: %#x", at)
	}
	r.expect("refusals", r.root.RefusedBARs(), 1)
}

func TestRefusedAddresses(t *testing.T) {
	for _, c := range []struct {
		name string
		to   uint64
	}{
		{"outside the window", 0x1000_0000}, {"zero", 0}, {"below it", 0xbfff_f000}, {"just above it", 0xd000_0000},
		{"the top", 0xffff_f000}, {"occupied", 0xc000_1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.add(1, Config{BARs: [6]BAR{memBAR(1, 0x1000, Mem32)}})
			r.add(2, Config{BARs: [6]BAR{memBAR(2, 0x1000, Mem32)}})
			r.write(1, 4, 2, commandMemory)
			r.write(2, 4, 2, commandMemory)
			r.write(1, 0x10, 4, c.to)
			r.expect("register", r.read(1, 0x10, 4), c.to)
			r.expectMap(map[int]uint64{2: 0xc000_1000})
			r.write(1, 4, 2, commandMemory|commandMaster)
			r.expect("refusals", r.root.RefusedBARs(), 1)
			r.write(1, 0x10, 4, 0xe000_0000)
			r.expect("refusals", r.root.RefusedBARs(), 2)
			r.write(1, 0x10, 4, 0xc000_0000)
			r.expectMap(map[int]uint64{1: 0xc000_0000, 2: 0xc000_1000})
		})
	}
}

func TestBARsChangePlaces(t *testing.T) {
	r := newRig(t)
	r.add(1, Config{BARs: [6]BAR{memBAR(1, 0x1000, Mem32)}})
	r.add(2, Config{BARs: [6]BAR{memBAR(2, 0x1000, Mem32)}})
	r.write(1, 4, 2, commandMemory)
	r.write(2, 4, 2, commandMemory)
	r.write(1, 0x10, 4, 0xc000_1000)
	r.expectMap(map[int]uint64{2: 0xc000_1000})
	r.write(2, 0x10, 4, 0xc000_0000)
	r.expectMap(map[int]uint64{1: 0xc000_1000, 2: 0xc000_0000})
}

// A 64-bit BAR whose halves are written one after the other is never decoded at
// a mix of its old and its new address.
func Test64BitHalves(t *testing.T) {
	const home = 0x80_0000_0000
	lo := func(v uint64) [3]uint64 { return [3]uint64{0x10, 4, v} }
	hi := func(v uint64) [3]uint64 { return [3]uint64{0x14, 4, v} }
	both := func(v uint64) [3]uint64 { return [3]uint64{0x10, 8, v} }
	const none = 0
	for _, c := range []struct {
		name   string
		writes [][3]uint64 // register, width, value
		want   []uint64    // where it is decoded after each
	}{
		{"low first", [][3]uint64{lo(0x4000_0000), hi(0x81)}, []uint64{none, 0x81_4000_0000}},
		{"high first", [][3]uint64{hi(0x81), lo(0x4000_0000)}, []uint64{none, 0x81_4000_0000}},
		{"at once", [][3]uint64{both(0x82_0001_0000)}, []uint64{0x82_0001_0000}},
		{"low half the same", [][3]uint64{lo(0), hi(0x83)}, []uint64{home, 0x83_0000_0000}},
		{"high half the same", [][3]uint64{lo(0x5000), hi(0x80)}, []uint64{none, 0x80_0000_5000}},
		{"sizing with decoding on", [][3]uint64{lo(0xffffffff), lo(0), hi(0xffffffff), hi(0x80)}, []uint64{none, home, none, home}},
		{"sizing all, then restoring", [][3]uint64{lo(0xffffffff), hi(0xffffffff), lo(0), hi(0x80)}, []uint64{none, none, none, home}},
		{"sizing one half, then moving", [][3]uint64{lo(0xffffffff), lo(0), hi(0x81), lo(0x4000)}, []uint64{none, home, none, 0x81_0000_4000}},
		{"below 4 GiB", [][3]uint64{lo(0xc800_0000), hi(0)}, []uint64{none, 0xc800_0000}},
		{"decoding off and on", [][3]uint64{lo(0x7000), {4, 2, 0}, {4, 2, commandMemory}}, []uint64{none, none, 0x80_0000_7000}},
		{"twice", [][3]uint64{lo(0x1000), hi(0x81), lo(0x2000), hi(0x82)}, []uint64{none, 0x81_0000_1000, none, 0x82_0000_2000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.add(1, Config{BARs: [6]BAR{memBAR(1, 0x1000, Mem64)}})
			r.write(1, 4, 2, commandMemory)
			r.expectMap(map[int]uint64{1: home})
			for i, w := range c.writes {
				r.write(1, int(w[0]), int(w[1]), w[2])
				want := map[int]uint64{1: c.want[i]}
				if c.want[i] == none {
					want = map[int]uint64{}
				}
				r.expectMap(want)
			}
		})
	}
}

func TestReset(t *testing.T) {
	r := newRig(t)
	s := &sink{}
	var c Config
	c.BARs[0] = memBAR(1, 0x1000, Mem64)
	c.MSIX, c.MSI = MSIX{Vectors: 2, BAR: 2}, s
	c.InterruptPin, c.Line = 1, s
	f := r.add(1, c)
	before := make([]byte, spaceSize)
	after := make([]byte, spaceSize)
	r.root.ECAM().BusRead(ecamAddr(1, 0), before)

	for range 2 {
		f.SetINTx(true)
		r.write(1, 4, 2, commandMemory)
		r.write(1, 0x10, 8, 0x81_0000_0000)
		r.write(1, 0x3c, 1, 5)
		if !s.level {
			t.Error("the line is low")
		}
		r.write(1, f.msixCap+2, 2, msixEnable)
		r.expectMap(map[int]uint64{1: 0x81_0000_0000})
		f.Reset()
		r.root.ECAM().BusRead(ecamAddr(1, 0), after)
		if !slices.Equal(before, after) {
			t.Errorf("configuration space was\n%x\nand after a reset is\n%x", before, after)
		}
		r.expectMap(map[int]uint64{})
		if s.level || f.MSIXEnabled() {
			t.Error("an interrupt outlives the reset")
		}
	}
	r.write(1, 4, 2, commandMemory)
	r.root.Reset()
	r.expectMap(map[int]uint64{})
	r.write(1, 4, 2, commandMemory)
	r.expectMap(map[int]uint64{1: 0x80_0000_0000})
}

func TestINTx(t *testing.T) {
	r := newRig(t)
	s := &sink{}
	f := r.add(1, Config{InterruptPin: 1, Line: s, MSIX: MSIX{Vectors: 1}, MSI: s})
	check := func(what string, level bool, status uint64) {
		t.Helper()
		if s.level != level {
			t.Errorf("%s: the line is %v", what, s.level)
		}
		r.expect(what+": status", r.read(1, 6, 1), statusCapabilities|status)
		r.expect(what+": command and status", r.read(1, 4, 4)>>16, statusCapabilities|status)
	}
	check("idle", false, 0)
	f.SetINTx(true)
	f.SetINTx(true)
	check("asserted", true, statusInterrupt)
	if s.sets != 1 {
		t.Errorf("the line was set %d times", s.sets)
	}
	r.write(1, 4, 2, commandINTxDisable)
	check("disabled", false, statusInterrupt)
	f.SetINTx(false)
	check("released", false, 0)
	f.SetINTx(true)
	r.write(1, 4, 2, 0)
	check("enabled again", true, statusInterrupt)
	r.write(1, f.msixCap+2, 2, msixEnable)
	check("MSI-X on", false, statusInterrupt)
	r.write(1, f.msixCap+2, 2, 0)
	check("MSI-X off", true, statusInterrupt)
	f.SetINTx(false)
	check("idle", false, 0)
}

func TestCapabilities(t *testing.T) {
	r := newRig(t)
	s := &sink{}
	r.add(1, Config{
		Capabilities: []Capability{
			{ID: CapVendor, Body: []byte{1, 2, 3}, Mask: []byte{0, 0xf0}},
			{ID: CapVendor, Body: make([]byte, 14)},
		},
		MSIX: MSIX{Vectors: 300, BAR: 4}, MSI: s,
	})
	r.expect("status", r.read(1, 6, 2), statusCapabilities)
	r.expect("pointer", r.read(1, 0x34, 4), 0x40)
	r.expect("first", r.read(1, 0x40, 8), 0x03020148_09)
	r.expect("second", r.read(1, 0x48, 4), 0x5809)
	r.expect("MSI-X", r.read(1, 0x58, 4), (300-1)<<16|0x0011)
	r.expect("table", r.read(1, 0x5c, 4), 4)
	r.expect("pending bits", r.read(1, 0x60, 4), 0x2004)
	r.write(1, 0x40, 8, ^uint64(0))
	r.expect("first", r.read(1, 0x40, 8), 0x03f20148_09)
	r.write(1, 0x58, 4, ^uint64(0))
	r.expect("message control", r.read(1, 0x5a, 2), 299|msixEnable|msixFunctionMask)
	r.write(1, 0x20, 4, ^uint64(0))
	r.expect("BAR size", r.read(1, 0x20, 4), 0xffffc000)
}

// echo is a window that stores what is written and answers with its inverse.
type echo struct{ written []byte }

func (e *echo) WindowRead(body []byte) {
	for i := range 4 {
		body[len(body)-4+i] = ^e.written[i]
	}
}
func (e *echo) WindowWrite(body []byte) { e.written = slices.Clone(body[len(body)-4:]) }

func TestWindow(t *testing.T) {
	r := newRig(t)
	e := &echo{written: make([]byte, 4)}
	r.add(1, Config{Capabilities: []Capability{{
		ID: CapVendor, Body: make([]byte, 6), Mask: []byte{0, 0, 0xff, 0xff, 0xff, 0xff}, Window: e,
	}}})
	r.write(1, 0x44, 4, 0x44332211)
	if !slices.Equal(e.written, []byte{0x11, 0x22, 0x33, 0x44}) {
		t.Errorf("the window got %x", e.written)
	}
	r.expect("window", r.read(1, 0x44, 4), 0xbbccddee)
	r.write(1, 0x45, 1, 0x99)
	if !slices.Equal(e.written, []byte{0xee, 0x99, 0xcc, 0xbb}) {
		t.Errorf("the window got %x", e.written)
	}
	r.expect("before the window", r.read(1, 0x40, 4), 0x09)
}

func TestReadBAR(t *testing.T) {
	r := newRig(t)
	f := r.add(1, Config{BARs: [6]BAR{memBAR(9, 0x10, Mem64)}})
	for _, c := range []struct {
		bar int
		off uint64
		n   int
		ok  bool
	}{
		{0, 0, 4, true}, {0, 12, 4, true}, {0, 13, 4, false}, {0, 16, 1, false}, {0, ^uint64(0), 4, false},
		{1, 0, 1, false}, {-1, 0, 1, false}, {6, 0, 1, false}, {255, 0, 1, false},
	} {
		p := make([]byte, c.n)
		if got := f.ReadBAR(c.bar, c.off, p); got != c.ok || c.ok && p[0] != 9 {
			t.Errorf("ReadBAR(%d, %#x, %d) = %v, %x", c.bar, c.off, c.n, got, p)
		}
		if got := f.WriteBAR(c.bar, c.off, p); got != c.ok {
			t.Errorf("WriteBAR(%d, %#x, %d) = %v", c.bar, c.off, c.n, got)
		}
	}
}

func TestBadConfig(t *testing.T) {
	s := &sink{}
	long := Capability{ID: CapVendor, Body: make([]byte, 100)}
	for want, c := range map[string]Config{
		"not a power of two":      {BARs: [6]BAR{memBAR(1, 48, Mem32)}},
		"from 0x10":               {BARs: [6]BAR{memBAR(1, 8, Mem32)}},
		"to 0x100":                {BARs: [6]BAR{{Size: 512, Kind: IO, Handler: regs(1)}}},
		"needs the next slot":     {BARs: [6]BAR{5: memBAR(1, 16, Mem64)}},
		"upper half of BAR 0":     {BARs: [6]BAR{0: memBAR(1, 16, Mem64), 1: memBAR(2, 16, Mem32)}},
		"no handler":              {BARs: [6]BAR{{Size: 16}}},
		"for itself":              {BARs: [6]BAR{memBAR(1, 16, Mem32)}, MSIX: MSIX{Vectors: 1}, MSI: s},
		"not BAR 6":               {MSIX: MSIX{Vectors: 1, BAR: 6}, MSI: s},
		"1 to 2048":               {MSIX: MSIX{Vectors: 2049}, MSI: s},
		"way to send":             {MSIX: MSIX{Vectors: 1}},
		"1 to 4 with a line":      {InterruptPin: 1},
		"don't fit":               {Capabilities: []Capability{long, long}},
		"shorter than its mask":   {Capabilities: []Capability{{Mask: []byte{1}}}},
		"mask or window":          {Capabilities: []Capability{{Body: []byte{1}, Window: &echo{}}}},
		"interrupt pin 5":         {InterruptPin: 5, Line: s},
		"-1 MSI-X vectors":        {MSIX: MSIX{Vectors: -1}, MSI: s},
		"size 0x8000000000000000": {BARs: [6]BAR{memBAR(1, 1<<63, Mem64)}},
	} {
		if _, err := NewFunction(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestBadRoot(t *testing.T) {
	b := bus.New(nil)
	for want, c := range map[string]RootConfig{
		"needs the MMIO":   {},
		"not below 4 GiB":  {MMIO: b, PIO: b, MMIO32: Range{0xf000_0000, 0x1000_1000}},
		"not below 64 KiB": {MMIO: b, PIO: b, IO: Range{0xffff, 2}},
	} {
		if _, err := NewRoot(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestBadAdd(t *testing.T) {
	r := newRig(t)
	f := r.add(5, Config{})
	fail := func(slot int, f *Function, want string) {
		t.Helper()
		if _, err := r.root.Add(slot, f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	other, err := NewFunction(Config{BARs: [6]BAR{memBAR(1, win32.Size, Mem32), memBAR(2, 0x1000, Mem32)}})
	if err != nil {
		t.Fatal(err)
	}
	fail(6, f, "already in a slot")
	fail(0, other, "taken")
	fail(5, other, "slot 5 is taken")
	fail(32, other, "use 1 to 31")
	fail(-2, other, "use 1 to 31")
	fail(6, other, "no room for a BAR of 0x1000 bytes")
	r.expect("slot 6", r.read(6, 0, 4), 0xffffffff)
	other.Reset()
	for range Slots - 2 {
		r.add(AutoSlot, Config{})
	}
	fail(AutoSlot, other, "use fewer devices")
}
