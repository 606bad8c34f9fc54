// SPDX-License-Identifier: Apache-2.0

// Package pci is one conventional PCI bus: configuration space, the placement
// of base address registers (BARs), MSI-X and INTx. It knows nothing of the
// devices behind it.
//
// A Function is built from a Config and put into a slot of a Root. The Root
// plays the part that firmware has on a real machine: it gives each BAR an
// address. Decoding is off until the guest switches it on, and the guest may
// move every BAR.
//
// References are to the PCI Local Bus Specification 3.0. All registers are
// little-endian.
package pci
