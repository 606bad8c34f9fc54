// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"slices"
	"testing"
)

func TestSplitOutside(t *testing.T) {
	for _, c := range []struct {
		in   string
		sep  byte
		want []string
	}{
		{"", '|', []string{""}},
		{"A", '|', []string{"A"}},
		{"A|B/c|D", '|', []string{"A", "B/c", "D"}},
		{"B/c/d", '/', []string{"B", "c", "d"}},
		{"(A|B)|[|]", '|', []string{"(A|B)", "[|]"}},
		{`A\|B|C`, '|', []string{`A\|B`, "C"}},
		{`A\`, '|', []string{`A\`}},
	} {
		if got := splitOutside(c.in, c.sep); !slices.Equal(got, c.want) {
			t.Errorf("%q at %q gives %q, want %q", c.in, c.sep, got, c.want)
		}
	}
}
