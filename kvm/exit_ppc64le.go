// SPDX-License-Identifier: Apache-2.0

package kvm

// PAPRHCall is a hypercall of a PAPR guest (KVM_EXIT_PAPR_HCALL).
type PAPRHCall struct {
	Nr   uint64    // opcode, from R3
	Args [9]uint64 // R4 to R12
}

// Offsets of kvm_run.papr_hcall.
const (
	paprNr   = runUnion + 0
	paprRet  = runUnion + 8
	paprArgs = runUnion + 16
)

// PAPRHCall decodes ExitPAPRHCall.
func (e Exit) PAPRHCall() PAPRHCall {
	h := PAPRHCall{Nr: e.vcpu.u64(paprNr)}
	for i := range h.Args {
		h.Args[i] = e.vcpu.u64(paprArgs + 8*i)
	}
	return h
}

// SetPAPRReturn answers ExitPAPRHCall: ret goes to R3, values to R4 and up (at
// most nine).
func (e Exit) SetPAPRReturn(ret uint64, values ...uint64) {
	e.vcpu.putU64(paprRet, ret)
	for i, x := range values[:min(len(values), len(PAPRHCall{}.Args))] {
		e.vcpu.putU64(paprArgs+8*i, x)
	}
}
