// SPDX-License-Identifier: Apache-2.0

// Package initramfs puts together what a guest kernel unpacks as its first
// root file system: govmm's base image, and the kernel modules that the guest
// needs before it can reach any device.
//
// Modules are looked up beside the kernel, their dependencies are read from
// the modules themselves (the .modinfo section), and they are stored
// decompressed, together with a list in load order (layout.ModuleList). The guest's
// init has nothing to resolve: it calls finit_module(2) line by line.
package initramfs
