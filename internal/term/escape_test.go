// SPDX-License-Identifier: Apache-2.0

package term

import (
	"testing"

	"pgregory.net/rapid"
)

func TestEscape(t *testing.T) {
	tests := []struct {
		name, typed     string
		guest, commands string
	}{
		{"plain text", "ls\r", "ls\r", ""},
		{"quit", "a\x01xb", "ab", "x"},
		{"help", "\x01h", "", "h"},
		{"capitals", "\x01X\x01H", "", "xh"},
		{"Ctrl-A itself", "\x01\x01", "\x01", ""},
		{"Ctrl-A, then a command's key as text", "\x01\x01x", "\x01x", ""},
		{"another key", "\x01e", "\x01e", ""},
		{"three Ctrl-A and a command", "\x01\x01\x01x", "\x01", "x"},
		{"at the end", "a\x01", "a\x01", ""},
		{"control keys", "\x03\x1a\x1c\x00\x7f\xff", "\x03\x1a\x1c\x00\x7f\xff", ""},
		{"after a command, Ctrl-A counts anew", "\x01x\x01x", "", "xx"},
	}
	for _, tt := range tests {
		// Once in one piece, and once in each possible two pieces.
		for cut := range len(tt.typed) + 1 {
			var e Escape
			var commands []byte
			do := func(c Command) { commands = append(commands, byte(c)) }
			guest := e.Filter(nil, []byte(tt.typed[:cut]), do)
			guest = e.Filter(guest, []byte(tt.typed[cut:]), do)
			guest = e.End(guest)
			if string(guest) != tt.guest || string(commands) != tt.commands {
				t.Errorf("%s, cut at %d: guest %q, commands %q; want %q and %q", tt.name, cut, guest, commands, tt.guest, tt.commands)
			}
		}
	}
}

// TestEscapeCanSendAll checks that every byte can be sent: with each Ctrl-A
// doubled, all arrives and nothing is a command.
func TestEscapeCanSendAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOf(rapid.SampledFrom([]byte{EscapeKey, 'x', 'h', 'a', 0})).Draw(t, "bytes")
		var typed []byte
		for _, b := range want {
			if b == EscapeKey {
				typed = append(typed, EscapeKey)
			}
			typed = append(typed, b)
		}
		var e Escape
		got := e.Filter(nil, typed, func(c Command) { t.Fatalf("command %q", c) })
		if got = e.End(got); string(got) != string(want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}
