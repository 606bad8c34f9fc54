// SPDX-License-Identifier: Apache-2.0

package pvpanic

import (
	"fmt"
	"testing"
)

func TestEvents(t *testing.T) {
	var got string
	note := func(s string) func() { return func() { got += s } }
	all := New(Config{note("P"), note("C"), note("S")})
	some := New(Config{OnPanic: note("P")})
	for _, c := range []struct {
		d      *Device
		write  byte
		want   string
		offers byte
	}{
		{all, 0, "", 7},
		{all, Panicked, "P", 7},
		{all, CrashLoaded, "C", 7},
		{all, Shutdown, "S", 7},
		{all, 0xff, "PCS", 7},
		{all, 0xf8, "", 7},
		{some, 0xff, "P", 1},
		{some, Shutdown, "", 1},
		{New(Config{}), 0xff, "", 0},
	} {
		got = ""
		c.d.BusWrite(0, []byte{c.write})
		p := []byte{0xaa}
		c.d.BusRead(0, p)
		if got != c.want || p[0] != c.offers {
			t.Errorf("write %#x: events %q, offers %#x; want %q, %#x", c.write, got, p[0], c.want, c.offers)
		}
	}
}

func FuzzAccess(f *testing.F) {
	f.Add(uint64(0), []byte{1})
	f.Add(uint64(3), []byte{7, 7, 7, 7})
	f.Fuzz(func(t *testing.T, off uint64, p []byte) {
		n := 0
		d := New(Config{OnPanic: func() { n++ }})
		d.BusWrite(off, p)
		if want := off == 0 && len(p) > 0 && p[0]&Panicked != 0; (n == 1) != want {
			t.Errorf("%d panics", n)
		}
		d.BusRead(off, p)
		if off == 0 && len(p) > 0 && fmt.Sprint(p) != fmt.Sprint(append([]byte{Panicked}, make([]byte, len(p)-1)...)) {
			t.Errorf("reads % x", p)
		}
	})
}
