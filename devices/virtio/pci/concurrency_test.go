// SPDX-License-Identifier: Apache-2.0

package virtiopci

import (
	"errors"
	"sync"
	"testing"

	"github.com/govmm/govmm/devices/virtio"
)

// Several vCPUs bring the device up and down, move its BARs, switch MSI-X and
// reset it, while its own threads raise interrupts and fail. The fake device
// checks the order of calls; the race detector checks the rest.
func TestConcurrentGuests(t *testing.T) {
	const rounds = 100
	g := newGuest(t)
	at := g.caps[5].pos
	common := g.caps[1].off
	device := &threads{}
	g.dev.onStart, g.dev.onStop = device.start, device.stop

	var vcpus sync.WaitGroup
	vcpus.Go(func() {
		for range rounds {
			for _, s := range [][2]uint64{{cStatus, 0}, {cStatus, 3}, {cDrvFeatSel, 1}, {cDrvFeat, 1}, {cStatus, 0xb}, {cSelect, 1}, {cVector, 1}, {cEnable, 1}, {cStatus, 0xf}} {
				g.t.fn.WriteBAR(barRegisters, common+s[0], []byte{byte(s[1]), 0, 0, 0}[:width(s[0])])
			}
		}
	})
	vcpus.Go(func() {
		for i := range uint64(rounds) {
			g.cfgWrite(g.msixCap+2, 2, i%4<<14)
			g.cfgWrite(0x10, 8, 0x80_0000_0000|i%2<<24)
			g.cfgWrite(4, 2, i%8)
			g.mem.Read(0x80_0000_0000+regionISR, make([]byte, 1))
			g.t.fn.WriteBAR(barMSIX, 28, []byte{byte(i), 0, 0, 0})
		}
	})
	vcpus.Go(func() {
		for i := range uint64(rounds) {
			g.cfgWrite(at+12, 4, 1)
			g.cfgWrite(at+8, 4, common+cStatus)
			g.cfg(at+16, 4)
			if i%10 == 0 {
				g.cfgWrite(at+16, 1, 0)
				g.t.Reset()
			}
		}
	})
	vcpus.Wait()
	g.t.Reset()
	if g.dev.running || g.board.level() {
		t.Error("the device or its interrupt outlives the reset")
	}
}

// threads are a device's own goroutines.
type threads struct {
	quit chan struct{}
	wg   sync.WaitGroup
}

func (h *threads) start(d virtio.Driver) {
	h.quit = make(chan struct{})
	quit := h.quit
	h.wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-quit:
				d.Fail(errors.New("too late"))
				return
			default:
			}
			d.Queues[i%len(d.Queues)].Interrupt.Raise()
			if i == 20 {
				d.ConfigChanged.Raise()
			}
			if i == 50 {
				d.Fail(errors.New("bad chain"))
				<-quit
				return
			}
		}
	})
}

func (h *threads) stop() {
	close(h.quit)
	h.wg.Wait()
}
