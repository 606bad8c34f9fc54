// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"reflect"
	"testing"
)

// layout is what include/uapi/linux/kvm.h and asm/kvm.h say of a structure; the
// numbers were printed by a C program with sizeof and offsetof.
type layout struct {
	value   any
	size    uintptr
	offsets map[string]uintptr
}

func checkLayouts(t *testing.T, layouts []layout) {
	t.Helper()
	for _, l := range layouts {
		typ := reflect.TypeOf(l.value)
		if typ.Size() != l.size {
			t.Errorf("%v has %d bytes, want %d", typ, typ.Size(), l.size)
		}
		for name, want := range l.offsets {
			f, ok := typ.FieldByName(name)
			if !ok {
				t.Errorf("%v has no field %s", typ, name)
			} else if f.Offset != want {
				t.Errorf("%v.%s is at %d, want %d", typ, name, f.Offset, want)
			}
		}
	}
}

func TestCommonLayouts(t *testing.T) {
	checkLayouts(t, []layout{
		{userspaceMemoryRegion{}, 32, map[string]uintptr{"GuestPhysAddr": 8, "MemorySize": 16, "UserspaceAddr": 24}},
		{dirtyLog{}, 16, map[string]uintptr{"bitmap": 8}},
		{clearDirtyLog{}, 24, map[string]uintptr{"numPages": 4, "firstPage": 8, "bitmap": 16}},
		{irqLevel{}, 8, map[string]uintptr{"Level": 4}},
		{msi{}, 32, map[string]uintptr{"AddressHi": 4, "Data": 8, "Flags": 12, "DevID": 16}},
		{irqFD{}, 32, map[string]uintptr{"GSI": 4, "Flags": 8, "ResampleFD": 12}},
		{ioEventFD{}, 64, map[string]uintptr{"Addr": 8, "Len": 16, "FD": 20, "Flags": 24}},
		{enableCap{}, 104, map[string]uintptr{"Flags": 4, "Args": 8}},
		{oneReg{}, 16, map[string]uintptr{"addr": 8}},
		{MPState(0), 4, nil},
	})
	m := signalMask{} // the kernel's structure ends in a flexible array at 4
	if f, _ := reflect.TypeOf(m).FieldByName("Sigset"); f.Offset != 4 {
		t.Errorf("signalMask.Sigset is at %d, want 4", f.Offset)
	}
}

func TestCapNames(t *testing.T) {
	for c, want := range map[Cap]string{
		CapIRQChip: "KVM_CAP_IRQCHIP", CapIRQFD: "KVM_CAP_IRQFD", CapImmediateExit: "KVM_CAP_IMMEDIATE_EXIT",
		CapHyperVSynIC2: "KVM_CAP_HYPERV_SYNIC2", CapX86GuestMode: "KVM_CAP_X86_GUEST_MODE",
		5: "KVM_CAP(5)", 1 << 31: "KVM_CAP(2147483648)",
	} {
		if got := c.String(); got != want {
			t.Errorf("Cap(%d) is %q, want %q", uint32(c), got, want)
		}
	}
	last := -1
	for _, c := range KnownCaps() {
		if int(c) <= last {
			t.Errorf("KnownCaps: %v after %d", c, last)
		}
		last = int(c)
	}
}
