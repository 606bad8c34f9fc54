// SPDX-License-Identifier: Apache-2.0

package guestmem

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

func TestGatherScatter(t *testing.T) {
	m, err := New(Range{0, 1 << 16}, Range{1 << 20, 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var vec []unix.Iovec
	for _, r := range []Range{{0x10, 5}, {0xfff0, 0}, {1<<20 + 3, 7}} {
		if vec, err = m.Vec(vec, r.GPA, r.Size); err != nil {
			t.Fatal(err)
		}
	}
	src := []byte("hello, world!")
	if n := Scatter(vec, src); n != 12 {
		t.Errorf("Scatter of 13 bytes into 12 = %d", n)
	}
	got := make([]byte, 7)
	if err := m.ReadAt(1<<20+3, got); err != nil || string(got) != ", world" {
		t.Errorf("second piece = %q, %v", got, err)
	}
	for _, size := range []int{0, 1, 5, 6, 12, 20} {
		dst := make([]byte, size)
		want := src[:min(size, 12)]
		if n := Gather(dst, vec); n != len(want) || !bytes.Equal(dst[:n], want) {
			t.Errorf("Gather into %d bytes = %d %q", size, n, dst[:n])
		}
	}
}

func TestScatterAt(t *testing.T) {
	m, err := New(Range{0, 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var vec []unix.Iovec
	for _, r := range []Range{{0x10, 5}, {0x100, 1}, {0x200, 6}} {
		if vec, err = m.Vec(vec, r.GPA, r.Size); err != nil {
			t.Fatal(err)
		}
	}
	for _, src := range []string{"", "a", "ab", "abc", "0123456789abc"} {
		for off := range uint64(14) {
			before, after := make([]byte, 12), make([]byte, 12)
			Gather(before, vec)
			n := ScatterAt(vec, off, []byte(src))
			Gather(after, vec)
			want := copy(before[min(off, 12):], src)
			if n != want || !bytes.Equal(before, after) {
				t.Errorf("ScatterAt(%d) of %q = %d, want %d: %q, want %q", off, src, n, want, after, before)
			}
			Scatter(vec, make([]byte, 12))
		}
	}
}
