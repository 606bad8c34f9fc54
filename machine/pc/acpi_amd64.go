// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"github.com/govmm/govmm/devices/i8042"
	"github.com/govmm/govmm/devices/power"
	"github.com/govmm/govmm/devices/rtc"
	"github.com/govmm/govmm/devices/serial"
	"github.com/govmm/govmm/internal/acpi"
	"github.com/govmm/govmm/internal/guestmem"
	"github.com/govmm/govmm/internal/result"
)

// pciINTx is how slots' interrupt pins reach the IOAPIC: each slot starts at
// another line, so that up to eight single-function devices share none.
var pciINTx = acpi.INTx{First: gsiPCIBase, Lines: gsiPCI}

// writeACPI puts the ACPI tables into the first MiB and returns the address of
// the RSDP.
func (b *Board) writeACPI() (rsdp uint64, err error) {
	image, err := acpi.Build(b.acpiConfig())
	if err != nil {
		return 0, result.Errorf(result.Bug, "ACPI tables: %w", err)
	}
	return acpi.AreaStart, b.mem.WriteAt(acpi.AreaStart, image)
}

func (b *Board) acpiConfig() acpi.Config {
	c := acpi.Config{
		Base:  acpi.AreaStart,
		LAPIC: lapicBase, IOAPIC: ioapicBase,
		PM: acpi.PM{
			SCI:   gsiSCI,
			Event: portPM + power.EventOffset, Control: portPM + power.ControlOffset, Timer: portPM + power.TimerOffset,
			SleepS5:   power.SleepTypeS5,
			ResetPort: power.ResetPort, ResetValue: power.ResetValue,
		},
		PCI: acpi.PCI{
			ECAM:   ecamBase,
			IO:     []acpi.Ports{{First: pciIOBase, Last: pciIOBase + pciIOSize - 1}},
			Memory: []acpi.Range{rangeOf(guestmem.Range{GPA: mmio32Base, Size: mmio32Size})},
			INTx:   pciINTx,
		},
		Serial:  []acpi.ISA{{Port: portCOM1, Ports: serial.Size, IRQ: gsiCOM1}},
		RTC:     &acpi.ISA{Port: rtc.Port, Ports: rtc.Size, IRQ: gsiRTC},
		Century: rtc.Century,
		PVPanic: portPvpanic,
		VMBus:   b.dev.hyperv != nil,
		Reserved: []acpi.Ports{
			{First: i8042.PortAPort, Last: i8042.PortAPort},
			{First: portDebugExit, Last: portDebugExit},
		},
	}
	if b.lay.mmio64.Size > 0 {
		c.PCI.Memory = append(c.PCI.Memory, rangeOf(b.lay.mmio64))
	}
	for id := range b.model.cpus {
		c.APICIDs = append(c.APICIDs, uint32(id))
	}
	return c
}

func rangeOf(r guestmem.Range) acpi.Range { return acpi.Range{First: r.GPA, Last: r.End() - 1} }
