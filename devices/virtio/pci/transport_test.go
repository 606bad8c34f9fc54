// SPDX-License-Identifier: Apache-2.0

package virtiopci

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/internal/fault"
	"github.com/govmm/govmm/internal/guestmem"
)

func TestIdentity(t *testing.T) {
	g := newGuest(t)
	g.expect("ID", g.cfg(0, 4), 0x1041_1af4)
	g.expect("class and revision", g.cfg(8, 4), 0x02000001)
	g.expect("subsystem vendor", g.cfg(0x2c, 2), 0x1af4)
	if id := g.cfg(0x2e, 2); id < 0x40 {
		t.Errorf("subsystem ID %#x is one of a transitional device", id)
	}
	g.expect("interrupt line and pin", g.cfg(0x3c, 2), 0x010a)
	for kind := byte(1); kind <= 5; kind++ {
		if _, ok := g.caps[kind]; !ok {
			t.Errorf("no capability of type %d", kind)
		}
	}
	if g.caps[1].length < 56 {
		t.Errorf("common configuration of %d bytes", g.caps[1].length)
	}
	g.expect("MSI-X table size", g.cfg(g.msixCap+2, 2), 4-1)
	if g.multiplier == 0 || 2*g.multiplier+2 > g.caps[2].length {
		t.Errorf("multiplier %d, %d bytes of doorbells", g.multiplier, g.caps[2].length)
	}
}

func TestWithoutInterrupts(t *testing.T) {
	g := newGuest(t, func(o *Options) { o.MSI, o.Line = nil, nil })
	g.expect("pin", g.cfg(0x3d, 1), 0)
	g.expect("MSI-X capability", uint64(g.msixCap), 0)
	g.live()
	g.set(cSelect, 0)
	g.set(cVector, 0)
	g.expect("vector", g.common(cVector), 0xffff)
	g.dev.driver.Queues[0].Interrupt.Raise()
	g.expect("ISR", g.read(3, 0, 1), 1)
}

func TestBringUp(t *testing.T) {
	g := newGuest(t)
	var features uint64
	for i := range uint64(2) {
		g.set(cDevFeatSel, i)
		features |= g.common(cDevFeat) << (32 * i)
	}
	g.expect("offered", features, offered)
	g.set(cDevFeatSel, 2)
	g.expect("features 64 to 95", g.common(cDevFeat), 0)
	g.expect("queues", g.common(cNumQueues), 3)
	for q, size := range []uint64{256, 256, 64, 0} {
		g.set(cSelect, uint64(q))
		g.expect("largest size", g.common(cSize), size)
	}
	g.live()
	g.dev.expectCalls("start")
	d := g.dev.driver
	g.expect("accepted", d.Features, offered)
	for i, q := range d.Queues {
		want := virtio.QueueConfig{
			Enabled: true, Size: 32,
			Desc: ringAddr(i, 0), Avail: ringAddr(i, 1), Used: ringAddr(i, 2),
			Interrupt: q.Interrupt, KickFD: q.KickFD,
		}
		if q != want {
			t.Errorf("queue %d is %+v, want %+v", i, q, want)
		}
	}
	g.set(cStatus, 0xf)
	g.dev.expectCalls()
	g.set(cStatus, 0)
	g.expect("status after reset", g.common(cStatus), 0)
	g.dev.expectCalls("stop")
	g.set(cStatus, 0)
	g.dev.expectCalls()
	g.live()
	g.set(cStatus, 0)
	g.dev.expectCalls("start", "stop")
	if f := g.t.Faults(); f != (Faults{}) {
		t.Errorf("a good driver is charged with %+v", f)
	}
}

