// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/virtio"
)

// Feature bits of a network card (virtio 1.2, 5.1.3; the GUEST_USO bits are
// of virtio 1.3). Those that are missing here are not offered.
const (
	FeatureCsum              uint64 = 1 << 0  // VIRTIO_NET_F_CSUM
	FeatureGuestCsum         uint64 = 1 << 1  // VIRTIO_NET_F_GUEST_CSUM
	FeatureCtrlGuestOffloads uint64 = 1 << 2  // VIRTIO_NET_F_CTRL_GUEST_OFFLOADS
	FeatureMTU               uint64 = 1 << 3  // VIRTIO_NET_F_MTU
	FeatureMAC               uint64 = 1 << 5  // VIRTIO_NET_F_MAC
	FeatureGuestTSO4         uint64 = 1 << 7  // VIRTIO_NET_F_GUEST_TSO4
	FeatureGuestTSO6         uint64 = 1 << 8  // VIRTIO_NET_F_GUEST_TSO6
	FeatureGuestECN          uint64 = 1 << 9  // VIRTIO_NET_F_GUEST_ECN
	FeatureHostTSO4          uint64 = 1 << 11 // VIRTIO_NET_F_HOST_TSO4
	FeatureHostTSO6          uint64 = 1 << 12 // VIRTIO_NET_F_HOST_TSO6
	FeatureHostECN           uint64 = 1 << 13 // VIRTIO_NET_F_HOST_ECN
	FeatureMrgRxbuf          uint64 = 1 << 15 // VIRTIO_NET_F_MRG_RXBUF
	FeatureStatus            uint64 = 1 << 16 // VIRTIO_NET_F_STATUS
	FeatureCtrlVQ            uint64 = 1 << 17 // VIRTIO_NET_F_CTRL_VQ
	FeatureCtrlRX            uint64 = 1 << 18 // VIRTIO_NET_F_CTRL_RX
	FeatureMQ                uint64 = 1 << 22 // VIRTIO_NET_F_MQ
	FeatureCtrlMACAddr       uint64 = 1 << 23 // VIRTIO_NET_F_CTRL_MAC_ADDR
	FeatureGuestUSO4         uint64 = 1 << 54 // VIRTIO_NET_F_GUEST_USO4
	FeatureGuestUSO6         uint64 = 1 << 55 // VIRTIO_NET_F_GUEST_USO6
	FeatureHostUSO           uint64 = 1 << 56 // VIRTIO_NET_F_HOST_USO
)

// guestOffloads are the features that say what the guest can receive. They are
// also the bits of VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET (5.1.6.5.8.1).
var guestOffloads = []struct {
	feature uint64
	offload netio.Offload
}{
	{FeatureGuestCsum, netio.OffloadCsum},
	{FeatureGuestTSO4, netio.OffloadTSO4},
	{FeatureGuestTSO6, netio.OffloadTSO6},
	{FeatureGuestECN, netio.OffloadTSOECN},
	{FeatureGuestUSO4, netio.OffloadUSO4},
	{FeatureGuestUSO6, netio.OffloadUSO6},
}

// hostOffloads are the features that say what the guest may send. A host that
// can hand such frames out can also take them in.
var hostOffloads = []struct {
	feature uint64
	offload netio.Offload
}{
	{FeatureCsum, netio.OffloadCsum},
	{FeatureHostTSO4, netio.OffloadTSO4},
	{FeatureHostTSO6, netio.OffloadTSO6},
	{FeatureHostECN, netio.OffloadTSOECN},
	{FeatureHostUSO, netio.OffloadUSO4 | netio.OffloadUSO6},
}

// gsoOffloads are those with which a received frame can be larger than the MTU.
const gsoOffloads = netio.OffloadTSO4 | netio.OffloadTSO6 | netio.OffloadUSO4 | netio.OffloadUSO6

