// SPDX-License-Identifier: Apache-2.0

// Package pvpanic is the port by which a Linux guest says that it has panicked,
// as QEMU's docs/specs/pvpanic defines it. The guest finds it by the ACPI device
// QEMU0001.
package pvpanic

// Port is the usual I/O port, Size the number of ports.
const (
	Port = 0x505
	Size = 1
)

// Bits of the port: which events the device knows when read, which have happened
// when written.
const (
	Panicked    = 1 << 0 // the kernel has panicked
	CrashLoaded = 1 << 1 // it has panicked and now starts its crash kernel
	Shutdown    = 1 << 2 // it is about to power off
)

// Config says what to do at each event. An event without a function is not
// offered to the guest. The functions run on the guest's CPU thread.
type Config struct {
	OnPanic       func()
	OnCrashLoaded func()
	OnShutdown    func()
}

// Device is the port. It has no state.
type Device struct{ cfg Config }

// New makes a device.
func New(cfg Config) *Device { return &Device{cfg} }

func (d *Device) events() [3]func() {
	return [3]func(){d.cfg.OnPanic, d.cfg.OnCrashLoaded, d.cfg.OnShutdown}
}

// BusRead gives the known events.
func (d *Device) BusRead(off uint64, p []byte) {
	clear(p)
	if off != 0 || len(p) == 0 {
		return
	}
	for bit, f := range d.events() {
		if f != nil {
			p[0] |= 1 << bit
		}
	}
}

// BusWrite reports events; unknown bits mean nothing.
func (d *Device) BusWrite(off uint64, p []byte) {
	if off != 0 || len(p) == 0 {
		return
	}
	for bit, f := range d.events() {
		if f != nil && p[0]&(1<<bit) != 0 {
			f()
		}
	}
}
