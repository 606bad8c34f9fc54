// SPDX-License-Identifier: Apache-2.0

// Package boot turns a Linux kernel image for x86-64, initrds and a command
// line into memory contents and the state of the first vCPU.
//
// Open looks at a file and refuses what is no kernel for this machine. Load
// puts the kernel into guest RAM, with everything it wants to find there, and
// returns the Entry that the board gives to the vCPU. Nothing here needs KVM:
// all of it is plain data, the same on every host.
//
// Three ways into a kernel are known:
//
//   - linux64 for a bzImage: the 64-bit boot protocol of
//     Documentation/arch/x86/boot.rst, entry at the loaded kernel + 0x200. The
//     kernel decompresses itself, whatever its payload's format is.
//   - linux64 for an ELF vmlinux: the same protocol and state, at the entry of
//     the ELF header. There is no setup header, so one is made up.
//   - pvh: the x86/HVM direct boot ABI of Xen (docs/misc/pvh.pandoc), 32-bit
//     protected mode at the address in the kernel's ELF note. From a bzImage
//     the vmlinux inside is unpacked first.
//
// Images are files of unknown origin: every size and address in them is checked
// before use, sums are checked for overflow, and the work is bounded by the
// sizes of the file and of the RAM.
//
// All structures in guest memory are little-endian. Sizes and addresses are in
// bytes.
package boot
