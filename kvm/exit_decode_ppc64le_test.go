// SPDX-License-Identifier: Apache-2.0

package kvm

import "testing"

func decodeArch(e Exit) { e.PAPRHCall() }

func TestDecodePAPRHCall(t *testing.T) {
	e := fakeExit(ExitPAPRHCall, func(u []byte) {
		put(u, 0, uint64(0x58), uint64(0), [9]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9})
	})
	if got, want := e.PAPRHCall(), (PAPRHCall{Nr: 0x58, Args: [9]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	e.SetPAPRReturn(1, 10, 11)
	if e.vcpu.u64(40) != 1 || e.vcpu.u64(48) != 10 || e.vcpu.u64(56) != 11 || e.vcpu.u64(64) != 3 {
		t.Errorf("the answer is at the wrong place: % x", e.vcpu.run[40:72])
	}
}
