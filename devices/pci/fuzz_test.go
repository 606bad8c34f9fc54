// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"encoding/binary"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/govmm/govmm/internal/irq"
)

// op is one thing that a guest or a device does.
type op struct {
	kind  byte
	slot  byte
	off   uint16
	width byte
	value uint64
}

const (
	opECAMRead = iota
	opECAMWrite
	opCF8Read
	opCF8Write
	opRegister // a write to a register that matters
	opTableRead
	opTableWrite
	opRaise
	opINTx
	opReset
	opKinds
)

const opSize = 13 // bytes of an encoded op

func decodeOps(b []byte) (ops []op) {
	for ; len(b) >= opSize && len(ops) < 200; b = b[opSize:] {
		ops = append(ops, op{b[0], b[1], binary.LittleEndian.Uint16(b[2:]), b[4], binary.LittleEndian.Uint64(b[5:])})
	}
	return ops
}

func encodeOps(ops ...op) (b []byte) {
	for _, o := range ops {
		b = append(b, o.kind, o.slot)
		b = binary.LittleEndian.AppendUint16(b, o.off)
		b = append(b, o.width)
		b = binary.LittleEndian.AppendUint64(b, o.value)
	}
	return b
}

// model is what the functions are to be, kept in the plainest way.
type model struct {
	fns  []*modelFunction
	bars []*modelBAR // in the order of slots and registers
	sent []irq.Message
}

type modelFunction struct {
	slot       int
	data, mask [256]byte
	first      [256]byte
	bars       []*modelBAR
	intx       bool
	msix       int // offset of the capability, 0 for none
	table      [2][4]uint32
	pending    [2]bool
}

type modelBAR struct {
	f         *modelFunction
	id        int // of its doorbell
	reg       int
	io, wide  bool
	size      uint64
	mapped    bool
	at        uint64
	low, high bool // the half has been written, the other one has not
}

func (f *modelFunction) reg16(off int) uint16 { return binary.LittleEndian.Uint16(f.data[off:]) }

func (b *modelBAR) value() uint64 {
	v := uint64(binary.LittleEndian.Uint32(b.f.data[b.reg:]))
	if b.wide {
		v = binary.LittleEndian.Uint64(b.f.data[b.reg:])
	}
	return v / b.size * b.size
}

func (b *modelBAR) on() bool {
	if b.io {
		return b.f.reg16(4)&1 != 0
	}
	return b.f.reg16(4)&2 != 0
}

func (b *modelBAR) wanted() bool { return b.on() && (b.low == b.high || b.value() == b.at) }

func (b *modelBAR) fits() bool {
	in := func(w Range) bool { return b.value() >= w.Base && b.value() <= w.Base+w.Size-b.size }
	if b.io {
		return in(winIO)
	}
	return in(win32) || b.wide && in(win64)
}

// configWrite is a write to configuration space.
func (m *model) configWrite(f *modelFunction, off int, p []byte) {
	var old []uint64
	for _, b := range f.bars {
		old = append(old, b.value())
	}
	touched := map[int]bool{}
	for i, v := range p {
		if off+i < 256 {
			f.data[off+i] = f.data[off+i]&^f.mask[off+i] | v&f.mask[off+i]
			touched[(off+i)/4*4] = true
		}
	}
	for i, b := range f.bars {
		if b.wide {
			b.low, b.high = b.low || touched[b.reg], b.high || touched[b.reg+4]
			if touched[b.reg] && touched[b.reg+4] || b.low && b.high || b.value() != old[i] && b.value() == b.at {
				b.low, b.high = false, false
			}
		}
		if !b.on() {
			b.low, b.high = false, false
		}
	}
	m.remap()
	m.deliver(f)
}

func (m *model) remap() {
	for _, b := range m.bars {
		b.mapped = b.mapped && b.wanted() && b.value() == b.at
	}
	for _, b := range m.bars {
		if b.mapped || !b.wanted() || !b.fits() {
			continue
		}
		free := true
		for _, o := range m.bars {
			if o.mapped && o.io == b.io && o.at < b.value()+b.size && b.value() < o.at+o.size {
				free = false
			}
		}
		if free {
			b.mapped, b.at = true, b.value()
		}
	}
}

func (f *modelFunction) enabled() bool { return f.msix != 0 && f.reg16(f.msix+2)&0x8000 != 0 }

func (f *modelFunction) open(i int) bool {
	return f.enabled() && f.reg16(f.msix+2)&0x4000 == 0 && f.reg16(4)&4 != 0 && f.table[i][3]&1 == 0
}

// deliver sends what is pending and may be sent.
func (m *model) deliver(f *modelFunction) {
	for i := range f.pending {
		if f.pending[i] && f.open(i) {
			f.pending[i] = false
			m.send(f, i)
		}
	}
}

