// SPDX-License-Identifier: Apache-2.0

package term

import (
	"cmp"
	"errors"
	"io"
	"sync"
)

// maxTyped is how much input waits for a guest that does not read, in bytes.
// More is lost, as with a serial line that nobody reads: going on to read is
// what lets Ctrl-A x end a guest that hangs.
const maxTyped = 1 << 20

// Console reads what the user types for a guest. If it comes from a terminal,
// the terminal is in raw mode from Start to Close, and Ctrl-A gives commands to
// govmm; if not, the guest gets every byte.
type Console struct {
	// Crashed is called, if it is not nil, with the value of a panic on the
	// Console's goroutine, which has ended then. It is set before Start.
	Crashed func(any)

	in  *Input
	tty *Terminal // nil if the input is none
	do  func(Command)

	// For a terminal: what was typed and not read yet.
	mu    sync.Mutex
	more  sync.Cond // typed or err has changed
	typed []byte
	err   error // why nothing follows typed
}

// NewConsole returns a Console that reads from the file descriptor fd, which it
// does not close. It changes nothing before Start.
func NewConsole(fd int) (*Console, error) {
	in, err := NewInput(fd)
	if err != nil {
		return nil, err
	}
	c := &Console{in: in, tty: in.tty}
	c.more.L = &c.mu
	in.returned = func() {
		if err := c.Resume(); err != nil {
			c.add(nil, err)
		}
	}
	return c, nil
}

// Start sets the terminal to raw mode and begins to read. do is called with each
// command, on a goroutine of the Console.
func (c *Console) Start(do func(Command)) error {
	if c.tty == nil {
		return nil
	}
	c.do = do
	c.in.look() // before Raw: if the foreground comes between the two, that shows
	if err := c.tty.Raw(); err != nil {
		return err
	}
	go func() {
		defer c.recovered()
		c.pump()
	}()
	return nil
}

// recovered hands a panic to Crashed.
func (c *Console) recovered() {
	if c.Crashed == nil {
		return
	}
	if p := recover(); p != nil {
		c.Crashed(p)
	}
}

// Resume sets the terminal to raw mode again, after this process was stopped and
// goes on in the foreground.
func (c *Console) Resume() error {
	if c.tty == nil {
		return nil
	}
	return c.tty.Raw()
}

// Suspend puts the terminal back, before this process is stopped.
func (c *Console) Suspend() error {
	if c.tty == nil {
		return nil
	}
	return c.tty.Restore()
}

// IsRaw tells whether a terminal is in raw mode, in which a new line needs a
// carriage return too.
func (c *Console) IsRaw() bool { return c.tty != nil && c.tty.IsRaw() }

// pump reads the terminal until it ends.
func (c *Console) pump() {
	var e Escape
	buf := make([]byte, 4096)
	for {
		n, err := c.in.Read(buf)
		guest := e.Filter(nil, buf[:n], c.do)
		if err != nil {
			guest = e.End(guest)
		}
		c.add(guest, err)
		if err != nil {
			return
		}
	}
}

func (c *Console) add(guest []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.typed = append(c.typed, guest[:min(len(guest), maxTyped-len(c.typed))]...)
	c.err = cmp.Or(c.err, err)
	c.more.Broadcast()
}

// Read implements io.Reader for the guest's side. After Close it gives io.EOF.
func (c *Console) Read(p []byte) (int, error) {
	if c.tty == nil {
		return c.in.Read(p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.typed) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		c.more.Wait()
	}
	n := copy(p, c.typed)
	c.typed = c.typed[n:]
	return n, nil
}

// Close puts the terminal back and ends Read and, for which it does not wait, the
// Console's goroutine. It may be called more than once, from anywhere.
func (c *Console) Close() error {
	var restored error
	if c.tty != nil {
		restored = c.tty.Close()
		c.add(nil, io.EOF)
	}
	return errors.Join(restored, c.in.Close())
}
