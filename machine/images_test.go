// SPDX-License-Identifier: Apache-2.0

package machine

import "testing"

func TestWithGuestAddress(t *testing.T) {
	nets := func(ip string) []Net { return []Net{{IP: ip}} }
	for _, c := range []struct {
		cmdline string
		nets    []Net
		want    string
	}{
		{"a", nil, "a"},
		{"a", nets(""), "a"},
		{"a", nets("10.0.0.1/24"), "a govmm.ip=10.0.0.2/24"},
		{"a ", nets("fd00::1/64"), "a govmm.ip=fd00::2/64"},
		{"a ip=dhcp", nets("10.0.0.1/24"), "a ip=dhcp"},
		{"ip=dhcp", nets("10.0.0.1/24"), "ip=dhcp"},
		{"a govmm.ip=10.0.0.9/24", nets("10.0.0.1/24"), "a govmm.ip=10.0.0.9/24"},
		{"a zip=1", nets("10.0.0.1/24"), "a zip=1 govmm.ip=10.0.0.2/24"},
		{"a -- b c", nets("10.0.0.1/24"), "a govmm.ip=10.0.0.2/24 -- b c"},
		{"a --", nets("10.0.0.1/24"), "a govmm.ip=10.0.0.2/24"},
		{"a", nets("10.0.0.255/24"), "a"}, // the network has no next address
		{"a", nets("10.0.0.1/32"), "a"},
	} {
		if got := withGuestAddress(c.cmdline, c.nets); got != c.want {
			t.Errorf("%q with %v: %q, want %q", c.cmdline, c.nets, got, c.want)
		}
	}
}