func (m *model) send(f *modelFunction, i int) {
	e := f.table[i]
	m.sent = append(m.sent, irq.Message{Addr: uint64(e[1])<<32 + uint64(e[0]), Data: e[2]})
}

func (m *model) raise(f *modelFunction, i int) {
	switch {
	case f.open(i):
		m.send(f, i)
	case f.enabled():
		f.pending[i] = true
	}
}

func (m *model) tableWrite(f *modelFunction, off int, p []byte) {
	if len(p) != 4 && len(p) != 8 || off%len(p) != 0 || off >= 32 {
		return
	}
	for ; len(p) > 0; off, p = off+4, p[4:] {
		v := binary.LittleEndian.Uint32(p)
		switch off % 16 {
		case 0:
			v = v / 4 * 4
		case 12:
			v %= 2
		}
		f.table[off/16][off%16/4] = v
	}
	m.deliver(f)
}

func (f *modelFunction) tableImage() []byte {
	b := make([]byte, 0x2000)
	for i, e := range f.table {
		for w, v := range e {
			binary.LittleEndian.PutUint32(b[16*i+4*w:], v)
		}
		if f.pending[i] {
			b[0x1000] |= 1 << i
		}
	}
	return b
}

func (m *model) reset(f *modelFunction) {
	f.data, f.intx = f.first, false
	f.table = [2][4]uint32{{3: 1}, {3: 1}}
	f.pending = [2]bool{}
	for _, b := range f.bars {
		b.low, b.high = false, false
	}
	m.remap()
}

// world is the real bus and the model, side by side.
type world struct {
	*rig
	model model
	fns   []*Function
	s     sink
}

func newWorld(t rapid.TB) *world {
	w := &world{rig: newRig(t)}
	var a, b Config
	a.VendorID, a.DeviceID, a.Class = 0x1af4, 0x1041, 0x020000
	a.BARs = [6]BAR{memBAR(1, 0x1000, Mem32), {Size: 0x20, Kind: IO, Handler: regs(2)}, memBAR(3, 0x2000, Mem64)}
	a.MSIX, a.MSI = MSIX{Vectors: 2, BAR: 4}, &w.s
	a.InterruptPin, a.Line = 1, &w.s
	b.VendorID, b.DeviceID = 0x1234, 0x5678
	b.BARs = [6]BAR{0: memBAR(5, 0x1000, Mem64), 5: memBAR(6, 0x4000, Mem32)}
	w.fns = []*Function{w.add(1, a), w.add(2, b)}
	w.s.sets = 0

	w.watch(1, map[int]uint32{4: 0x0407, 0x10: ^uint32(0xfff), 0x14: ^uint32(0x1f), 0x18: ^uint32(0x1fff), 0x1c: ^uint32(0), 0x20: ^uint32(0x1fff), 0x3c: 0xff, 0x40: 0xc000_0000},
		&modelBAR{id: 1, reg: 0x10, size: 0x1000}, &modelBAR{id: 2, reg: 0x14, size: 0x20, io: true},
		&modelBAR{id: 3, reg: 0x18, size: 0x2000, wide: true}, &modelBAR{id: 0, reg: 0x20, size: 0x2000})
	w.model.fns[0].msix = 0x40
	w.watch(2, map[int]uint32{4: 0x0407, 0x10: ^uint32(0xfff), 0x14: ^uint32(0), 0x24: ^uint32(0x3fff), 0x3c: 0xff},
		&modelBAR{id: 5, reg: 0x10, size: 0x1000, wide: true}, &modelBAR{id: 6, reg: 0x24, size: 0x4000})
	return w
}

// watch adds a function to the model: its writable bits and its BARs.
func (w *world) watch(slot int, writable map[int]uint32, bars ...*modelBAR) {
	f := &modelFunction{slot: slot, bars: bars}
	w.root.ECAM().BusRead(ecamAddr(slot, 0), f.data[:])
	f.first = f.data
	for off, m := range writable {
		binary.LittleEndian.PutUint32(f.mask[off:], m)
	}
	for _, b := range bars {
		b.f = f
	}
	w.model.fns = append(w.model.fns, f)
	w.model.bars = append(w.model.bars, bars...)
	w.model.reset(f)
}

// widths are access widths; 3 is one that no processor makes.
var widths = []int{1, 2, 3, 4, 8}

