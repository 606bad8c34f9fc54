// SPDX-License-Identifier: Apache-2.0

package term

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Terminal is a terminal whose mode can be changed and put back.
type Terminal struct {
	fd int

	mu    sync.Mutex
	saved *term.State // the mode before raw mode; nil unless in raw mode
	done  bool        // Close was called
}

// OpenTerminal returns the terminal that the file descriptor fd is, or nil if it
// is none.
func OpenTerminal(fd int) *Terminal {
	if !term.IsTerminal(fd) {
		return nil
	}
	return &Terminal{fd: fd}
}

// Raw makes each key arrive as it is: no echo, no lines, no signals. In raw mode
// it sets the mode again, which another program may have changed. In the
// background it does nothing, because the terminal is another program's then.
func (t *Terminal) Raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done || !t.Foreground() {
		return nil
	}
	before, err := term.MakeRaw(t.fd)
	if err != nil {
		return fmt.Errorf("raw mode of the terminal: %w", err)
	}
	if t.saved == nil {
		t.saved = before
	}
	return nil
}

// Restore puts the mode back to what it was before Raw. In the background it
// leaves the terminal alone: the shell has taken it and set its own mode.
func (t *Terminal) Restore() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.restore()
}

// Close is Restore for good: Raw does nothing afterwards.
func (t *Terminal) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done = true
	return t.restore()
}

func (t *Terminal) restore() error {
	saved := t.saved
	t.saved = nil
	if saved == nil || !t.Foreground() {
		return nil
	}
	err := term.Restore(t.fd, saved)
	if err != nil && !errors.Is(err, unix.EIO) { // EIO: the terminal is gone, and its mode with it
		return fmt.Errorf("restoring the terminal: %w", err)
	}
	return nil
}

// IsRaw tells whether the terminal is in raw mode.
func (t *Terminal) IsRaw() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.saved != nil
}

// Foreground tells whether this process may use the terminal: it is in the
// terminal's foreground process group, or the terminal is not the one that
// controls its session.
func (t *Terminal) Foreground() bool {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}
