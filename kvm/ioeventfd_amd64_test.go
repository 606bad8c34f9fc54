// SPDX-License-Identifier: Apache-2.0

package kvm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/govmm/govmm/kvm"
	"github.com/govmm/govmm/kvm/baremetal"
)

// exitsOf runs to the end and lists what came as exits.
func exitsOf(t *testing.T, m *baremetal.Machine) []string {
	var exits []string
	runToDone(t, m, func(e kvm.Exit) {
		switch e.Reason {
		case kvm.ExitMMIO:
			exits = append(exits, fmt.Sprintf("%x", e.MMIO().Data))
		case kvm.ExitIO:
			exits = append(exits, fmt.Sprintf("%x", e.IO().Data))
		default:
			t.Fatalf("unexpected exit %v", e)
		}
	})
	return exits
}

// mmioWrites writes 7 and then 8 with 1, 2 and 4 bytes to MMIOAddr.
var mmioWrites = toMMIO +
	"\xb8\x07\x00\x00\x00" + "\x88\x07\x66\x89\x07\x89\x07" + // mov eax, 7; mov [rdi], al, ax, eax
	"\xb8\x08\x00\x00\x00" + "\x88\x07\x66\x89\x07\x89\x07"

// portWrites does the same to port 0x600.
var portWrites = "\x66\xba\x00\x06" +
	"\xb8\x07\x00\x00\x00" + "\xee\x66\xef\xef" +
	"\xb8\x08\x00\x00\x00" + "\xee\x66\xef\xef"

func TestIOEventFD(t *testing.T) {
	const all = "07 0700 07000000 08 0800 08000000"
	for _, c := range []struct {
		name  string
		event kvm.IOEvent
		count uint64
		exits string
	}{
		{"any length", kvm.IOEvent{Len: 0}, 6, ""},
		{"two bytes", kvm.IOEvent{Len: 2}, 2, "07 07000000 08 08000000"},
		{"four bytes of 8", kvm.IOEvent{Len: 4, HasDataMatch: true, DataMatch: 8}, 1, "07 0700 07000000 08 0800"},
		{"two bytes of 0", kvm.IOEvent{Len: 2, HasDataMatch: true, DataMatch: 0}, 0, all},
	} {
		for _, pio := range []bool{false, true} {
			forLevels(t, func(t *testing.T, o baremetal.Options) {
				ev, code := c.event, mmioWrites
				ev.Addr, ev.PIO = baremetal.MMIOAddr, pio
				if pio {
					ev.Addr, code = 0x600, portWrites
				}
				ev.FD = newEventFD(t)
				m := newMachine(t, o, code, done)
				check(t, m.VM.IOEventFD(ev))
				if got := strings.Join(exitsOf(t, m), " "); got != c.exits {
					t.Errorf("%s, port %t: exits %q, want %q", c.name, pio, got, c.exits)
				}
				if got := count(t, ev.FD); got != c.count {
					t.Errorf("%s, port %t: %d events, want %d", c.name, pio, got, c.count)
				}

				ev.Deassign = true
				check(t, m.VM.IOEventFD(ev))
				check(t, m.Reset(o))
				if got := strings.Join(exitsOf(t, m), " "); got != all {
					t.Errorf("%s, port %t: after deassign exits %q, want %q", c.name, pio, got, all)
				}
			})
		}
	}
}

func TestIOEventFDErrors(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, "\xf4")
	fd := newEventFD(t)
	check(t, m.VM.IOEventFD(kvm.IOEvent{Addr: 0x1000000, Len: 4, FD: fd}))
	for name, ev := range map[string]kvm.IOEvent{
		"the same event again":       {Addr: 0x1000000, Len: 4, FD: fd},
		"three bytes":                {Addr: 0x2000000, Len: 3, FD: fd},
		"any length with data match": {Addr: 0x2000000, FD: fd, HasDataMatch: true},
		"no eventfd":                 {Addr: 0x2000000, Len: 4, FD: -1},
		"address overflow":           {Addr: 1<<64 - 1, Len: 8, FD: fd},
		"an event that is not there": {Addr: 0x3000000, Len: 4, FD: fd, Deassign: true},
	} {
		err := m.VM.IOEventFD(ev)
		if err == nil {
			t.Errorf("%s was accepted", name)
		} else if !strings.Contains(err.Error(), fmt.Sprintf("%#x", ev.Addr)) {
			t.Errorf("error %q does not name the address", err)
		}
	}
}
