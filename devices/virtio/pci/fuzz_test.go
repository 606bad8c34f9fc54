// SPDX-License-Identifier: Apache-2.0

package virtiopci

import (
	"encoding/binary"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// access is one thing that a guest or its device does: 12 bytes of fuzz input.
type access struct {
	kind  byte
	width byte
	off   uint16
	value uint64
}

const (
	doCommon = iota
	doRegister
	doBAR
	doMSIX
	doConfig
	doWindow
	doDevice
	doReset
	doBringUp
	doKinds
)

func decode(b []byte) (as []access) {
	for ; len(b) >= 12 && len(as) < 100; b = b[12:] {
		as = append(as, access{b[0], b[1], binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint64(b[4:])})
	}
	return as
}

func encode(as ...access) (b []byte) {
	for _, a := range as {
		b = append(b, a.kind, a.width)
		b = binary.LittleEndian.AppendUint16(b, a.off)
		b = binary.LittleEndian.AppendUint64(b, a.value)
	}
	return b
}

// do makes one access by whichever way; the window's own BAR address may have
// been moved by the guest, so BARs are reached through the function.
func (g *guest) do(a access) {
	widths := []int{1, 2, 3, 4, 8}
	n := widths[int(a.width)%len(widths)]
	p := binary.LittleEndian.AppendUint64(nil, a.value)[:n]
	off := uint64(a.off)
	bar := barRegisters
	switch a.kind % doKinds {
	case doCommon:
		off %= 0x40
	case doRegister:
		offs := []uint64{cDrvFeatSel, cDrvFeat, cStatus, cSelect, cSize, cVector, cEnable, cDesc, cAvail + 4, cConfigVec}
		off = offs[int(a.off)%len(offs)]
		p = binary.LittleEndian.AppendUint64(nil, a.value)[:width(off)]
	case doMSIX:
		bar = barMSIX
	case doConfig:
		g.cfg(int(off%0x100), n)
		g.cfgWrite(int(off%0x100), n, a.value)
		return
	case doWindow:
		at := g.caps[5].pos
		g.cfgWrite(at+12, 4, a.value>>32)
		g.cfgWrite(at+8, 4, off)
		g.cfgWrite(at+16, n, a.value)
		g.cfg(at+16, n)
		return
	case doDevice:
		g.deviceDoes(a)
		return
	case doReset:
		g.t.Reset()
		return
	case doBringUp:
		g.bringUp(a.value)
		return
	}
	g.t.fn.WriteBAR(bar, off, p)
	g.t.fn.ReadBAR(bar, off, p)
}

// deviceDoes is what a running device's threads do.
func (g *guest) deviceDoes(a access) {
	if !g.dev.running {
		return
	}
	d := g.dev.driver
	switch a.value % 4 {
	case 0:
		d.ConfigChanged.Raise()
	case 1:
		d.Fail(errors.New("bad chain"))
	default:
		d.Queues[int(a.off)%len(d.Queues)].Interrupt.Raise()
	}
}

// bringUp goes some of the way that a driver goes.
func (g *guest) bringUp(how uint64) {
	steps := []struct{ off, v uint64 }{
		{cStatus, 0}, {cStatus, 3}, {cDrvFeatSel, 0}, {cDrvFeat, how >> 32 & offered}, {cDrvFeatSel, 1}, {cDrvFeat, 1},
		{cStatus, 0xb}, {cSelect, how & 3}, {cDesc, how & 0xfff0}, {cEnable, 1}, {cStatus, 0xf},
	}
	for i, s := range steps {
		if how>>(16+i)&1 == 0 {
			g.t.fn.WriteBAR(barRegisters, s.off, binary.LittleEndian.AppendUint64(nil, s.v)[:width(s.off)])
		}
	}
}

// check looks for what must always hold.
func (g *guest) check(a access) {
	t := g.t
	status := t.signals.getStatus()
	if live := status&sDriverOK != 0; live != g.dev.running {
		g.tb.Fatalf("%+v: status %#x, device running %v", a, status, g.dev.running)
	}
	if status&(sDriverOK|sNeedsReset) != 0 && status&sFeaturesOK == 0 {
		g.tb.Fatalf("%+v: status %#x", a, status)
	}
	if status&sFeaturesOK != 0 && (t.features()&^offered != 0 || t.features()&fVersion1 == 0 || status&3 != 3) {
		g.tb.Fatalf("%+v: status %#x with features %#x", a, status, t.features())
	}
	for i := range t.queues {
		q := &t.queues[i]
		if q.size == 0 || q.size&(q.size-1) != 0 || q.size > q.max {
			g.tb.Fatalf("%+v: queue %d has size %d", a, i, q.size)
		}
		if status&sFeaturesOK == 0 && (q.enabled || q.size != q.max || q.addr != [3]uint64{}) {
			g.tb.Fatalf("%+v: queue %d is set up with status %#x", a, i, status)
		}
		if v := q.interrupt.vector.Load(); v != noVector && v >= uint32(t.fn.Vectors()) {
			g.tb.Fatalf("%+v: queue %d has vector %d", a, i, v)
		}
		if g.dev.running && q.setup() != g.dev.driver.Queues[i] {
			g.tb.Fatalf("%+v: queue %d changed under the device", a, i)
		}
	}
	command := g.cfg(4, 2)
	isr := t.signals.isr != 0
	if want := isr && command&0x400 == 0 && !t.fn.MSIXEnabled(); g.board.level() != want {
		g.tb.Fatalf("%+v: ISR %#x, command %#x and the line is %v", a, t.signals.isr, command, g.board.level())
	}
	if g.cfg(0, 4) != 0x1041_1af4 || g.cfg(8, 4) != 0x02000001 || g.cfg(6, 1)&^8 != 0x10 {
		g.tb.Fatalf("%+v: a read-only register changed", a)
	}
	if len(g.board.take()) > 1<<12 {
		g.tb.Fatalf("%+v: a storm of messages", a)
	}
}

func FuzzTransport(f *testing.F) {
	f.Add(encode(access{kind: doBringUp, value: 0xffffffff_00000000}, access{kind: doDevice, value: 2}, access{kind: doRegister, off: 2}))
	f.Add(encode(access{kind: doBringUp, value: 0xffffffff_00000000}, access{kind: doDevice, value: 1}, access{kind: doReset}))
	f.Add(encode(access{kind: doConfig, width: 1, off: 0xb2, value: 0x8000}, access{kind: doMSIX, width: 3, off: 12}))
	f.Add(encode(access{kind: doWindow, width: 3, off: 0x2000, value: 4 << 32}, access{kind: doBAR, width: 1, off: 0x3000}))
	f.Fuzz(func(t *testing.T, b []byte) {
		g := newGuest(t)
		for _, a := range decode(b) {
			g.do(a)
			g.check(a)
		}
	})
}

// TestInvariants makes accesses more evenly than a fuzzer without a corpus.
func TestInvariants(t *testing.T) {
	one := rapid.Custom(func(rt *rapid.T) access {
		return access{
			kind:  rapid.ByteRange(0, doKinds-1).Draw(rt, "kind"),
			width: rapid.ByteRange(0, 4).Draw(rt, "width"),
			off:   rapid.OneOf(rapid.Uint16Range(0, 0x40), rapid.Uint16Range(0, 0x4000)).Draw(rt, "off"),
			value: rapid.OneOf(rapid.Uint64Range(0, 0x40), rapid.Uint64()).Draw(rt, "value"),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		g := newGuest(rt)
		for _, a := range rapid.SliceOfN(one, 1, 60).Draw(rt, "accesses") {
			g.do(a)
			g.check(a)
		}
		if err := g.t.Close(); err != nil {
			rt.Error(err)
		}
	})
}
