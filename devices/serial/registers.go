// SPDX-License-Identifier: Apache-2.0

package serial

// Register offsets. With LCR.DLAB set, 0 and 1 are the divisor latch.
const (
	regData = 0 // RBR when read, THR when written; DLL
	regIER  = 1 // DLM
	regIIR  = 2 // FCR when written
	regLCR  = 3
	regMCR  = 4
	regLSR  = 5
	regMSR  = 6
	regSCR  = 7
)

// Interrupt enable register.
const (
	ierERBFI = 1 << 0 // received data available
	ierETBEI = 1 << 1 // transmitter holding register empty
	ierELSI  = 1 << 2 // receiver line status
	ierEDSSI = 1 << 3 // modem status
	ierBits  = 0x0f
)

// Interrupt identification register, in falling priority.
const (
	iirNone        = 0x01
	iirLineStatus  = 0x06
	iirData        = 0x04
	iirDataTimeout = 0x0c
	iirTHREmpty    = 0x02
	iirModemStatus = 0x00
	iirFIFO        = 0xc0 // the FIFOs are enabled
)

// FIFO control register.
const (
	fcrEnable  = 1 << 0
	fcrClearRX = 1 << 1
	fcrTrigger = 0xc0
)

const lcrDLAB = 1 << 7

// Modem control register.
const (
	mcrDTR  = 1 << 0
	mcrRTS  = 1 << 1
	mcrOUT1 = 1 << 2
	mcrOUT2 = 1 << 3
	mcrLoop = 1 << 4
	mcrBits = 0x1f
)

// Line status register.
const (
	lsrDR   = 1 << 0
	lsrOE   = 1 << 1
	lsrTHRE = 1 << 5
	lsrTEMT = 1 << 6
)

// Modem status register. The delta bits stand four below their lines.
const (
	msrTERI = 1 << 2 // the ring indicator has gone off
	msrCTS  = 1 << 4
	msrDSR  = 1 << 5
	msrRI   = 1 << 6
	msrDCD  = 1 << 7
)

// triggers are the receiver's trigger levels in bytes, by FCR bits 7:6.
var triggers = [4]int{1, 4, 8, 14}

// BusRead reads registers; a wide access reads consecutive ones.
func (u *UART) BusRead(off uint64, p []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range p {
		p[i] = u.read(off + uint64(i))
	}
}

// BusWrite writes registers; a wide access writes consecutive ones.
func (u *UART) BusWrite(off uint64, p []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, v := range p {
		u.write(off+uint64(i), v)
	}
}

func (u *UART) read(off uint64) byte {
	dlab := u.lcr&lcrDLAB != 0
	switch {
	case off == regData && dlab:
		return u.dll
	case off == regIER && dlab:
		return u.dlm
	}
	switch off {
	case regData:
		return u.readRBR()
	case regIER:
		return u.ier
	case regIIR:
		return u.readIIR()
	case regLCR:
		return u.lcr
	case regMCR:
		return u.mcr
	case regLSR:
		return u.readLSR()
	case regMSR:
		return u.readMSR()
	case regSCR:
		return u.scr
	}
	return 0xff
}

func (u *UART) write(off uint64, v byte) {
	dlab := u.lcr&lcrDLAB != 0
	switch {
	case off == regData && dlab:
		u.dll = v
		return
	case off == regIER && dlab:
		u.dlm = v
		return
	}
	switch off {
	case regData:
		u.transmit(v)
	case regIER:
		u.writeIER(v)
	case regIIR:
		u.writeFCR(v)
	case regLCR:
		u.lcr = v
	case regMCR:
		u.writeMCR(v)
	case regSCR:
		u.scr = v
	}
}

func (u *UART) readRBR() byte {
	c := u.rx.pop()
	u.update()
	u.offerSpace()
	return c
}

// readIIR: reading it resets the THR-empty interrupt if that is what it reports
// (data sheet, table "Interrupt Control Functions").
func (u *UART) readIIR() byte {
	id := u.pending()
	switch id {
	case iirTHREmpty:
		u.thrEmpty = false
		u.update()
	case iirNone: // the handler ends by itself
		u.pace.sent = 0
	}
	if u.fcr&fcrEnable != 0 {
		id |= iirFIFO
	}
	return id
}

