// SPDX-License-Identifier: Apache-2.0

package rtc

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// level is a line that counts rising edges.
type level struct {
	mu    sync.Mutex
	on    bool
	edges int
}

func (l *level) Set(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if on && !l.on {
		l.edges++
	}
	l.on = on
}

func (l *level) state() (on bool, edges int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.on, l.edges
}

// guest is what a driver does with the two ports.
type guest struct{ *RTC }

func (g guest) get(reg byte) byte {
	g.BusWrite(0, []byte{reg})
	var b [1]byte
	g.BusRead(1, b[:])
	return b[0]
}

func (g guest) set(reg, v byte) {
	g.BusWrite(0, []byte{reg})
	g.BusWrite(1, []byte{v})
}

// timeRegisters in the order second to year, then century.
var timeRegisters = []byte{0, 2, 4, 6, 7, 8, 9, 0x32}

func (g guest) time() (v [8]byte) {
	for i, r := range timeRegisters {
		v[i] = g.get(r)
	}
	return v
}

// clock is a host's clock for tests that need no timers.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func newGuest(t time.Time) (guest, *clock) {
	c := &clock{t}
	return guest{New(Config{Now: c.now})}, c
}

func date(y int, mo time.Month, d, h, m, s int) time.Time {
	return time.Date(y, mo, d, h, m, s, 0, time.UTC)
}

func TestFormats(t *testing.T) {
	for _, c := range []struct {
		name string
		b    byte
		at   time.Time
		want [8]byte
	}{
		{"BCD, 24 hours", 0x02, date(2026, 11, 30, 21, 59, 48), [8]byte{0x48, 0x59, 0x21, 2, 0x30, 0x11, 0x26, 0x20}},
		{"binary, 24 hours", 0x06, date(2026, 11, 30, 21, 59, 48), [8]byte{48, 59, 21, 2, 30, 11, 26, 0x20}},
		{"BCD, 12 hours, evening", 0x00, date(1999, 12, 31, 23, 0, 1), [8]byte{0x01, 0, 0x91, 6, 0x31, 0x12, 0x99, 0x19}},
		{"binary, 12 hours, evening", 0x04, date(1999, 12, 31, 23, 0, 1), [8]byte{1, 0, 0x8b, 6, 31, 12, 99, 0x19}},
		{"midnight is 12 am", 0x00, date(2000, 2, 29, 0, 0, 0), [8]byte{0, 0, 0x12, 3, 0x29, 0x02, 0, 0x20}},
		{"noon is 12 pm", 0x00, date(2000, 2, 29, 12, 0, 0), [8]byte{0, 0, 0x92, 3, 0x29, 0x02, 0, 0x20}},
		{"a Sunday is 1", 0x02, date(2026, 11, 29, 0, 0, 0), [8]byte{0, 0, 0, 1, 0x29, 0x11, 0x26, 0x20}},
	} {
		g, _ := newGuest(c.at)
		g.set(regB, c.b)
		if got := g.time(); got != c.want {
			t.Errorf("%s: % x, want % x", c.name, got, c.want)
		}
	}
}

func TestHostTimeZoneDoesNotMatter(t *testing.T) {
	g, _ := newGuest(time.Date(2026, 7, 1, 1, 30, 0, 0, time.FixedZone("", 2*3600)))
	if got := g.time(); got != [8]byte{0, 0x30, 0x23, 3, 0x30, 0x06, 0x26, 0x20} {
		t.Errorf("% x, want UTC", got)
	}
}

// TestUpdateInProgress: in the time a guest has after it saw UIP clear, the
// registers do not change.
func TestUpdateInProgress(t *testing.T) {
	for _, c := range []struct {
		before time.Duration // the next second
		want   bool
	}{
		{time.Second, false}, {500 * time.Millisecond, false}, {2229 * time.Microsecond, false},
		{2228 * time.Microsecond, true}, {time.Millisecond, true}, {time.Nanosecond, true},
	} {
		g, clk := newGuest(date(2026, 1, 1, 0, 0, 9))
		clk.t = clk.t.Add(time.Second - c.before)
		if got := g.get(regA)&aUIP != 0; got != c.want {
			t.Errorf("%v before the second: UIP %v, want %v", c.before, got, c.want)
		}
		if g.get(regSeconds) != 0x09 {
			t.Error("the second has changed early")
		}
	}
	g, clk := newGuest(date(2026, 1, 1, 0, 0, 9))
	clk.t = clk.t.Add(time.Second - time.Millisecond)
	g.set(regB, b24Hour|bSET)
	if g.get(regA)&aUIP != 0 {
		t.Error("UIP is set while SET stops updates")
	}
}