func TestMemoryReachesTheDevice(t *testing.T) {
	mem, err := guestmem.New(guestmem.Range{GPA: 0, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	g := newGuest(t, func(o *Options) { o.Memory = mem })
	g.live()
	if g.dev.driver.Memory != mem {
		t.Error("the device has got other memory")
	}
}

func TestFeaturesOK(t *testing.T) {
	const ready = sAck | sDriver
	for _, c := range []struct {
		name     string
		status   uint64 // before
		features uint64
		beyond   uint64 // features 64 to 95
		ok       bool
	}{
		{"all", ready, offered, 0, true},
		{"only VERSION_1", ready, fVersion1, 0, true},
		{"none", ready, 0, 0, false},
		{"without VERSION_1", ready, offered &^ fVersion1, 0, false},
		{"one that is not offered", ready, offered | 1, 0, false},
		{"a high one that is not offered", ready, offered | 1<<33, 0, false},
		{"bit 63", ready, offered | 1<<63, 0, false},
		{"bit 64", ready, offered, 1, false},
		{"no DRIVER", sAck, offered, 0, false},
		{"no ACKNOWLEDGE", sDriver, offered, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(t)
			g.set(cStatus, c.status)
			g.accept(c.features)
			g.set(cDrvFeatSel, 2)
			g.set(cDrvFeat, c.beyond)
			g.set(cStatus, c.status|sFeaturesOK)
			want := c.status
			if c.ok {
				want |= sFeaturesOK
			}
			g.expect("status", g.common(cStatus), want)
			g.set(cStatus, c.status|sFeaturesOK|sDriverOK)
			if !c.ok {
				g.dev.expectCalls()
				g.expect("status", g.common(cStatus), want)
			} else {
				g.dev.expectCalls("start")
			}
		})
	}
}

func TestFeaturesAreFinalAfterFeaturesOK(t *testing.T) {
	g := newGuest(t)
	g.negotiate()
	g.set(cDrvFeatSel, 0)
	g.set(cDrvFeat, 0xffffffff)
	g.expect("driver features", g.common(cDrvFeat), offered&0xffffffff)
	g.set(cStatus, 0xf)
	g.expect("features", g.dev.driver.Features, offered)
	g.expect("faults", g.t.Faults().Order, 1)
}

func TestStatusBits(t *testing.T) {
	g := newGuest(t)
	g.set(cStatus, sNeedsReset)
	g.expect("DEVICE_NEEDS_RESET by the driver", g.common(cStatus), 0)
	g.set(cStatus, sAck|sDriver)
	g.set(cStatus, sAck|sDriver|sDriverOK)
	g.expect("DRIVER_OK before FEATURES_OK", g.common(cStatus), sAck|sDriver)
	g.set(cStatus, sAck)
	g.expect("a bit that the driver tries to clear", g.common(cStatus), sAck|sDriver)
	g.expect("faults", g.t.Faults().Order, 2)
	g.accept(offered)
	g.set(cStatus, 0x0f)
	g.expect("all at once", g.common(cStatus), 0x0f)
	g.dev.expectCalls("start")
	g.set(cStatus, 0x0f|sFailed)
	g.expect("FAILED", g.common(cStatus), 0x0f|sFailed)
	g.set(cStatus, 0)
	g.dev.expectCalls("stop")
	g.negotiate()
	g.set(cStatus, sFailed|0xb)
	g.set(cStatus, sFailed|0xf)
	g.dev.expectCalls()
	g.expect("DRIVER_OK after FAILED", g.common(cStatus), sFailed|0xb)
}

// Ring registers before FEATURES_OK are refused.
func TestInitialisationOrder(t *testing.T) {
	for _, status := range []uint64{0, sAck, sAck | sDriver} {
		g := newGuest(t)
		if status != 0 {
			g.set(cStatus, status)
		}
		before := g.commonState()
		for q := range uint64(3) {
			g.set(cSelect, q)
			for _, off := range []uint64{cSize, cVector, cEnable} {
				g.set(off, 1)
			}
			for _, off := range []uint64{cDesc, cAvail, cUsed} {
				g.set64(off, 0x1000)
				g.write(1, off, 8, 0x1000)
			}
		}
		if after := g.commonState(); after != before {
			t.Errorf("status %#x: registers were\n%sand are\n%s", status, before, after)
		}
		g.expect("status", g.common(cStatus), status)
		g.expect("faults", g.t.Faults().Order, 3*(3+3*4))
	}
}

// Whatever is written to the common configuration of a live device, the rings
// stay where they are.
func TestLiveRingsDoNotMove(t *testing.T) {
	for _, enabled := range []bool{false, true} {
		g := newGuest(t)
		g.negotiate()
		if enabled {
			g.setUpQueues()
		}
		g.set(cStatus, 0xf)
		before := g.commonState()
		for _, v := range []uint64{0, 1, 2, 64, 0x8000, 0xffff, 0xffffffff} {
			for q := range uint64(4) {
				g.set(cSelect, q)
				for off := uint64(0); off < 0x38; off++ {
					for _, n := range []int{1, 2, 4, 8} {
						switch off {
						case cDevFeatSel, cDrvFeatSel, cConfigVec, cStatus, cSelect, cVector:
							continue // may change, without an effect on a ring
						}
						g.write(1, off, n, v)
					}
				}
			}
		}
		if after := g.commonState(); after != before {
			t.Errorf("enabled %v: registers were\n%sand are\n%s", enabled, before, after)
		}
		g.dev.expectCalls("start")
		g.set(cStatus, 0)
		g.dev.expectCalls("stop") // which compares the rings with those of Start
	}
}

func TestEnabledQueueIsFixed(t *testing.T) {
	g := newGuest(t)
	g.negotiate()
	g.setUpQueues()
	before := g.commonState()
	g.set(cSelect, 1)
	g.set(cSize, 64)
	g.set64(cDesc, 0)
	g.set64(cAvail, 0)
	g.set64(cUsed, 0)
	g.set(cEnable, 0)
	if after := g.commonState(); after != before {
		t.Errorf("registers were\n%sand are\n%s", before, after)
	}
}

func TestQueueSize(t *testing.T) {
	g := newGuest(t)
	g.negotiate()
	g.set(cSelect, 2)
	for _, c := range []struct{ write, want uint64 }{
		{0, 64}, {3, 64}, {63, 64}, {65, 64}, {128, 64}, {0x8000, 64}, {0xffff, 64},
		{1, 1}, {2, 2}, {32, 32}, {64, 64},
	} {
		g.set(cSize, c.write)
		g.expect(fmt.Sprintf("size after writing %d", c.write), g.common(cSize), c.want)
	}
	g.expect("faults", g.t.Faults().Value, 7)
	g.set(cEnable, 2)
	g.expect("enabled by 2", g.common(cEnable), 0)
	g.set(cEnable, 0)
	g.expect("enabled by 0", g.common(cEnable), 0)
	g.set(cEnable, 1)
	g.expect("enabled", g.common(cEnable), 1)
}

func TestQueueSelectOutOfRange(t *testing.T) {
	for _, sel := range []uint64{3, 4, 0x7fff, 0x8000, 0xffff} {
		g := newGuest(t)
		g.negotiate()
		state := g.commonState()
		g.set(cSelect, sel)
		for _, off := range []uint64{cSize, cVector, cEnable, cNotifyOff, cDesc, cDesc + 4, cAvail, cAvail + 4, cUsed, cUsed + 4} {
			for _, v := range []uint64{0, 1, 0xffff, 0xffffffff} {
				g.set(off, v)
			}
			want := uint64(0)
			if off == cVector {
				want = 0xffff
			}
			g.expect(fmt.Sprintf("register %#x of queue %#x", off, sel), g.common(off), want)
		}
		g.expect("select", g.common(cSelect), sel)
		if after := g.commonState(); after != state {
			t.Errorf("a queue changed:\n%s%s", state, after)
		}
	}
}

// Writes need a register's own width; reads take any.
func TestWidths(t *testing.T) {
	g := newGuest(t)
	g.negotiate()
	g.set(cSelect, 1)
	for _, c := range []struct {
		off  uint64
		n    int
		good bool
	}{
		{cDesc, 4, true}, {cDesc, 8, true}, {cDesc + 4, 4, true}, {cUsed, 8, true},
		{cDesc, 2, false}, {cDesc, 1, false}, {cDesc + 4, 8, false}, {cDesc + 2, 4, false},
		{cSize, 4, false}, {cSize, 1, false}, {cStatus, 2, false}, {cStatus, 4, false},
		{cDevFeatSel, 8, false}, {cDrvFeatSel, 2, false}, {cConfigVec, 4, false}, {cEnable, 4, false},
		{cDevFeat, 4, false}, {cNumQueues, 2, false}, {cGeneration, 1, false}, {cNotifyOff, 2, false},
		{0x38, 4, false}, {0x38, 2, false}, {0x3a, 2, false}, {0xffc, 4, false}, {0xffe, 4, false},
	} {
		before, state := g.t.Faults(), g.commonState()
		g.set(cSelect, 1)
		g.write(1, c.off, c.n, 0x10)
		if bad := g.t.Faults().Access != before.Access; bad == c.good {
			t.Errorf("a write of %d bytes at %#x: fault %v", c.n, c.off, bad)
		}
		if changed := g.commonState() != state; changed && !c.good {
			t.Errorf("a write of %d bytes at %#x has an effect", c.n, c.off)
		}
	}
	g.set(cSelect, 1)
	g.write(1, cDesc, 8, 0x1122334455667788)
	g.expect("64 bits", g.read(1, cDesc, 8), 0x1122334455667788)
	g.expect("upper half", g.read(1, cDesc+4, 4), 0x11223344)
	g.expect("odd bytes", g.read(1, cDesc+1, 4), 0x44556677)
	g.expect("two registers", g.read(1, cSelect, 4), 256<<16|1)
	g.expect("across the end", g.read(1, 0x36, 8), 0)
	g.expect("past the end", g.read(1, 0x800, 8), 0)
	g.expect("out of the page", g.read(1, 0xffd, 8), 0)
}

func TestDeviceConfig(t *testing.T) {
	g := newGuest(t)
	g.expect("byte", g.read(4, 5, 1), 6)
	g.expect("word", g.read(4, 6, 2), 0x0807)
	g.expect("dword", g.read(4, 8, 4), 0x0c0b0a09)
	g.expect("end", g.read(4, 62, 4), 0x403f)
	g.expect("past the end", g.read(4, 0x800, 8), 0)
	g.expect("last", g.read(4, 0xfff, 1), 0)
	g.expect("across the page's end", g.read(4, 0xfff, 2), 0)
	g.write(4, 0, 2, 0xbbaa)
	g.expect("written", g.read(4, 0, 4), 0x0403bbaa)
	g.write(4, 0xfff, 1, 1)
	g.expect("faults", g.t.Faults().Access, 1)
	g.write(4, 0xffe, 8, 1)
	g.expect("faults", g.t.Faults().Access, 2)
}

func TestConfigGeneration(t *testing.T) {
	g := newGuest(t)
	g.live()
	first := g.common(cGeneration)
	g.dev.driver.ConfigChanged.Raise()
	g.expect("generation", g.common(cGeneration), (first+1)&0xff)
	for range 256 {
		g.dev.driver.ConfigChanged.Raise()
	}
	g.expect("generation", g.common(cGeneration), (first+1)&0xff)
}

func TestVectorsAfterReset(t *testing.T) {
	g := newGuest(t)
	check := func() {
		t.Helper()
		g.expect("config vector", g.common(cConfigVec), 0xffff)
		for q := range uint64(4) {
			g.set(cSelect, q)
			g.expect("queue vector", g.common(cVector), 0xffff)
		}
	}
	check()
	g.negotiate()
	check()
	g.set(cConfigVec, 0)
	g.set(cSelect, 2)
	g.set(cVector, 3)
	g.expect("config vector", g.common(cConfigVec), 0)
	g.expect("queue vector", g.common(cVector), 3)
	for _, bad := range []uint64{4, 0x7ff, 0x800, 0xfffe} {
		g.set(cConfigVec, 1)
		g.set(cVector, 1)
		g.set(cConfigVec, bad)
		g.set(cVector, bad)
		g.expect("config vector", g.common(cConfigVec), 0xffff)
		g.expect("queue vector", g.common(cVector), 0xffff)
	}
	g.expect("faults", g.t.Faults().Value, 8)
	g.set(cConfigVec, 1)
	g.set(cVector, 1)
	g.set(cStatus, 0)
	check()
	g.expect("faults", g.t.Faults().Order, 0)
	g.set(cVector, 0xffff)
	g.expect("faults", g.t.Faults().Value, 9) // queue 3, which does not exist
	g.set(cSelect, 0)
	g.set(cVector, 0xffff) // as drivers do when they clean up after a reset
	g.expect("faults", g.t.Faults().Order, 0)
	g.expect("faults", g.t.Faults().Value, 9)
}

func TestRegistersAfterReset(t *testing.T) {
	g := newGuest(t)
	state := g.commonState()
	g.set(cSelect, 0)
	g.live()
	for _, off := range []uint64{cDevFeatSel, cSelect} {
		g.set(off, 1)
	}
	g.set(cStatus, 0)
	for _, off := range []uint64{cDevFeatSel, cDrvFeatSel, cDrvFeat, cSelect, cStatus} {
		g.expect(fmt.Sprintf("register %#x", off), g.common(off), 0)
	}
	g.set(cDrvFeatSel, 1)
	g.expect("driver features", g.common(cDrvFeat), 0)
	g.set(cDrvFeatSel, 0)
	if after := g.commonState(); after != state {
		t.Errorf("registers were\n%sand are\n%s", state, after)
	}
}

func TestMSIX(t *testing.T) {
	g := newGuest(t)
	g.enableMSIX()
	g.negotiate()
	g.set(cConfigVec, 0)
	for q, v := range []uint64{1, 2, 0xffff} {
		g.set(cSelect, uint64(q))
		g.set(cVector, v)
	}
	g.setUpQueues()
	g.set(cStatus, 0xf)
	d := g.dev.driver
	d.Queues[0].Interrupt.Raise()
	g.expectSent("queue 0", 1)
	d.Queues[1].Interrupt.Raise()
	g.expectSent("queue 1", 2)
	d.Queues[2].Interrupt.Raise()
	g.expectSent("queue 2")
	g.expect("ISR", g.read(3, 0, 1), 0)
	d.ConfigChanged.Raise()
	g.expectSent("configuration", 0)
	if g.board.level() {
		t.Error("the line is high with MSI-X enabled")
	}
	g.expect("ISR", g.read(3, 0, 1), 2)
	g.set(cSelect, 0)
	g.set(cVector, 3)
	d.Queues[0].Interrupt.Raise()
	g.expectSent("queue 0 after a move while live", 3)
	g.cfgWrite(4, 2, 2)
	d.Queues[0].Interrupt.Raise()
	g.expectSent("not a bus master")
	g.cfgWrite(4, 2, 6)
	g.expectSent("bus master again", 3)
}

func TestINTx(t *testing.T) {
	g := newGuest(t)
	g.live()
	q, config := g.dev.driver.Queues[1].Interrupt, g.dev.driver.ConfigChanged
	check := func(what string, level bool) {
		t.Helper()
		if g.board.level() != level {
			t.Errorf("%s: the line is %v", what, g.board.level())
		}
		want := uint64(0)
		if level {
			want = 8
		}
		g.expect(what+": status", g.cfg(6, 2)&8, want)
	}
	check("idle", false)
	q.Raise()
	check("raised", true)
	q.Raise()
	g.expect("ISR", g.read(3, 0, 1), 1)
	check("acknowledged", false)
	g.expect("ISR", g.read(3, 0, 1), 0)
	config.Raise()
	q.Raise()
	check("both", true)
	g.expect("ISR by a wide read", g.read(3, 0, 4), 3)
	check("acknowledged", false)
	q.Raise()
	g.read(3, 1, 1)
	g.write(3, 0, 1, 0xff)
	check("read beside the ISR, and written", true)
	g.set(cStatus, 0)
	check("reset", false)
	g.expect("ISR", g.read(3, 0, 1), 0)
	g.expectSent("no message")
}

func TestSwitchingMSIXWhileLive(t *testing.T) {
	g := newGuest(t)
	g.enableMSIX()
	g.live()
	g.set(cSelect, 0)
	g.set(cVector, 1)
	q := g.dev.driver.Queues[0].Interrupt
	q.Raise()
	g.expectSent("MSI-X on", 1)
	g.cfgWrite(g.msixCap+2, 2, 0)
	q.Raise()
	g.expectSent("MSI-X off")
	if !g.board.level() {
		t.Error("MSI-X is off and the line is low")
	}
	g.cfgWrite(g.msixCap+2, 2, 0x8000)
	if g.board.level() {
		t.Error("MSI-X is on and the line is high")
	}
	q.Raise()
	g.expectSent("MSI-X on", 1)
	g.cfgWrite(g.msixCap+2, 2, 0)
	g.expect("ISR", g.read(3, 0, 1), 1)
	if g.board.level() {
		t.Error("the line is high after the ISR was read")
	}
}

// A guest that enables MSI-X just when the pin has been chosen gets the message,
// because it does not look at the ISR any more.
func TestMSIXEnabledDuringRaise(t *testing.T) {
	g := newGuest(t)
	g.enableMSIX()
	g.live()
	g.set(cSelect, 0)
	g.set(cVector, 1)
	g.cfgWrite(g.msixCap+2, 2, 0)
	var wg sync.WaitGroup
	g.board.onLine = func() {
		wg.Go(func() { g.cfgWrite(g.msixCap+2, 2, 0x8000) })
		for !g.t.fn.MSIXEnabled() {
			runtime.Gosched()
		}
	}
	g.dev.driver.Queues[0].Interrupt.Raise()
	wg.Wait()
	g.expectSent("MSI-X enabled meanwhile", 1)
	if g.board.level() {
		t.Error("the line is high")
	}
}

// While the guest switches between MSI-X and INTx, each raise is seen one way or
// the other.
func TestSwitchingMSIXUnderLoad(t *testing.T) {
	g := newGuest(t)
	g.enableMSIX()
	g.live()
	g.set(cSelect, 0)
	g.set(cVector, 1)
	q := g.dev.driver.Queues[0].Interrupt
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !done.Load() {
			g.cfgWrite(g.msixCap+2, 2, 0)
			g.cfgWrite(g.msixCap+2, 2, 0x8000)
		}
	})
	for i := range 500 {
		g.board.take()
		g.read(3, 0, 1)
		q.Raise()
		if isr := g.read(3, 0, 1); isr == 0 && len(g.board.take()) == 0 {
			t.Fatalf("raise %d is lost", i)
		}
	}
	done.Store(true)
	wg.Wait()
}

