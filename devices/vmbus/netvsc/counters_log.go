// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"fmt"
	"log/slog"

	"github.com/govmm/govmm/devices/netio"
)

// LogValue implements slog.LogValuer: a group with the names of JSON, except
// that each channel is a member by its index, and without what is zero.
func (c Counters) LogValue() slog.Value {
	attrs := netio.NonZero(
		slog.Uint64("opens", c.Opens),
		slog.Uint64("guest_faults", c.GuestFaults),
		slog.Uint64("backend_errors", c.BackendErrors),
		slog.Uint64("control_messages", c.Control),
	)
	for i, ch := range c.Channels {
		attrs = append(attrs, slog.Any(fmt.Sprintf("channel%d", i), ch))
	}
	return slog.GroupValue(attrs...)
}

// LogValue implements slog.LogValuer: a group like that of what it embeds.
func (c ChannelCounters) LogValue() slog.Value {
	return slog.GroupValue(append(c.Counters.LogValue().Group(), netio.NonZero(
		slog.Uint64("tx_refused", c.TxRefused),
		slog.Uint64("rx_dropped", c.RxDropped),
	)...)...)
}
