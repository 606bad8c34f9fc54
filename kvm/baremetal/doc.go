// SPDX-License-Identifier: Apache-2.0

// Package baremetal makes the smallest virtual machines there are: one vCPU,
// 2 MiB of memory, page tables, and a snippet of machine code that starts in
// 64-bit mode without firmware or a kernel. The tests of package kvm and the
// probe of a host's KVM run on it.
package baremetal
