// SPDX-License-Identifier: Apache-2.0

// Package probe finds out whether this host can run Linux guests, by experiment
// where the answer can't be read anywhere, and says what to do if it can't.
//
// A /dev/kvm that opens is not yet a KVM that boots Linux: kvm_pvm, for one,
// makes VMs on processors without hardware virtualization, but runs kernel-mode
// code by an instruction emulator that lacks instructions every Linux needs.
// Linux runs such instructions in a test guest; Host reports on all of the host.
package probe

// Verdict says whether a KVM can run Linux.
type Verdict struct {
	OK     bool     `json:"ok"`
	Reason string   `json:"reason"`         // one line, also if OK
	Detail []string `json:"detail"`         // what each experiment gave
	Cure   string   `json:"cure,omitempty"` // one line, empty if OK
}
