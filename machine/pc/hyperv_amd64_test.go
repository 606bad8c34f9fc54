// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/kvm"
)

// supportedHyperV is what KVM says that it supports, and more: each bit.
func supportedHyperV() kvm.CPUID {
	var out kvm.CPUID
	for _, leaf := range []uint32{0, 1, 2, 3, 4, 5, 0xa, 0x80, 0x81, 0x82} {
		out = append(out, kvm.CPUIDEntry{Function: 0x4000_0000 + leaf, EAX: ^uint32(0), EBX: ^uint32(0), ECX: ^uint32(0), EDX: ^uint32(0)})
	}
	return out
}

// TestHyperVLeaves checks what Linux's probe wants, and that no bit is shown
// that would make it use what the bus does not have.
func TestHyperVLeaves(t *testing.T) {
	base := append(sampleCPUID(),
		kvm.CPUIDEntry{Function: 0x40000001, EAX: 0x01007efb},
		kvm.CPUIDEntry{Function: 0x40000100, EBX: 0x4b4d564b})
	m := &cpuModel{base: base, cpus: 2, hyperv: hypervLeaves(supportedHyperV())}
	tab := m.table(1)
	seen := map[uint32]bool{}
	for _, e := range tab {
		if e.Function>>28 != 4 {
			continue
		}
		if seen[e.Function] {
			t.Errorf("leaf %#x is there twice", e.Function)
		}
		seen[e.Function] = true
		if e.EBX == 0x4b4d564b {
			t.Errorf("KVM's signature in leaf %#x", e.Function)
		}
		if e.Function > 0x40000005 {
			t.Errorf("leaf %#x", e.Function)
		}
	}
	// TLFS, "Feature and Interface Discovery".
	if e := tab.Find(0x40000000, 0); e.EAX != 0x40000005 || e.EBX != 0x7263694d || e.ECX != 0x666f736f || e.EDX != 0x76482074 {
		t.Errorf("vendor leaf %+v", *e)
	}
	if e := tab.Find(0x40000003, 0); e.EAX != 0xa76 || e.EBX != 0x30 || e.ECX != 0 || e.EDX != 0x100 {
		t.Errorf("feature leaf %+v", *e)
	}
	if e := tab.Find(0x40000004, 0); e.EAX != 0x220 || e.EBX != ^uint32(0) || e.ECX != 0 || e.EDX != 0 {
		t.Errorf("recommendations %+v", *e)
	}
	if tab.Find(1, 0).ECX>>31 != 1 {
		t.Error("the hypervisor bit is missing")
	}
}

// TestHyperVRoutes checks that the table has all of KVM's own routes and one
// interrupt for each vCPU.
func TestHyperVRoutes(t *testing.T) {
	h := &hyperv{sint: make([]int, 3)}
	pins := map[kvm.IRQChipRoute]uint32{}
	sints := map[kvm.HyperVSINTRoute]uint32{}
	for _, r := range h.routes() {
		switch target := r.Target.(type) {
		case kvm.IRQChipRoute:
			pins[target] = r.GSI
		case kvm.HyperVSINTRoute:
			sints[target] = r.GSI
		}
	}
	for gsi := range uint32(24) {
		if got, ok := pins[kvm.IRQChipRoute{Chip: kvm.IRQChipIOAPIC, Pin: gsi}]; !ok || got != gsi {
			t.Errorf("IOAPIC pin %d is GSI %d, %v", gsi, got, ok)
		}
		chip := kvm.IRQChipID(gsi / 8) // the master, then the slave
		if got, ok := pins[kvm.IRQChipRoute{Chip: chip, Pin: gsi % 8}]; gsi < 16 && (!ok || got != gsi) {
			t.Errorf("PIC %d pin %d is GSI %d, %v", chip, gsi%8, got, ok)
		}
	}
	if len(pins) != 24+16 || len(sints) != 3 {
		t.Fatalf("%d pins, %d synthetic interrupts", len(pins), len(sints))
	}
	for vp := range uint32(3) {
		if gsi := sints[kvm.HyperVSINTRoute{VCPU: vp, SINT: 2}]; gsi != 24+vp {
			t.Errorf("vCPU %d has GSI %d", vp, gsi)
		}
	}
}

func TestInjectDoesNotAllocate(t *testing.T) {
	fd, err := newEventFD()
	if err != nil {
		t.Fatal(err)
	}
	h := &hyperv{sint: []int{fd}, ack: -1}
	if n := testing.AllocsPerRun(100, func() { h.Inject(0) }); n != 0 {
		t.Errorf("%v allocations an interrupt", n)
	}
	var count [8]byte
	if _, err := unix.Read(fd, count[:]); err != nil || binary.NativeEndian.Uint64(count[:]) != 101 {
		t.Errorf("the eventfd has counted %x, %v", count, err)
	}
	if err := h.close(); err != nil {
		t.Error(err)
	}
}
