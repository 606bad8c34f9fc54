// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"

	"github.com/govmm/govmm/kvm"
)

// Linux asks KVM whether it can run PAPR guests. An error means that KVM did not
// answer.
func Linux(sys *kvm.System) (Verdict, error) {
	n, err := sys.CheckExtension(kvm.CapPPCPAPR)
	if err != nil {
		return Verdict{}, fmt.Errorf("probe: %w", err)
	}
	if n == 0 {
		return Verdict{
			Reason: "the KVM of this host runs no PAPR guests",
			Cure:   "load kvm_hv (modprobe kvm_hv); in a logical partition, have its owner switch on nested KVM",
		}, nil
	}
	return Verdict{OK: true, Reason: "KVM runs PAPR guests"}, nil
}
