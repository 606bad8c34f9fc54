// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"slices"

	"github.com/govmm/govmm/internal/guestmem"
)

// E820Type is a kind of address range, as in ACPI 6.5, section 15, "Address
// Range Types". PVH's memory map uses the same values.
type E820Type uint32

// The types of address ranges.
const (
	E820Hole     E820Type = 0 // no entry at all; not a value of the specification
	E820RAM      E820Type = 1
	E820Reserved E820Type = 2
	E820ACPI     E820Type = 3 // ACPI tables, RAM once they are read
	E820NVS      E820Type = 4
	E820Unusable E820Type = 5
)

// E820Entry is an entry of the memory map that the guest gets.
type E820Entry struct {
	guestmem.Range
	Type E820Type
}

// LowReserved is what a PC's memory map leaves out below HighMemory: the
// extended BIOS data area, the window of video memory and option ROMs, and the
// BIOS, in which a board may place ACPI tables.
func LowReserved() []E820Entry {
	return []E820Entry{
		{guestmem.Range{GPA: lowMemoryEnd, Size: 0xa0000 - lowMemoryEnd}, E820Reserved},
		{guestmem.Range{GPA: 0xa0000, Size: 0xe0000 - 0xa0000}, E820Hole},
		{guestmem.Range{GPA: 0xe0000, Size: HighMemory - 0xe0000}, E820Reserved},
	}
}

// E820 makes the memory map of a machine with the given RAM, sorted, without
// overlaps or empty entries, neighbours of one type joined. Each reserved range
// takes precedence over RAM and over the ones before it, and is in the map
// whether there is RAM or not, except for type E820Hole.
func E820(ram []guestmem.Range, reserved ...E820Entry) []E820Entry {
	var layers []E820Entry
	for _, r := range ram {
		layers = append(layers, E820Entry{r, E820RAM})
	}
	layers = append(layers, reserved...)

	var bounds []uint64
	for _, l := range layers {
		bounds = append(bounds, l.GPA, end(l.GPA, l.Size))
	}
	slices.Sort(bounds)
	bounds = slices.Compact(bounds)

	var out []E820Entry
	for i := 1; i < len(bounds); i++ {
		out = appendE820(out, E820Entry{
			guestmem.Range{GPA: bounds[i-1], Size: bounds[i] - bounds[i-1]},
			typeAt(layers, bounds[i-1]),
		})
	}
	return out
}

// typeAt is the type of the topmost layer at an address.
func typeAt(layers []E820Entry, addr uint64) E820Type {
	for _, l := range slices.Backward(layers) {
		if addr >= l.GPA && addr < end(l.GPA, l.Size) {
			return l.Type
		}
	}
	return E820Hole
}

// appendE820 adds an entry that lies above all others.
func appendE820(m []E820Entry, e E820Entry) []E820Entry {
	if e.Type == E820Hole {
		return m
	}
	if n := len(m); n > 0 && m[n-1].Type == e.Type && m[n-1].End() == e.GPA {
		m[n-1].Size += e.Size
		return m
	}
	return append(m, e)
}

// usableRAM is what of a memory map can hold a kernel or an initrd: RAM from
// HighMemory to the end of the identity map.
func usableRAM(m []E820Entry) []guestmem.Range {
	var out []guestmem.Range
	for _, e := range m {
		lo, hi := max(e.GPA, HighMemory), min(end(e.GPA, e.Size), mappedEnd)
		if e.Type == E820RAM && lo < hi {
			out = append(out, guestmem.Range{GPA: lo, Size: hi - lo})
		}
	}
	return out
}