// setTime sets the time as Linux does: SET, divider in reset, registers, and
// both back.
func (g guest) linuxSet(v [8]byte) {
	b, a := g.get(regB), g.get(regA)
	g.set(regB, b|bSET)
	g.set(regA, a|0x70)
	for i, r := range timeRegisters {
		if r != regWeekday {
			g.set(r, v[i])
		}
	}
	g.set(regB, b)
	g.set(regA, a&^aUIP)
}

// TestSetTime: half a second after the divider is released comes the first
// update; from then on time goes with the host's.
func TestSetTime(t *testing.T) {
	g, clk := newGuest(date(2026, 11, 30, 21, 0, 0).Add(123 * time.Millisecond))
	g.linuxSet([8]byte{0x58, 0x59, 0x23, 0, 0x28, 0x02, 0x28, 0x20})
	for _, c := range []struct {
		after time.Duration
		want  [8]byte
	}{
		{0, [8]byte{0x58, 0x59, 0x23, 2, 0x28, 0x02, 0x28, 0x20}},
		{499 * time.Millisecond, [8]byte{0x58, 0x59, 0x23, 2, 0x28, 0x02, 0x28, 0x20}},
		{time.Millisecond, [8]byte{0x59, 0x59, 0x23, 2, 0x28, 0x02, 0x28, 0x20}},
		{time.Second, [8]byte{0, 0, 0, 3, 0x29, 0x02, 0x28, 0x20}}, // a leap year
		{24 * time.Hour, [8]byte{0, 0, 0, 4, 0x01, 0x03, 0x28, 0x20}},
	} {
		clk.t = clk.t.Add(c.after)
		if got := g.time(); got != c.want {
			t.Errorf("% x, want % x", got, c.want)
		}
	}
	g.Reset()
	if got := g.get(regYear); got != 0x28 {
		t.Errorf("after a reset the year is %#x: it has a battery", got)
	}
}

func TestTimeStandsWhileSet(t *testing.T) {
	g, clk := newGuest(date(2026, 1, 1, 0, 0, 0))
	g.set(regB, b24Hour|bSET|bUIE)
	if got := g.get(regB); got != b24Hour|bSET {
		t.Errorf("B %#x: SET clears UIE", got)
	}
	clk.t = clk.t.Add(time.Hour)
	if got := g.get(regHours); got != 0 {
		t.Errorf("hour %#x while SET", got)
	}
	if got := g.get(regC); got != 0 {
		t.Errorf("C %#x while SET", got)
	}
	g.set(regB, b24Hour)
	clk.t = clk.t.Add(time.Second)
	if got := g.time(); got[0] != 1 || got[2] != 0 {
		t.Errorf("% x after SET, want one second on", got)
	}
}

// TestSetOneRegister: without SET too a written register counts at once.
func TestSetOneRegister(t *testing.T) {
	g, clk := newGuest(date(2026, 1, 1, 10, 20, 30).Add(700 * time.Millisecond))
	g.set(regMinutes, 0x55)
	clk.t = clk.t.Add(300 * time.Millisecond)
	if got := g.time(); got != [8]byte{0x31, 0x55, 0x10, 5, 1, 1, 0x26, 0x20} {
		t.Errorf("% x", got)
	}
}

func TestFlagsWithoutInterrupts(t *testing.T) {
	g, clk := newGuest(date(2026, 1, 1, 0, 0, 0))
	g.set(regSecondsAlarm, 0x05)
	g.set(regMinutesAlarm, anyTime)
	g.set(regHoursAlarm, 0xff)
	if got := g.get(regC); got != 0 {
		t.Errorf("C %#x at first", got)
	}
	clk.t = clk.t.Add(4 * time.Second)
	if got := g.get(regC); got != cUF|cPF {
		t.Errorf("C %#x after four seconds, want UF and PF", got)
	}
	clk.t = clk.t.Add(time.Second)
	if got := g.get(regC); got != cUF|cAF|cPF {
		t.Errorf("C %#x at the alarm, want AF too", got)
	}
	if got := g.get(regC); got != 0 {
		t.Errorf("C %#x: reading has not cleared it", got)
	}
	clk.t = clk.t.Add(-time.Hour)
	if got := g.get(regC); got != 0 {
		t.Errorf("C %#x after the host's clock was set back", got)
	}
}

