// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"math/bits"
	"slices"

	"github.com/govmm/govmm/kvm"
)

// CPUID leaves and bits that the board decides (AMD64 Architecture Programmer's
// Manual vol. 3, appendix E; Intel SDM vol. 2, CPUID).
const (
	leafFeatures    = 0x1
	leafCaches      = 0x4
	leafTopology    = 0xb
	leafTopologyV2  = 0x1f
	leafExtFeatures = 0x8000_0001
	leafSizes       = 0x8000_0008
	leafSVM         = 0x8000_000a
	leafAMDCaches   = 0x8000_001d
	leafAMDTopology = 0x8000_001e

	ecxVMX         = 1 << 5
	ecxX2APIC      = 1 << 21
	ecxTSCDeadline = 1 << 24
	ecxHypervisor  = 1 << 31
	edxHTT         = 1 << 28

	extECXCmpLegacy = 1 << 1
	extECXSVM       = 1 << 2

	levelSMT  = 1 // leaf 0xb, ECX[15:8]
	levelCore = 2

	cacheL3 = 3 // leaf 4, EAX[7:5]
)

// cpuModel makes each vCPU's CPUID table: what KVM can run on this host, with
// the virtualization extensions only on demand, and a topology of one socket
// with a core for each vCPU. Every vCPU's APIC id is its index.
type cpuModel struct {
	base        kvm.CPUID
	cpus        int
	nested      bool
	tscDeadline bool      // KVM's LAPIC has the TSC deadline timer
	hyperv      kvm.CPUID // leaves of the Hyper-V personality, instead of KVM's own; nil: none
}

// coreBits is how many bits of the APIC id number the cores.
func (m *cpuModel) coreBits() uint32 { return uint32(bits.Len(uint(m.cpus - 1))) }

// physBits is the width of guest physical addresses.
func (m *cpuModel) physBits() uint {
	if e := m.base.Find(leafSizes, 0); e != nil && e.EAX&0xff >= 36 {
		return uint(e.EAX & 0xff)
	}
	return 36
}

// table is the CPUID of vCPU id.
func (m *cpuModel) table(id int) kvm.CPUID {
	var out kvm.CPUID
	for _, e := range m.base {
		switch {
		case e.Function == leafTopology || e.Function == leafTopologyV2:
			continue // made below, whatever the host's look like
		case e.Function == leafSVM && !m.nested:
			continue
		case m.hyperv != nil && leafHyperVFirst <= e.Function && e.Function <= leafHypervisorsLast:
			continue
		}
		m.adjust(&e, uint32(id))
		out = append(out, e)
	}
	for _, leaf := range []uint32{leafTopology, leafTopologyV2} {
		if maxLeaf := m.base.Find(0, 0); maxLeaf != nil && leaf <= maxLeaf.EAX {
			out = append(out, m.topology(leaf, uint32(id))...)
		}
	}
	return slices.Clip(append(out, m.hyperv...))
}

func (m *cpuModel) adjust(e *kvm.CPUIDEntry, id uint32) {
	n := uint32(m.cpus)
	switch e.Function {
	case leafFeatures:
		e.EBX = e.EBX&0xffff | n<<16 | id<<24
		e.ECX |= ecxHypervisor
		e.ECX = setBit(e.ECX, ecxTSCDeadline, m.tscDeadline)
		if !m.nested {
			e.ECX &^= ecxVMX
		}
		e.EDX = setBit(e.EDX, edxHTT, n > 1)
	case leafCaches:
		if e.EAX&0x1f != 0 {
			e.EAX = e.EAX&0x3fff | m.sharing(e.EAX)<<14 | (1<<m.coreBits()-1)<<26
		}
	case leafAMDCaches:
		if e.EAX&0x1f != 0 {
			e.EAX = e.EAX&0x3fff | m.sharing(e.EAX)<<14
		}
	case leafExtFeatures:
		if !m.nested {
			e.ECX &^= extECXSVM
		}
		e.ECX = setBit(e.ECX, extECXCmpLegacy, n > 1)
	case leafSizes:
		e.ECX = (n - 1) | m.coreBits()<<12
	case leafAMDTopology:
		e.EAX, e.EBX, e.ECX = id, id, 0
	}
}

// sharing is the number of APIC ids, less one, that share the cache that eax
// describes: only the third level is shared, by all cores.
func (m *cpuModel) sharing(eax uint32) uint32 {
	if eax>>5&7 == cacheL3 {
		return 1<<m.coreBits() - 1
	}
	return 0
}

// topology makes leaf 0xb or 0x1f: one thread a core, n cores a socket.
func (m *cpuModel) topology(leaf, id uint32) kvm.CPUID {
	level := func(index, kind, shift, count uint32) kvm.CPUIDEntry {
		return kvm.CPUIDEntry{
			Function: leaf, Index: index, Flags: kvm.CPUIDSignificantIndex,
			EAX: shift, EBX: count, ECX: kind<<8 | index, EDX: id,
		}
	}
	return kvm.CPUID{
		level(0, levelSMT, 0, 1),
		level(1, levelCore, m.coreBits(), uint32(m.cpus)),
		level(2, 0, 0, 0),
	}
}

func setBit(v, bit uint32, on bool) uint32 {
	if on {
		return v | bit
	}
	return v &^ bit
}
