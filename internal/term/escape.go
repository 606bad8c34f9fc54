// SPDX-License-Identifier: Apache-2.0

package term

// Command is what the user asks of govmm itself with a key after Ctrl-A.
type Command byte

// The commands.
const (
	Quit Command = 'x' // end the VM
	Help Command = 'h' // list the commands
)

// EscapeKey is Ctrl-A, as in other VMMs' consoles.
const EscapeKey = 0x01

// HelpText is the answer to Help. Its lines end with a newline alone.
const HelpText = `Ctrl-A x       end the VM
Ctrl-A h       show this help
Ctrl-A Ctrl-A  send Ctrl-A to the guest
Other keys after Ctrl-A go to the guest, together with it.
`

// Escape finds the commands in what a user types. The zero value is ready.
type Escape struct {
	pending bool // Ctrl-A was the last byte
}

// Filter appends to dst the bytes of typed that are meant for the guest, and
// calls do with each command, in order. A command may begin in one call and end
// in the next.
func (e *Escape) Filter(dst, typed []byte, do func(Command)) []byte {
	for _, b := range typed {
		switch {
		case !e.pending && b == EscapeKey:
			e.pending = true
			continue
		case !e.pending, b == EscapeKey:
			dst = append(dst, b)
		case lower(b) == byte(Quit), lower(b) == byte(Help):
			do(Command(lower(b)))
		default:
			dst = append(dst, EscapeKey, b)
		}
		e.pending = false
	}
	return dst
}

// End appends to dst what Filter still holds back, at the end of the input.
func (e *Escape) End(dst []byte) []byte {
	if e.pending {
		dst = append(dst, EscapeKey)
	}
	e.pending = false
	return dst
}

func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b - 'A' + 'a'
	}
	return b
}