// registers and values are places and values where something happens.
var (
	registers = []int{4, 0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x40}
	values    = []uint64{
		0, 0xffffffff, 0x80, 0x81, 0xc000_0000, 0xc000_1000, 0xc000_2000, 0xc000_4000, 0xc0fe_0000, 0xd000_0000,
		0xc000, 0xc020, 0xcfe0, 0x407, 6, 7, 2, 0xc000_0000_0000_0000, 0x8000_0000, 0x4000_0000, ^uint64(0),
	}
)

func (w *world) apply(o op) {
	i := int(o.slot) % len(w.fns)
	f, mf := w.fns[i], w.model.fns[i]
	n := widths[int(o.width)%len(widths)]
	p := binary.LittleEndian.AppendUint64(nil, o.value)[:n]
	switch o.kind % opKinds {
	case opECAMRead:
		w.configRead(w.slotOf(o), int(o.off%4096), n)
	case opECAMWrite:
		w.configWrite(w.slotOf(o), int(o.off%4096), p)
	case opCF8Read, opCF8Write:
		w.mechanism1(o, p)
	case opRegister:
		reg, v := registers[int(o.off)%len(registers)], values[o.value%uint64(len(values))]
		w.configWrite(mf.slot, reg, binary.LittleEndian.AppendUint64(nil, v)[:4+4*int(o.width%2)])
	case opTableRead:
		w.tableRead(o.off%0x2000, n)
	case opTableWrite:
		off := int(o.off % 48)
		if w.fns[0].WriteBAR(4, uint64(off), p) {
			w.model.tableWrite(w.model.fns[0], off, p)
		}
	case opRaise:
		w.fns[0].Vector(int(o.value % 2)).Raise()
		w.model.raise(w.model.fns[0], int(o.value%2))
	case opINTx:
		w.fns[0].SetINTx(o.value%2 == 1)
		w.model.fns[0].intx = o.value%2 == 1
	case opReset:
		f.Reset()
		w.model.reset(mf)
	}
	w.check(o)
}

func (w *world) slotOf(o op) int { return int(o.slot) % 4 }

func (w *world) configWrite(slot, off int, p []byte) {
	w.root.ECAM().BusWrite(ecamAddr(slot, off), p)
	w.modelWrite(slot, off, p)
}

func (w *world) modelWrite(slot, off int, p []byte) {
	for _, f := range w.model.fns {
		if f.slot == slot && off+len(p) <= 4096 {
			w.model.configWrite(f, off, p)
		}
	}
}

func (w *world) configRead(slot, off, n int) {
	p := make([]byte, n)
	w.root.ECAM().BusRead(ecamAddr(slot, off), p)
	w.compare(slot, off, p)
}

// compare checks what a configuration read gave.
func (w *world) compare(slot, off int, p []byte) {
	for _, f := range w.model.fns {
		if f.slot != slot || off+len(p) > 4096 {
			continue
		}
		if want := f.image(off, len(p)); !slices.Equal(p, want) {
			w.t.Fatalf("slot %d at %#x reads as %x, want %x", slot, off, p, want)
		}
		return
	}
	if slot != 0 && slices.ContainsFunc(p, func(b byte) bool { return b != 0xff }) {
		w.t.Fatalf("empty slot %d at %#x reads as %x", slot, off, p)
	}
}

func (f *modelFunction) image(off, n int) (p []byte) {
	for i := off; i < off+n; i++ {
		switch {
		case i >= 256:
			p = append(p, 0xff)
		case i == 6 && f.intx:
			p = append(p, f.data[i]|8)
		default:
			p = append(p, f.data[i])
		}
	}
	return p
}

// mechanism1 selects a register by CONFIG_ADDRESS and accesses CONFIG_DATA.
func (w *world) mechanism1(o op, p []byte) {
	within := int(o.off) % 4
	if len(p)+within > 4 {
		return
	}
	slot, reg := w.slotOf(o), int(o.off)&0xfc
	w.root.ConfigAddress().BusWrite(0, binary.LittleEndian.AppendUint32(nil, 1<<31|uint32(slot)<<11|uint32(reg)))
	if o.kind%opKinds == opCF8Write {
		w.root.ConfigData().BusWrite(uint64(within), p)
		w.modelWrite(slot, reg+within, p)
		return
	}
	w.root.ConfigData().BusRead(uint64(within), p)
	w.compare(slot, reg+within, p)
}

func (w *world) tableRead(off uint16, n int) {
	p := make([]byte, n)
	if !w.fns[0].ReadBAR(4, uint64(off), p) {
		return
	}
	if want := w.model.fns[0].tableImage()[off:][:n]; !slices.Equal(p, want) {
		w.t.Fatalf("MSI-X BAR at %#x reads as %x, want %x", off, p, want)
	}
}