func TestRaiseDoesNotAllocate(t *testing.T) {
	g := newGuest(t)
	g.live()
	q := g.dev.driver.Queues[0].Interrupt
	if n := testing.AllocsPerRun(100, q.Raise); n != 0 {
		t.Errorf("INTx: %v allocations", n)
	}
	g.cfgWrite(g.msixCap+2, 2, 0x8000)
	g.set(cSelect, 0)
	g.set(cVector, 1)
	if n := testing.AllocsPerRun(100, q.Raise); n != 0 {
		t.Errorf("masked MSI-X: %v allocations", n)
	}
}

func TestDoorbells(t *testing.T) {
	g := newGuest(t)
	g.live()
	for i, q := range g.dev.driver.Queues {
		g.set(cSelect, uint64(i))
		off := g.common(cNotifyOff) * g.multiplier
		if fd, ok := g.board.doorbells[g.addr(2)+off]; !ok || fd != q.KickFD {
			t.Errorf("queue %d has no doorbell at %#x", i, g.addr(2)+off)
		}
		for n, w := range []int{2, 4, 1, 8} {
			g.write(2, off, w, uint64(i))
			if n%2 == 1 {
				g.expect("kicks", kicks(t, q.KickFD), 2)
			}
		}
	}
	for _, off := range []uint64{1, 2, 3, 12, 0x100, 0xffc, 0xfff} {
		g.write(2, off, 1, 0xff)
	}
	g.write(2, 12, 2, 0xffff)
	for i, q := range g.dev.driver.Queues {
		g.expect(fmt.Sprint("kicks of queue ", i), kicks(t, q.KickFD), 0)
	}
	g.expect("faults", g.t.Faults().Value, 8)
	g.write(2, 0, 2, 0xffff) // the address decides
	g.expect("kicks", kicks(t, g.dev.driver.Queues[0].KickFD), 1)
	g.expect("read", g.read(2, 0, 4), 0)
}

