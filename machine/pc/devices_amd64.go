// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/govmm/govmm/devices/debugexit"
	"github.com/govmm/govmm/devices/i8042"
	"github.com/govmm/govmm/devices/pci"
	"github.com/govmm/govmm/devices/power"
	"github.com/govmm/govmm/devices/pvpanic"
	"github.com/govmm/govmm/devices/rtc"
	"github.com/govmm/govmm/devices/serial"
	virtiopci "github.com/govmm/govmm/devices/virtio/pci"
	"github.com/govmm/govmm/internal/bug"
	"github.com/govmm/govmm/internal/bus"
	"github.com/govmm/govmm/internal/irq"
	"github.com/govmm/govmm/internal/result"
)

// I/O ports of the board's own devices.
const (
	portCOM1      = 0x3f8
	portPM        = 0x600 // ACPI's fixed hardware: power.Size ports
	portPvpanic   = 0x505 // as in QEMU's PC, where guests' drivers expect it
	portDebugExit = 0xf4  // as QEMU's isa-debug-exit; here the exit status is the value itself
)

// devices are the devices of one boot.
type devices struct {
	uart   *serial.UART
	rtc    *rtc.RTC
	pm     *power.PM
	root   *pci.Root
	virtio []*virtiopci.Transport
	hyperv *hyperv // nil: none
}

// Feed passes console input to the guest; see serial.UART.Feed.
func (b *Board) Feed(ctx context.Context, p []byte) (int, error) { return b.dev.uart.Feed(ctx, p) }

// PressPowerButton asks the guest to shut down, and reports whether it listens.
func (b *Board) PressPowerButton() bool { return b.dev.pm.PressPowerButton() }

func (b *Board) line(gsi uint32) irq.Line { return &gsiLine{vm: b.vm, gsi: gsi, log: b.log} }

func (b *Board) addDevices(cfg Config) error {
	if err := b.addLegacy(cfg); err != nil {
		return result.Errorf(result.Bug, "legacy devices: %w", err)
	}
	if err := b.addPCI(cfg); err != nil {
		return result.Errorf(result.Bug, "PCI: %w", err)
	}
	if cfg.HyperV {
		if err := b.newHyperV(cfg); err != nil {
			return result.Errorf(result.Host, "VMBus: %w", err)
		}
	}
	return nil
}

// addLegacy puts the devices with fixed ports on the bus.
func (b *Board) addLegacy(cfg Config) error {
	reset := func() { b.end(result.Of(result.Reset, "the guest reset itself")) }
	below := b.lay.ram[0].Size
	b.dev.uart = serial.New(serial.Config{Line: b.line(gsiCOM1), Out: cfg.Console})
	b.dev.rtc = rtc.New(rtc.Config{Line: b.line(gsiRTC), MemoryBelow4G: below, MemoryAbove4G: cfg.Memory - below})
	b.dev.pm = power.New(power.Config{
		SCI:        b.line(gsiSCI),
		OnPowerOff: func() { b.end(result.Of(result.PowerOff, "the guest powered itself off")) },
	})
	keyboard := i8042.New(reset)
	for _, w := range []struct {
		base, size uint64
		h          bus.Handler
	}{
		{portCOM1, serial.Size, b.dev.uart},
		{rtc.Port, rtc.Size, b.dev.rtc},
		{portPM, power.Size, b.dev.pm},
		{i8042.DataPort, 1, keyboard.Data()},
		{i8042.CommandPort, 1, keyboard.Command()},
		{i8042.PortAPort, 1, keyboard.PortA()},
		{portPvpanic, 1, pvpanic.New(pvpanic.Config{OnPanic: cfg.OnPanic})},
		{portDebugExit, 1, debugexit.New(func(status byte) { b.end(result.OfStatus(int(status))) })},
	} {
		if err := b.pio.Map(w.base, w.size, w.h); err != nil {
			return err
		}
	}
	return b.addConfigPorts(power.NewResetControl(reset))
}

