// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"

	"github.com/govmm/govmm/kvm"
)

// HyperV says whether a KVM, by the answers of check, can be Hyper-V with a VMBus
// to its guests. An error means that KVM did not answer.
func HyperV(check func(kvm.Cap) (int, error)) (Verdict, error) {
	for _, c := range hypervCaps {
		n, err := check(c)
		if err != nil {
			return Verdict{}, fmt.Errorf("probe: %w", err)
		}
		if n == 0 {
			return Verdict{
				Reason: fmt.Sprintf("the KVM of this host can't be Hyper-V to a guest: it lacks %v", c),
				Cure:   "use a kernel with CONFIG_KVM_HYPERV=y (Linux before 6.8 has it always), or a NIC of model=virtio without --hyperv",
			}, nil
		}
	}
	return Verdict{OK: true, Reason: "KVM can be Hyper-V to a guest"}, nil
}

// hypervCaps are what the VMBus needs of KVM.
var hypervCaps = []kvm.Cap{
	kvm.CapHyperV, kvm.CapHyperVTime, kvm.CapHyperVVPIndex, kvm.CapHyperVSynIC2, kvm.CapHyperVEventFD,
	kvm.CapSysHyperVCPUID, kvm.CapIRQFDResample,
}
