// SPDX-License-Identifier: Apache-2.0

package debugexit

import (
	"fmt"
	"testing"
)

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		off   uint64
		write []byte
		want  string
	}{
		{0, []byte{0}, "[0]"},
		{0, []byte{42}, "[42]"},
		{0, []byte{255}, "[255]"},
		{0, []byte{7, 1}, "[7]"},
		{0, []byte{9, 0, 0, 0}, "[9]"},
		{1, []byte{5}, "[]"},
		{0, nil, "[]"},
	} {
		got := []byte{}
		d := New(func(s byte) { got = append(got, s) })
		d.BusWrite(c.off, c.write)
		if fmt.Sprint(got) != c.want {
			t.Errorf("% x at %d: statuses %v, want %s", c.write, c.off, got, c.want)
		}
		p := []byte{1, 2}
		if d.BusRead(c.off, p); p[0] != 0 || p[1] != 0 {
			t.Errorf("reads % x", p)
		}
	}
}

func FuzzAccess(f *testing.F) {
	f.Add(uint64(0), []byte{1})
	f.Fuzz(func(t *testing.T, off uint64, p []byte) {
		d := New(func(s byte) {
			if off != 0 || s != p[0] {
				t.Errorf("status %d", s)
			}
		})
		d.BusWrite(off, p)
		d.BusRead(off, p)
	})
}