func TestDoorbellsMoveWithTheBAR(t *testing.T) {
	g := newGuest(t)
	before := len(g.board.doorbells)
	g.cfgWrite(0x10, 4, 0x1000_0000)
	g.cfgWrite(0x14, 4, 0x80)
	g.expect("BAR", g.barAddr(0), 0x80_1000_0000)
	g.expect("doorbells", uint64(len(g.board.doorbells)), uint64(before))
	if _, ok := g.board.doorbells[0x80_1000_0000+regionNotify]; !ok {
		t.Errorf("doorbells are at %#x", g.board.doorbells)
	}
	g.live()
	g.dev.expectCalls("start")
	g.cfgWrite(4, 2, 0)
	g.expect("doorbells", uint64(len(g.board.doorbells)), 0)
}

func TestResetForgetsKicks(t *testing.T) {
	g := newGuest(t)
	g.live()
	g.write(2, 0, 2, 0)
	g.set(cStatus, 0)
	g.live()
	g.expect("kicks of the driver before", kicks(t, g.dev.driver.Queues[0].KickFD), 0)
}

// A kick that comes when the eventfd's count is at its limit does not block.
func TestDoorbellAtItsLimit(t *testing.T) {
	g := newGuest(t)
	fd := g.t.queues[0].kick
	full := binary.NativeEndian.AppendUint64(nil, 0xfffffffffffffffe)
	if _, err := unix.Write(fd, full); err != nil {
		t.Fatal(err)
	}
	g.write(2, 0, 2, 0)
	g.expect("kicks", kicks(t, fd), 0xfffffffffffffffe)
}

