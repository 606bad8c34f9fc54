// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/govmm/govmm/internal/guestmem"
)

func entry(addr, end uint64, t E820Type) E820Entry {
	return E820Entry{guestmem.Range{GPA: addr, Size: end - addr}, t}
}

func TestE820(t *testing.T) {
	pc := func(reserved ...E820Entry) []E820Entry { return append(LowReserved(), reserved...) }
	const gib = 1 << 30
	for _, c := range []struct {
		name     string
		ram      []guestmem.Range
		reserved []E820Entry
		want     []E820Entry
	}{
		{"nothing", nil, nil, nil},
		{"RAM in parts", []guestmem.Range{{GPA: 0x2000, Size: 0x1000}, {GPA: 0, Size: 0x1000}, {GPA: 0x1000, Size: 0x1000}}, nil, []E820Entry{entry(0, 0x3000, 1)}},
		{"a small PC", []guestmem.Range{ramOf(128 * mib)}, pc(), []E820Entry{
			entry(0, 0x9fc00, 1), entry(0x9fc00, 0xa0000, 2), entry(0xe0000, 0x100000, 2), entry(0x100000, 128*mib, 1),
		}},
		{"a large PC", []guestmem.Range{ramOf(3 * gib), {GPA: 4 * gib, Size: 1021 * gib}},
			pc(entry(3*gib-0x10000, 3*gib, E820ACPI), entry(0xe0000000, 0xf0000000, E820Reserved)),
			[]E820Entry{
				entry(0, 0x9fc00, 1), entry(0x9fc00, 0xa0000, 2), entry(0xe0000, 0x100000, 2), entry(0x100000, 3*gib-0x10000, 1),
				entry(3*gib-0x10000, 3*gib, 3), entry(0xe0000000, 0xf0000000, 2), entry(4*gib, 1025*gib, 1),
			}},
		{"the later reservation wins", []guestmem.Range{ramOf(0x5000)},
			[]E820Entry{entry(0x1000, 0x4000, E820Reserved), entry(0x2000, 0x3000, E820NVS)},
			[]E820Entry{entry(0, 0x1000, 1), entry(0x1000, 0x2000, 2), entry(0x2000, 0x3000, 4), entry(0x3000, 0x4000, 2), entry(0x4000, 0x5000, 1)}},
		{"empty ranges", []guestmem.Range{{GPA: 0x1000}}, []E820Entry{entry(5, 5, 2)}, nil},
		{"to the end of the address space", []guestmem.Range{{GPA: ^uint64(0) - 0xfff, Size: 0x2000}}, nil, []E820Entry{entry(^uint64(0)-0xfff, ^uint64(0), 1)}},
	} {
		if got := E820(c.ram, c.reserved...); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%+v, want\n%+v", c.name, got, c.want)
		}
	}
}

// The map agrees with a model that has one cell for each address.
func TestE820Property(t *testing.T) {
	const cells = 64
	rapid.Check(t, func(t *rapid.T) {
		var model [cells]E820Type
		mark := func(r guestmem.Range, typ E820Type) {
			for a := r.GPA; a < r.GPA+r.Size; a++ {
				model[a] = typ
			}
		}
		span := rapid.Custom(func(t *rapid.T) guestmem.Range {
			a := rapid.Uint64Range(0, cells-1).Draw(t, "addr")
			return guestmem.Range{GPA: a, Size: rapid.Uint64Range(0, cells-a).Draw(t, "size")}
		})
		ram := rapid.SliceOfN(span, 0, 5).Draw(t, "ram")
		var reserved []E820Entry
		for _, r := range ram {
			mark(r, E820RAM)
		}
		for _, r := range rapid.SliceOfN(span, 0, 5).Draw(t, "reserved") {
			typ := rapid.SampledFrom([]E820Type{E820Hole, E820Reserved, E820ACPI}).Draw(t, "type")
			reserved = append(reserved, E820Entry{r, typ})
			mark(r, typ)
		}

		m := E820(ram, reserved...)
		var got [cells]E820Type
		prev := E820Entry{}
		for i, e := range m {
			if e.Size == 0 || e.Type == E820Hole {
				t.Fatalf("entry %+v", e)
			}
			if i > 0 && (e.GPA < prev.End() || e.GPA == prev.End() && e.Type == prev.Type) {
				t.Fatalf("%+v after %+v", e, prev)
			}
			for a := e.GPA; a < e.End(); a++ {
				got[a] = e.Type
			}
			prev = e
		}
		if got != model {
			t.Fatalf("map %v, want %v", got, model)
		}
	})
}

// Whatever the amount of RAM, kernel and initrd are in RAM, apart from each
// other, and the initrd ends where the kernel can take it.
func TestLoadAtEverySize(t *testing.T) {
	const lowMax = 3 << 30 // where this board's hole begins
	bz, vm := openImage(t, linuxLike().build()), openImage(t, vmlinuxLike().build())
	low, err := guestmem.New(ramOf(lowMax))
	if err != nil {
		t.Fatal(err)
	}
	defer low.Close()
	rd := pattern(3*mib+123, 1)
	for _, size := range []uint64{32, 64, 128, 512, 1024, 2047, 2048, 2049, 3072, 3330, 4096, 6144, 65536, 1 << 20} {
		t.Run(fmt.Sprintf("%dM", size), func(t *testing.T) {
			bytes := size * mib
			ram := []guestmem.Range{ramOf(min(bytes, lowMax))}
			if bytes > lowMax {
				ram = append(ram, guestmem.Range{GPA: 4 << 30, Size: bytes - lowMax})
			}
			for _, k := range []*Kernel{bz, vm} {
				e := load(t, k, low, Params{Initrds: []Source{{Data: rd}}, E820: E820(ram, LowReserved()...)})
				wantEnd := min(bytes, 0x80000000) // initrd_addr_max is 0x7fffffff
				if got := alignUp(e.Initrd.End(), 4096); got != wantEnd {
					t.Errorf("%s: the initrd ends at %#x, want %#x", k.Kind(), got, wantEnd)
				}
				if e.Initrd.GPA < e.Kernel.End() || e.Initrd.GPA%4096 != 0 {
					t.Errorf("%s: initrd at %#x, kernel up to %#x", k.Kind(), e.Initrd.GPA, e.Kernel.End())
				}
			}
		})
	}
}
