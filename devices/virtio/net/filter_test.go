// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"sync/atomic"
	"testing"

	"github.com/govmm/govmm/devices/netio"
)

// filterLoop is a loop that takes a filter, and doesn't apply it.
type filterLoop struct {
	netio.Backend
	filter atomic.Pointer[netio.Filter] // set on the control queue's goroutine
}

func (l *filterLoop) SetFilter(f *netio.Filter) { l.filter.Store(f) }

// TestFilter sends the commands with which a driver sets its filter, and asks
// what the backend then lets through.
func TestFilter(t *testing.T) {
	r := newRig(t, Config{}, smallGuest)
	l := &filterLoop{Backend: r.loop}
	r.dev.cfg.Backend = l
	r.start(base | FeatureCtrlVQ | FeatureCtrlRX | FeatureCtrlMACAddr)
	own, second, group, other, otherGroup := netio.MAC(testMAC), netio.MAC{2}, netio.MAC{0x33}, netio.MAC{6}, netio.MAC{1}
	broadcast := netio.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	all := []netio.MAC{own, second, group, other, otherGroup, broadcast, {0x0a}}
	for _, step := range []struct {
		name           string
		class, command byte
		data           []byte
		want           []netio.MAC // of all
	}{
		{"tables, while it is promiscuous", 1, 0, join(table(1, macs(1, 2)...), table(1, macs(1, 0x33)...)), all},
		{"not promiscuous", 0, 0, []byte{0}, []netio.MAC{own, second, group, broadcast}},
		{"all multicast", 0, 1, []byte{1}, []netio.MAC{own, second, group, otherGroup, broadcast}},
		{"not all multicast", 0, 1, []byte{0}, []netio.MAC{own, second, group, broadcast}},
		{"another address", 1, 1, []byte{0x0a, 0, 0, 0, 0, 0}, []netio.MAC{second, group, broadcast, {0x0a}}},
		{"a bad command", 1, 0, nil, []netio.MAC{second, group, broadcast, {0x0a}}},
		{"no tables", 1, 0, join(table(0), table(0)), []netio.MAC{broadcast, {0x0a}}},
		{"too many unicast", 1, 0, join(table(65, macs(65, 2)...), table(0)), []netio.MAC{own, second, other, broadcast, {0x0a}}},
		{"too many multicast", 1, 0, join(table(0), table(65, macs(65, 0x33)...)), []netio.MAC{group, otherGroup, broadcast, {0x0a}}},
		{"promiscuous", 0, 0, []byte{1}, all},
		{"not promiscuous again", 0, 0, []byte{0}, []netio.MAC{group, otherGroup, broadcast, {0x0a}}},
	} {
		r.control.command(step.class, step.command, step.data...)
		want := map[netio.MAC]bool{}
		for _, a := range step.want {
			want[a] = true
		}
		for _, a := range all {
			if got := l.filter.Load().Wants(a); got != want[a] {
				t.Errorf("%s: % x: %v, want %v", step.name, a, got, want[a])
			}
		}
	}
	r.dev.Stop()
	if l.filter.Load() != nil {
		t.Error("there is a filter after the reset")
	}
}
