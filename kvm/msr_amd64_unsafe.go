// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package kvm

import "unsafe"

// msrFilterRange is struct kvm_msr_filter_range. The bitmap is a pointer so that
// the garbage collector keeps it in place.
type msrFilterRange struct {
	flags  uint32
	nmsrs  uint32
	base   uint32
	bitmap unsafe.Pointer
}

// msrFilter is struct kvm_msr_filter.
type msrFilter struct {
	flags  uint32
	ranges [maxMSRFilterRanges]msrFilterRange
}

// newMSRFilter lays out a filter whose ranges and bitmaps have been checked.
func newMSRFilter(f MSRFilter) *msrFilter {
	m := &msrFilter{}
	if f.DefaultDeny {
		m.flags = msrFilterDefaultDeny
	}
	for i, r := range f.Ranges {
		out := &m.ranges[i]
		out.nmsrs, out.base, out.bitmap = r.Count, r.Base, unsafe.Pointer(unsafe.SliceData(r.Allow))
		if r.Read {
			out.flags |= msrFilterRead
		}
		if r.Write {
			out.flags |= msrFilterWrite
		}
	}
	return m
}
