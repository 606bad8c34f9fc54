// SPDX-License-Identifier: Apache-2.0

package i8042

import "testing"

type guest struct {
	*Controller
	data, command, portA *Port
	resets               int
}

func newGuest() *guest {
	g := &guest{}
	g.Controller = New(func() { g.resets++ })
	g.data, g.command, g.portA = g.Data(), g.Command(), g.PortA()
	return g
}

func in(p *Port) byte {
	var b [1]byte
	p.BusRead(0, b[:])
	return b[0]
}

func out(p *Port, v byte) { p.BusWrite(0, []byte{v}) }

// answer is what a command brings: the status afterwards and the data byte.
func (g *guest) answer(cmd byte, param ...byte) (status, data byte) {
	out(g.command, cmd)
	for _, v := range param {
		out(g.data, v)
	}
	return in(g.command), in(g.data)
}

func TestResets(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*guest)
		want int
	}{
		{"pulse of the reset line, as Linux does", func(g *guest) { out(g.command, 0xfe) }, 1},
		{"pulse of all lines", func(g *guest) { out(g.command, 0xf0) }, 1},
		{"pulse of no line", func(g *guest) { out(g.command, 0xff) }, 0},
		{"pulse of another line", func(g *guest) { out(g.command, 0xfd) }, 0},
		{"output port with reset low", func(g *guest) { g.answer(0xd1, 0xfe) }, 1},
		{"output port with reset high", func(g *guest) { g.answer(0xd1, 0xdf) }, 0},
		{"port A", func(g *guest) { out(g.portA, 0x01) }, 1},
		{"port A, A20 only", func(g *guest) { out(g.portA, 0x02) }, 0},
		{"0xfe as data", func(g *guest) { out(g.data, 0xfe) }, 0},
		{"a write that is not at the port", func(g *guest) { g.command.BusWrite(1, []byte{0xfe}) }, 0},
	} {
		g := newGuest()
		if c.do(g); g.resets != c.want {
			t.Errorf("%s: %d resets, want %d", c.name, g.resets, c.want)
		}
	}
}

func TestA20(t *testing.T) {
	g := newGuest()
	if !g.A20() || in(g.portA) != 2 {
		t.Error("the gate is closed at first")
	}
	g.answer(0xd1, 0xdd)
	if _, v := g.answer(0xd0); g.A20() || v&2 != 0 || in(g.portA) != 0 {
		t.Errorf("closed by the output port: %v, output port %#x", g.A20(), v)
	}
	out(g.portA, 2)
	if _, v := g.answer(0xd0); !g.A20() || v&2 == 0 {
		t.Errorf("opened by port A: %v, output port %#x", g.A20(), v)
	}
	out(g.portA, 0)
	if g.A20() {
		t.Error("not closed by port A")
	}
	g.Controller.Reset()
	if !g.A20() {
		t.Error("closed after a reset")
	}
}

// TestLinuxProbe goes the way of Linux's i8042 driver and checks that each step
// has its answer at once: a controller, no auxiliary port, no keyboard.
func TestLinuxProbe(t *testing.T) {
	g := newGuest()
	if s := in(g.command); s&statusOBF != 0 {
		t.Fatalf("status %#x: there is something to flush", s)
	}
	for _, c := range []struct {
		name         string
		cmd          byte
		param        []byte
		status, data byte // with OBF
	}{
		{"read the command byte", 0x20, nil, 0, ctrReset},
		{"auxiliary loop: the byte comes back as the keyboard's", 0xd3, []byte{0x5a}, 0, 0x5a},
		{"auxiliary test", 0xa9, nil, 0, 0x01},
		{"self-test", 0xaa, nil, 0, 0x55},
		{"keyboard test", 0xab, nil, 0, 0x01},
		{"read the input port", 0xc0, nil, 0, 0x80},
		{"keyboard output buffer", 0xd2, []byte{0xa5}, 0, 0xa5},
		{"a byte for the mouse", 0xd4, []byte{0xf2}, statusTimeout, 0xfe},
	} {
		status, data := g.answer(c.cmd, c.param...)
		if status&statusOBF == 0 || status&statusTimeout != c.status || data != c.data {
			t.Errorf("%s: status %#x, data %#x; want %#x", c.name, status, data, c.data)
		}
		if status&0x22 != 0 {
			t.Errorf("%s: status %#x: input buffer full or auxiliary data", c.name, status)
		}
		if s := in(g.command); s&(statusOBF|statusTimeout) != 0 {
			t.Errorf("%s: status %#x after the data was read", c.name, s)
		}
	}
	out(g.data, 0xf2) // ask the keyboard who it is
	if s, d := in(g.command), in(g.data); s&(statusOBF|statusTimeout) != statusOBF|statusTimeout || d != 0xfe {
		t.Errorf("keyboard: status %#x, data %#x; want a time-out", s, d)
	}
}

func TestCommandByte(t *testing.T) {
	g := newGuest()
	g.answer(0x60, 0x00)
	if s := in(g.command); s&statusSYS != 0 || s&statusCommand != 0 {
		t.Errorf("status %#x", s)
	}
	for _, c := range []struct{ cmd, want byte }{
		{0xa7, ctrAuxDisabled}, {0xad, ctrAuxDisabled | ctrKbdDisabled}, {0xa8, ctrKbdDisabled}, {0xae, 0},
	} {
		out(g.command, c.cmd)
		if _, v := g.answer(0x20); v != c.want {
			t.Errorf("command byte %#x after %#x, want %#x", v, c.cmd, c.want)
		}
	}
	g.answer(0x7f, 0x77)
	if _, v := g.answer(0x3f); v != 0x77 {
		t.Errorf("internal RAM %#x", v)
	}
	out(g.command, 0x60) // a command that gets another command for its data
	out(g.command, 0x20)
	out(g.data, 0xff)
	if _, v := g.answer(0x20); v != 0 {
		t.Errorf("command byte %#x: the first command was not given up", v)
	}
}

// FuzzAccess: nothing but the documented ways resets, and status stays sane.
func FuzzAccess(f *testing.F) {
	f.Add([]byte{1, 0xaa, 0, 0x60, 1, 0xfe})
	f.Add([]byte{1, 0xd1, 0, 0xfe, 2, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		g := newGuest()
		ports := []*Port{g.data, g.command, g.portA}
		for ; len(ops) >= 2; ops = ops[2:] {
			p := ports[int(ops[0]&0xf)%len(ports)]
			buf := make([]byte, 1+ops[0]>>4&7)
			buf[0] = ops[1]
			before := g.resets
			if ops[0]&0x80 != 0 {
				p.BusRead(uint64(ops[0]>>4&1), buf)
				if g.resets != before {
					t.Fatal("a read resets")
				}
			} else {
				p.BusWrite(0, buf)
			}
			if s := in(g.command); s&0xa2 != 0 {
				t.Fatalf("status %#x", s)
			}
		}
	})
}
