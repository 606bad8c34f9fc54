// SPDX-License-Identifier: Apache-2.0

// Package pc is the x86-64 board: what is at which address, which interrupt
// goes where, and the loop of each vCPU. It makes no policy: what to do when a
// guest resets is its caller's business.
//
// The board is a small PC. The interrupt controllers (PIC, IOAPIC, LAPICs) and
// the PIT are KVM's own. ACPI is of the fixed-hardware kind, not
// hardware-reduced: it is the way that every stock kernel boots on most, the
// PM timer and the PIT let a kernel without KVM clock calibrate its TSC, and
// the power button needs no more than an SCI.
//
// A Board lives for one boot. A reboot makes a new one, so that no state of a
// controller or device outlives a reset; only the backends stay open.
package pc
