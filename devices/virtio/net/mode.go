// SPDX-License-Identifier: Apache-2.0

package virtionet

import "slices"

// maxFilter is how many addresses of each kind are remembered. A driver that
// sets more gets all of that kind.
const maxFilter = 64

// Mode is what the guest asked to receive by the control queue (virtio 1.2,
// 5.1.6.5.1 and 5.1.6.5.2). The device remembers and shows it, but doesn't
// filter by it, which the specification leaves to its best effort: a tap hands
// over only what the host's stack or bridge sends this way, and the guest's own
// stack drops the rest. A filter here would have to look at each frame in guest
// memory and leave holes among the receive buffers.
type Mode struct {
	MAC          MAC  `json:"mac"` // the guest's own address, as the configuration space shows it
	Promiscuous  bool `json:"promiscuous"`
	AllMulticast bool `json:"all_multicast"`
	// Unicast and Multicast are further addresses; the flags say that there were
	// more than are remembered.
	Unicast           []MAC `json:"unicast"`
	Multicast         []MAC `json:"multicast"`
	UnicastOverflow   bool  `json:"unicast_overflow"`
	MulticastOverflow bool  `json:"multicast_overflow"`
}

// resetMode makes the mode that of a device after reset. There is no filter, so
// all is received until the driver says otherwise.
func (d *Device) resetMode() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mode = Mode{MAC: d.cfg.MAC, Promiscuous: true}
}

// setMode changes the mode.
func (d *Device) setMode(change func(*Mode)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.mode)
}

// State is how a Device stands.
type State struct {
	Driver  bool   `json:"driver"`   // a driver has started it
	Link    bool   `json:"link"`     // up
	Pairs   int    `json:"pairs"`    // queue pairs in use
	Offload uint32 `json:"offloads"` // what the guest receives unfinished: TUN_F_* bits
	Mode    Mode   `json:"mode"`
}

// State returns a snapshot. It may be called at any time.
func (d *Device) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := State{Driver: d.driver != nil, Link: d.linkUp, Pairs: d.active, Offload: uint32(d.offload), Mode: d.mode}
	s.Mode.Unicast = slices.Clone(s.Mode.Unicast)
	s.Mode.Multicast = slices.Clone(s.Mode.Multicast)
	return s
}
