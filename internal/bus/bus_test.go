// SPDX-License-Identifier: Apache-2.0

package bus

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// echo answers a read with its tag and the offset, and remembers writes.
type echo struct {
	tag    byte
	writes []string
	bells  []Doorbell
}

func (e *echo) BusRead(off uint64, p []byte) {
	for i := range p {
		p[i] = e.tag ^ byte(off) ^ byte(i)<<4
	}
}
func (e *echo) BusWrite(off uint64, p []byte) {
	e.writes = append(e.writes, fmt.Sprintf("%d:%x", off, p))
}
func (e *echo) Doorbells() []Doorbell { return e.bells }

type hook map[uint64]int

func (h hook) AddDoorbell(addr uint64, fd int) { h[addr] = fd }
func (h hook) RemoveDoorbell(addr uint64, fd int) {
	if h[addr] == fd {
		delete(h, addr)
	}
}

func TestUnmappedReadsOnes(t *testing.T) {
	b := New(nil)
	if err := b.Map(0x10, 4, &echo{}); err != nil {
		t.Fatal(err)
	}
	for _, a := range []uint64{0, 0xf, 0x14, 0x11, ^uint64(0) - 1} { // 0x11: four bytes leave the window
		p := []byte{1, 2, 3, 4}
		if b.Read(a, p) || !bytes.Equal(p, []byte{0xff, 0xff, 0xff, 0xff}) {
			t.Errorf("read at %#x gives %x", a, p)
		}
		if b.Write(a, p) {
			t.Errorf("write at %#x found a device", a)
		}
	}
}

func TestMapRefuses(t *testing.T) {
	b := New(nil)
	if err := b.Map(0x1000, 0x100, &echo{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ base, size uint64 }{{0x1000, 0x100}, {0xfff, 2}, {0x10ff, 1}, {0x1080, 1}, {0, 0x10000}} {
		var overlap *OverlapError
		if err := b.Map(c.base, c.size, &echo{}); !errors.As(err, &overlap) || overlap.Other != 0x1000 {
			t.Errorf("Map(%#x, %#x): %v", c.base, c.size, err)
		}
	}
	for _, c := range []struct{ base, size uint64 }{{0, 0}, {^uint64(0), 2}} {
		if err := b.Map(c.base, c.size, &echo{}); err == nil {
			t.Errorf("Map(%#x, %#x) is accepted", c.base, c.size)
		}
	}
	if err := b.Map(^uint64(0), 1, &echo{}); err != nil {
		t.Errorf("the last byte of the address space: %v", err)
	}
}

// TestAgainstModel maps and unmaps at random and compares look-ups with a
// plain list.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type win struct {
			base, size uint64
			h          *echo
		}
		var model []win
		h := hook{}
		b := New(h)
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			base := rapid.Uint64Range(0, 64).Draw(t, "base")
			size := rapid.Uint64Range(1, 16).Draw(t, "size")
			if rapid.Bool().Draw(t, "map") {
				e := &echo{tag: byte(i), bells: []Doorbell{{Offset: 0, FD: i}}}
				free := !slices.ContainsFunc(model, func(w win) bool { return base < w.base+w.size && w.base < base+size })
				if err := b.Map(base, size, e); (err == nil) != free {
					t.Fatalf("Map(%d, %d): %v, model says free=%v", base, size, err, free)
				}
				if free {
					model = append(model, win{base, size, e})
				}
			} else {
				b.Unmap(base)
				model = slices.DeleteFunc(model, func(w win) bool { return w.base == base })
			}
			bells := hook{}
			for _, w := range model {
				bells[w.base] = w.h.bells[0].FD
			}
			if fmt.Sprint(bells) != fmt.Sprint(h) {
				t.Fatalf("doorbells %v, want %v", h, bells)
			}
			a := rapid.Uint64Range(0, 80).Draw(t, "addr")
			want := byte(0xff)
			if i := slices.IndexFunc(model, func(w win) bool { return a >= w.base && a < w.base+w.size }); i >= 0 {
				want = model[i].h.tag ^ byte(a-model[i].base)
			}
			p := []byte{0}
			b.Read(a, p)
			if p[0] != want {
				t.Fatalf("read at %d gives %#x, want %#x", a, p[0], want)
			}
		}
	})
}
