// SPDX-License-Identifier: Apache-2.0

// Package debugexit is a port by which a guest ends its VM with a status. Unlike
// QEMU's isa-debug-exit the status is the byte itself, so that 0 can be said.
package debugexit

// Port is the usual I/O port. Size is the number of ports: four, so that byte,
// word and double word writes all reach it.
const (
	Port = 0xf4
	Size = 4
)

// Device is the port.
type Device struct{ onExit func(status byte) }

// New makes a device. onExit runs on the guest's CPU thread, for each write.
func New(onExit func(status byte)) *Device { return &Device{onExit} }

// BusRead gives zeros.
func (d *Device) BusRead(_ uint64, p []byte) { clear(p) }

// BusWrite ends the VM; the lowest byte at the first port is the status.
func (d *Device) BusWrite(off uint64, p []byte) {
	if off == 0 && len(p) > 0 {
		d.onExit(p[0])
	}
}
