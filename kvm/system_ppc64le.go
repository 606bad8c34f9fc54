// SPDX-License-Identifier: Apache-2.0

package kvm

// moduleHint is the command that loads KVM.
const moduleHint = "modprobe kvm_hv"
