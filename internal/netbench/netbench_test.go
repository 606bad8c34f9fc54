// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"os"
	"testing"
	"time"
)

// TestCases runs each case for a moment: what it counts must be right, what it
// takes doesn't matter.
func TestCases(t *testing.T) {
	for _, c := range Cases() {
		r, err := Run(c, Options{Slices: 1, Slice: time.Millisecond})
		if err != nil {
			t.Error(err)
			continue
		}
		for _, e := range r.Engine {
			// The runtime may allocate something by itself meanwhile.
			if e.Ns <= 0 || e.Syscalls < 1 || e.Syscalls > 1.1 || e.Allocs > 0.05 {
				t.Errorf("%s, batch %d: %+v", c.Name, e.Batch, e)
			}
		}
	}
}

// BenchmarkNative measures all cases, or those that -bench asks for, and prints
// the table.
func BenchmarkNative(b *testing.B) {
	var results []Result
	for _, c := range Cases() {
		b.Run(c.Name, func(b *testing.B) {
			r, err := Run(c, DefaultOptions)
			if err != nil {
				b.Fatal(err)
			}
			results = append(results, r)
			b.ReportMetric(r.Engine[0].Ns, "ns/frame")
			b.ReportMetric(r.Engine[0].Ratio, "ratio")
			b.ReportMetric(0, "ns/op") // an operation is a whole measurement
		})
	}
	if err := Table(os.Stdout, results); err != nil {
		b.Fatal(err)
	}
}
