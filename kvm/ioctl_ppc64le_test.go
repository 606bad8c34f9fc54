// SPDX-License-Identifier: Apache-2.0

package kvm

import "testing"

// TestIoctlNumbers compares with numbers computed by hand from POWER's
// asm/ioctl.h: direction in bits 29 to 31 (none 1, read 2, write 4), size in bits
// 16 to 28.
func TestIoctlNumbers(t *testing.T) {
	for want, req := range map[uintptr]request{
		0x2000ae00: reqGetAPIVersion, 0x2000ae01: reqCreateVM, 0x2000ae03: reqCheckExtension,
		0x2000ae41: reqCreateVCPU, 0x2000ae80: reqRun, 0x8020ae46: reqSetUserMemoryRegion,
		0xc018aec0: reqClearDirtyLog, 0x8020ae76: reqIRQFD, 0x8040ae79: reqIOEventFD,
		0x8068aea3: reqEnableCap, 0x8010aeac: reqSetOneReg, 0x4004ae98: reqGetMPState,
	} {
		if req.nr != want {
			t.Errorf("%s is %#x, want %#x", req.name, req.nr, want)
		}
	}
}
