// SPDX-License-Identifier: Apache-2.0

package pci

// Registers of a type 0 configuration header (PCI 3.0, 6.1): byte offsets.
const (
	regVendorID      = 0x00
	regDeviceID      = 0x02
	regCommand       = 0x04
	regStatus        = 0x06
	regRevision      = 0x08
	regClass         = 0x09 // three bytes: programming interface, sub-class, class
	regBAR0          = 0x10
	regSubVendorID   = 0x2c
	regSubsystemID   = 0x2e
	regCapabilities  = 0x34
	regInterruptLine = 0x3c
	regInterruptPin  = 0x3d

	headerSize = 0x40 // the first byte that a capability can have
)

// spaceSize is the size of a conventional function's configuration space in
// bytes. The rest of a function's 4 KiB in ECAM reads as all ones.
const spaceSize = 256

// Bits of the command register (PCI 3.0, 6.2.2).
const (
	commandIO          = 1 << 0  // decode I/O BARs
	commandMemory      = 1 << 1  // decode memory BARs
	commandMaster      = 1 << 2  // may write to memory, and so send MSIs
	commandINTxDisable = 1 << 10 // must not assert INTx

	commandMask = commandIO | commandMemory | commandMaster | commandINTxDisable
)

// Bits of the status register (PCI 3.0, 6.2.3).
const (
	statusInterrupt    = 1 << 3 // INTx is pending, disabled or not
	statusCapabilities = 1 << 4 // there is a capability list
)

// Bits of a BAR (PCI 3.0, 6.2.5.1).
const (
	barIO           = 1 << 0
	barMemory64     = 2 << 1
	barPrefetchable = 1 << 3
)

// Capability IDs (PCI Code and ID Assignment, section 2).
const (
	CapVendor = 0x09
	capMSIX   = 0x11
)

// The MSI-X capability (PCI 3.0, 6.8.2): offsets from its start, and bits of
// message control.
const (
	msixControl      = 2
	msixEnable       = 1 << 15
	msixFunctionMask = 1 << 14
)
