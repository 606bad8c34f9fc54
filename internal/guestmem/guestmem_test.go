// SPDX-License-Identifier: Apache-2.0

package guestmem

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

const page = 64 << 10 // the largest page size of the hosts that govmm runs on

func newMemory(t testing.TB, ranges ...Range) *Memory {
	t.Helper()
	m, err := New(ranges...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestNewRefuses(t *testing.T) {
	for name, ranges := range map[string][]Range{
		"empty":     {{0, 0}},
		"unaligned": {{1, page}},
		"odd size":  {{0, page + 1}},
		"wraps":     {{^uint64(0) - page + 1, 2 * page}},
		"overlap":   {{0, 2 * page}, {page, page}},
		"huge":      {{0, 1 << 63}},
	} {
		if m, err := New(ranges...); err == nil {
			t.Errorf("%s: accepted, %d bytes", name, m.Size())
		}
	}
}

func TestRangesAreSorted(t *testing.T) {
	m := newMemory(t, Range{4 * page, page}, Range{0, page})
	if r := m.Regions(); r[0].GPA != 0 || r[1].GPA != 4*page || m.Size() != 2*page {
		t.Errorf("regions %v, size %d", r, m.Size())
	}
}

// TestAgainstModel compares every accessor with a map of bytes, over two
// adjacent regions, a hole and a third region.
func TestAgainstModel(t *testing.T) {
	m := newMemory(t, Range{0, page}, Range{page, page}, Range{3 * page, page})
	model := map[uint64]byte{}
	for a := range uint64(4 * page) {
		if a/page != 2 {
			model[a] = 0
		}
	}
	inside := func(gpa, n uint64) bool {
		for i := range n {
			if _, ok := model[gpa+i]; !ok {
				return false
			}
		}
		return true
	}
	rapid.Check(t, func(t *rapid.T) {
		near := rapid.SampledFrom([]uint64{0, page, 2 * page, 3 * page, 4 * page, ^uint64(0) - 8}).Draw(t, "near")
		gpa := near + uint64(rapid.IntRange(-20, 20).Draw(t, "off"))
		data := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "data")
		n := uint64(len(data))
		ok := inside(gpa, n)
		if got := m.Contains(gpa, n); got != ok {
			t.Fatalf("Contains(%#x, %d) = %v", gpa, n, got)
		}
		if err := m.WriteAt(gpa, data); n > 0 && (err == nil) != ok || err != nil && !errors.Is(err, ErrRange) {
			t.Fatalf("WriteAt(%#x, %d): %v", gpa, n, err)
		} else if err == nil && ok {
			for i, b := range data {
				model[gpa+uint64(i)] = b
			}
		}
		if n == 0 || !ok {
			return
		}
		got := make([]byte, n)
		if err := m.ReadAt(gpa, got); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("ReadAt(%#x) = %x, %v; want %x", gpa, got, err, data)
		}
		vec, err := m.Vec(nil, gpa, n)
		if err != nil {
			t.Fatal(err)
		}
		clear(got)
		read, err := preadFrom(vec, got)
		if err != nil || uint64(read) != n || !bytes.Equal(got, data) {
			t.Fatalf("the iovecs of %#x hold %x (%d, %v), want %x", gpa, got, read, err, data)
		}
	})
}

