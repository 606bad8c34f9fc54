// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/govmm/govmm/internal/guestmem"
)

// Each initrd starts at a multiple of 4 bytes, with zeros before it: the kernel
// takes a cpio archive nowhere else.
func TestInitrdsAreConcatenated(t *testing.T) {
	a, b, c := pattern(4097, 1), pattern(3, 2), pattern(8, 3)
	mem := newRAM(t, ramOf(64*mib))
	if err := mem.WriteAt(63*mib, bytes.Repeat([]byte{0xa5}, mib)); err != nil {
		t.Fatal(err)
	}
	e := load(t, openImage(t, linuxLike().build()), mem, Params{Initrds: []Source{
		{Path: writeFile(t, "a", a)}, {Path: "b", Data: b}, {Path: writeFile(t, "c", c)},
	}})
	want := slices.Concat(a, []byte{0, 0, 0}, b, []byte{0}, c)
	if e.Initrd.Size != uint64(len(want)) {
		t.Errorf("initrd has %d bytes, want %d", e.Initrd.Size, len(want))
	}
	if !bytes.Equal(read(t, mem, e.Initrd.GPA, e.Initrd.Size), want) {
		t.Error("initrd differs")
	}
	if got := read(t, mem, e.Initrd.End(), 1)[0]; got != 0xa5 {
		t.Errorf("the byte behind the initrd is %#x", got)
	}
}

func TestInitrdRefused(t *testing.T) {
	dir := t.TempDir()
	sparse := filepath.Join(dir, "sparse")
	f, err := os.Create(sparse)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	many := slices.Repeat([]Source{{Path: sparse}}, 100)
	small := Source{Path: "small", Data: pattern(100, 1)}
	low := linuxLike()
	low.initrdMax = 0x1ffffff // 32 MiB
	for _, c := range []struct {
		name    string
		image   []byte
		ram     uint64
		initrds []Source
		want    []string
	}{
		{"none such", nil, 64, []Source{{Path: filepath.Join(dir, "none")}}, []string{"initrd " + dir, "no such file"}},
		{"folder", nil, 64, []Source{{Path: dir}}, []string{"is a folder"}},
		{"device", nil, 64, []Source{{Path: "/dev/zero"}}, []string{"is a device"}},
		{"no name", nil, 64, []Source{{}}, []string{"the file name is empty"}},
		{"empty", nil, 64, []Source{small, {Path: writeFile(t, "nil", nil)}}, []string{"nil: is empty"}},
		{"larger than memory", nil, 64, []Source{{Path: "big", Data: make([]byte, 65*mib)}}, []string{"initrd big: has 65 MiB, but only 40 MiB of RAM", "kernel needs 8 MiB", "at least 89 MiB"}},
		{"a little larger than what is free", nil, 64, []Source{{Path: "big", Data: make([]byte, 40*mib+1)}}, []string{"at least 65 MiB"}},
		{"larger than the kernel takes", low.build(), 64, []Source{{Path: "big", Data: make([]byte, 20*mib)}}, []string{"has 20 MiB", "kernel ends at 0x1800000", "only below 0x2000000", "leaves 8 MiB"}},
		{"kernel that takes none", func() []byte { s := linuxLike(); s.initrdMax = 0x1000; return s.build() }(), 64, []Source{small}, []string{"only below 0x1001", "leaves 0 KiB"}},
		{"a terabyte", nil, 64, []Source{{Path: sparse}}, []string{"has 1048576 MiB", "use a smaller one"}},
		{"a hundred terabytes", nil, 64, many, []string{"has 104857600 MiB"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			image := c.image
			if image == nil {
				image = linuxLike().build()
			}
			_, err := openImage(t, image).Load(newRAM(t, ramOf(c.ram*mib)), Params{Initrds: c.initrds})
			wantBadImage(t, err, c.want...)
		})
	}
}

func TestInitrdThatShrinks(t *testing.T) {
	path := writeFile(t, "rd", pattern(100000, 1))
	rd, err := openInitrd([]Source{{Path: path}})
	defer rd.close()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 50000); err != nil {
		t.Fatal(err)
	}
	wantBadImage(t, rd.write(newRAM(t, ramOf(32*mib)), 8*mib), path, "ends 50000 bytes early")
}

