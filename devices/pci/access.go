// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"encoding/binary"

	"github.com/govmm/govmm/internal/bus"
)

// Ports of configuration mechanism #1 (PCI 3.0, 3.2.2.3.2).
const (
	ConfigAddressPort = 0xcf8 // four bytes
	ConfigDataPort    = 0xcfc // four bytes
)

// configEnable is the bit of CONFIG_ADDRESS that lets CONFIG_DATA through.
const configEnable = 1 << 31

// ECAMBusSize is the size in bytes of one bus in ECAM (PCI Express 4.0, 7.2.2).
const ECAMBusSize = 1 << 20

// ConfigAddress handles the four ports of CONFIG_ADDRESS. It is a register only
// for 4-byte accesses; all others belong to whatever else the machine has at
// these ports, such as the reset register at 0xcf9, and do nothing here.
func (r *Root) ConfigAddress() bus.Handler { return configAddress{r} }

// ConfigData handles the four ports of CONFIG_DATA.
func (r *Root) ConfigData() bus.Handler { return configData{r} }

// ECAM handles memory-mapped configuration accesses from bus 0 on. Only bus 0
// has functions, so a window of ECAMBusSize is enough; more buses read as all
// ones.
func (r *Root) ECAM() bus.Handler { return ecam{r} }

type configAddress struct{ r *Root }

func (a configAddress) BusRead(off uint64, p []byte) {
	if off != 0 || len(p) != 4 {
		ones(p)
		return
	}
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	binary.LittleEndian.PutUint32(p, a.r.address)
}

func (a configAddress) BusWrite(off uint64, p []byte) {
	if off != 0 || len(p) != 4 {
		return
	}
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	a.r.address = binary.LittleEndian.Uint32(p) & (configEnable | 0xfffffc)
}

type configData struct{ r *Root }

// target returns the ECAM address that CONFIG_ADDRESS selects.
func (d configData) target(off uint64) (addr uint64, ok bool) {
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	a := uint64(d.r.address)
	busDevFn, reg := a>>8&0xffff, a&0xfc
	return busDevFn<<12 | reg + off, a&configEnable != 0
}

func (d configData) BusRead(off uint64, p []byte) {
	if addr, ok := d.target(off); ok {
		d.r.readConfig(addr, p)
		return
	}
	ones(p)
}

func (d configData) BusWrite(off uint64, p []byte) {
	if addr, ok := d.target(off); ok {
		d.r.writeConfig(addr, p)
	}
}

type ecam struct{ r *Root }

func (e ecam) BusRead(off uint64, p []byte)  { e.r.readConfig(off, p) }
func (e ecam) BusWrite(off uint64, p []byte) { e.r.writeConfig(off, p) }

// function finds the function at an ECAM address. The access must not leave the
// function's 4 KiB. r.mu is held.
func (r *Root) function(addr uint64, n int) (f *Function, reg int) {
	slot, fn := addr>>15, addr>>12&7
	reg = int(addr & 0xfff)
	if slot >= Slots || fn != 0 || reg+n > 4096 {
		return nil, 0
	}
	return r.slots[slot], reg
}

// readConfig reads configuration space; where no function is, all bits are ones.
func (r *Root) readConfig(addr uint64, p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, reg := r.function(addr, len(p))
	if f == nil {
		ones(p)
		return
	}
	if w, body := f.windowAt(reg, len(p)); w != nil {
		r.mu.Unlock()
		w.WindowRead(body)
		r.mu.Lock()
		copy(f.space.data[w.data():], body[w.size-windowSize:])
	}
	f.read(reg, p)
}

func (r *Root) writeConfig(addr uint64, p []byte) {
	r.mu.Lock()
	f, reg := r.function(addr, len(p))
	var w *placedWindow
	var body []byte
	if f != nil {
		f.write(reg, p)
		w, body = f.windowAt(reg, len(p))
	}
	r.mu.Unlock()
	if w != nil {
		w.WindowWrite(body)
	}
}

func ones(p []byte) {
	for i := range p {
		p[i] = 0xff
	}
}
