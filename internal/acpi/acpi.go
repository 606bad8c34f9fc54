// SPDX-License-Identifier: Apache-2.0

// Package acpi builds the ACPI tables of a PC-like board from a plain
// description of it. Tables and fields are those of the ACPI specification 6.3;
// MCFG is that of the PCI firmware specification 3.2.
//
// The board has ACPI's fixed hardware (PM1 registers, PM timer, SCI) and is not
// hardware-reduced: stock guests then find a power button, a reset register, a
// PM timer to check the TSC against, and soft off, without any GPIO driver.
package acpi

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Where a guest looks for the RSDP (section 5.2.5.1): on a 16-byte boundary in
// the firmware's read-only memory.
const (
	AreaStart = 0xe0000
	AreaEnd   = 0x100000
)

// Config is the board. Addresses are guest-physical.
type Config struct {
	// Base is where the image will be, AreaStart or above, 64-byte aligned. The
	// RSDP comes first.
	Base uint64

	// APICIDs are the local APIC ids of the processors, 0 to 254, in the order
	// of their ACPI processor UIDs 0, 1, ...
	APICIDs  []uint32
	LAPIC    uint32 // address of the local APICs
	IOAPIC   uint32 // address
	IOAPICID uint8  // its GSIs start at 0

	PM  PM
	PCI PCI

	// ISA devices; nil or zero: not there. Ports are I/O ports.
	Serial  []ISA  // 16550 UARTs, COM1 first
	RTC     *ISA   // MC146818 with two ports
	Century uint8  // CMOS index of the century, if there is an RTC
	I8042   bool   // a PS/2 keyboard controller that a driver should bind to
	PVPanic uint16 // port
	VMBus   bool   // Hyper-V's VMBus
	// Reserved are further I/O ports that belong to the board, so that no guest
	// gives them to a device.
	Reserved []Ports
}

// PM is the fixed hardware.
type PM struct {
	SCI        uint8  // ISA interrupt and GSI, level-triggered, active high
	Event      uint16 // port of PM1a_EVT_BLK, 4 bytes
	Control    uint16 // port of PM1a_CNT_BLK, 2 bytes
	Timer      uint16 // port of PM_TMR_BLK, 4 bytes
	SleepS5    uint8  // SLP_TYP of soft off
	ResetPort  uint16 // RESET_REG, a byte
	ResetValue uint8
}

// PCI is the root complex: one segment, one host bridge.
type PCI struct {
	ECAM    uint64  // address of bus 0's configuration space
	LastBus uint8   // the ECAM has LastBus+1 MiB
	IO      []Ports // windows for BARs
	Memory  []Range // windows for BARs; above 4 GiB as 64-bit ones
	INTx    INTx
}

// INTx is how the interrupt pins reach the interrupt controller: over Lines
// level-triggered GSIs from First on, each slot's pins turned by one.
type INTx struct {
	First uint32
	Lines uint32
}

// GSI is the global system interrupt of a slot's pin, 0 for INTA# to 3.
func (i INTx) GSI(slot, pin int) uint32 {
	return i.First + uint32(slot+pin)%max(i.Lines, 1)
}

// ISA is a device with consecutive ports and an ISA interrupt.
type ISA struct {
	Port  uint16
	Ports uint8
	IRQ   int
}

// Ports are I/O ports, both ends included.
type Ports struct{ First, Last uint16 }

// Range is a range of memory, both ends included.
type Range struct{ First, Last uint64 }

// Build makes the image that belongs at Base: the RSDP and all tables that it
// leads to.
func Build(c Config) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("acpi: %w", err)
	}
	dsdt, err := c.dsdt()
	if err != nil {
		return nil, fmt.Errorf("acpi: DSDT: %w", err)
	}
	im := image{base: c.Base}
	im.put(make([]byte, rsdpSize)) // its place; it needs the XSDT's address
	facs := im.put(facsTable())
	fadt := im.put(c.fadt(facs, im.put(dsdt)))
	madt := im.put(c.madt())
	mcfg := im.put(c.mcfg())
	copy(im.b, rsdp(im.put(xsdt(fadt, madt, mcfg))))
	if end := c.Base + uint64(len(im.b)); end > AreaEnd {
		return nil, fmt.Errorf("acpi: the tables end at %#x; their area ends at %#x", end, AreaEnd)
	}
	return im.b, nil
}

func (c *Config) check() error {
	var errs []error
	if c.Base < AreaStart || c.Base >= AreaEnd || c.Base%alignment != 0 {
		errs = append(errs, fmt.Errorf("base %#x is not a multiple of %d from %#x to %#x", c.Base, alignment, AreaStart, AreaEnd))
	}
	if len(c.APICIDs) == 0 {
		errs = append(errs, errors.New("there is no processor"))
	}
	for uid, id := range c.APICIDs {
		if id > 254 || uid > 254 {
			errs = append(errs, fmt.Errorf("processor %d has APIC id %d; a local APIC entry holds up to 254", uid, id))
		}
	}
	if c.PM.SCI > 15 {
		errs = append(errs, fmt.Errorf("SCI %d is not an ISA interrupt, 0 to 15", c.PM.SCI))
	}
	if c.PCI.INTx.Lines == 0 {
		errs = append(errs, errors.New("the PCI interrupt pins have no GSI"))
	}
	for _, p := range c.Reserved {
		if p.Last < p.First || p.Last-p.First >= 0xff {
			errs = append(errs, fmt.Errorf("reserved ports %#x to %#x are not 1 to 255 ports", p.First, p.Last))
		}
	}
	if c.PCI.ECAM%(1<<20) != 0 {
		errs = append(errs, fmt.Errorf("PCI ECAM %#x is not on a MiB boundary", c.PCI.ECAM))
	}
	return errors.Join(errs...)
}

// alignment of every table: the FACS needs it, others don't mind.
const alignment = 64

// image is tables one after the other.
type image struct {
	base uint64
	b    []byte
}

// put adds a table and returns its address.
func (im *image) put(table []byte) (addr uint64) {
	for len(im.b)%alignment != 0 {
		im.b = append(im.b, 0)
	}
	addr = im.base + uint64(len(im.b))
	im.b = append(im.b, table...)
	return addr
}

// Identification in each table's head.
const (
	oemID      = "GOVMM "
	oemTableID = "GOVMMPC "
	creatorID  = "GVMM"
)

// Offsets in the head of a system description table (table 5-29).
const (
	headLength   = 4
	headRevision = 8
	headChecksum = 9
	headOEMID    = 10
	headTableID  = 16
	headOEMRev   = 24
	headCreator  = 28
	headCreaRev  = 32
	headSize     = 36
)

// table puts a head in front of a body.
func table(signature string, revision byte, body []byte) []byte {
	t := make([]byte, headSize, headSize+len(body))
	copy(t, signature)
	t[headRevision] = revision
	copy(t[headOEMID:], oemID)
	copy(t[headTableID:], oemTableID)
	copy(t[headCreator:], creatorID)
	le.PutUint32(t[headOEMRev:], 1)
	le.PutUint32(t[headCreaRev:], 1)
	t = append(t, body...)
	le.PutUint32(t[headLength:], uint32(len(t)))
	t[headChecksum] = checksum(t)
	return t
}

var le = binary.LittleEndian

// checksum is the byte that makes the sum of b zero.
func checksum(b []byte) (sum byte) {
	for _, c := range b {
		sum -= c
	}
	return sum
}
