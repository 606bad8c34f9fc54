// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"fmt"
	"log/slog"

	"github.com/govmm/govmm/devices/netio"
)

// Counters is what a Device counted since it was made.
type Counters struct {
	Pairs []PairCounters `json:"pairs"`

	Starts          uint64 `json:"starts"`           // times that a driver took over
	GuestFaults     uint64 `json:"guest_faults"`     // breaches that ended a queue
	BackendErrors   uint64 `json:"backend_errors"`   // times that the backend was gone or refused a setting
	ControlCommands uint64 `json:"control_commands"` // commands that were carried out
	ControlErrors   uint64 `json:"control_errors"`   // commands that were answered with VIRTIO_NET_ERR
}

// PairCounters is what one queue pair counted.
type PairCounters struct {
	netio.Counters
	// TxShort and TxLong are chains that were given back unsent because they
	// hold less than a header and an Ethernet header, or more than a frame can.
	TxShort uint64 `json:"tx_short"`
	TxLong  uint64 `json:"tx_long"`
}

// LogValue implements slog.LogValuer: a group with the names of JSON, except
// that each pair is a member by its index, and without what is zero.
func (c Counters) LogValue() slog.Value {
	attrs := netio.NonZero(
		slog.Uint64("starts", c.Starts),
		slog.Uint64("guest_faults", c.GuestFaults),
		slog.Uint64("backend_errors", c.BackendErrors),
		slog.Uint64("control_commands", c.ControlCommands),
		slog.Uint64("control_errors", c.ControlErrors),
	)
	for i, p := range c.Pairs {
		attrs = append(attrs, slog.Any(fmt.Sprintf("pair%d", i), p))
	}
	return slog.GroupValue(attrs...)
}

// LogValue implements slog.LogValuer: a group like that of what it embeds.
func (c PairCounters) LogValue() slog.Value {
	return slog.GroupValue(append(c.Counters.LogValue().Group(), netio.NonZero(
		slog.Uint64("tx_short", c.TxShort),
		slog.Uint64("tx_long", c.TxLong),
	)...)...)
}

// Counters returns a snapshot; each pair's is consistent in itself.
func (d *Device) Counters() Counters {
	d.mu.Lock()
	c := d.count
	d.mu.Unlock()
	for i, p := range d.pairs {
		c.Pairs = append(c.Pairs, PairCounters{
			Counters: d.pumps[i].Counters(),
			TxShort:  p.refusedShort.Load(),
			TxLong:   p.refusedLong.Load(),
		})
	}
	return c
}

// countCommand counts a command of the control queue.
func (d *Device) countCommand(ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ok {
		d.count.ControlCommands++
	} else {
		d.count.ControlErrors++
	}
}
