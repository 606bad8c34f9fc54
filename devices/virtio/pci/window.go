// SPDX-License-Identifier: Apache-2.0

package virtiopci

import (
	"encoding/binary"

	"github.com/govmm/govmm/devices/pci"
	"github.com/govmm/govmm/internal/bus"
)

// The BAR of the registers has one page for each structure.
const (
	regionSize   = 0x1000
	regionCommon = 0 * regionSize
	regionISR    = 1 * regionSize
	regionDevice = 2 * regionSize
	regionNotify = 3 * regionSize
	barSize      = 4 * regionSize
)

// notifyMultiplier is notify_off_multiplier: the distance in bytes of two
// queues' doorbells.
const notifyMultiplier = 4

// The BARs that are used.
const (
	barRegisters = 0 // and 1: it is a 64-bit BAR
	barMSIX      = 2
)

// IDs (virtio 1.2, 4.1.2). A revision and a subsystem ID like these mark a
// device that is not transitional.
const (
	vendorID     = 0x1af4
	deviceIDBase = 0x1040
	revisionID   = 1
	maxID        = 0x3f // the last device type that has a device ID
)

// classes are class codes by device type; virtio leaves them open, guests show
// them.
var classes = map[uint16]uint32{
	1:  0x020000, // network card: Ethernet controller
	2:  0x018000, // block device: mass storage controller
	3:  0x078000, // console: communication controller
	4:  0x108000, // entropy source: encryption controller
	9:  0x018000, // 9P transport: mass storage controller
	19: 0x028000, // socket: network controller
}

// classOther is a function that fits no class.
const classOther = 0xff0000

// Types of virtio's capabilities (virtio 1.2, 4.1.4): cfg_type.
const (
	capCommon = 1
	capNotify = 2
	capISR    = 3
	capDevice = 4
	capPCI    = 5
)

func (t *Transport) pciConfig() pci.Config {
	id := deviceIDBase + t.dev.ID()
	class, ok := classes[t.dev.ID()]
	if !ok {
		class = classOther
	}
	c := pci.Config{
		VendorID: vendorID, DeviceID: id, Revision: revisionID, Class: class,
		SubsystemVendorID: vendorID, SubsystemID: id,
		MSI: t.opt.MSI, Line: t.opt.Line, InterruptLine: t.opt.InterruptLine,
		Capabilities: t.capabilities(),
	}
	c.BARs[barRegisters] = pci.BAR{Size: barSize, Kind: pci.Mem64, Handler: registers{t}}
	if t.opt.MSI != nil {
		c.MSIX = pci.MSIX{Vectors: 1 + len(t.queues), BAR: barMSIX}
	}
	if t.opt.Line != nil {
		c.InterruptPin = 1
	}
	return c
}

func (t *Transport) capabilities() []pci.Capability {
	multiplier := binary.LittleEndian.AppendUint32(nil, notifyMultiplier)
	window := capability(capPCI, 0, 0, make([]byte, 4))
	window.Window = pciWindow{t}
	window.Mask = make([]byte, len(window.Body))
	for _, field := range [][2]int{{capBAR, 1}, {capOffset, 4}, {capLength, 4}, {capData, 4}} {
		for i := range field[1] {
			window.Mask[field[0]+i] = 0xff
		}
	}
	return []pci.Capability{
		capability(capCommon, regionCommon, commonSize, nil),
		capability(capISR, regionISR, 1, nil),
		capability(capDevice, regionDevice, regionSize, nil),
		capability(capNotify, regionNotify, uint32(len(t.queues))*notifyMultiplier, multiplier),
		window,
	}
}

// Fields of struct virtio_pci_cap (virtio 1.2, 4.1.4), counted from the end of
// the two bytes that all PCI capabilities have.
const (
	capLen    = 0
	capType   = 1
	capBAR    = 2
	capOffset = 6
	capLength = 10
	capData   = 14 // pci_cfg_data or notify_off_multiplier
)

