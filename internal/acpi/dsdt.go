// SPDX-License-Identifier: Apache-2.0

package acpi

import (
	"fmt"

	"github.com/govmm/govmm/internal/acpi/aml"
)

// dsdtRevision 2 makes AML integers 64 bits wide.
const dsdtRevision = 2

// PCI slots and pins that _PRT covers.
const (
	pciSlots = 32
	pciPins  = 4
)

// The PCI configuration ports CONFIG_ADDRESS and CONFIG_DATA.
const (
	pciConfigPort  = 0xcf8
	pciConfigPorts = 8
)

// dsdt is the differentiated system description table: the devices that can't be
// found by asking a bus.
func (c *Config) dsdt() ([]byte, error) {
	devices := []aml.Term{c.pciRoot(), c.board()}
	for i, s := range c.Serial {
		devices = append(devices, serialPort(i, s))
	}
	if c.RTC != nil {
		devices = append(devices, aml.Device("RTC",
			hid(aml.EISAID("PNP0B00")),
			crs(aml.IO(c.RTC.Port, c.RTC.Ports), aml.IRQ(c.RTC.IRQ))))
	}
	if c.I8042 {
		devices = append(devices, aml.Device("KBD",
			hid(aml.EISAID("PNP0303")),
			crs(aml.IO(0x60, 1), aml.IO(0x64, 1), aml.IRQ(1))))
	}
	if c.PVPanic != 0 {
		devices = append(devices, aml.Device("PEVT",
			hid(aml.String("QEMU0001")),
			aml.Name("_STA", aml.Int(staPresent)),
			crs(aml.IO(c.PVPanic, 1))))
	}
	if c.VMBus {
		devices = append(devices, vmbus())
	}
	for uid := range c.APICIDs {
		devices = append(devices, aml.Device(fmt.Sprintf("C%03X", uid),
			hid(aml.String("ACPI0007")),
			aml.Name("_UID", aml.Int(uint64(uid)))))
	}
	body, err := aml.Encode(
		aml.Scope(`\_SB`, devices...),
		// PM1a and PM1b control values of soft off, and two reserved elements.
		aml.Name(`\_S5`, aml.Package(aml.Int(uint64(c.PM.SleepS5)), aml.Int(0), aml.Int(0), aml.Int(0))),
	)
	if err != nil {
		return nil, err
	}
	return table("DSDT", dsdtRevision, body), nil
}

// staPresent: present, enabled, shown, working (section 6.3.7).
const staPresent = 0xf

func hid(id aml.Term) aml.Term { return aml.Name("_HID", id) }

func crs(rs ...aml.Resource) aml.Term { return aml.Name("_CRS", aml.ResourceTemplate(rs...)) }

func serialPort(i int, s ISA) aml.Term {
	return aml.Device(fmt.Sprintf("COM%X", i+1),
		hid(aml.EISAID("PNP0501")),
		aml.Name("_UID", aml.Int(uint64(i+1))),
		crs(aml.IO(s.Port, s.Ports), aml.IRQ(s.IRQ)))
}

// vmbus says that there is a VMBus. A guest's driver takes the windows for its
// devices' memory from _CRS, here none, and does not bind without it.
func vmbus() aml.Term {
	return aml.Device("VMBS",
		hid(aml.String("VMBus")),
		aml.Name("_UID", aml.Int(0)),
		aml.Name("_DDN", aml.String("VMBUS")),
		aml.Name("_STA", aml.Int(staPresent)),
		crs())
}

// pciRoot is the host bridge.
func (c *Config) pciRoot() aml.Term {
	rs := []aml.Resource{
		aml.WordBusNumber(0, c.PCI.LastBus),
		aml.IO(pciConfigPort, pciConfigPorts),
	}
	for _, w := range c.PCI.IO {
		rs = append(rs, aml.WordIO(w.First, w.Last))
	}
	for _, w := range c.PCI.Memory {
		if w.Last < 1<<32 {
			rs = append(rs, aml.DWordMemory(uint32(w.First), uint32(w.Last)))
		} else {
			rs = append(rs, aml.QWordMemory(w.First, w.Last))
		}
	}
	return aml.Device("PCI0",
		hid(aml.EISAID("PNP0A08")),
		aml.Name("_CID", aml.EISAID("PNP0A03")),
		aml.Name("_SEG", aml.Int(0)),
		aml.Name("_BBN", aml.Int(0)),
		aml.Name("_UID", aml.Int(0)),
		crs(rs...),
		aml.Name("_PRT", c.interruptRouting()),
		// The guest may control every PCI Express feature that it asks for: give
		// back the capabilities that it sent (section 6.2.11).
		aml.Method("_OSC", 4, aml.Return(aml.Arg(3))),
	)
}

// interruptRouting: each element is slot and any function, pin, 0 for "the next
// is a GSI", GSI (table 6-187).
func (c *Config) interruptRouting() aml.Term {
	const anyFunction = 0xffff
	var routes []aml.Term
	for slot := range pciSlots {
		for pin := range pciPins {
			routes = append(routes, aml.Package(
				aml.Int(uint64(slot)<<16|anyFunction),
				aml.Int(uint64(pin)),
				aml.Int(0),
				aml.Int(uint64(c.PCI.INTx.GSI(slot, pin)))))
		}
	}
	return aml.Package(routes...)
}

// board holds the addresses that nothing else may use: the ECAM, without which a
// guest does not trust the MCFG, and the board's own ports.
func (c *Config) board() aml.Term {
	rs := []aml.Resource{ecamResource(c.PCI)}
	for _, p := range []Ports{
		{c.PM.Event, c.PM.Event + 3},
		{c.PM.Control, c.PM.Control + 1},
		{c.PM.Timer, c.PM.Timer + 3},
	} {
		rs = append(rs, ports(p))
	}
	for _, p := range c.Reserved {
		rs = append(rs, ports(p))
	}
	return aml.Device("MBRD",
		hid(aml.EISAID("PNP0C02")),
		aml.Name("_UID", aml.Int(0)),
		crs(rs...))
}

func ports(p Ports) aml.Resource { return aml.IO(p.First, uint8(p.Last-p.First+1)) }

func ecamResource(p PCI) aml.Resource {
	size := (uint64(p.LastBus) + 1) << 20
	if p.ECAM+size <= 1<<32 {
		return aml.Memory32Fixed(uint32(p.ECAM), uint32(size))
	}
	return aml.QWordMemory(p.ECAM, p.ECAM+size-1)
}
