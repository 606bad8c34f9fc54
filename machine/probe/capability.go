// SPDX-License-Identifier: Apache-2.0

package probe

import "github.com/govmm/govmm/kvm"

// capSpec is a line of the capability table.
type capSpec struct {
	cap  kvm.Cap
	name string
	need Need
}

// genericCaps are what every architecture has.
var genericCaps = []capSpec{
	{kvm.CapUserMemory, "guest memory from user space", Required},
	{kvm.CapIOEventFD, "ioeventfd", Required},
	{kvm.CapImmediateExit, "immediate exit", Required},
	{kvm.CapIOEventFDAnyLength, "ioeventfd of any length", Wanted},
	{kvm.CapReadOnlyMem, "read-only guest memory", Wanted},
	{kvm.CapMaxVCPUs, "vCPUs per VM, at most", Optional},
	{kvm.CapNrVCPUs, "vCPUs per VM, recommended", Optional},
	{kvm.CapNrMemSlots, "memory slots per VM", Optional},
	{kvm.CapDirtyLogRing, "dirty ring, bytes", Optional},
	{kvm.CapManualDirtyLogProtect2, "manual dirty log protection", Optional},
	{kvm.CapBinaryStatsFD, "binary statistics", Optional},
}

// capabilities asks for the whole table.
func capabilities(check func(kvm.Cap) (int, error)) ([]Capability, error) {
	var out []Capability
	for _, specs := range [][]capSpec{genericCaps, archCaps} {
		for _, s := range specs {
			n, err := check(s.cap)
			if err != nil {
				return nil, err
			}
			out = append(out, Capability{Name: s.name, Cap: s.cap.String(), Value: n, Need: s.need})
		}
	}
	return out, nil
}