func TestStartFails(t *testing.T) {
	for name, err := range map[string]error{
		"guest": fault.Guestf("net0", "ring outside RAM"),
		"host":  errors.New("no tap"),
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			g := newGuest(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			g.dev.startErr = err
			g.negotiate()
			g.setUpQueues()
			g.set(cStatus, 0xf)
			g.expect("status", g.common(cStatus), 0xf|sNeedsReset)
			g.expect("ISR", g.read(3, 0, 1), 2)
			g.expect("faults", g.t.Faults().Device, 1)
			if !strings.Contains(log.String(), "device=net0") {
				t.Errorf("the log has %q", log.String())
			}
			g.set(cStatus, 0xf|sNeedsReset)
			g.dev.expectCalls("start")
			g.set(cStatus, 0)
			g.dev.expectCalls("stop")
			g.expect("status", g.common(cStatus), 0)
			g.dev.startErr = nil
			g.live()
		})
	}
}

func TestFail(t *testing.T) {
	g := newGuest(t)
	g.enableMSIX()
	g.negotiate()
	g.set(cConfigVec, 2)
	g.set(cStatus, 0xf)
	generation := g.common(cGeneration)
	old := g.dev.driver
	old.Fail(errors.New("bad chain"))
	old.Fail(errors.New("again"))
	g.expect("status", g.common(cStatus), 0xf|sNeedsReset)
	g.expectSent("configuration interrupt, once", 2)
	g.expect("generation", g.common(cGeneration), (generation+1)&0xff)
	g.expect("faults", g.t.Faults().Device, 1)
	g.set(cStatus, 0)
	g.live()
	old.Fail(errors.New("by a driver of the past"))
	g.expect("status", g.common(cStatus), 0xf)
	g.expectSent("nothing")
}