// run runs the clock inside a synctest bubble.
func run(t *testing.T, line *level) guest {
	g := guest{New(Config{Line: line})}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { g.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return g
}

// TestAlarmInterrupt: a driver sets an alarm 90 seconds ahead. The bubble's time
// starts at midnight UTC, 2000-01-01.
func TestAlarmInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := &level{}
		g := run(t, line)
		g.set(regSecondsAlarm, 0x30)
		g.set(regMinutesAlarm, 0x01)
		g.set(regHoursAlarm, 0x00)
		g.set(regB, b24Hour|bAIE)
		time.Sleep(90*time.Second - time.Millisecond)
		if on, _ := line.state(); on {
			t.Error("the alarm is early")
		}
		time.Sleep(2 * time.Millisecond)
		if on, _ := line.state(); !on {
			t.Error("there is no alarm")
		}
		if got := g.get(regC); got&(cIRQF|cAF) != cIRQF|cAF {
			t.Errorf("C %#x", got)
		}
		if on, _ := line.state(); on {
			t.Error("reading C has not lowered the line")
		}
		time.Sleep(24*time.Hour - time.Second)
		if on, edges := line.state(); on || edges != 1 {
			t.Errorf("line %v, %d edges a second before the next day's alarm", on, edges)
		}
		time.Sleep(2 * time.Second)
		if on, edges := line.state(); !on || edges != 2 {
			t.Errorf("line %v, %d edges the next day", on, edges)
		}
		g.Reset()
		if on, _ := line.state(); on || g.get(regB) != b24Hour {
			t.Errorf("after a reset: line %v, B %#x", on, g.get(regB))
		}
	})
}

func TestUpdateAndPeriodicInterrupts(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b byte
		want int // in ten seconds
	}{
		{"update ended", divider32768, bUIE, 10},
		{"2 Hz", divider32768 | 15, bPIE, 20},
		{"64 Hz", divider32768 | 10, bPIE, 640},
		{"rate 1 is 256 Hz", divider32768 | 1, bPIE, 2560},
		{"rate 0 is off", divider32768, bPIE, 0},
		{"divider in reset", 0x66, bPIE | bUIE, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				line := &level{}
				g := run(t, line)
				g.set(regA, c.a)
				g.get(regC)
				g.set(regB, b24Hour|c.b)
				end := time.Now().Add(10*time.Second + time.Millisecond)
				for n := 0; time.Now().Before(end); time.Sleep(time.Millisecond / 2) {
					synctest.Wait()
					on, edges := line.state()
					if on && edges > n {
						n = edges
						if g.get(regC)&cIRQF == 0 {
							t.Error("the line is high without IRQF")
						}
					}
				}
				if _, edges := line.state(); edges != c.want {
					t.Errorf("%d interrupts, want %d", edges, c.want)
				}
			})
		})
	}
}

// TestNoReaderNoLoad: while a flag waits to be read, nothing runs.
func TestNoReaderNoLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := &level{}
		g := run(t, line)
		g.set(regA, divider32768|3)
		g.set(regB, b24Hour|bPIE|bUIE|bAIE)
		start := time.Now()
		time.Sleep(30 * 24 * time.Hour)
		if _, edges := line.state(); edges != 1 {
			t.Errorf("%d edges since %v", edges, start)
		}
	})
}

func TestMemorySize(t *testing.T) {
	for _, c := range []struct {
		below, above uint64
		want         map[byte]byte
	}{
		{512 << 20, 0, map[byte]byte{0x15: 0x80, 0x16: 0x02, 0x17: 0xff, 0x18: 0xff, 0x30: 0xff, 0x31: 0xff, 0x34: 0x00, 0x35: 0x1f, 0x5b: 0}},
		{3 << 30, 5 << 30, map[byte]byte{0x34: 0x00, 0x35: 0xbf, 0x5b: 0x00, 0x5c: 0x40, 0x5d: 0x01}},
		{32 << 20, 0, map[byte]byte{0x17: 0x00, 0x18: 0x7c, 0x34: 0x00, 0x35: 0x01}},
		{0, 0, map[byte]byte{0x15: 0, 0x16: 0, 0x17: 0, 0x34: 0}},
	} {
		g := guest{New(Config{MemoryBelow4G: c.below, MemoryAbove4G: c.above})}
		for reg, want := range c.want {
			if got := g.get(reg); got != want {
				t.Errorf("%d+%d bytes: CMOS %#x is %#x, want %#x", c.below, c.above, reg, got, want)
			}
		}
	}
}

