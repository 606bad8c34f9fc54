// SPDX-License-Identifier: Apache-2.0

package kvm

import "fmt"

// MSREntry is a model-specific register and its value (struct kvm_msr_entry).
type MSREntry struct {
	Index uint32
	_     uint32
	Data  uint64
}

// maxMSRs is the number of entries one call may carry: the kernel refuses
// MAX_IO_MSRS, 256, and more.
const maxMSRs = 255

// msrsHeaderSize is the size of struct kvm_msrs without entries, in bytes.
const msrsHeaderSize = 8

// msrs is struct kvm_msrs with room for the most entries.
type msrs struct {
	NMSRs   uint32
	_       uint32
	Entries [maxMSRs]MSREntry
}

var (
	reqGetMSRs      = iowr("KVM_GET_MSRS", 0x88, msrsHeaderSize)
	reqSetMSRs      = iow("KVM_SET_MSRS", 0x89, msrsHeaderSize)
	reqSetMSRFilter = iow("KVM_X86_SET_MSR_FILTER", 0xc6, sizeof[msrFilter]())
)

// transferMSRs moves the entries in as many calls as it takes and returns how many
// the kernel did; it stops at the first one the kernel refuses.
func transferMSRs(fd int, req request, entries []MSREntry, read bool) (int, error) {
	var m msrs
	for done := 0; done < len(entries); {
		k := copy(m.Entries[:], entries[done:])
		m.NMSRs = uint32(k)
		n, err := ioctlPtr(fd, req, &m)
		if err != nil {
			return done, err
		}
		n = min(n, k)
		if read {
			copy(entries[done:], m.Entries[:n])
		}
		done += n
		if n < k {
			return done, nil
		}
	}
	return len(entries), nil
}

// MSRFilter says which MSRs a guest may access without an exit or a #GP (struct
// kvm_msr_filter). The zero value allows all.
type MSRFilter struct {
	DefaultDeny bool // MSRs outside of all ranges are denied
	Ranges      []MSRFilterRange
}

// MSRFilterRange is a range of MSRs with one bit each: 1 allows, 0 denies (struct
// kvm_msr_filter_range).
type MSRFilterRange struct {
	Read, Write bool   // the accesses the range rules over
	Base        uint32 // first MSR
	Count       uint32 // MSRs, at most 12288
	Allow       []uint64
}

const (
	msrFilterRead        = 1 << 0 // KVM_MSR_FILTER_READ
	msrFilterWrite       = 1 << 1 // KVM_MSR_FILTER_WRITE
	msrFilterDefaultDeny = 1 << 0 // KVM_MSR_FILTER_DEFAULT_DENY
	maxMSRFilterRanges   = 16     // KVM_MSR_FILTER_MAX_RANGES
)

// SetMSRFilter sets which MSRs the guest may access (KVM_X86_SET_MSR_FILTER).
// With CapX86UserSpaceMSR enabled for MSRExitFilter, denied accesses exit;
// otherwise they raise #GP.
func (vm *VM) SetMSRFilter(f MSRFilter) error {
	if len(f.Ranges) > maxMSRFilterRanges {
		return fmt.Errorf("kvm: %d MSR filter ranges, at most %d fit", len(f.Ranges), maxMSRFilterRanges)
	}
	for _, r := range f.Ranges {
		if need := (uint64(r.Count) + 63) / 64; uint64(len(r.Allow)) < need {
			return fmt.Errorf("kvm: MSR filter range %#x: bitmap of %d words, %d MSRs need %d", r.Base, len(r.Allow), r.Count, need)
		}
	}
	if _, err := ioctlPtr(vm.fd, reqSetMSRFilter, newMSRFilter(f)); err != nil {
		return fmt.Errorf("kvm: %w", err)
	}
	return nil
}
