// SPDX-License-Identifier: Apache-2.0

package netio

import "log/slog"

// LogValue implements slog.LogValuer: a group with the names of JSON, without
// the counters that are zero.
func (c Counters) LogValue() slog.Value {
	return slog.GroupValue(append([]slog.Attr{
		slog.Any("rx", c.RX),
		slog.Any("tx", c.TX),
	}, NonZero(
		slog.Uint64("wakeups", c.Wakeups),
		slog.Uint64("spin_hits", c.SpinHits),
		slog.Uint64("spin_misses", c.SpinMisses),
		slog.Uint64("stops", c.Stops),
		slog.Uint64("stop_max_ns", c.StopMaxNs),
	)...)...)
}

// LogValue implements slog.LogValuer, like that of Counters.
func (c DirCounters) LogValue() slog.Value {
	attrs := NonZero(
		slog.Uint64("frames", c.Frames),
		slog.Uint64("bytes", c.Bytes),
		slog.Uint64("gso", c.GSO),
		slog.Uint64("batches", c.Batches),
		slog.Uint64("syscalls", c.Syscalls),
		slog.Uint64("again", c.Again),
		slog.Uint64("errors", c.Errors),
		slog.Uint64("copied", c.Copied),
		slog.Uint64("filtered", c.Filtered),
		slog.Uint64("notified", c.Notified),
		slog.Uint64("suppressed", c.Suppressed),
		slog.Uint64("kicks", c.Kicks),
		slog.Uint64("spurious_kicks", c.SpuriousKicks),
		slog.Uint64("stalls", c.Stalls),
		slog.Uint64("stalled_ns", c.StalledNs),
		slog.Uint64("faults", c.Faults),
	)
	if c.BatchSizes != [5]uint64{} {
		attrs = append(attrs, slog.Any("batch_sizes", c.BatchSizes[:]))
	}
	return slog.GroupValue(attrs...)
}

// NonZero returns those of counters, which are numbers, that are not zero.
func NonZero(counters ...slog.Attr) []slog.Attr {
	attrs := make([]slog.Attr, 0, len(counters)+1)
	for _, a := range counters {
		if a.Value.Uint64() != 0 {
			attrs = append(attrs, a)
		}
	}
	return attrs
}