// capability says where in the registers' BAR a structure is.
func capability(kind uint8, off, length uint32, extra []byte) pci.Capability {
	b := make([]byte, capData, capData+len(extra))
	b[capLen] = byte(2 + len(b) + len(extra))
	b[capType] = kind
	b[capBAR] = barRegisters
	binary.LittleEndian.PutUint32(b[capOffset:], off)
	binary.LittleEndian.PutUint32(b[capLength:], length)
	return pci.Capability{ID: pci.CapVendor, Body: append(b, extra...)}
}

// registers is the BAR's handler.
type registers struct{ t *Transport }

var _ bus.Ringer = registers{}

// Doorbells are the queues' notification addresses.
func (r registers) Doorbells() []bus.Doorbell { return r.t.doorbells }

// split finds the structure of an access, and refuses one that leaves it.
func (r registers) split(off uint64, n int) (region, within uint64, ok bool) {
	within = off % regionSize
	if within+uint64(n) > regionSize {
		r.t.faults.add(faultAccess)
		return 0, 0, false
	}
	return off - within, within, true
}

// BusRead reads a register.
func (r registers) BusRead(off uint64, p []byte) {
	clear(p)
	region, off, ok := r.split(off, len(p))
	if !ok || len(p) == 0 {
		return
	}
	if region == regionISR {
		// Without the transport's lock: an interrupt handler need not wait for a
		// queue to stop.
		if off == 0 {
			p[0] = r.t.signals.acknowledge()
		}
		return
	}
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if r.t.closed {
		return
	}
	switch region {
	case regionCommon:
		r.t.readCommon(off, p)
	case regionDevice:
		r.t.dev.ReadConfig(off, p)
	}
}

// BusWrite writes a register.
func (r registers) BusWrite(off uint64, p []byte) {
	region, off, ok := r.split(off, len(p))
	if !ok {
		return
	}
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if r.t.closed {
		return
	}
	switch region {
	case regionCommon:
		r.t.writeCommon(off, p)
	case regionDevice:
		r.t.dev.WriteConfig(off, p)
	case regionNotify:
		r.t.notify(off)
	default:
		r.t.faults.add(faultAccess)
	}
}

// notify rings a queue's doorbell. The address alone says which: the kernel,
// which does the same for most writes, looks no further.
func (t *Transport) notify(off uint64) {
	i := off / notifyMultiplier
	if off%notifyMultiplier != 0 || i >= uint64(len(t.queues)) {
		t.faults.add(faultValue)
		return
	}
	t.queues[i].ring()
}

// pciWindow is VIRTIO_PCI_CAP_PCI_CFG: pci_cfg_data is a window on a BAR for
// guests that can't map it (virtio 1.2, 4.1.4.9).
type pciWindow struct{ t *Transport }

// target decodes where the window looks. A length of zero means that the guest
// has not set it up.
func (w pciWindow) target(body []byte) (bar int, off uint64, data []byte, ok bool) {
	length := binary.LittleEndian.Uint32(body[capLength:])
	off = uint64(binary.LittleEndian.Uint32(body[capOffset:]))
	if length == 0 {
		return 0, 0, nil, false
	}
	if length != 1 && length != 2 && length != 4 || off%uint64(length) != 0 {
		w.t.faults.add(faultAccess)
		return 0, 0, nil, false
	}
	return int(body[capBAR]), off, body[capData:][:length], true
}

// WindowRead fetches as many bytes as the capability's length says.
func (w pciWindow) WindowRead(body []byte) {
	bar, off, data, ok := w.target(body)
	if ok && !w.t.fn.ReadBAR(bar, off, data) {
		w.t.faults.add(faultAccess)
	}
}

// WindowWrite writes as many bytes as the capability's length says.
func (w pciWindow) WindowWrite(body []byte) {
	bar, off, data, ok := w.target(body)
	if ok && !w.t.fn.WriteBAR(bar, off, data) {
		w.t.faults.add(faultAccess)
	}
}
