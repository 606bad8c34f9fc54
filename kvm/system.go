// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"
)

// DefaultPath is where Linux puts the KVM device.
const DefaultPath = "/dev/kvm"

// APIVersion is KVM_API_VERSION, the only version that exists since Linux 2.6.22.
const APIVersion = 12

var (
	reqGetAPIVersion   = io("KVM_GET_API_VERSION", 0x00)
	reqCreateVM        = io("KVM_CREATE_VM", 0x01)
	reqCheckExtension  = io("KVM_CHECK_EXTENSION", 0x03)
	reqGetVCPUMmapSize = io("KVM_GET_VCPU_MMAP_SIZE", 0x04)
)

// System is an open KVM device.
type System struct {
	fd       int
	path     string
	mmapSize int
}

// Open opens the KVM device ("" means DefaultPath) and checks its version.
// The error of a missing, forbidden or foreign device says what to do.
func Open(path string) (*System, error) {
	if path == "" {
		path = DefaultPath
	}
	fd, err := openRetry(path)
	if err != nil {
		return nil, openError(path, err)
	}
	s := &System{fd: fd, path: path}
	if err := s.init(); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s, nil
}

func (s *System) init() error {
	v, err := ioctl(s.fd, reqGetAPIVersion, 0)
	if errors.Is(err, unix.ENOTTY) {
		return fmt.Errorf("kvm: %s is not a KVM device; name the real one, usually %s", s.path, DefaultPath)
	}
	if err != nil {
		return fmt.Errorf("kvm: %s: %w", s.path, err)
	}
	if v != APIVersion {
		return fmt.Errorf("kvm: %s speaks API version %d, want %d; use a Linux kernel of 2.6.22 or later", s.path, v, APIVersion)
	}
	if s.mmapSize, err = ioctl(s.fd, reqGetVCPUMmapSize, 0); err != nil {
		return fmt.Errorf("kvm: %s: %w", s.path, err)
	}
	if s.mmapSize < runMinSize {
		return fmt.Errorf("kvm: %s: run mapping of %d bytes is smaller than struct kvm_run (%d)", s.path, s.mmapSize, runMinSize)
	}
	return nil
}

func openRetry(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// openError explains why path could not be opened and what helps. The result
// wraps err, so errors.Is with fs.ErrNotExist or fs.ErrPermission works.
func openError(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("kvm: no %s: %w; load the module (%s), switch virtualization on in the firmware, or give this virtual machine nested virtualization",
			path, err, moduleHint)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("kvm: %s has no driver: %w; load the module (%s)", path, err, moduleHint)
	case errors.Is(err, fs.ErrPermission):
		return permissionError(path, err)
	}
	return fmt.Errorf("kvm: open %s: %w", path, err)
}

// permissionError names mode and owner group of the device and the command that
// lets the caller in.
func permissionError(path string, err error) error {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return fmt.Errorf("kvm: open %s: %w", path, err)
	}
	group := strconv.FormatUint(uint64(st.Gid), 10)
	if g, lookupErr := user.LookupGroupId(group); lookupErr == nil {
		group = g.Name
	}
	who := os.Getenv("USER")
	if u, lookupErr := user.Current(); lookupErr == nil {
		who = u.Username
	}
	mode := fs.FileMode(st.Mode & 0o777)
	if st.Mode&0o060 != 0o060 || group == "root" {
		return fmt.Errorf("kvm: open %s: %w (mode %#o, group %s); give it to a group: sudo chown root:kvm %s && sudo chmod 660 %s && sudo usermod -aG kvm %s, then log in again",
			path, err, uint32(mode), group, path, path, who)
	}
	return fmt.Errorf("kvm: open %s: %w (mode %#o, group %s); add the user to the group: sudo usermod -aG %s %s, then log in again",
		path, err, uint32(mode), group, group, who)
}

// Close closes the device. VMs made from it stay usable.
func (s *System) Close() error { return unix.Close(s.fd) }

// FD returns the file descriptor.
func (s *System) FD() int { return s.fd }

// CheckExtension returns the value of a capability, 0 if KVM lacks it
// (KVM_CHECK_EXTENSION on the device; VM.CheckExtension is more precise).
func (s *System) CheckExtension(c Cap) (int, error) {
	return ioctl(s.fd, reqCheckExtension, uintptr(c))
}

// VCPUMmapSize returns the size of a vCPU's run mapping in bytes
// (KVM_GET_VCPU_MMAP_SIZE).
func (s *System) VCPUMmapSize() int { return s.mmapSize }

// CreateVM makes an empty virtual machine of the default type (KVM_CREATE_VM).
func (s *System) CreateVM() (*VM, error) {
	fd, err := ioctl(s.fd, reqCreateVM, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("kvm: %w; another hypervisor holds the processor's virtualization: unload its modules", err)
	}
	if err != nil {
		return nil, fmt.Errorf("kvm: %w", err)
	}
	return newVM(fd, s.mmapSize), nil
}
