// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"log/slog"
	"testing"

	"github.com/govmm/govmm/internal/result"
)

func TestPanicWatch(t *testing.T) {
	const end = "[    7.625400] ---[ end Kernel panic - not syncing: x ]---"
	for _, c := range []struct {
		name  string
		lines []string
		want  string // the detail; "" for no panic
		ends  bool
	}{
		{"plain", []string{"Kernel panic - not syncing: VFS"}, "Kernel panic - not syncing: VFS", false},
		{"time stamp", []string{"[    7.625400] Kernel panic - not syncing: x", end}, "Kernel panic - not syncing: x", true},
		{"caller", []string{"[    7.625400][    T1] Kernel panic - not syncing: x"}, "Kernel panic - not syncing: x", false},
		{"level", []string{"<0>[    7.625400] Kernel panic - not syncing: x"}, "Kernel panic - not syncing: x", false},
		{"the first counts", []string{"Kernel panic - not syncing: a", "Kernel panic - not syncing: b"}, "Kernel panic - not syncing: a", false},
		{"quoted", []string{"systemd[1]: last boot: Kernel panic - not syncing: x"}, "", false},
		{"a file of such lines", []string{"dmesg.txt:Kernel panic - not syncing"}, "", false},
		{"only the end", []string{end}, "", false},
		{"harmless", []string{"[    0.000000] Command line: panic=-1", "login:"}, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := panicWatch{log: slog.New(slog.DiscardHandler)}
			var got []result.Result
			w.arm(func(r result.Result) { got = append(got, r) })
			for _, l := range c.lines {
				w.line([]byte(l))
			}
			if detail := w.disarm(); detail != c.want {
				t.Errorf("saw %q, want %q", detail, c.want)
			}
			if ended := len(got) > 0; ended != c.ends {
				t.Errorf("ended with %+v", got)
			}
			if c.ends && (got[0].Reason != result.Panic || got[0].Code != 116) {
				t.Errorf("ended with %+v", got[0])
			}
		})
	}
}

// TestPanicIsForgottenAtReboot checks that the next boot starts afresh.
func TestPanicIsForgottenAtReboot(t *testing.T) {
	w := panicWatch{log: slog.New(slog.DiscardHandler)}
	w.arm(nil)
	w.line([]byte("Kernel panic - not syncing: x"))
	w.disarm()
	w.arm(nil)
	if detail := w.disarm(); detail != "" {
		t.Errorf("the second boot has %q", detail)
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		policy, panic string
		in, want      result.Reason
	}{
		{"exit", "", result.Reset, result.Reset},
		{"exit", "x", result.Reset, result.Panic},
		{"exit", "x", result.TripleFault, result.Panic},
		{"exit", "x", result.PowerOff, result.Panic},
		{"exit", "x", result.Timeout, result.Timeout},
		{"continue", "x", result.Reset, result.Reset},
	} {
		m := &Machine{cfg: Config{OnPanic: c.policy}}
		if got := m.judge(result.Of(c.in, ""), c.panic); got.Reason != c.want {
			t.Errorf("%+v gives %s", c, got.Reason)
		}
	}
}
