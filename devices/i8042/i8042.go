// SPDX-License-Identifier: Apache-2.0

// Package i8042 is a PC's keyboard controller with nothing plugged in. Guests
// use it to reset the machine and to move the A20 gate. It answers every command
// at once, so that a driver that probes it finds out without waiting for time-outs
// that there is neither keyboard nor mouse. Commands are those of the IBM PS/2
// technical reference, "Keyboard and Auxiliary Device Controller".
package i8042

import "sync"

// The I/O ports, one each.
const (
	DataPort    = 0x60
	CommandPort = 0x64 // the status register when read
	PortAPort   = 0x92
)

// Status register bits.
const (
	statusOBF     = 1 << 0 // output buffer full: the guest can read
	statusSYS     = 1 << 2 // system flag: self-test passed
	statusCommand = 1 << 3 // the last write was a command
	statusEnabled = 1 << 4 // the keyboard is not locked
	statusTimeout = 1 << 6 // the keyboard has not answered
)

// Controller commands.
const (
	cmdReadByte0    = 0x20 // to 0x3f: read internal RAM; 0 is the command byte
	cmdWriteByte0   = 0x60 // to 0x7f: write internal RAM
	cmdDisableAux   = 0xa7
	cmdEnableAux    = 0xa8
	cmdTestAux      = 0xa9
	cmdSelfTest     = 0xaa
	cmdTestKeyboard = 0xab
	cmdDisableKbd   = 0xad
	cmdEnableKbd    = 0xae
	cmdReadInput    = 0xc0
	cmdReadOutput   = 0xd0
	cmdWriteOutput  = 0xd1
	cmdWriteKbdBuf  = 0xd2
	cmdWriteAuxBuf  = 0xd3
	cmdWriteAux     = 0xd4
	cmdPulseOutput  = 0xf0 // to 0xff: pulse the output port's bits that are 0
)

// Command byte bits.
const (
	ctrSYS         = 1 << 2
	ctrKbdDisabled = 1 << 4
	ctrAuxDisabled = 1 << 5
	ctrTranslate   = 1 << 6

	ctrReset = ctrSYS | ctrKbdDisabled | ctrAuxDisabled | ctrTranslate
)

// Output port bits.
const (
	outNotReset = 1 << 0
	outA20      = 1 << 1
)

const (
	selfTestPassed = 0x55
	lineStuck      = 0x01 // interface test: the clock line is stuck low
	noAnswer       = 0xfe // what the controller puts for a device that is silent
	inputPort      = 0x80 // the keyboard is not inhibited
)

// Controller is the keyboard controller and system control port A.
type Controller struct {
	onReset func()

	mu      sync.Mutex
	ram     [32]byte // 0 is the command byte
	out     byte     // output buffer
	status  byte     // OBF, command and time-out bits
	output  byte     // output port
	command byte     // waits for its data byte; 0: none
}

// New makes a controller. onReset runs on the guest's CPU thread when the guest
// asks for a reset.
func New(onReset func()) *Controller {
	c := &Controller{onReset: onReset}
	c.Reset()
	return c
}

// Reset is a reset of the machine. The A20 gate is open afterwards: there is no
// firmware here that would open it for the kernel.
func (c *Controller) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ram = [32]byte{ctrReset}
	c.out, c.status, c.command = 0, 0, 0
	c.output = outNotReset | outA20
}

// A20 tells whether the A20 gate is open. KVM has no A20 mask: the bit is only
// remembered for the guest.
func (c *Controller) A20() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.output&outA20 != 0
}

// Port is a one-byte window of the controller, a bus.Handler.
type Port struct {
	read  func() byte
	write func(v byte) (reset bool)
	c     *Controller
}

// Data is the window at DataPort.
func (c *Controller) Data() *Port { return &Port{c.readData, c.writeData, c} }

// Command is the window at CommandPort.
func (c *Controller) Command() *Port { return &Port{c.readStatus, c.writeCommand, c} }

// PortA is system control port A, the window at PortAPort: A20 and fast reset.
func (c *Controller) PortA() *Port { return &Port{c.readPortA, c.writePortA, c} }

// BusRead reads the port.
func (p *Port) BusRead(off uint64, b []byte) {
	for i := range b {
		b[i] = 0xff
	}
	if off != 0 || len(b) == 0 {
		return
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	b[0] = p.read()
}

// BusWrite writes the port.
func (p *Port) BusWrite(off uint64, b []byte) {
	if off != 0 || len(b) == 0 {
		return
	}
	p.c.mu.Lock()
	reset := p.write(b[0])
	p.c.mu.Unlock()
	if reset {
		p.c.onReset()
	}
}

func (c *Controller) readStatus() byte {
	return c.status | statusEnabled | c.ram[0]&statusSYS
}

func (c *Controller) readData() byte {
	c.status &^= statusOBF | statusTimeout
	return c.out
}

// put fills the output buffer; extra are status bits that come with the byte.
func (c *Controller) put(v, extra byte) {
	c.out = v
	c.status = c.status&^statusTimeout | statusOBF | extra
}

func (c *Controller) writeCommand(v byte) (reset bool) {
	c.status |= statusCommand
	c.command = 0
	switch {
	case v&^0x1f == cmdReadByte0:
		c.put(c.ram[v&0x1f], 0)
	case v&^0x1f == cmdWriteByte0:
		c.command = v
	case v >= cmdPulseOutput:
		return v&outNotReset == 0
	default:
		c.execute(v)
	}
	return false
}

func (c *Controller) execute(v byte) {
	switch v {
	case cmdDisableAux:
		c.ram[0] |= ctrAuxDisabled
	case cmdEnableAux:
		c.ram[0] &^= ctrAuxDisabled
	case cmdTestAux, cmdTestKeyboard:
		c.put(lineStuck, 0)
	case cmdSelfTest:
		c.ram[0] = ctrReset
		c.put(selfTestPassed, 0)
	case cmdDisableKbd:
		c.ram[0] |= ctrKbdDisabled
	case cmdEnableKbd:
		c.ram[0] &^= ctrKbdDisabled
	case cmdReadInput:
		c.put(inputPort, 0)
	case cmdReadOutput:
		c.put(c.output, 0)
	case cmdWriteOutput, cmdWriteKbdBuf, cmdWriteAuxBuf, cmdWriteAux:
		c.command = v
	}
}

// writeData is the data byte of a command, or a byte for the keyboard.
func (c *Controller) writeData(v byte) (reset bool) {
	c.status &^= statusCommand
	cmd := c.command
	c.command = 0
	switch {
	case cmd&^0x1f == cmdWriteByte0:
		c.ram[cmd&0x1f] = v
	case cmd == cmdWriteOutput:
		c.output = v | outNotReset
		return v&outNotReset == 0
	case cmd == cmdWriteKbdBuf, cmd == cmdWriteAuxBuf:
		// Without an auxiliary device the byte comes back as the keyboard's, by
		// which a driver sees that there is no auxiliary port.
		c.put(v, 0)
	default: // to the keyboard or the mouse: neither answers
		c.put(noAnswer, statusTimeout)
	}
	return false
}

// System control port A: bit 0 resets when it goes on, bit 1 is A20.
const (
	portAReset = 1 << 0
	portAA20   = 1 << 1
)

func (c *Controller) readPortA() byte {
	if c.output&outA20 != 0 {
		return portAA20
	}
	return 0
}

func (c *Controller) writePortA(v byte) (reset bool) {
	c.output &^= outA20
	if v&portAA20 != 0 {
		c.output |= outA20
	}
	return v&portAReset != 0
}
