// SPDX-License-Identifier: Apache-2.0

package suggest

import (
	"testing"

	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	words := []string{"kernel", "initrd", "append", "memory", "cpus", "busy-poll", "mtu", "mac"}
	for word, want := range map[string]string{
		"memry":     "memory",
		"kernl":     "kernel",
		"Kernel":    "kernel",
		"inirtd":    "initrd", // two letters swapped
		"busy_poll": "busy-poll",
		"busypoll":  "busy-poll",
		"mut":       "mtu",
		"cpu":       "cpus",
		"app":       "append", // the only one that begins so
		"m":         "",       // three begin so
		"disk":      "",
		"":          "",
		"kernelkernelkernelkernelkernelkernelkernelkernelkernelkernelkernel": "",
	} {
		if got := Nearest(word, words); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	letters := rapid.StringOfN(rapid.RuneFrom([]rune("abé")), 0, 6, -1)
	rapid.Check(t, func(t *rapid.T) {
		a, b := letters.Draw(t, "a"), letters.Draw(t, "b")
		d := distance(a, b)
		if d != distance(b, a) {
			t.Fatal("not symmetric")
		}
		if (d == 0) != (a == b) {
			t.Fatalf("distance %d", d)
		}
		la, lb := len([]rune(a)), len([]rune(b))
		if d < max(la-lb, lb-la) || d > max(la, lb) {
			t.Fatalf("distance %d of words of %d and %d letters", d, la, lb)
		}
		// One edit more changes the distance by one at most.
		if e := distance(a+"x", b); e > d+1 || e < d-1 {
			t.Fatalf("from %d to %d with one letter", d, e)
		}
	})
}