func TestInitrdPlacement(t *testing.T) {
	r := func(lo, hi uint64) guestmem.Range { return guestmem.Range{GPA: lo, Size: hi - lo} }
	kernel := r(16*mib, 80*mib)
	for _, c := range []struct {
		name string
		ram  []guestmem.Range
		size uint64
		max  uint64
		want uint64 // 0: no room
	}{
		{"at the end of RAM", []guestmem.Range{r(mib, 128*mib)}, 5 * mib, 0x7fffffff, 123 * mib},
		{"rounded to a page", []guestmem.Range{r(mib, 128*mib)}, 1, 0x7fffffff, 128*mib - 4096},
		{"RAM ends within a page", []guestmem.Range{r(mib, 128*mib+100)}, 101, 0x7fffffff, 128*mib - 4096},
		{"below the highest address", []guestmem.Range{r(mib, 4096*mib)}, 131072, 0x37ffffff, 0x37fe0000}, // boot.rst's example
		{"fills the gap", []guestmem.Range{r(mib, 128*mib)}, 48 * mib, 0x7fffffff, 80 * mib},
		{"in the lower range", []guestmem.Range{r(mib, 128*mib), r(129*mib, 130*mib)}, 2 * mib, 0x7fffffff, 126 * mib},
		{"in the upper range", []guestmem.Range{r(mib, 128*mib), r(129*mib, 130*mib)}, mib, 0x7fffffff, 129 * mib},
		{"below the kernel", []guestmem.Range{r(mib, 80*mib)}, 15 * mib, 0x7fffffff, mib},
		{"no room", []guestmem.Range{r(mib, 81*mib)}, 15*mib + 1, 0x7fffffff, 0},
		{"no RAM", nil, 1, 0x7fffffff, 0},
		{"highest address is the last of all", []guestmem.Range{r(mib, 4096*mib)}, mib, ^uint64(0), 4095 * mib},
	} {
		rd := &initrd{size: c.size}
		got, err := rd.place(c.ram, kernel, c.max)
		if c.want == 0 {
			if err == nil {
				t.Errorf("%s: placed at %#x", c.name, got.GPA)
			}
			continue
		}
		if err != nil || got.GPA != c.want || got.Size != c.size {
			t.Errorf("%s: %#x+%#x, %v; want %#x", c.name, got.GPA, got.Size, err, c.want)
		}
	}
}

// Wherever an initrd is placed, it is in RAM, off the kernel and below the
// limit; and if it is not, no page-aligned address would have done.
func TestInitrdPlacementProperty(t *testing.T) {
	const cells = 32 // pages
	page := rapid.Uint64Range(0, cells-1)
	rapid.Check(t, func(t *rapid.T) {
		var ram []guestmem.Range
		var free [cells]bool
		for at := uint64(0); at < cells; {
			at += rapid.Uint64Range(1, 8).Draw(t, "hole") // a memory map joins neighbours
			n := min(rapid.Uint64Range(1, 16).Draw(t, "size"), cells-min(at, cells))
			if n > 0 {
				ram = append(ram, guestmem.Range{GPA: at * 4096, Size: n * 4096})
			}
			for ; n > 0; n-- {
				free[at] = true
				at++
			}
		}
		k := page.Draw(t, "kernel")
		kernel := guestmem.Range{GPA: k * 4096, Size: rapid.Uint64Range(1, cells-k).Draw(t, "kernel size") * 4096}
		limit := rapid.Uint64Range(1, cells).Draw(t, "limit")
		for i := range uint64(cells) {
			if i >= k && i*4096 < kernel.End() || i >= limit {
				free[i] = false
			}
		}
		size := rapid.Uint64Range(1, cells*4096).Draw(t, "initrd")
		pages := (size + 4095) / 4096
		want, found := uint64(0), false
		for at := uint64(0); at+pages <= cells; at++ {
			if !slices.Contains(free[at:at+pages], false) {
				want, found = at*4096, true // the last is the highest
			}
		}
		got, err := (&initrd{size: size}).place(ram, kernel, limit*4096-1)
		if found != (err == nil) {
			t.Fatalf("found %v, but error %v", found, err)
		}
		if found && got.GPA != want {
			t.Fatalf("placed at %#x, want %#x", got.GPA, want)
		}
	})
}

func TestSizeOf(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 KiB", 1: "1 bytes", 1024: "1 KiB", 1025: "1025 bytes", mib: "1 MiB",
		mib + 1: "1.1 MiB", 3 * mib / 2: "1.5 MiB", 2*mib - 1: "2 MiB", ^uint64(0): "17592186044416 MiB",
	} {
		if got := sizeOf(n); got != want {
			t.Errorf("sizeOf(%d) is %q, want %q", n, got, want)
		}
	}
}
