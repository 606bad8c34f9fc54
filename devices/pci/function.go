// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"errors"
	"fmt"

	"github.com/govmm/govmm/internal/irq"
)

// Config is all of a function.
type Config struct {
	VendorID, DeviceID uint16
	// Class is the 24-bit class code: base class, sub-class, programming interface.
	Class                          uint32
	Revision                       uint8
	SubsystemVendorID, SubsystemID uint16

	BARs [6]BAR
	MSIX MSIX
	MSI  irq.MSI // sends MSI-X messages; needed only with MSIX

	// InterruptPin is 0 for none, 1 for INTA# to 4 for INTD#; Line is the wire
	// behind it. InterruptLine is the initial value of the register of that name,
	// which only the guest's software interprets.
	InterruptPin  uint8
	Line          irq.Line
	InterruptLine uint8

	// Capabilities are listed in this order, MSI-X after them.
	Capabilities []Capability
}

// Capability is one entry of the capability list.
type Capability struct {
	ID   uint8
	Body []byte // what follows the ID and the pointer to the next entry
	Mask []byte // bits of Body that the guest can write; what it lacks is read-only
	// Window, if not nil, makes the last four bytes of Body a window on something
	// else.
	Window Window
}

// Window is behind the last four bytes of a capability. Calls come from several
// vCPU threads at once, without a lock held.
type Window interface {
	// WindowRead is called before the guest reads any of the four bytes. body is a
	// copy of the capability's Body; what is put into its last four bytes is what
	// the guest reads.
	WindowRead(body []byte)
	// WindowWrite is called after the guest has written any of the four bytes.
	WindowWrite(body []byte)
}

// windowSize is the size of a capability's window in bytes.
const windowSize = 4

type placedWindow struct {
	Window
	body, size int // offset in configuration space and size of the capability's body
}

func (w *placedWindow) data() int { return w.body + w.size - windowSize }

// Function is a PCI function.
type Function struct {
	root    *Root // nil until it is added
	space   space
	initial [spaceSize]byte // of space.data, for a reset
	bars    []*bar
	byIndex [6]*bar
	windows []placedWindow
	intx    intx
	msix    *msix // nil: none
	msixCap int   // offset of the capability
}

// NewFunction makes a function from its description.
func NewFunction(c Config) (*Function, error) {
	f := &Function{intx: intx{line: c.Line}}
	f.header(c)
	if c.InterruptPin > 4 || c.InterruptPin != 0 && c.Line == nil {
		return nil, fmt.Errorf("interrupt pin %d: 1 to 4 with a line, or 0", c.InterruptPin)
	}
	caps := c.Capabilities
	if c.MSIX.Vectors != 0 {
		if err := f.addMSIX(&c); err != nil {
			return nil, err
		}
		caps = append(caps[:len(caps):len(caps)], f.msix.capability(c.MSIX.BAR))
	}
	if err := f.addBARs(c.BARs); err != nil {
		return nil, err
	}
	if err := f.addCapabilities(caps); err != nil {
		return nil, err
	}
	f.initial = f.space.data
	return f, nil
}

func (f *Function) header(c Config) {
	s := &f.space
	s.set16(regVendorID, c.VendorID)
	s.set16(regDeviceID, c.DeviceID)
	s.mask16(regCommand, commandMask)
	s.set32(regRevision, c.Class<<8|uint32(c.Revision))
	s.set16(regSubVendorID, c.SubsystemVendorID)
	s.set16(regSubsystemID, c.SubsystemID)
	s.data[regInterruptPin] = c.InterruptPin
	s.data[regInterruptLine] = c.InterruptLine
	s.mask[regInterruptLine] = 0xff
}

func (f *Function) addMSIX(c *Config) (err error) {
	if c.MSIX.BAR < 0 || c.MSIX.BAR >= len(c.BARs) || c.BARs[c.MSIX.BAR].Handler != nil {
		return fmt.Errorf("MSI-X needs one of BAR 0 to 5 for itself, not BAR %d", c.MSIX.BAR)
	}
	if f.msix, err = newMSIX(c.MSIX, c.MSI); err != nil {
		return err
	}
	b := &c.BARs[c.MSIX.BAR]
	b.Size, b.Handler = f.msix.barSize(), f.msix
	return nil
}

func (f *Function) addBARs(bars [6]BAR) error {
	for i := 0; i < len(bars); i++ {
		if bars[i].Size == 0 {
			continue
		}
		b, err := newBAR(i, bars[i])
		if err != nil {
			return err
		}
		b.layout(&f.space)
		f.bars = append(f.bars, b)
		f.byIndex[i] = b
		if b.Kind == Mem64 {
			i++
			if bars[i].Size != 0 {
				return fmt.Errorf("BAR %d is the upper half of BAR %d", i, i-1)
			}
		}
	}
	return nil
}

