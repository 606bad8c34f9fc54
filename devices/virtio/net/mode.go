// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"slices"

	"github.com/govmm/govmm/devices/netio"
)

// maxFilter is how many addresses of each kind are remembered. A driver that
// sets more gets all of that kind.
const maxFilter = 64

// Mode is what the guest asked to receive by the control queue (virtio 1.2,
// 5.1.6.5.1 and 5.1.6.5.2). A backend that is a netio.Filterer leaves out what
// it doesn't cover; with another the guest's own stack does.
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

// resetMode makes the mode that of a device after reset: the tables are empty
// (5.1.6.5.2.2). The specification doesn't say whether the device is then
// promiscuous. It is, so that a driver which knows no filter, or has not accepted
// VIRTIO_NET_F_CTRL_RX, receives everything.
func (d *Device) resetMode() {
	d.setMode(func(m *Mode) { *m = Mode{MAC: d.cfg.MAC, Promiscuous: true} })
}

// setMode changes the mode and the backend's filter.
func (d *Device) setMode(change func(*Mode)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.mode)
	if b, ok := d.cfg.Backend.(netio.Filterer); ok {
		b.SetFilter(d.mode.filter())
	}
}

// filter is what m lets through; nil is everything.
func (m *Mode) filter() *netio.Filter {
	if m.Promiscuous {
		return nil
	}
	further := make([]netio.MAC, 0, len(m.Unicast)+len(m.Multicast))
	for _, a := range slices.Concat(m.Unicast, m.Multicast) {
		further = append(further, netio.MAC(a))
	}
	return netio.NewFilter(netio.MAC(m.MAC), further, m.UnicastOverflow, m.AllMulticast || m.MulticastOverflow)
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
