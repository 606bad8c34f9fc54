// SPDX-License-Identifier: Apache-2.0

// Package virtiopci is the PCI transport of virtio 1.2 (section 4.1), modern
// only: it gives any virtio.Device a PCI function with registers, doorbells
// and interrupts, and calls the device when its driver is ready or resets it.
//
// The order of initialisation (virtio 1.2, 3.1.1) is enforced: a ring's
// registers can be written between FEATURES_OK and DRIVER_OK only, and not
// once the queue is enabled, so that a device never sees a ring move. What a
// driver does wrong is ignored and counted (Faults).
//
// Two locks keep the parts independent. The transport's own is held for
// register accesses and for calls into the device. Interrupts, the ISR and the
// status bit DEVICE_NEEDS_RESET have another one, so that a device's threads
// can raise interrupts and fail while a register write waits for them to end.
package virtiopci
