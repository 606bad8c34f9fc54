// SPDX-License-Identifier: Apache-2.0

package netio

import (
	"testing"

	"pgregory.net/rapid"
)

func TestFilter(t *testing.T) {
	own := MAC{2, 0, 0, 0, 0, 1}
	further := []MAC{{2, 0, 0, 0, 0, 2}, {0x33, 0x33, 0, 0, 0, 1}}
	for _, tt := range []struct {
		name       string
		dst        MAC
		none       bool // further addresses
		allU, allM bool
		want       bool
	}{
		{name: "own", dst: own, want: true, none: true},
		{name: "broadcast", dst: broadcast, want: true, none: true},
		{name: "other unicast", dst: MAC{2, 0, 0, 0, 0, 2}, none: true},
		{name: "listed unicast", dst: further[0], want: true},
		{name: "any unicast", dst: MAC{6}, allU: true, want: true},
		{name: "multicast beside any unicast", dst: MAC{1, 0, 0x5e}, allU: true},
		{name: "listed multicast", dst: further[1], want: true},
		{name: "other multicast", dst: MAC{0x33, 0x33, 0, 0, 0, 2}},
		{name: "any multicast", dst: MAC{1, 0, 0x5e}, allM: true, want: true},
		{name: "unicast beside any multicast", dst: MAC{6}, allM: true},
		{name: "zero", dst: MAC{}},
	} {
		list := further
		if tt.none {
			list = nil
		}
		if got := NewFilter(own, list, tt.allU, tt.allM).Wants(tt.dst); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if !(*Filter)(nil).Wants(MAC{6}) || !(*Filter)(nil).WantsFrame(nil) {
		t.Error("no filter leaves something out")
	}
}

// TestFilterIsItsList: without flags, a frame is wanted if and only if its
// destination is the NIC's, broadcast, or one of the list.
func TestFilterIsItsList(t *testing.T) {
	mac := rapid.Custom(func(t *rapid.T) MAC {
		return MAC{rapid.SampledFrom([]byte{1, 2, 0xff}).Draw(t, "kind"), 5: rapid.Byte().Draw(t, "last") % 8}
	})
	rapid.Check(t, func(t *rapid.T) {
		own, dst := mac.Draw(t, "own"), mac.Draw(t, "dst")
		list := rapid.SliceOfN(mac, 0, 12).Draw(t, "list")
		want := dst == own
		for _, a := range list {
			want = want || a == dst
		}
		if got := NewFilter(own, list, false, false).Wants(dst); got != want {
			t.Fatalf("%v: %v, want %v", dst, got, want)
		}
	})
}
