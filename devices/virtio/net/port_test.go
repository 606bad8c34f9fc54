// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"testing"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/porttest"
	"github.com/govmm/govmm/devices/virtio"
)

// TestPort runs the contract of netio.Port over each kind of ring.
func TestPort(t *testing.T) {
	const v1, indirect, event = virtio.FeatureVersion1, virtio.FeatureIndirectDesc, virtio.FeatureEventIdx
	for _, tt := range []struct {
		name     string
		features uint64
		layout   string
	}{
		{"plain", v1, "one descriptor"},
		{"event index, header apart", v1 | event, "header apart"},
		{"event index, indirect, header over descriptors", v1 | event | indirect, "header over descriptors"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			porttest.Run(t, porttest.Traits{Merge: true}, func(t *testing.T, c porttest.Config) porttest.Harness {
				features := tt.features | FeatureGuestCsum
				if c.Merge {
					features |= FeatureMrgRxbuf
				}
				if c.Window > 2000 {
					features |= FeatureGuestTSO4
				}
				gc := guestConfig{
					features: features, slots: c.Size, bufSize: c.BufSize, frameSize: netio.HeaderLen + netio.MaxFrame,
					layout: layouts[tt.layout], indirect: features&indirect != 0,
				}
				g, _ := newGuest(t, newMemory(t, guestBytes(gc), 0), 0, gc)
				return porttest.Harness{Port: newPair(t, g, features), Guest: g}
			})
		})
	}
}
