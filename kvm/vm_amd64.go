// SPDX-License-Identifier: Apache-2.0

package kvm

import "fmt"

var (
	reqSetTSSAddr         = io("KVM_SET_TSS_ADDR", 0x47)
	reqSetIdentityMapAddr = iow("KVM_SET_IDENTITY_MAP_ADDR", 0x48, 8)
	reqSetBootCPUID       = io("KVM_SET_BOOT_CPU_ID", 0x78)
	reqSetClock           = iow("KVM_SET_CLOCK", 0x7b, sizeof[ClockData]())
	reqGetClock           = ior("KVM_GET_CLOCK", 0x7c, sizeof[ClockData]())
	reqHyperVEventFD      = iow("KVM_HYPERV_EVENTFD", 0xbd, sizeof[hypervEventFD]())
)

func vmError(_ int, err error) error {
	if err != nil {
		return fmt.Errorf("kvm: %w", err)
	}
	return nil
}

// SetTSSAddr reserves three pages of guest physical addresses below 4 GiB for the
// task state segment that Intel processors without unrestricted guest mode need
// (KVM_SET_TSS_ADDR); before the first vCPU.
func (vm *VM) SetTSSAddr(gpa uint32) error {
	return vmError(ioctl(vm.fd, reqSetTSSAddr, uintptr(gpa)))
}

// SetIdentityMapAddr reserves a page below 4 GiB for the same purpose
// (KVM_SET_IDENTITY_MAP_ADDR); before the first vCPU.
func (vm *VM) SetIdentityMapAddr(gpa uint64) error {
	return vmError(ioctlPtr(vm.fd, reqSetIdentityMapAddr, &gpa))
}

// SetBootCPUID chooses the vCPU that starts running (KVM_SET_BOOT_CPU_ID; 0
// without it); before the first vCPU.
func (vm *VM) SetBootCPUID(id int) error {
	return vmError(ioctl(vm.fd, reqSetBootCPUID, uintptr(id)))
}

// Flags of ClockData.
const (
	ClockTSCStable = 1 << 1 // KVM_CLOCK_TSC_STABLE
	ClockRealtime  = 1 << 2 // KVM_CLOCK_REALTIME: Realtime is set
	ClockHostTSC   = 1 << 3 // KVM_CLOCK_HOST_TSC: HostTSC is set
)

// ClockData is the KVM clock of a VM (struct kvm_clock_data).
type ClockData struct {
	Clock    uint64 // nanoseconds
	Flags    uint32 // Clock constants; 0 for SetClock is right
	_        uint32
	Realtime uint64 // nanoseconds since 1970
	HostTSC  uint64
	_        [4]uint32
}

// Clock returns the KVM clock (KVM_GET_CLOCK).
func (vm *VM) Clock() (c ClockData, err error) {
	err = vmError(ioctlPtr(vm.fd, reqGetClock, &c))
	return c, err
}

// SetClock sets the KVM clock, after a pause or a restore (KVM_SET_CLOCK).
func (vm *VM) SetClock(c ClockData) error { return vmError(ioctlPtr(vm.fd, reqSetClock, &c)) }

// hypervEventFD is struct kvm_hyperv_eventfd.
type hypervEventFD struct {
	ConnID uint32
	FD     int32
	Flags  uint32
	_      [3]uint32
}

// HyperVEventFD makes HvCallSignalEvent on a connection id (24 bits) signal an
// eventfd instead of exiting (KVM_HYPERV_EVENTFD). fd -1 removes it.
func (vm *VM) HyperVEventFD(connID uint32, fd int) error {
	const deassign = 1 << 0 // KVM_HYPERV_EVENTFD_DEASSIGN
	e := hypervEventFD{ConnID: connID, FD: int32(fd)}
	if fd < 0 {
		e.Flags = deassign
	}
	if _, err := ioctlPtr(vm.fd, reqHyperVEventFD, &e); err != nil {
		return fmt.Errorf("kvm: connection %#x: %w", connID, err)
	}
	return nil
}