// addCapabilities links the capabilities from the end of the header upwards,
// each at a multiple of four (PCI 3.0, 6.7).
func (f *Function) addCapabilities(caps []Capability) error {
	s, link, at := &f.space, regCapabilities, headerSize
	for _, c := range caps {
		size := 2 + len(c.Body)
		if at+size > spaceSize {
			return errors.New("the capabilities don't fit into configuration space")
		}
		if len(c.Mask) > len(c.Body) || c.Window != nil && len(c.Body) < windowSize {
			return fmt.Errorf("capability %#x is shorter than its mask or window", c.ID)
		}
		s.data[link] = byte(at)
		s.data[at] = c.ID
		copy(s.data[at+2:], c.Body)
		copy(s.mask[at+2:], c.Mask)
		if c.Window != nil {
			f.windows = append(f.windows, placedWindow{c.Window, at + 2, len(c.Body)})
		}
		if c.ID == capMSIX {
			f.msixCap = at
		}
		link, at = at+1, (at+size+3)&^3
	}
	if len(caps) > 0 {
		s.set16(regStatus, statusCapabilities)
	}
	return nil
}

// Vectors is the number of MSI-X vectors.
func (f *Function) Vectors() int {
	if f.msix == nil {
		return 0
	}
	return len(f.msix.vectors)
}

// Vector is MSI-X vector i, which is below Vectors.
func (f *Function) Vector(i int) *Vector { return &f.msix.vectors[i] }

// MSIXEnabled tells whether the guest has switched MSI-X on, and INTx so off.
func (f *Function) MSIXEnabled() bool { return f.msix != nil && f.msix.enabled.Load() }

// SetINTx asserts or releases the function's interrupt pin. The line follows
// unless the guest disabled INTx or uses MSI-X.
func (f *Function) SetINTx(level bool) { f.intx.set(level) }

// ReadBAR reads len(p) bytes at off of a BAR, decoded or not. It reports false,
// and does nothing, if the bytes are not all inside the BAR.
func (f *Function) ReadBAR(bar int, off uint64, p []byte) bool {
	b := f.barFor(bar, off, len(p))
	if b == nil {
		return false
	}
	b.Handler.BusRead(off, p)
	return true
}

// WriteBAR is the write that goes with ReadBAR.
func (f *Function) WriteBAR(bar int, off uint64, p []byte) bool {
	b := f.barFor(bar, off, len(p))
	if b == nil {
		return false
	}
	b.Handler.BusWrite(off, p)
	return true
}

func (f *Function) barFor(bar int, off uint64, n int) *bar {
	if bar < 0 || bar >= len(f.byIndex) || f.byIndex[bar] == nil {
		return nil
	}
	b := f.byIndex[bar]
	if off > b.Size || uint64(n) > b.Size-off {
		return nil
	}
	return b
}

// Reset puts the function into the state it had when it was added: BARs at
// their first addresses and not decoded, MSI-X and INTx off.
func (f *Function) Reset() {
	if f.root == nil {
		return
	}
	f.root.mu.Lock()
	defer f.root.mu.Unlock()
	f.reset()
	f.root.decode()
}

func (f *Function) reset() {
	f.space.data = f.initial
	for _, b := range f.bars {
		b.settle()
	}
	if f.msix != nil {
		f.msix.reset()
	}
	f.intx.reset()
}

// read is a read of configuration space. The Root's lock is held.
func (f *Function) read(off int, p []byte) {
	f.space.read(off, p)
	if overlaps(off, len(p), regStatus, 1) && f.intx.asserted() {
		p[regStatus-off] |= statusInterrupt
	}
}

// write is a write to configuration space. The Root's lock is held.
func (f *Function) write(off int, p []byte) {
	s := &f.space
	var old [6]uint64
	for i, b := range f.bars {
		old[i] = b.address(s)
	}
	s.write(off, p)
	moved := overlaps(off, len(p), regCommand, 2)
	for i, b := range f.bars {
		if overlaps(off, len(p), b.reg, b.width()) {
			b.written(off, len(p), old[i], b.address(s))
			moved = true
		}
		if !b.enabled(s) {
			b.settle()
		}
	}
	f.interruptControl()
	if moved {
		f.root.decode()
	}
}

// interruptControl applies the registers that steer interrupts.
func (f *Function) interruptControl() {
	command := f.space.get16(regCommand)
	if f.msix != nil {
		f.msix.control(f.space.get16(f.msixCap+msixControl), command&commandMaster != 0)
	}
	f.intx.block(command&commandINTxDisable != 0 || f.MSIXEnabled())
}

// windowAt returns the window that a configuration access touches, and a copy
// of its capability's body.
func (f *Function) windowAt(off, n int) (*placedWindow, []byte) {
	for i := range f.windows {
		w := &f.windows[i]
		if overlaps(off, n, w.data(), windowSize) {
			return w, append([]byte(nil), f.space.data[w.body:w.body+w.size]...)
		}
	}
	return nil, nil
}
