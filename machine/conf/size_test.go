// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseSize(t *testing.T) {
	for s, want := range map[string]uint64{
		"512": 512 << 20, "512M": 512 << 20, "512m": 512 << 20, "512MiB": 512 << 20, "512MB": 512 << 20,
		"4G": 4 << 30, "1T": 1 << 40, "65536K": 64 << 20, "007": 7 << 20, "16777215T": 16777215 << 40,
	} {
		if got, err := ParseSize(s); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for s, want := range map[string]string{
		"": "not a size", "M": "not a size", "-1": "not a size", "+1": "not a size", "1.5G": "not a size", "1 G": "not a size",
		"1B": "not a size", "1MM": "not a size", "1iB": "not a size", "0x10": "not a size", "1G ": "not a size", "1E": "not a size",
		"0": "nothing", "0G": "nothing",
		"16777216T": "more than any", "99999999999999999999999": "more than any", "18446744073709551615": "more than any",
	} {
		if got, err := ParseSize(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSize(%q) = %d, %v; want an error that says %q", s, got, err, want)
		}
	}
}

func TestFormatSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(1, math.MaxUint64>>10).Draw(t, "n") << 10
		if got, err := ParseSize(FormatSize(n)); err != nil || got != n {
			t.Fatalf("%d is written %s and read as %d, %v", n, FormatSize(n), got, err)
		}
	})
	for n, want := range map[uint64]string{512 << 20: "512M", 4 << 30: "4G", 1 << 40: "1T", 3330 << 20: "3330M", 32<<20 + 1<<16: "32832K"} {
		if got := FormatSize(n); got != want {
			t.Errorf("FormatSize(%d) = %s, want %s", n, got, want)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"512M", "4GiB", "", "0", "1.5G", "99999999999999999999T"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			return
		}
		if n == 0 || n%1024 != 0 {
			t.Fatalf("%q is %d bytes", s, n)
		}
		if again, err := ParseSize(FormatSize(n)); err != nil || again != n {
			t.Fatalf("%q is %d bytes, written %s, read as %d, %v", s, n, FormatSize(n), again, err)
		}
	})
}