func TestLogIsBounded(t *testing.T) {
	var log bytes.Buffer
	g := newGuest(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	g.dev.startErr = errors.New("no")
	for range 100 {
		g.set(cStatus, 0)
		g.set(cStatus, 3)
		g.accept(offered)
		g.set(cStatus, 0xf)
	}
	g.expect("faults", g.t.Faults().Device, 100)
	if n := strings.Count(log.String(), "\n"); n != maxLogged {
		t.Errorf("%d lines of log", n)
	}
}

// Stop waits for threads that raise and fail meanwhile: no lock is in their way.
func TestStopWaitsForDeviceThreads(t *testing.T) {
	for _, how := range []string{"driver", "machine", "close"} {
		t.Run(how, func(t *testing.T) {
			g := newGuest(t)
			var wg sync.WaitGroup
			stop := make(chan struct{})
			g.dev.onStart = func(d virtio.Driver) {
				wg.Go(func() {
					<-stop
					for range 100 {
						d.Queues[0].Interrupt.Raise()
						d.ConfigChanged.Raise()
					}
					d.Fail(errors.New("while stopping"))
				})
			}
			g.dev.onStop = func() { close(stop); wg.Wait() }
			g.live()
			switch how {
			case "driver":
				g.set(cStatus, 0)
				g.expect("status", g.common(cStatus), 0)
				g.expect("ISR", g.read(3, 0, 1), 0)
			case "machine":
				g.t.Reset()
			case "close":
				if err := g.t.Close(); err != nil {
					t.Error(err)
				}
			}
			g.dev.expectCalls("start", "stop")
			if g.board.level() {
				t.Error("the line is high")
			}
		})
	}
}

func TestMachineReset(t *testing.T) {
	g := newGuest(t)
	config := func() (s string) {
		for reg := 0; reg < 256; reg += 4 {
			s += fmt.Sprintf("%08x ", g.cfg(reg, 4))
		}
		return s
	}
	g.cfgWrite(4, 2, 0)
	before := config()
	for range 3 {
		g.cfgWrite(4, 2, 6)
		g.cfgWrite(0x10, 8, 0x80_2000_0000)
		g.enableMSIX()
		g.live()
		g.t.Reset()
		g.dev.expectCalls("start", "stop")
		if after := config(); after != before {
			t.Errorf("configuration space was\n%s\nand is\n%s", before, after)
		}
		g.cfgWrite(4, 2, 6)
		g.expect("status", g.common(cStatus), 0)
	}
}

func TestClose(t *testing.T) {
	g := newGuest(t)
	g.live()
	fd := g.dev.driver.Queues[0].KickFD
	if err := g.t.Close(); err != nil {
		t.Error(err)
	}
	g.dev.expectCalls("start", "stop")
	g.expect("doorbells", uint64(len(g.board.doorbells)), 0)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("the doorbell is still open: %v", err)
	}
	if err := g.t.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	g.cfgWrite(4, 2, 6)
	g.write(1, cStatus, 1, 3)
	g.write(2, 0, 2, 0)
	g.expect("status", g.common(cStatus), 0)
	g.expect("configuration", g.read(4, 0, 4), 0)
}

