// SPDX-License-Identifier: Apache-2.0

package probe

import "github.com/govmm/govmm/kvm"

// archCaps are what POWER adds.
var archCaps = []capSpec{
	{kvm.CapPPCPAPR, "PAPR guests", Required},
	{kvm.CapPPCEnableHCall, "hypercalls in the kernel", Wanted},
	{kvm.CapIRQXICS, "XICS in the kernel", Wanted},
	{kvm.CapPPCIRQXIVE, "XIVE in the kernel", Optional},
	{kvm.CapPPCMMURadix, "radix MMU", Wanted},
	{kvm.CapPPCMMUHashV3, "hash MMU, version 3", Optional},
	{kvm.CapPPCSMT, "threads per core", Optional},
	{kvm.CapSPAPRMultiTCE, "multi-TCE hypercalls in the kernel", Optional},
	{kvm.CapPPCNestedHV, "nested KVM", Optional},
}
