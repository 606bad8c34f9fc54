// SPDX-License-Identifier: Apache-2.0

package rtc

import "time"

// Register numbers.
const (
	regSeconds      = 0
	regSecondsAlarm = 1
	regMinutes      = 2
	regMinutesAlarm = 3
	regHours        = 4
	regHoursAlarm   = 5
	regWeekday      = 6 // 1 is Sunday
	regDay          = 7
	regMonth        = 8
	regYear         = 9 // in the century
	regA            = 10
	regB            = 11
	regC            = 12
	regD            = 13
)

// Register A: update in progress, divider, rate of the periodic interrupt.
const (
	aUIP         = 1 << 7
	aDivider     = 0x70
	aRate        = 0x0f
	divider32768 = 0x20 // runs, with a 32768 Hz crystal
	dividerReset = 0x60 // 0x60 and 0x70 hold the divider in reset
	rate1024     = 0x06 // 1024 Hz, what a PC's firmware sets
)

// Register B.
const (
	b24Hour = 1 << 1
	bBinary = 1 << 2 // DM: binary, not BCD
	bSQWE   = 1 << 3
	bUIE    = 1 << 4
	bAIE    = 1 << 5
	bPIE    = 1 << 6
	bSET    = 1 << 7
)

// Register C: interrupt flags, at the places of their enables in B.
const (
	cUF    = 1 << 4
	cAF    = 1 << 5
	cPF    = 1 << 6
	cIRQF  = 1 << 7
	cFlags = cUF | cAF | cPF
)

const dVRT = 1 << 7 // the battery is good

const (
	hourPM = 1 << 7 // in 12-hour mode
	// anyTime and above in an alarm register matches every value.
	anyTime = 0xc0
)

// updateCycle is how long before the end of a second UIP is set: 244 µs of
// notice and 1984 µs of update (data sheet, "Update Cycle", 32768 Hz). A guest
// that sees UIP clear has at least the notice's time to read.
const updateCycle = (244 + 1984) * time.Microsecond

// running tells whether time goes on: SET and a divider in reset stop it.
func (r *RTC) running() bool {
	return r.ram[regB]&bSET == 0 && r.ram[regA]&dividerReset != dividerReset
}

func isTime(reg byte) bool {
	switch reg {
	case regSecondsAlarm, regMinutesAlarm, regHoursAlarm:
		return false
	}
	return reg <= regYear || reg == Century
}

func (r *RTC) read() byte {
	switch {
	case isTime(r.index):
		r.refresh()
	case r.index == regA:
		return r.readA()
	case r.index == regC:
		return r.readC()
	}
	return r.ram[r.index]
}

func (r *RTC) readA() byte {
	v := r.ram[regA]
	if r.running() && time.Duration(r.now().Nanosecond()) >= time.Second-updateCycle {
		v |= aUIP
	}
	return v
}

// readC: reading clears the flags.
func (r *RTC) readC() byte {
	r.account()
	v := r.flags()
	r.ram[regC] = 0
	r.update()
	r.rearm()
	return v
}

// flags is register C: IRQF is the or of the enabled flags.
func (r *RTC) flags() byte {
	v := r.ram[regC]
	if v&r.ram[regB]&cFlags != 0 {
		v |= cIRQF
	}
	return v
}

// update sets the line to what the registers say.
func (r *RTC) update() {
	level := r.flags()&cIRQF != 0
	if level == r.line {
		return
	}
	r.line = level
	if r.cfg.Line != nil {
		r.cfg.Line.Set(level)
	}
}

func (r *RTC) write(v byte) {
	r.account() // with the settings as they were until now
	switch i := r.index; {
	case isTime(i):
		r.refresh()
		r.ram[i] = v
		r.setTime(time.Duration(r.now().Nanosecond()))
	case i == regA:
		r.writeA(v)
	case i == regB:
		r.writeB(v)
	case i == regC, i == regD: // read-only
	default:
		r.ram[i] = v
	}
	r.update()
	r.rearm()
}

// writeA: when the divider leaves reset, the first update comes half a second
// later (data sheet, "Divider Control").
func (r *RTC) writeA(v byte) {
	r.refresh()
	was := r.running()
	r.ram[regA] = v &^ aUIP
	if !was {
		r.setTime(time.Second / 2)
	}
}

// writeB: SET stops the time registers; they go on from what the guest has
// written. UIE is cleared by SET.
func (r *RTC) writeB(v byte) {
	r.refresh()
	was := r.running()
	if v&bSET != 0 {
		v &^= bUIE
	}
	r.ram[regB] = v
	if !was {
		r.setTime(time.Duration(r.now().Nanosecond()))
	}
}