func TestPCIWindow(t *testing.T) {
	g := newGuest(t)
	at := g.caps[5].pos
	look := func(bar, off, length uint64) {
		g.cfgWrite(at+4, 1, bar)
		g.cfgWrite(at+8, 4, off)
		g.cfgWrite(at+12, 4, length)
	}
	device := g.caps[4].off
	g.expect("fields", g.cfg(at+2, 2), 0x0514)
	for _, c := range []struct {
		length uint64
		want   uint64
	}{{1, 0xddccbb01}, {2, 0xddcc0201}, {4, 0x04030201}} {
		look(0, 0, 0)
		g.cfgWrite(at+16, 4, 0xddccbbaa)
		look(0, device, c.length)
		g.expect(fmt.Sprint("read of ", c.length), g.cfg(at+16, 4), c.want)
	}
	for _, c := range []struct {
		length uint64
		want   uint64
	}{{1, 0x040302ee}, {2, 0x0403ffee}, {4, 0xeeffeeff}} {
		look(0, device, c.length)
		v := uint64(0xaaaaffee)
		if c.length == 4 {
			v = 0xeeffeeff
		}
		g.cfgWrite(at+16, 4, v)
		g.expect(fmt.Sprint("write of ", c.length), g.read(4, 0, 4), c.want)
	}
	faults := g.t.Faults().Access
	for i, c := range [][3]uint64{
		{0, device, 3}, {0, device, 8}, {0, device, 0xffffffff}, {0, device + 1, 2}, {0, device + 2, 4},
		{0, barSize, 4}, {0, 0xfffffffc, 4}, {1, 0, 4}, {3, 0, 4}, {6, 0, 4}, {0xff, 0, 1}, {2, 0x2000, 4},
	} {
		look(0, 0, 0)
		g.cfgWrite(at+16, 4, 0x12345678)
		look(c[0], c[1], c[2])
		g.expect(fmt.Sprintf("window on %x", c), g.cfg(at+16, 4), 0x12345678)
		g.expect("faults", g.t.Faults().Access, faults+uint64(i+1))
	}
	look(0, 0, 0)
	if now := g.t.Faults().Access; now != faults+12 {
		t.Errorf("setting up the window counts as a fault")
	}
	// With memory decoding off the window is the only way in.
	g.cfgWrite(4, 2, 0)
	look(0, g.caps[1].off+cStatus, 1)
	g.cfgWrite(at+16, 1, 1)
	g.expect("status", g.cfg(at+16, 1), 1)
	look(0, g.caps[2].off+4, 2)
	g.cfgWrite(at+16, 2, 1)
	g.expect("kicks", kicks(t, g.t.queues[1].kick), 1)
	look(2, 12, 4)
	g.expect("MSI-X entry", g.cfg(at+16, 4), 1)
}

