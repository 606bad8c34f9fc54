// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"encoding/binary"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// wireRoute is struct kvm_irq_routing_entry as the kernel reads it.
type wireRoute struct {
	GSI, Type, Flags, Pad uint32
	Union                 [8]uint32
}

func target(t *rapid.T) (RouteTarget, wireRoute) {
	a, b, c := rapid.Uint32().Draw(t, "a"), rapid.Uint32().Draw(t, "b"), rapid.Uint32().Draw(t, "c")
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		return IRQChipRoute{Chip: IRQChipID(a), Pin: b}, wireRoute{Type: 1, Union: [8]uint32{a, b}}
	case 1:
		return MSIRoute{Addr: uint64(b)<<32 | uint64(a), Data: c}, wireRoute{Type: 2, Union: [8]uint32{a, b, c}}
	}
	return HyperVSINTRoute{VCPU: a, SINT: b}, wireRoute{Type: 4, Union: [8]uint32{a, b}}
}

func TestEncodeRoutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var routes []Route
		var want []wireRoute
		for range rapid.IntRange(0, 20).Draw(t, "n") {
			gsi := rapid.Uint32().Draw(t, "gsi")
			tgt, wire := target(t)
			wire.GSI = gsi
			routes, want = append(routes, Route{GSI: gsi, Target: tgt}), append(want, wire)
		}
		buf, err := encodeRoutes(routes)
		if err != nil {
			t.Fatal(err)
		}
		if len(buf) != 8+48*len(routes) {
			t.Fatalf("%d bytes for %d routes", len(buf), len(routes))
		}
		if n, flags := binary.NativeEndian.Uint32(buf), binary.NativeEndian.Uint32(buf[4:]); n != uint32(len(routes)) || flags != 0 {
			t.Fatalf("header says %d routes, flags %#x", n, flags)
		}
		for i, w := range want {
			var got wireRoute
			if _, err := binary.Decode(buf[8+48*i:], binary.NativeEndian, &got); err != nil {
				t.Fatal(err)
			}
			if got != w {
				t.Fatalf("route %d is %+v, want %+v", i, got, w)
			}
		}
	})
}

func TestRouteWithoutTarget(t *testing.T) {
	if _, err := encodeRoutes([]Route{{GSI: 7}}); err == nil || !strings.Contains(err.Error(), "GSI 7") {
		t.Errorf("error %v does not name the GSI", err)
	}
}
