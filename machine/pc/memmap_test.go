// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"testing"

	"github.com/govmm/govmm/internal/guestmem"
)

func TestLayout(t *testing.T) {
	const M, G, T = 1 << 20, 1 << 30, 1 << 40
	for _, c := range []struct {
		memory  uint64
		bits    uint
		low     uint64 // end of RAM below the hole
		high    uint64 // RAM from 4 GiB on
		mmio64  uint64 // base of the 64-bit window, 0: none
		refused bool
	}{
		{memory: 32 * M, bits: 40, low: 32 * M, mmio64: 4 * G},
		{memory: 128 * M, bits: 40, low: 128 * M, mmio64: 4 * G},
		{memory: 2 * G, bits: 40, low: 2 * G, mmio64: 4 * G},
		{memory: 3 * G, bits: 40, low: 3 * G, mmio64: 4 * G},
		{memory: 3*G + M, bits: 40, low: 3 * G, high: M, mmio64: 5 * G},
		{memory: 3330 * M, bits: 40, low: 3 * G, high: 258 * M, mmio64: 5 * G},
		{memory: 4 * G, bits: 40, low: 3 * G, high: 1 * G, mmio64: 5 * G},
		{memory: 6 * G, bits: 40, low: 3 * G, high: 3 * G, mmio64: 7 * G},
		{memory: 64 * G, bits: 46, low: 3 * G, high: 61 * G, mmio64: 65 * G},
		{memory: T, bits: 48, low: 3 * G, high: T - 3*G, mmio64: T + G},
		{memory: T, bits: 40, refused: true},
		{memory: T - G, bits: 40, low: 3 * G, high: T - 4*G}, // fits, but leaves no window
		{memory: 63 * G, bits: 36, refused: false, low: 3 * G, high: 60 * G},
		{memory: 64 * G, bits: 36, refused: true},
	} {
		l, err := newLayout(c.memory, c.bits)
		if (err != nil) != c.refused {
			t.Errorf("%d MiB, %d bits: %v", c.memory/M, c.bits, err)
			continue
		}
		if c.refused {
			continue
		}
		want := []guestmem.Range{{GPA: 0, Size: c.low}}
		if c.high > 0 {
			want = append(want, guestmem.Range{GPA: 4 * G, Size: c.high})
		}
		var sum uint64
		for i, r := range l.ram {
			if i >= len(want) || r != want[i] {
				t.Errorf("%d MiB: RAM %+v, want %+v", c.memory/M, l.ram, want)
				break
			}
			sum += r.Size
		}
		if sum != c.memory {
			t.Errorf("%d MiB: the layout has %d", c.memory/M, sum/M)
		}
		if l.mmio64.GPA != c.mmio64 {
			t.Errorf("%d MiB: 64-bit window at %#x, want %#x", c.memory/M, l.mmio64.GPA, c.mmio64)
		}
		if end := l.mmio64.End(); end > 1<<c.bits {
			t.Errorf("%d MiB: the window ends at %#x, beyond %d bits", c.memory/M, end, c.bits)
		}
	}
}

// TestFixedRangesDontOverlap checks the constants of the hole below 4 GiB.
func TestFixedRangesDontOverlap(t *testing.T) {
	at := uint64(lowRAMMax)
	for _, r := range []struct {
		name       string
		base, size uint64
	}{
		{"32-bit BARs", mmio32Base, mmio32Size},
		{"configuration space", ecamBase, ecamSize},
		{"IOAPIC", ioapicBase, 4096},
		{"LAPIC", lapicBase, 4096},
		{"identity map", identityMapAddr, 4096},
		{"TSS", tssAddr, 3 * 4096},
	} {
		if r.base < at {
			t.Errorf("%s at %#x begins before %#x", r.name, r.base, at)
		}
		at = r.base + r.size
	}
	if at > highRAMBase {
		t.Errorf("the hole ends at %#x", at)
	}
}
