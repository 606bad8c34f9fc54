// SPDX-License-Identifier: Apache-2.0

package virtionet

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
	c := Counters{Starts: 1, ControlErrors: 2, Pairs: []PairCounters{
		{Counters: netio.Counters{TX: netio.DirCounters{Frames: 9}}, TxShort: 3},
		{TxLong: 4},
	}}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "c", c)
	const want = `msg=x c.starts=1 c.control_errors=2 c.pair0.tx.frames=9 c.pair0.tx_short=3 c.pair1.tx_long=4`
	if !strings.HasSuffix(strings.TrimSpace(out.String()), want) {
		t.Errorf("logged %s, want %s", out.String(), want)
	}
}