// check compares all that can be seen.
func (w *world) check(o op) {
	w.t.Helper()
	for _, f := range w.model.fns {
		w.configRead(f.slot, 0, 256)
	}
	mmio, pio := map[int]uint64{}, map[int]uint64{}
	for _, b := range w.model.bars {
		switch {
		case b.mapped && b.io:
			pio[b.id] = b.at
		case b.mapped && b.id != 0:
			mmio[b.id] = b.at
		}
		if b.id == 0 && (b.mapped != w.fns[0].byIndex[4].mapped || b.mapped && b.at != w.fns[0].byIndex[4].at) {
			w.t.Fatalf("%+v: the MSI-X BAR is at %#x (%v), want %#x (%v)", o, w.fns[0].byIndex[4].at, w.fns[0].byIndex[4].mapped, b.at, b.mapped)
		}
	}
	if got := w.mmio.all(); !maps.Equal(got, mmio) {
		w.t.Fatalf("%+v: memory windows are at %#x, want %#x", o, got, mmio)
	}
	if got := w.pio.all(); !maps.Equal(got, pio) {
		w.t.Fatalf("%+v: I/O windows are at %#x, want %#x", o, got, pio)
	}
	if got := w.s.take(); !slices.Equal(got, w.model.sent) {
		w.t.Fatalf("%+v: sent %x, want %x", o, got, w.model.sent)
	}
	w.model.sent = nil
	f := w.model.fns[0]
	if level := f.intx && f.reg16(4)&0x400 == 0 && !f.enabled(); w.s.level != level {
		w.t.Fatalf("%+v: the line is %v", o, w.s.level)
	}
}

func FuzzBus(f *testing.F) {
	f.Add(encodeOps(op{opRegister, 0, 0, 0, 13}, op{opRegister, 0, 3, 0, 3}, op{opRegister, 0, 4, 0, 2}))
	f.Add(encodeOps(op{kind: opECAMWrite, slot: 1, off: 4, width: 1, value: 7}, op{kind: opTableWrite, off: 8, width: 4, value: 5}, op{kind: opRaise}))
	f.Add(encodeOps(op{kind: opINTx, value: 1}, op{kind: opCF8Read, slot: 1, off: 6, width: 1}, op{kind: opReset}))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := newWorld(t)
		for _, o := range decodeOps(b) {
			w.apply(o)
		}
	})
}

// TestAgainstModel makes the ops more evenly than a fuzzer without a corpus.
func TestAgainstModel(t *testing.T) {
	one := rapid.Custom(func(t *rapid.T) op {
		return op{
			kind:  rapid.SampledFrom([]byte{0, 1, 1, 2, 3, 4, 4, 4, 4, 4, 5, 6, 6, 7, 8, 9}).Draw(t, "kind"),
			slot:  rapid.ByteRange(0, 5).Draw(t, "slot"),
			off:   rapid.OneOf(rapid.Uint16Range(0, 0x50), rapid.Uint16()).Draw(t, "off"),
			width: rapid.ByteRange(0, 4).Draw(t, "width"),
			value: rapid.Uint64().Draw(t, "value"),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		for _, o := range rapid.SliceOfN(one, 1, 60).Draw(rt, "ops") {
			w.apply(o)
		}
	})
}

// Whatever is added, homes are aligned, inside their window and apart.
func TestPlacementProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(rt)
		var homes [2][]Range
		for range rapid.IntRange(1, 20).Draw(rt, "functions") {
			var c Config
			for i := 0; i < 6; i++ {
				k := rapid.SampledFrom([]Kind{Mem32, Mem64, IO}).Draw(rt, "kind")
				lo, hi := 4, 20
				if k == IO {
					lo, hi = 2, 5
				}
				c.BARs[i] = BAR{Size: 1 << rapid.IntRange(lo, hi).Draw(rt, "size"), Kind: k, Handler: regs(1)}
				if k == Mem64 && i == 5 {
					c.BARs[i].Kind = Mem32
				}
				if c.BARs[i].Kind == Mem64 {
					i++
				}
			}
			f := r.add(AutoSlot, c)
			for _, b := range f.bars {
				space := 0
				in := win32.holds(b.home, b.Size) || b.Kind == Mem64 && win64.holds(b.home, b.Size)
				if b.Kind == IO {
					space, in = 1, winIO.holds(b.home, b.Size)
				}
				if b.home%b.Size != 0 || !in {
					rt.Fatalf("BAR %+v is at %#x", b.BAR, b.home)
				}
				for _, o := range homes[space] {
					if o.Base < b.home+b.Size && b.home < o.Base+o.Size {
						rt.Fatalf("BARs at %#x and %#x overlap", o, b.home)
					}
				}
				homes[space] = append(homes[space], Range{b.home, b.Size})
			}
		}
	})
}
