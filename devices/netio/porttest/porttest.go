// SPDX-License-Identifier: Apache-2.0

// Package porttest is the contract of netio.Port as a test suite. Every NIC
// model runs it with a driver of its own; Ref is the simplest Port that passes.
//
//	func TestPort(t *testing.T) {
//		porttest.Run(t, porttest.Traits{Merge: true}, func(t *testing.T, c porttest.Config) porttest.Harness {
//			...
//		})
//	}
package porttest

import (
	"testing"

	"github.com/govmm/govmm/devices/netio"
)

// Traits is what a NIC model can do.
type Traits struct {
	Merge bool // a received frame may span several buffers
	// Coalesced says that the guest gets a large segment as one frame and is not
	// told how it was to be cut up.
	Coalesced bool
	// OneInterrupt says that both directions have one interrupt: the guest need
	// not be told of a received frame while it has yet to see a completion.
	OneInterrupt bool
}

// Config is how the suite wants a NIC set up.
type Config struct {
	Size    int  // entries in each ring at least, a power of two
	Merge   bool // received frames span buffers; only with Traits.Merge
	BufSize int  // bytes of each receive buffer at least, header included
	Window  int  // the largest frame that the host may send, header included
}

// Harness is one queue pair under test.
type Harness struct {
	Port  netio.Port
	Guest Guest
}

// Guest is the driver of the NIC under test. It runs beside the Pump, on one
// goroutine at a time, and follows the device's specification: what it does is
// visible to the device when a method returns, but the device is notified by
// Kick alone. Frames begin with struct virtio_net_hdr_v1; a driver whose NIC has
// another header converts.
type Guest interface {
	// Post lends up to n more receive buffers to the device and returns how many
	// the ring took.
	Post(n int) int
	// Recv takes the next received frame; ok is false if there is none.
	Recv() (frame []byte, ok bool)
	// Send gives one frame to the device; false if the ring is full.
	Send(frame []byte) bool
	// SendEmpty gives the device something that is no frame, such as a chain
	// without a byte of payload, which it must give back and not send.
	SendEmpty() bool
	// Reap takes back what the device completed of Send and SendEmpty, and returns
	// how many.
	Reap() int
	// Kick notifies the device if it asked for that.
	Kick(netio.Dir)
	// SetInterrupts says whether the driver wants interrupts; at first it does.
	SetInterrupts(d netio.Dir, on bool)
	// Interrupts returns how many have come so far.
	Interrupts(netio.Dir) int
	// Break does something to the ring that no driver may do, so that the device
	// meets it after all that was sent or posted before.
	Break(netio.Dir)
}

// Make sets up a fresh queue pair; what it opens, t.Cleanup closes.
type Make func(t *testing.T, c Config) Harness

// jumbo is the window for frames of 64 KiB, as with TSO.
const jumbo = netio.MaxFrame + netio.HeaderLen

// Run runs the suite.
func Run(t *testing.T, traits Traits, mk Make) {
	configs := map[string]Config{
		"one buffer a frame":         {Size: 256, BufSize: 2048, Window: 1530},
		"one large buffer a frame":   {Size: 64, BufSize: jumbo, Window: jumbo},
		"small ring, small buffers":  {Size: 64, BufSize: 1530, Window: 1530},
		"merged small buffers":       {Size: 256, BufSize: 1536, Window: jumbo, Merge: true},
		"merged buffers of one page": {Size: 256, BufSize: 4096, Window: jumbo, Merge: true},
	}
	for name, c := range configs {
		if c.Merge && !traits.Merge {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for _, test := range suite {
				t.Run(test.name, func(t *testing.T) { test.run(t, mk, c) })
			}
			t.Run("pump: large frames", func(t *testing.T) { testGSO(t, mk, c, traits) })
			t.Run("pump: notification counters", func(t *testing.T) { testNotifyCounters(t, mk, c, traits) })
		})
	}
}

// suite is every test, each of which makes its own queue pairs.
var suite = []struct {
	name string
	run  func(*testing.T, Make, Config)
}{
	{"TX: order and limits", testTxOrder},
	{"TX: complete in part", testTxComplete},
	{"TX: frames of a byte and of none", testTxTiny},
	{"RX: reserve, commit, release", testRxModel},
	{"kicks", testKicks},
	{"interrupts", testInterrupts},
	{"faults", testPortFaults},
	{"allocations", testAllocs},
	{"pump: both directions", testBothWays},
	{"pump: RX back-pressure", testRxBackPressure},
	{"pump: TX back-pressure", testTxBackPressure},
	{"pump: publication", testPublication},
	{"pump: no moment that is missed", testWakeupPoints},
	{"pump: no lost wake-up", testWakeups},
	{"pump: stop and start under traffic", testStopStart},
	{"pump: Stop gives everything back", testStopReleases},
	{"pump: a fault ends one direction", testFaultDirection},
	{"pump: the backend goes away", testBackendGone},
}