func TestPorts(t *testing.T) {
	g, _ := newGuest(date(2026, 1, 1, 0, 0, 0))
	g.set(0x40, 0x5a)
	g.set(0x80|0x41, 0xa5) // bit 7 of the index masks the NMI
	if a, b := g.get(0x40), g.get(0x41); a != 0x5a || b != 0xa5 {
		t.Errorf("memory %#x %#x", a, b)
	}
	g.set(regC, 0xff)
	g.set(regD, 0)
	if c, d := g.get(regC), g.get(regD); c != 0 || d != dVRT {
		t.Errorf("C %#x, D %#x: they are read-only", c, d)
	}
	g.BusWrite(0, []byte{0x40, 0x11}) // a word: index and data at once
	p := make([]byte, 2)
	g.BusRead(0, p)
	if p[0] != 0xff || p[1] != 0x11 {
		t.Errorf("% x", p)
	}
}

// TestReadsAreTheTime: in every format, after any setting, what is read is the
// guest's time.
func TestReadsAreTheTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "unix"), rapid.Int64Range(0, 999999999).Draw(t, "ns")).UTC()
		g, clk := newGuest(at)
		g.set(regB, rapid.SampledFrom([]byte{0, 2, 4, 6}).Draw(t, "B"))
		shown := at
		if rapid.Bool().Draw(t, "set") {
			to := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "to"), 0).UTC()
			other, _ := newGuest(to)
			other.set(regB, g.get(regB))
			g.linuxSet(other.time())
			shown = to.Add(time.Second / 2)
		}
		d := time.Duration(rapid.Int64Range(0, 1e17).Draw(t, "later"))
		clk.t = clk.t.Add(d)
		shown = shown.Add(d)
		want, _ := newGuest(shown)
		want.set(regB, g.get(regB))
		if g.time() != want.time() {
			t.Fatalf("% x, want % x (%v)", g.time(), want.time(), shown)
		}
	})
}

// TestNextAlarmProperty compares with a search second by second.
func TestNextAlarmProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, _ := newGuest(date(2026, 1, 1, 0, 0, 0))
		field := func(name string, limit int) byte {
			return rapid.OneOf(rapid.Map(rapid.IntRange(0, limit), bcd), rapid.Byte()).Draw(t, name)
		}
		s, m, h := field("s", 59), field("m", 59), field("h", 23)
		g.set(regSecondsAlarm, s)
		g.set(regMinutesAlarm, m)
		g.set(regHoursAlarm, h)
		from := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "from"), 5).UTC()
		got, ok := g.nextAlarm(from)
		match := func(alarm byte, v int) bool { return alarm >= 0xc0 || alarm == bcd(v) }
		for i := range 86400 {
			at := time.Unix(from.Unix()+1+int64(i), 0).UTC()
			if match(s, at.Second()) && match(m, at.Minute()) && match(h, at.Hour()) {
				if !ok || !got.Equal(at) {
					t.Fatalf("got %v %v, want %v", got, ok, at)
				}
				return
			}
		}
		if ok {
			t.Fatalf("got %v, but nothing matches", got)
		}
	})
}

// FuzzAccess: any sequence of accesses and of passing time leaves a clock that
// answers, and a line that is what register C says.
func FuzzAccess(f *testing.F) {
	f.Add([]byte{0x8b, 0x72, 0x8a, 0x2f, 1, 200, 0x0c, 0})
	f.Add([]byte{0x8b, 0x80, 0xb2, 0xff, 0x89, 0xff, 0x88, 0xff, 0x87, 0xff, 0x8b, 0x02, 1, 1})
	f.Add([]byte{0xb2, 0x00, 0x89, 0x00, 0x88, 0x00, 0x87, 0x00, 0x8b, 0x70})
	f.Fuzz(func(t *testing.T, ops []byte) {
		line := &level{}
		clk := &clock{date(2026, 11, 30, 23, 59, 59)}
		g := guest{New(Config{Line: line, Now: clk.now})}
		for ; len(ops) >= 2; ops = ops[2:] {
			if ops[0]&0x80 != 0 {
				g.set(ops[0]&0x7f, ops[1])
			} else {
				g.get(ops[0])
				clk.t = clk.t.Add(time.Duration(ops[1]) * 123456789 * time.Duration(ops[0]))
			}
			if d, ok := g.untilEvent(); ok && d <= 0 {
				t.Fatalf("the next event is %v ahead", d)
			}
			if on, _ := line.state(); on != (g.flags()&cIRQF != 0) {
				t.Fatalf("line %v, C %#x", on, g.flags())
			}
		}
	})
}
