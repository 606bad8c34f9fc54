// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"bytes"
	"testing"

	"github.com/govmm/govmm/devices/netio"
	"golang.org/x/sys/unix"
)

// to makes a frame for dst.
func to(dst netio.MAC, n int) []byte {
	f := ether(n, 7)
	copy(f, dst[:])
	return f
}

// Frames for others don't reach the guest, on whatever path they would have come,
// and are counted; those before and after them are whole.
func TestFilter(t *testing.T) {
	own, other := netio.MAC{2, 0, 0, 0, 0, 1}, netio.MAC{2, 0, 0, 0, 0, 9}
	group := netio.MAC{0x33, 0x33, 0, 0, 0, 1}
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			inNetns(t)
			tap := mustOpen(t, Options{Create: true, MTU: MaxMTU})
			tap.SetFilter(netio.NewFilter(own, []netio.MAC{group}, false, false))
			n := newNIC(t, tap, c)
			h := newHost(t, tap.Name(), etherTypeTest, false)
			const strangers = 200 // more than one batch
			for _, size := range []int{46, 1500, 9000} {
				for _, dst := range []netio.MAC{own, group, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
					for range strangers {
						h.send(to(other, size))
					}
					want := to(dst, size)
					h.send(want)
					if got := n.recv(); !bytes.Equal(got[netio.HeaderLen:], want) {
						t.Fatalf("the guest got a frame of %d bytes for % x, want %d for % x", len(got), got[12:18], size, dst)
					}
				}
			}
			tap.SetFilter(nil)
			h.send(to(other, 46))
			if got := n.recv(); !bytes.Equal(got[netio.HeaderLen:], to(other, 46)) {
				t.Error("without a filter the guest got another frame")
			}
			n.pump.Stop()
			if c := n.pump.Counters().RX; c.Filtered != 9*strangers || c.Frames != 10 || c.Errors != 0 {
				t.Errorf("counters %+v", c)
			}
		})
	}
}

// The filter allocates nothing.
func TestFilterAllocations(t *testing.T) {
	f := netio.NewFilter(netio.MAC{2}, []netio.MAC{{2, 1}}, false, false)
	frame := withHeader(to(netio.MAC{2, 1}, 46))
	vec := []unix.Iovec{iovec(frame[:13]), iovec(frame[13:])}
	if n := testing.AllocsPerRun(100, func() {
		if !f.WantsFrame(vec) {
			t.Fatal("left out")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
