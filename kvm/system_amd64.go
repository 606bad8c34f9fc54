// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"errors"

	"golang.org/x/sys/unix"
)

// moduleHint is the command that loads KVM.
const moduleHint = "modprobe kvm_intel or kvm_amd"

var (
	reqGetMSRIndexList        = iowr("KVM_GET_MSR_INDEX_LIST", 0x02, 4)
	reqGetSupportedCPUID      = iowr("KVM_GET_SUPPORTED_CPUID", 0x05, cpuidHeaderSize)
	reqGetEmulatedCPUID       = iowr("KVM_GET_EMULATED_CPUID", 0x09, cpuidHeaderSize)
	reqGetMSRFeatureIndexList = iowr("KVM_GET_MSR_FEATURE_INDEX_LIST", 0x0a, 4)
	reqGetSupportedHVCPUID    = iowr("KVM_GET_SUPPORTED_HV_CPUID", 0xc1, cpuidHeaderSize)
)

// SupportedCPUID returns the leaves KVM can show to a guest on this host
// (KVM_GET_SUPPORTED_CPUID).
func (s *System) SupportedCPUID() (CPUID, error) { return getCPUID(s.fd, reqGetSupportedCPUID) }

// EmulatedCPUID returns the features that KVM offers only by slow emulation
// (KVM_GET_EMULATED_CPUID).
func (s *System) EmulatedCPUID() (CPUID, error) { return getCPUID(s.fd, reqGetEmulatedCPUID) }

// SupportedHyperVCPUID returns the Hyper-V leaves 0x40000000 and up
// (KVM_GET_SUPPORTED_HV_CPUID on the device; needs CapSysHyperVCPUID).
func (s *System) SupportedHyperVCPUID() (CPUID, error) { return getCPUID(s.fd, reqGetSupportedHVCPUID) }

// MSRIndexList returns the MSRs that belong to a vCPU's state
// (KVM_GET_MSR_INDEX_LIST).
func (s *System) MSRIndexList() ([]uint32, error) { return getMSRList(s.fd, reqGetMSRIndexList) }

// MSRFeatureIndexList returns the MSRs that describe host features; System.GetMSRs
// reads them (KVM_GET_MSR_FEATURE_INDEX_LIST, needs CapGetMSRFeatures).
func (s *System) MSRFeatureIndexList() ([]uint32, error) {
	return getMSRList(s.fd, reqGetMSRFeatureIndexList)
}

// GetMSRs fills in the data of feature MSRs (KVM_GET_MSRS on the device) and
// returns how many were read: fewer than asked means that entries[n] is unknown
// to KVM, which is no error.
func (s *System) GetMSRs(entries []MSREntry) (int, error) {
	return transferMSRs(s.fd, reqGetMSRs, entries, true)
}

// getMSRList reads a struct kvm_msr_list: a count, then that many indices. With a
// count that is too small the kernel answers E2BIG and stores the right one; it
// may grow between two calls, hence the loop.
func getMSRList(fd int, req request) ([]uint32, error) {
	buf := make([]uint32, 1)
	for {
		_, err := ioctlPtr(fd, req, &buf[0])
		n := int(buf[0])
		switch {
		case err == nil && n < len(buf):
			return buf[1 : 1+n], nil
		case errors.Is(err, unix.E2BIG) && n >= len(buf):
			buf = make([]uint32, 1+n)
			buf[0] = uint32(n)
		default:
			return nil, err
		}
	}
}