// configAddressPort is the four ports at 0xcf8. They are PCI's CONFIG_ADDRESS
// for 4-byte accesses only; a byte access at 0xcf9 is the chip set's reset
// control register.
type configAddressPort struct {
	address bus.Handler
	reset   *power.ResetControl
}

func (c *configAddressPort) isReset(off uint64, p []byte) bool {
	return len(p) == 1 && off == power.ResetPort-pci.ConfigAddressPort
}

// BusRead reads either register.
func (c *configAddressPort) BusRead(off uint64, p []byte) {
	if c.isReset(off, p) {
		c.reset.BusRead(0, p)
		return
	}
	c.address.BusRead(off, p)
}

// BusWrite writes either register.
func (c *configAddressPort) BusWrite(off uint64, p []byte) {
	if c.isReset(off, p) {
		c.reset.BusWrite(0, p)
		return
	}
	c.address.BusWrite(off, p)
}

// addConfigPorts makes the PCI bus and its ways into configuration space.
func (b *Board) addConfigPorts(reset *power.ResetControl) error {
	root, err := pci.NewRoot(pci.RootConfig{
		MMIO: b.mmio, PIO: b.pio,
		MMIO32: pci.Range{Base: mmio32Base, Size: mmio32Size},
		MMIO64: pci.Range{Base: b.lay.mmio64.GPA, Size: b.lay.mmio64.Size},
		IO:     pci.Range{Base: pciIOBase, Size: pciIOSize},
	})
	if err != nil {
		return err
	}
	b.dev.root = root
	if err := b.pio.Map(pci.ConfigAddressPort, 4, &configAddressPort{root.ConfigAddress(), reset}); err != nil {
		return err
	}
	if err := b.pio.Map(pci.ConfigDataPort, 4, root.ConfigData()); err != nil {
		return err
	}
	return b.mmio.Map(ecamBase, ecamSize, root.ECAM())
}

// addPCI puts the virtio devices into slots 1, 2, ... in order.
func (b *Board) addPCI(cfg Config) error {
	var lines [gsiPCI]*sharedLine
	for i := range lines {
		lines[i] = &sharedLine{out: b.line(gsiPCIBase + uint32(i))}
	}
	messages := &msi{vm: b.vm}
	for i, v := range cfg.Virtio {
		slot := i + 1
		gsi := pciINTx.GSI(slot, 0)
		t, err := virtiopci.New(v.Device, virtiopci.Options{
			Name: v.Name, Memory: b.mem, MSI: messages, Log: b.log,
			Line: lines[gsi-gsiPCIBase].join(), InterruptLine: uint8(gsi),
		})
		if err != nil {
			return err
		}
		b.dev.virtio = append(b.dev.virtio, t)
		if _, err := b.dev.root.Add(slot, t.Function()); err != nil {
			return err
		}
	}
	return nil
}

// start runs what the devices do on their own. stop ends it: afterwards no device
// touches guest memory or an interrupt.
func (d *devices) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	runs := []func(context.Context){d.uart.Run, d.rtc.Run, d.pm.Run}
	if d.hyperv != nil {
		runs = append(runs, d.hyperv.bus.Run)
	}
	for _, run := range runs {
		running.Go(func() {
			defer bug.Catch()
			run(ctx)
		})
	}
	return func() {
		for _, t := range d.virtio {
			t.Reset()
		}
		if d.hyperv != nil {
			d.hyperv.stop()
		}
		cancel()
		running.Wait()
	}
}

func (d *devices) close() error {
	var errs []error
	for _, t := range d.virtio {
		errs = append(errs, t.Close())
	}
	if d.hyperv != nil {
		errs = append(errs, d.hyperv.close())
	}
	return errors.Join(errs...)
}

// Console takes what the guest prints. It must not block.
type Console io.Writer
