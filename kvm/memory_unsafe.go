// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"fmt"
	"unsafe"
)

// SetUserMemory is SetUserMemoryRegion for a mapping that is at hand as a slice,
// as unix.Mmap returns it: guest memory at gpa is mem. mem must not be Go heap,
// must begin on a page boundary, and must stay mapped until the slot is gone.
func (vm *VM) SetUserMemory(slot uint32, flags MemFlags, gpa uint64, mem []byte) error {
	if len(mem) == 0 {
		return fmt.Errorf("kvm: memory slot %d at %#x: no memory", slot, gpa)
	}
	return vm.SetUserMemoryRegion(slot, flags, gpa, uint64(len(mem)), uintptr(unsafe.Pointer(&mem[0])))
}
