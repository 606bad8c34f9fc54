// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// VM is a virtual machine: memory slots, interrupt controllers and vCPUs. Its
// methods may be called from any goroutine.
type VM struct {
	fd       int
	mmapSize int // bytes of a vCPU's run mapping

	mu    sync.Mutex
	slots map[uint32]uint64 // pages of each memory slot, to check bitmap lengths
}

func newVM(fd, mmapSize int) *VM {
	return &VM{fd: fd, mmapSize: mmapSize, slots: map[uint32]uint64{}}
}

// Close closes the VM's file descriptor. The kernel frees the VM once its vCPUs
// are closed too.
func (vm *VM) Close() error { return unix.Close(vm.fd) }

// FD returns the file descriptor.
func (vm *VM) FD() int { return vm.fd }

// CheckExtension returns the value of a capability for this VM, 0 if KVM lacks it
// (KVM_CHECK_EXTENSION on the VM, which exists since CapCheckExtensionVM).
func (vm *VM) CheckExtension(c Cap) (int, error) {
	return ioctl(vm.fd, reqCheckExtension, uintptr(c))
}

// enableCap is struct kvm_enable_cap.
type enableCap struct {
	Cap   uint32
	Flags uint32
	Args  [4]uint64
	_     [64]byte
}

var reqEnableCap = iow("KVM_ENABLE_CAP", 0xa3, sizeof[enableCap]())

// EnableCap switches a capability on for the VM (KVM_ENABLE_CAP, at most four
// arguments, whose meaning depends on the capability).
func (vm *VM) EnableCap(c Cap, args ...uint64) error { return doEnableCap(vm.fd, c, args) }

func doEnableCap(fd int, c Cap, args []uint64) error {
	e := enableCap{Cap: uint32(c)}
	if len(args) > len(e.Args) {
		return fmt.Errorf("kvm: %v: %d arguments, at most %d exist", c, len(args), len(e.Args))
	}
	copy(e.Args[:], args)
	if _, err := ioctlPtr(fd, reqEnableCap, &e); err != nil {
		return fmt.Errorf("kvm: %v: %w", c, err)
	}
	return nil
}
