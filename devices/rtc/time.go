// SPDX-License-Identifier: Apache-2.0

package rtc

import "time"

// shift is a difference of times. A time.Duration is too short: a guest may set
// the year 9999.
type shift struct {
	seconds int64
	nanos   int64 // 0 to 999999999
}

// now is the guest's time while the clock runs.
func (r *RTC) now() time.Time {
	host := r.cfg.Now()
	return time.Unix(host.Unix()+r.shift.seconds, int64(host.Nanosecond())+r.shift.nanos).UTC()
}

// refresh brings the time registers up to date, unless the clock stands.
func (r *RTC) refresh() {
	if !r.running() {
		return
	}
	t := r.now()
	r.ram[regSeconds] = r.encode(t.Second())
	r.ram[regMinutes] = r.encode(t.Minute())
	r.ram[regHours] = r.encodeHour(t.Hour())
	r.ram[regWeekday] = r.encode(int(t.Weekday()) + 1)
	r.ram[regDay] = r.encode(t.Day())
	r.ram[regMonth] = r.encode(int(t.Month()))
	r.ram[regYear] = r.encode(t.Year() % 100)
	r.ram[Century] = bcd(t.Year() / 100 % 100)
}

// setTime makes the time registers, with this fraction of a second, the guest's
// time from now on; unless the clock stands. Values out of range carry over to
// the next register, as in time.Date. The weekday follows from the date.
func (r *RTC) setTime(fraction time.Duration) {
	if !r.running() {
		return
	}
	year := fromBCD(r.ram[Century])*100 + r.decode(r.ram[regYear])
	t := time.Date(year, time.Month(r.decode(r.ram[regMonth])), r.decode(r.ram[regDay]),
		r.decodeHour(r.ram[regHours]), r.decode(r.ram[regMinutes]), r.decode(r.ram[regSeconds]), 0, time.UTC)
	host := r.cfg.Now()
	nanos := int64(fraction) - int64(host.Nanosecond())
	r.shift = shift{t.Unix() - host.Unix(), nanos}
	if nanos < 0 {
		r.shift = shift{t.Unix() - host.Unix() - 1, nanos + int64(time.Second)}
	}
	r.last = r.now() // a jump is no update
}

func bcd(v int) byte { return byte(v/10<<4 | v%10) }

func fromBCD(v byte) int { return int(v>>4)*10 + int(v&0xf) }

// encode puts a value from 0 to 99 into the format that DM selects.
func (r *RTC) encode(v int) byte {
	if r.ram[regB]&bBinary != 0 {
		return byte(v)
	}
	return bcd(v)
}

func (r *RTC) decode(v byte) int {
	if r.ram[regB]&bBinary != 0 {
		return int(v)
	}
	return fromBCD(v)
}

// encodeHour takes an hour from 0 to 23; in 12-hour mode midnight and noon are 12.
func (r *RTC) encodeHour(h int) byte {
	if r.ram[regB]&b24Hour != 0 {
		return r.encode(h)
	}
	v := r.encode((h+11)%12 + 1)
	if h >= 12 {
		v |= hourPM
	}
	return v
}

func (r *RTC) decodeHour(v byte) int {
	if r.ram[regB]&b24Hour != 0 {
		return r.decode(v)
	}
	h := r.decode(v&^hourPM) % 12
	if v&hourPM != 0 {
		h += 12
	}
	return h
}

// account sets the flags of all that has happened since the last look.
func (r *RTC) account() {
	if !r.running() {
		return
	}
	now, last := r.now(), r.last
	r.last = now
	if now.Before(last) {
		return // the host's clock was set back
	}
	if now.Unix() > last.Unix() {
		r.ram[regC] |= cUF
		if alarm, ok := r.nextAlarm(last); ok && !alarm.After(now) {
			r.ram[regC] |= cAF
		}
	}
	if p := r.period(); p > 0 && sincePeriod(now, p) < now.Sub(last) {
		r.ram[regC] |= cPF
	}
	r.update()
}

// sincePeriod is how long ago the periodic interrupt was due: it keeps step with
// the second.
func sincePeriod(now time.Time, p time.Duration) time.Duration {
	return time.Duration(now.Nanosecond()) % p
}

// period of the periodic interrupt: rate 1 and 2 are those of 8 and 9, others
// 32768 Hz divided by 2^(rate-1) (data sheet, table 5, 32768 Hz column). 0: off.
func (r *RTC) period() time.Duration {
	rate := r.ram[regA] & aRate
	switch rate {
	case 0:
		return 0
	case 1, 2:
		rate += 7
	}
	return time.Second / (32768 >> (rate - 1))
}

// nextAlarm is the first full second after t that the alarm registers match. It
// skips hours and minutes as a whole: at most 24+60+60 steps.
func (r *RTC) nextAlarm(t time.Time) (time.Time, bool) {
	next := t.Truncate(time.Second).Add(time.Second)
	for end := next.Add(24 * time.Hour); next.Before(end); {
		switch {
		case !r.matches(regHoursAlarm, r.encodeHour(next.Hour())):
			next = next.Truncate(time.Hour).Add(time.Hour)
		case !r.matches(regMinutesAlarm, r.encode(next.Minute())):
			next = next.Truncate(time.Minute).Add(time.Minute)
		case !r.matches(regSecondsAlarm, r.encode(next.Second())):
			next = next.Add(time.Second)
		default:
			return next, true
		}
	}
	return time.Time{}, false
}

func (r *RTC) matches(reg, v byte) bool {
	return r.ram[reg] >= anyTime || r.ram[reg] == v
}

// rearm tells Run that the next event may be another one.
func (r *RTC) rearm() {
	if r.ram[regB]&(bPIE|bAIE|bUIE) == 0 {
		return
	}
	select {
	case r.armed <- struct{}{}:
	default:
	}
}

// untilEvent brings the flags up to date and returns the time to the next event
// whose interrupt is enabled and whose flag is not set yet.
func (r *RTC) untilEvent() (d time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.account()
	if !r.running() {
		return 0, false
	}
	now := r.now()
	wanted := r.ram[regB] &^ r.ram[regC]
	earliest := func(at time.Duration) {
		if !ok || at < d {
			d, ok = at, true
		}
	}
	if wanted&bUIE != 0 {
		earliest(time.Second - time.Duration(now.Nanosecond()))
	}
	if alarm, any := r.nextAlarm(now); any && wanted&bAIE != 0 {
		earliest(alarm.Sub(now))
	}
	if p := r.period(); p > 0 && wanted&bPIE != 0 {
		earliest(p - sincePeriod(now, p))
	}
	return d, ok
}