func (u *UART) readLSR() byte {
	v := byte(lsrTHRE | lsrTEMT)
	if u.rx.n > 0 {
		v |= lsrDR
	}
	if u.overrun {
		v |= lsrOE
		u.overrun = false
		u.update()
	}
	return v
}

func (u *UART) readMSR() byte {
	v := u.modemLines() | u.msrDelta
	if u.msrDelta != 0 {
		u.msrDelta = 0
		u.update()
	}
	return v
}

// modemLines are the MSR's bits 7:4. A terminal that is always there and ready
// is connected; in loop-back mode it is the modem control outputs.
func (u *UART) modemLines() byte {
	if u.mcr&mcrLoop == 0 {
		return msrDCD | msrDSR | msrCTS
	}
	var v byte
	for _, w := range [...]struct{ out, in byte }{
		{mcrRTS, msrCTS}, {mcrDTR, msrDSR}, {mcrOUT1, msrRI}, {mcrOUT2, msrDCD},
	} {
		if u.mcr&w.out != 0 {
			v |= w.in
		}
	}
	return v
}

// transmit sends a byte. The THR is full for no time at all, but the interrupt
// goes off and on again, as a driver on an edge-triggered line expects.
func (u *UART) transmit(v byte) {
	if u.thrEmpty {
		u.thrEmpty = false
		u.update()
	}
	u.out[0] = v
	if u.mcr&mcrLoop != 0 {
		u.overrun = u.rx.push(u.out[:], u.depth()) == 0 || u.overrun
	} else if u.cfg.Out != nil {
		u.cfg.Out.Write(u.out[:]) // never fails: see Config.Out
	}
	if u.ier&ierETBEI != 0 {
		u.pace.count()
	}
	u.thrEmpty = !u.pace.held
	u.update()
}

// writeIER: enabling the THR-empty interrupt while the THR is empty raises it at
// once; that is how a driver starts to transmit.
func (u *UART) writeIER(v byte) {
	v &= ierBits
	if v&ierETBEI != 0 && u.ier&ierETBEI == 0 {
		u.thrEmpty = true
	}
	u.ier = v
	u.update()
	u.offerSpace()
}

func (u *UART) writeFCR(v byte) {
	if (v^u.fcr)&fcrEnable != 0 || v&fcrClearRX != 0 {
		u.rx.clear()
	}
	if v&fcrEnable == 0 {
		v = 0 // the other bits can be written only together with it
	}
	u.fcr = v & (fcrEnable | fcrTrigger)
	u.update()
	u.offerSpace()
}

func (u *UART) writeMCR(v byte) {
	before := u.modemLines()
	u.mcr = v & mcrBits
	after := u.modemLines()
	changed := (before ^ after) >> 4
	// Of the ring indicator only the end counts.
	if before&msrRI == 0 || after&msrRI != 0 {
		changed &^= msrTERI
	}
	u.msrDelta |= changed
	u.update()
	u.offerSpace()
}

// pending is the IIR's identification of the most urgent enabled interrupt.
func (u *UART) pending() byte {
	switch {
	case u.ier&ierELSI != 0 && u.overrun:
		return iirLineStatus
	case u.ier&ierERBFI != 0 && u.rx.n > 0:
		return u.dataID()
	case u.ier&ierETBEI != 0 && u.thrEmpty:
		return iirTHREmpty
	case u.ier&ierEDSSI != 0 && u.msrDelta != 0:
		return iirModemStatus
	}
	return iirNone
}

// dataID: below the trigger level the interrupt is the character timeout, which
// comes after four characters' time of silence; here that is no time.
func (u *UART) dataID() byte {
	if u.fcr&fcrEnable != 0 && u.rx.n < triggers[u.fcr>>6] {
		return iirDataTimeout
	}
	return iirData
}

// update sets the line to what the registers say.
func (u *UART) update() {
	level := u.pending() != iirNone
	if level == u.line {
		return
	}
	u.line = level
	if u.cfg.Line != nil {
		u.cfg.Line.Set(level)
	}
}
