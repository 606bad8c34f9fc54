// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"fmt"
	"os"
)

// MemFlags are the flags of a memory slot.
type MemFlags uint32

const (
	// MemLogDirtyPages records written pages for DirtyLog (KVM_MEM_LOG_DIRTY_PAGES).
	MemLogDirtyPages MemFlags = 1 << 0
	// MemReadOnly makes guest writes exit as MMIO (KVM_MEM_READONLY).
	MemReadOnly MemFlags = 1 << 1
)

// Flags for EnableCap(CapManualDirtyLogProtect2, flags).
const (
	// DirtyLogManualProtectEnable leaves pages writable in DirtyLog, until
	// ClearDirtyLog (KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE).
	DirtyLogManualProtectEnable = 1 << 0
	// DirtyLogInitiallySet starts with every page dirty (KVM_DIRTY_LOG_INITIALLY_SET).
	DirtyLogInitiallySet = 1 << 1
)

// userspaceMemoryRegion is struct kvm_userspace_memory_region.
type userspaceMemoryRegion struct {
	Slot          uint32
	Flags         uint32
	GuestPhysAddr uint64
	MemorySize    uint64
	UserspaceAddr uint64
}

var (
	reqSetUserMemoryRegion = iow("KVM_SET_USER_MEMORY_REGION", 0x46, sizeof[userspaceMemoryRegion]())
	reqGetDirtyLog         = iow("KVM_GET_DIRTY_LOG", 0x42, sizeof[dirtyLog]())
	reqClearDirtyLog       = iowr("KVM_CLEAR_DIRTY_LOG", 0xc0, sizeof[clearDirtyLog]())
)

// SetUserMemoryRegion creates, moves, re-flags or (size 0) removes a memory slot:
// size bytes of guest memory at gpa, backed by this process's memory at hostAddr
// (KVM_SET_USER_MEMORY_REGION). All three are multiples of the page size. The
// host memory must stay mapped until the slot is gone, and must not be Go heap.
func (vm *VM) SetUserMemoryRegion(slot uint32, flags MemFlags, gpa, size uint64, hostAddr uintptr) error {
	r := userspaceMemoryRegion{
		Slot: slot, Flags: uint32(flags),
		GuestPhysAddr: gpa, MemorySize: size, UserspaceAddr: uint64(hostAddr),
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if _, err := ioctlPtr(vm.fd, reqSetUserMemoryRegion, &r); err != nil {
		return fmt.Errorf("kvm: memory slot %d, guest %#x+%#x: %w", slot, gpa, size, err)
	}
	if size == 0 {
		delete(vm.slots, slot)
	} else {
		vm.slots[slot] = size / uint64(os.Getpagesize())
	}
	return nil
}

// DirtyLog fetches which pages of the slot were written since the last call, one
// bit a page, bit 0 of bitmap[0] first (KVM_GET_DIRTY_LOG). Unless manual
// protection is enabled the log is cleared. bitmap needs a bit for every page of
// the slot.
func (vm *VM) DirtyLog(slot uint32, bitmap []uint64) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	pages, ok := vm.slots[slot]
	if !ok {
		return fmt.Errorf("kvm: dirty log: no memory slot %d", slot)
	}
	if need := (pages + 63) / 64; uint64(len(bitmap)) < need {
		return fmt.Errorf("kvm: dirty log of slot %d: bitmap of %d words, %d pages need %d", slot, len(bitmap), pages, need)
	}
	if _, err := ioctlPtr(vm.fd, reqGetDirtyLog, newDirtyLog(slot, bitmap)); err != nil {
		return fmt.Errorf("kvm: slot %d: %w", slot, err)
	}
	return nil
}

// ClearDirtyLog marks the pages whose bit is set in bitmap as clean and protects
// them again (KVM_CLEAR_DIRTY_LOG, after EnableCap of CapManualDirtyLogProtect2).
// Bit 0 of bitmap[0] is firstPage, a multiple of 64; numPages is one too, or
// reaches the end of the slot.
func (vm *VM) ClearDirtyLog(slot uint32, firstPage uint64, numPages uint32, bitmap []uint64) error {
	if need := (uint64(numPages) + 63) / 64; uint64(len(bitmap)) < need {
		return fmt.Errorf("kvm: clear dirty log of slot %d: bitmap of %d words, %d pages need %d", slot, len(bitmap), numPages, need)
	}
	if _, err := ioctlPtr(vm.fd, reqClearDirtyLog, newClearDirtyLog(slot, firstPage, numPages, bitmap)); err != nil {
		return fmt.Errorf("kvm: slot %d: %w", slot, err)
	}
	return nil
}