// A driver without MMIO brings the device up and down through the window.
func TestBringUpThroughThePCIWindow(t *testing.T) {
	g := newGuest(t)
	at := g.caps[5].pos
	for _, w := range [][3]uint64{
		{cStatus, 1, 3},
		{cDrvFeatSel, 4, 1}, {cDrvFeat, 4, 1}, {cStatus, 1, 0xb}, {cStatus, 1, 0xf},
		{cStatus, 1, 0},
	} {
		g.cfgWrite(at+8, 4, g.caps[1].off+w[0])
		g.cfgWrite(at+12, 4, w[1])
		g.cfgWrite(at+16, int(w[1]), w[2])
	}
	g.dev.expectCalls("start", "stop")
}

// Every offset of both BARs with every width, on an idle and on a live device.
func TestAllAccesses(t *testing.T) {
	for _, live := range []bool{false, true} {
		g := newGuest(t)
		if live {
			g.live()
		}
		ones := bytes.Repeat([]byte{0xff}, 8)
		for bar, size := range map[int]uint64{barRegisters: barSize, barMSIX: 0x2000} {
			for off := range size {
				for _, n := range []int{1, 2, 3, 4, 8} {
					p := make([]byte, n)
					g.mem.Read(g.barAddr(bar)+off, p)
					g.mem.Write(g.barAddr(bar)+off, ones[:n])
				}
			}
		}
		g.t.Reset()
		g.probe()
		g.live()
	}
}

func TestNewRefuses(t *testing.T) {
	for want, change := range map[string]func(*fakeDevice){
		"VIRTIO_F_VERSION_1":        func(d *fakeDevice) { d.features &^= fVersion1 },
		"queue 1: size 0":           func(d *fakeDevice) { d.sizes[1] = 0 },
		"size 48 is not a power":    func(d *fakeDevice) { d.sizes[0] = 48 },
		"1025 queues, more than":    func(d *fakeDevice) { d.sizes = make([]uint16, 1025) },
		"virtio-pci net0: the devi": func(d *fakeDevice) { d.features = 0 },
	} {
		d := newDevice(t)
		change(d)
		if _, err := New(d, Options{Name: "net0"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	for _, id := range []uint16{0, 0x40, 0xffff} {
		if _, err := New(typed{newDevice(t), id}, Options{}); err == nil {
			t.Errorf("type %d is accepted", id)
		}
	}
}

func TestMostQueues(t *testing.T) {
	d := newDevice(t)
	d.sizes = slices.Repeat([]uint16{2}, 33)
	tr, err := New(d, Options{MSI: &board{}})
	if err != nil {
		t.Fatal(err)
	}
	if n := tr.Function().Vectors(); n != 34 {
		t.Errorf("%d vectors", n)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}

// typed is a device of another type.
type typed struct {
	*fakeDevice
	id uint16
}

func (d typed) ID() uint16 { return d.id }

func TestClasses(t *testing.T) {
	for id, want := range map[uint16]uint64{2: 0x018000_01, 3: 0x078000_01, 4: 0x108000_01, 63: 0xff0000_01} {
		tr, err := New(typed{newDevice(t), id}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		g := newGuest(t)
		if _, err := g.root.Add(9, tr.Function()); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 4)
		g.root.ECAM().BusRead(9<<15, p)
		g.expect("device ID", uint64(p[2])|uint64(p[3])<<8, 0x1040+uint64(id))
		g.root.ECAM().BusRead(9<<15+8, p)
		g.expect("class", uint64(little(p)), want)
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}
}
