// SPDX-License-Identifier: Apache-2.0

package porttest

import "testing"

func TestRef(t *testing.T) {
	Run(t, Traits{Merge: true}, func(t *testing.T, c Config) Harness {
		r, err := NewRef(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		return Harness{Port: r, Guest: r}
	})
}
