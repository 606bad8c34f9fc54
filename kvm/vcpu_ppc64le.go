// SPDX-License-Identifier: Apache-2.0

package kvm

// initArch has nothing to do on POWER.
func (v *VCPU) initArch(*VM) {}