// requirements says which features mean nothing without one of others
// (5.1.3.1), the others' own requirements first.
var requirements = []struct{ feature, oneOf uint64 }{
	{FeatureGuestTSO4, FeatureGuestCsum},
	{FeatureGuestTSO6, FeatureGuestCsum},
	{FeatureGuestECN, FeatureGuestTSO4 | FeatureGuestTSO6},
	{FeatureGuestUSO4, FeatureGuestCsum},
	{FeatureGuestUSO6, FeatureGuestCsum},
	{FeatureHostTSO4, FeatureCsum},
	{FeatureHostTSO6, FeatureCsum},
	{FeatureHostECN, FeatureHostTSO4 | FeatureHostTSO6},
	{FeatureHostUSO, FeatureCsum},
	{FeatureCtrlRX, FeatureCtrlVQ},
	{FeatureMQ, FeatureCtrlVQ},
	{FeatureCtrlMACAddr, FeatureCtrlVQ},
	{FeatureCtrlGuestOffloads, FeatureCtrlVQ},
}

// offer returns the features on offer with cfg, which has its defaults.
func offer(cfg *Config) uint64 {
	f := virtio.FeatureVersion1 | virtio.FeatureIndirectDesc | virtio.FeatureEventIdx |
		FeatureMAC | FeatureStatus | FeatureCtrlVQ | FeatureCtrlRX | FeatureCtrlMACAddr
	if cfg.MTU != 0 {
		f |= FeatureMTU
	}
	if cfg.Mergeable {
		f |= FeatureMrgRxbuf
	}
	if cfg.Queues > 1 {
		f |= FeatureMQ
	}
	if !cfg.Offload {
		return f
	}
	can := cfg.Backend.Offloads().Normalise()
	guest := can
	if cfg.Mergeable && !ringHolds(cfg.RingSize, netio.HeaderLen+netio.MaxFrame) {
		guest &^= gsoOffloads | netio.OffloadTSOECN
	}
	for _, g := range guestOffloads {
		if guest&g.offload != 0 {
			f |= g.feature | FeatureCtrlGuestOffloads
		}
	}
	for _, h := range hostOffloads {
		if can&h.offload != 0 {
			f |= h.feature
		}
	}
	return f
}

// consistent drops the features that lack what they require: a driver that
// accepts them all the same gets none of them.
func consistent(features uint64) uint64 {
	for _, r := range requirements {
		if features&r.oneOf == 0 {
			features &^= r.feature
		}
	}
	return features
}

// offloadsOf is what the backend is set to when the guest can receive what
// features, or the bits of GUEST_OFFLOADS_SET, say.
func offloadsOf(features uint64) netio.Offload {
	var o netio.Offload
	for _, g := range guestOffloads {
		if features&g.feature != 0 {
			o |= g.offload
		}
	}
	return o.Normalise()
}

// offloadFeatures are all features that GUEST_OFFLOADS_SET can switch.
func offloadFeatures() (f uint64) {
	for _, g := range guestOffloads {
		f |= g.feature
	}
	return f
}

// Sizes of receive buffers in bytes, header included (5.1.6.3.1).
const (
	ethernetLen = 14
	vlanLen     = 4

	// gsoBuffer is what a driver that accepts segmentation offloads but not
	// mergeable buffers must post; MaxFrame is a VLAN tag more.
	gsoBuffer = 65562
	// defaultMTU is what a driver that doesn't know the MTU prepares for.
	defaultMTU = 1500
)

// lateRefill is how many buffers Linux's driver lets us use up before it posts
// new ones (virtnet_receive: half of a NAPI budget of 64).
const lateRefill = 32

// ringHolds reports whether a receive ring of mergeable buffers always has room
// for a frame of n bytes, header included: with the smallest buffers that a
// driver posts, and as few of them as it leaves posted. Else both sides could
// wait for ever, we for buffers and the driver for more used ones.
func ringHolds(size, n int) bool {
	return (size-lateRefill)*(netio.HeaderLen+ethernetLen+defaultMTU) >= n
}

// receiveWindow is how many bytes must be free before a frame is read: the
// largest frame that can come, as far as the driver has to make room for it. A
// buffer that isn't merged need not have room for a VLAN tag; most have.
func receiveWindow(features uint64, o netio.Offload, mtu int) int {
	merge := features&FeatureMrgRxbuf != 0
	switch {
	case o&gsoOffloads != 0 && merge:
		return netio.HeaderLen + netio.MaxFrame
	case o&gsoOffloads != 0:
		return gsoBuffer
	case merge:
		return netio.HeaderLen + ethernetLen + vlanLen + max(mtu, defaultMTU)
	case features&FeatureMTU != 0:
		return netio.HeaderLen + ethernetLen + max(mtu, defaultMTU)
	}
	return netio.HeaderLen + ethernetLen + defaultMTU
}
