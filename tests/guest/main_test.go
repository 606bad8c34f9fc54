// SPDX-License-Identifier: Apache-2.0

// Package guest boots stock Debian kernels with govmm and looks at what they
// do. The tests run on this machine if its KVM can run Linux, else on an
// emulated host (GOVMM_TEST_HOST: auto, direct, emulated); the code is the same.
//
// They need what `make guest-test` prepares: bin/govmm, the kernels and the guest
// image in the cache.
package guest

import (
	"os"
	"testing"

	"github.com/govmm/govmm/internal/emuhost"
	"github.com/govmm/govmm/kvm"
	"github.com/govmm/govmm/machine/probe"
)

func TestMain(m *testing.M) { emuhost.Main(m, canRunLinux) }

func canRunLinux() (ok bool, reason string) {
	sys, err := kvm.Open("")
	if err != nil {
		return false, err.Error()
	}
	defer sys.Close()
	v, err := probe.Linux(sys)
	if err != nil {
		return false, err.Error()
	}
	return v.OK, v.Reason
}

// onEmulatedHost tells whether everything takes tens of times longer.
func onEmulatedHost() bool { return os.Getenv(emuhost.InsideVariable) != "" }
