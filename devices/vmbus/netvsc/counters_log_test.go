// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/govmm/govmm/devices/netio"
)

// TestCountersAsText: pairs of key and value, without those that are zero.
func TestCountersAsText(t *testing.T) {
	var out bytes.Buffer
	c := Counters{Opens: 1, Control: 2, Channels: []ChannelCounters{
		{Counters: netio.Counters{TX: netio.DirCounters{Frames: 9}}, TxRefused: 3},
		{RxDropped: 4},
	}}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "c", c)
	const want = `msg=x c.opens=1 c.control_messages=2 c.channel0.tx.frames=9 c.channel0.tx_refused=3 c.channel1.rx_dropped=4`
	if !strings.HasSuffix(strings.TrimSpace(out.String()), want) {
		t.Errorf("logged %s, want %s", out.String(), want)
	}
}
