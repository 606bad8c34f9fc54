// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"testing"

	"github.com/govmm/govmm/kvm"
)

// sampleCPUID is a host with everything that the board changes: an AMD host's
// leaves and an Intel host's, with nonsense where the topology goes.
func sampleCPUID() kvm.CPUID {
	idx := uint32(kvm.CPUIDSignificantIndex)
	return kvm.CPUID{
		{Function: 0, EAX: 0x1f},
		{Function: 1, EBX: 0xab630800, ECX: 1<<5 | 1<<21, EDX: 1},
		{Function: 4, Index: 0, Flags: idx, EAX: 0xfffffd21},           // L1 data
		{Function: 4, Index: 3, Flags: idx, EAX: 0xfffffd63},           // L3 unified
		{Function: 4, Index: 4, Flags: idx},                            // no more caches
		{Function: 0xb, Index: 0, Flags: idx, EAX: 7, EBX: 99, EDX: 5}, // the host's
		{Function: 0x40000000, EAX: 0x40000001, EBX: 0x4b4d564b, ECX: 0x564b4d56, EDX: 0x4d},
		{Function: 0x80000001, ECX: 1<<2 | 1<<6},
		{Function: 0x80000008, EAX: 0x3028, ECX: 0xffff},
		{Function: 0x8000000a, EAX: 1, EDX: 0xff},
		{Function: 0x8000001d, Index: 3, Flags: idx, EAX: 0x03ffc163},
		{Function: 0x8000001e, EAX: 77, EBX: 77, ECX: 77},
	}
}

// TestTopology reads the tables as the manuals say: the number of logical
// processors in leaf 1, EBX[23:16]; ids and levels in leaf 0xb (Intel SDM vol. 2,
// CPUID); the core count in 0x80000008, ECX (AMD APM vol. 3, E.4.7).
func TestTopology(t *testing.T) {
	for _, c := range []struct {
		cpus  int
		shift uint32 // bits of a core's number: 2^shift >= cpus
	}{{1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {16, 4}, {32, 5}} {
		m := &cpuModel{base: sampleCPUID(), cpus: c.cpus}
		for id := range c.cpus {
			tab := m.table(id)
			one := tab.Find(1, 0)
			if one.EBX>>24 != uint32(id) || one.EBX>>16&0xff != uint32(c.cpus) || one.EBX&0xffff != 0x0800 {
				t.Errorf("%d CPUs, id %d: leaf 1 EBX %#x", c.cpus, id, one.EBX)
			}
			if htt := one.EDX>>28&1 == 1; htt != (c.cpus > 1) {
				t.Errorf("%d CPUs: HTT is %v", c.cpus, htt)
			}
			if one.ECX>>31 != 1 {
				t.Error("the hypervisor bit is missing")
			}
			smt, core, end := tab.Find(0xb, 0), tab.Find(0xb, 1), tab.Find(0xb, 2)
			if smt.EAX != 0 || smt.EBX != 1 || smt.ECX != 0x100 || smt.EDX != uint32(id) {
				t.Errorf("%d CPUs, id %d: thread level %+v", c.cpus, id, *smt)
			}
			if core.EAX != c.shift || core.EBX != uint32(c.cpus) || core.ECX != 0x201 || core.EDX != uint32(id) {
				t.Errorf("%d CPUs, id %d: core level %+v", c.cpus, id, *core)
			}
			if end.EBX != 0 || end.ECX != 2 {
				t.Errorf("the list of levels does not end: %+v", *end)
			}
			if e := tab.Find(0x80000008, 0); e.ECX != uint32(c.cpus-1)|c.shift<<12 {
				t.Errorf("%d CPUs: 0x80000008 ECX %#x", c.cpus, e.ECX)
			}
			if e := tab.Find(0x8000001e, 0); e.EAX != uint32(id) || e.EBX != uint32(id) || e.ECX != 0 {
				t.Errorf("%d CPUs, id %d: 0x8000001e %+v", c.cpus, id, *e)
			}
			// Caches: the first level belongs to one core, the third to all.
			ids := uint32(1)<<c.shift - 1
			if e := tab.Find(4, 0); e.EAX>>14&0xfff != 0 || e.EAX>>26 != ids || e.EAX&0x3fff != 0x3d21 {
				t.Errorf("%d CPUs: first-level cache %#x", c.cpus, e.EAX)
			}
			if e := tab.Find(4, 3); e.EAX>>14&0xfff != ids {
				t.Errorf("%d CPUs: third-level cache %#x", c.cpus, e.EAX)
			}
			if e := tab.Find(0x8000001d, 3); e.EAX>>14&0xfff != ids {
				t.Errorf("%d CPUs: AMD's third-level cache %#x", c.cpus, e.EAX)
			}
			if e := tab.Find(4, 4); e.EAX != 0 {
				t.Errorf("the list of caches does not end: %+v", *e)
			}
		}
	}
}

func TestVirtualizationIsHidden(t *testing.T) {
	for _, nested := range []bool{false, true} {
		m := &cpuModel{base: sampleCPUID(), cpus: 1, nested: nested, tscDeadline: nested}
		tab := m.table(0)
		vmx, svm := tab.Find(1, 0).ECX>>5&1 == 1, tab.Find(0x80000001, 0).ECX>>2&1 == 1
		if vmx != nested || svm != nested || (tab.Find(0x8000000a, 0) != nil) != nested {
			t.Errorf("nested=%v: vmx %v, svm %v", nested, vmx, svm)
		}
		if deadline := tab.Find(1, 0).ECX>>24&1 == 1; deadline != m.tscDeadline {
			t.Errorf("TSC deadline timer shown: %v, KVM has it: %v", deadline, m.tscDeadline)
		}
		if e := tab.Find(0x40000000, 0); e == nil || e.EBX != 0x4b4d564b {
			t.Error("KVM's signature is gone")
		}
	}
	if got := (&cpuModel{base: sampleCPUID()}).physBits(); got != 0x28 {
		t.Errorf("physical address bits %d, want 40", got)
	}
}