// preadFrom lets the kernel gather the iovecs, through a pipe.
func preadFrom(vec []unix.Iovec, p []byte) (int, error) {
	var fds [2]int
	if err := unix.Pipe(fds[:]); err != nil {
		return 0, err
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	total := 0
	for _, v := range vec {
		n, err := writeIovec(fds[1], v)
		if err != nil {
			return 0, err
		}
		total += n
	}
	_, err := unix.Read(fds[0], p)
	return total, err
}

func TestVecDoesNotAllocate(t *testing.T) {
	m := newMemory(t, Range{0, page}, Range{page, page})
	dst := make([]unix.Iovec, 0, 4)
	if n := testing.AllocsPerRun(100, func() {
		var err error
		if dst, err = m.Vec(dst[:0], page-8, 16); err != nil || len(dst) != 2 {
			t.Fatal(len(dst), err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestVecOnErrorLeavesDst(t *testing.T) {
	m := newMemory(t, Range{0, page})
	dst := make([]unix.Iovec, 1, 8)
	if got, err := m.Vec(dst, page-1, 2); err == nil || len(got) != 1 {
		t.Errorf("%d iovecs, %v", len(got), err)
	}
	if got, err := m.Vec(dst, 1<<60, 0); err != nil || len(got) != 1 {
		t.Errorf("an empty range: %d iovecs, %v", len(got), err)
	}
}

func TestView(t *testing.T) {
	m := newMemory(t, Range{0, page}, Range{page, page})
	for _, c := range []struct{ gpa, n, align uint64 }{{1, 2, 2}, {page - 4, 8, 4}, {2*page - 2, 4, 2}, {1 << 63, 8, 8}} {
		if _, err := m.View(c.gpa, c.n, c.align); !errors.Is(err, ErrRange) {
			t.Errorf("View(%#x, %d, %d): %v", c.gpa, c.n, c.align, err)
		}
	}
	v, err := m.View(16, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	v.Store16(2, 0xbeef)
	v.Store32(4, 0x12345678)
	v.Store64(8, 0x1122334455667788)
	want := []byte{0, 0, 0xef, 0xbe, 0x78, 0x56, 0x34, 0x12, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}
	got := make([]byte, 16)
	if err := m.ReadAt(16, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("memory holds %x, want little-endian %x (%v)", got, want, err)
	}
	if a, b, c := v.Load16(2), v.Load32(4), v.Load64(8); a != 0xbeef || b != 0x12345678 || c != 0x1122334455667788 {
		t.Errorf("loads give %#x %#x %#x", a, b, c)
	}
	if old := v.Or32(4, 0x80000001); old != 0x12345678 || v.Load32(4) != 0x92345679 {
		t.Errorf("Or32 returns %#x and leaves %#x", old, v.Load32(4))
	}
	v.Store32(4, 0x12345678)
	// Out of the window: reads are zero and writes are lost.
	v.Store16(16, 1)
	v.Store32(14, 1)
	v.Store64(^uint64(0), 1)
	if v.Or32(13, 1) != 0 {
		t.Error("Or32 out of the window read something")
	}
	v.CopyOut(15, []byte{1, 2})
	var p [2]byte
	v.CopyIn(15, p[:])
	if v.Load16(16)|v.Load16(15+1) != 0 || v.Load32(13) != 0 || v.Load64(9) != 0 || p != [2]byte{} {
		t.Error("an access out of the window had an effect")
	}
	if err := m.ReadAt(16, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("an access out of the window changed memory to %x", got)
	}
}

// TestStore16KeepsNeighbour runs two writers of the two halves of one word.
func TestStore16KeepsNeighbour(t *testing.T) {
	m := newMemory(t, Range{0, page})
	v, err := m.View(0, 4, 4)
	if err != nil {
		t.Fatal(err)
	}
	const n = 20000
	var wg sync.WaitGroup
	for _, off := range []uint64{0, 2} {
		wg.Go(func() {
			for i := range uint16(n) {
				v.Store16(off, i)
				if got := v.Load16(off); got != i {
					t.Errorf("offset %d: wrote %d, read %d", off, i, got)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestWriterAndZero(t *testing.T) {
	m := newMemory(t, Range{0, page})
	w := m.Writer(page - 4)
	if _, err := w.Write([]byte{1, 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte{3, 4}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte{5}); !errors.Is(err, ErrRange) {
		t.Errorf("writing past the end: %v", err)
	}
	if err := m.Zero(page-3, 2); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if err := m.ReadAt(page-4, got); err != nil || !bytes.Equal(got, []byte{1, 0, 0, 4}) {
		t.Errorf("memory holds %x, %v", got, err)
	}
}
