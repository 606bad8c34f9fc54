// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"strings"
	"testing"

	"github.com/govmm/govmm/kvm"
)

func TestHyperV(t *testing.T) {
	all := func(kvm.Cap) (int, error) { return 1, nil }
	if v, err := HyperV(all); err != nil || !v.OK {
		t.Errorf("%+v, %v", v, err)
	}
	for _, missing := range []kvm.Cap{kvm.CapHyperVSynIC2, kvm.CapHyperVEventFD, kvm.CapHyperVVPIndex, kvm.CapSysHyperVCPUID} {
		v, err := HyperV(func(c kvm.Cap) (int, error) {
			if c == missing {
				return 0, nil
			}
			return 1, nil
		})
		if err != nil || v.OK || !strings.Contains(v.Reason, missing.String()) || !strings.Contains(v.Cure, "CONFIG_KVM_HYPERV") {
			t.Errorf("without %v: %+v, %v", missing, v, err)
		}
	}
	broken := errors.New("broken")
	if _, err := HyperV(func(kvm.Cap) (int, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
