// SPDX-License-Identifier: Apache-2.0

package kvm

import "fmt"

// Flags of CPUIDEntry.
const (
	// CPUIDSignificantIndex says that Index is compared with ECX
	// (KVM_CPUID_FLAG_SIGNIFCANT_INDEX).
	CPUIDSignificantIndex = 1 << 0
)

// CPUIDEntry is what CPUID returns for one leaf (struct kvm_cpuid_entry2).
type CPUIDEntry struct {
	Function           uint32 // EAX on input
	Index              uint32 // ECX on input, if Flags has CPUIDSignificantIndex
	Flags              uint32
	EAX, EBX, ECX, EDX uint32
	_                  [3]uint32
}

// CPUID is the table of a vCPU or of what KVM supports.
type CPUID []CPUIDEntry

// Find returns the entry for a leaf and sub-leaf, nil if there is none. Leaves
// without sub-leaves match any index.
func (c CPUID) Find(function, index uint32) *CPUIDEntry {
	for i := range c {
		e := &c[i]
		if e.Function == function && (e.Flags&CPUIDSignificantIndex == 0 || e.Index == index) {
			return e
		}
	}
	return nil
}

// maxCPUIDEntries is KVM_MAX_CPUID_ENTRIES, above which the kernel answers E2BIG.
const maxCPUIDEntries = 256

// cpuidHeaderSize is the size of struct kvm_cpuid2 without entries, in bytes.
const cpuidHeaderSize = 8

// cpuid2 is struct kvm_cpuid2 with room for the largest table.
type cpuid2 struct {
	Nent    uint32
	_       uint32
	Entries [maxCPUIDEntries]CPUIDEntry
}

var (
	reqSetCPUID2 = iow("KVM_SET_CPUID2", 0x90, cpuidHeaderSize)
	reqGetCPUID2 = iowr("KVM_GET_CPUID2", 0x91, cpuidHeaderSize)
)

func getCPUID(fd int, req request) (CPUID, error) {
	c := cpuid2{Nent: maxCPUIDEntries}
	if _, err := ioctlPtr(fd, req, &c); err != nil {
		return nil, err
	}
	return append(CPUID(nil), c.Entries[:min(c.Nent, maxCPUIDEntries)]...), nil
}

func setCPUID(fd int, entries CPUID) error {
	if len(entries) > maxCPUIDEntries {
		return fmt.Errorf("%d CPUID entries, at most %d fit", len(entries), maxCPUIDEntries)
	}
	c := cpuid2{Nent: uint32(len(entries))}
	copy(c.Entries[:], entries)
	_, err := ioctlPtr(fd, reqSetCPUID2, &c)
	return err
}
