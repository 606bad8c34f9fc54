// SPDX-License-Identifier: Apache-2.0

package term

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// openPTY returns both ends of a pseudo-terminal: what the user holds, and what
// govmm has as its standard input.
func openPTY(t *testing.T) (user, tty *os.File) {
	t.Helper()
	user, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = user.Close() // closed by the test, perhaps
		_ = tty.Close()
	})
	return user, tty
}

// mode is the terminal's mode.
func mode(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

func newConsole(t *testing.T, fd int) *Console {
	t.Helper()
	c, err := NewConsole(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestConsoleOnTerminal(t *testing.T) {
	user, tty := openPTY(t)
	before := mode(t, tty)
	c := newConsole(t, int(tty.Fd()))
	if c.IsRaw() || mode(t, tty) != before {
		t.Error("the terminal is changed before Start")
	}
	commands := make(chan Command, 4)
	if err := c.Start(func(cmd Command) { commands <- cmd }); err != nil {
		t.Fatal(err)
	}
	raw := mode(t, tty)
	if !c.IsRaw() || raw.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != 0 || raw.Oflag&unix.OPOST != 0 {
		t.Errorf("mode %+v is not raw", raw)
	}

	// Ctrl-C and Ctrl-Z are the guest's; Ctrl-A in two writes still is one command.
	for _, s := range []string{"a\x03\x1a\x01", "h\x01\x01b\x01", "x"} {
		if _, err := user.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "a\x03\x1a\x01b" {
		t.Errorf("the guest gets %q, %v", got, err)
	}
	if a, b := <-commands, <-commands; a != Help || b != Quit {
		t.Errorf("commands %q and %q", a, b)
	}

	if err := c.Suspend(); err != nil || mode(t, tty) != before || c.IsRaw() {
		t.Errorf("Suspend: %v, mode %+v", err, mode(t, tty))
	}
	if err := c.Resume(); err != nil || mode(t, tty) != raw {
		t.Errorf("Resume: %v, mode %+v", err, mode(t, tty))
	}
	if err := c.Close(); err != nil || mode(t, tty) != before || c.IsRaw() {
		t.Errorf("Close: %v, mode %+v, want %+v", err, mode(t, tty), before)
	}
	if err := c.Resume(); err != nil || mode(t, tty) != before {
		t.Errorf("Resume after Close: %v, mode %+v", err, mode(t, tty))
	}
	if n, err := c.Read(got); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("Read after Close: %d, %v", n, err)
	}
}

// TestConsoleResumeSetsModeAgain: a shell changes the mode while govmm is
// stopped; what is restored at the end is still the mode before Start.
func TestConsoleResumeSetsModeAgain(t *testing.T) {
	_, tty := openPTY(t)
	before := mode(t, tty)
	c := newConsole(t, int(tty.Fd()))
	if err := c.Start(func(Command) {}); err != nil {
		t.Fatal(err)
	}
	raw, shell := mode(t, tty), before
	shell.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, &shell); err != nil {
		t.Fatal(err)
	}
	if err := c.Resume(); err != nil || mode(t, tty) != raw {
		t.Errorf("Resume: %v, mode %+v, want %+v", err, mode(t, tty), raw)
	}
	if err := c.Close(); err != nil || mode(t, tty) != before {
		t.Errorf("Close: %v, mode %+v, want %+v", err, mode(t, tty), before)
	}
}

// TestConsoleQuitsWithoutReader: a guest that hangs reads nothing, and Ctrl-A x
// must end it all the same.
func TestConsoleQuitsWithoutReader(t *testing.T) {
	user, tty := openPTY(t)
	c := newConsole(t, int(tty.Fd()))
	quit := make(chan struct{})
	if err := c.Start(func(Command) { close(quit) }); err != nil {
		t.Fatal(err)
	}
	flood := bytes.Repeat([]byte("0123456789abcdef"), (maxTyped+1<<16)/16)
	if _, err := user.Write(flood); err != nil {
		t.Fatal(err)
	}
	if _, err := user.WriteString("\x01x"); err != nil {
		t.Fatal(err)
	}
	<-quit
	got := make([]byte, maxTyped)
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, flood[:maxTyped]) {
		t.Errorf("the first %d bytes are not what was typed: %v", maxTyped, err)
	}
}

// TestConsoleHangUp: the terminal goes away, as with a lost connection.
func TestConsoleHangUp(t *testing.T) {
	user, tty := openPTY(t)
	c := newConsole(t, int(tty.Fd()))
	if err := c.Start(func(Command) {}); err != nil {
		t.Fatal(err)
	}
	if err := user.Close(); err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(c); err != nil || len(data) != 0 {
		t.Errorf("read %q, %v; want the end of the file", data, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestConsoleOnPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := newConsole(t, int(r.Fd()))
	if err := c.Start(func(cmd Command) { t.Errorf("command %q from a pipe", cmd) }); err != nil {
		t.Fatal(err)
	}
	const data = "\x01x\x01h\x01\x01"
	if _, err := w.WriteString(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != data {
		t.Errorf("the guest gets %q, %v; want %q", got, err, data)
	}
}

func TestConsoleOnFiles(t *testing.T) {
	for _, path := range []string{"/dev/null", os.Args[0]} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c := newConsole(t, int(f.Fd()))
		if err := c.Start(func(Command) {}); err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, c)
		info, statErr := f.Stat()
		if err != nil || statErr != nil || info.Mode().IsRegular() && n != info.Size() {
			t.Errorf("%s: read %d bytes, %v", path, n, err)
		}
	}
}

// TestInputCloseEndsRead: the reader is in poll when Close comes, or not there
// yet; both must end.
func TestInputCloseEndsRead(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for range 50 {
		in, err := NewInput(int(r.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		end := make(chan error)
		go func() {
			_, err := in.Read(make([]byte, 1))
			end <- err
		}()
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-end; !errors.Is(err, io.EOF) {
			t.Fatalf("Read ends with %v", err)
		}
		if err := in.Close(); err != nil {
			t.Fatalf("second Close: %v", err)
		}
	}
}

// TestInputNonBlocking: standard input may be non-blocking by another process's
// doing; an empty one is waited for, not taken for its end.
func TestInputNonBlocking(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	in, err := NewInput(p[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(in.Close(), unix.Close(p[0]), unix.Close(p[1])); err != nil {
			t.Error(err)
		}
	}()
	go func() { _, _ = unix.Write(p[1], []byte("late")) }() // seen by Read
	got := make([]byte, 16)
	if n, err := in.Read(got); err != nil || string(got[:n]) != "late" {
		t.Errorf("read %q, %v", got[:n], err)
	}
}

func TestInputBadDescriptor(t *testing.T) {
	in, err := NewInput(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Read(make([]byte, 1)); !errors.Is(err, unix.EBADF) {
		t.Errorf("got %v", err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
}

func TestLines(t *testing.T) {
	for raw, want := range map[bool]string{false: "a\nb\n", true: "a\r\nb\r\n"} {
		var out strings.Builder
		n, err := Lines{&out, func() bool { return raw }}.Write([]byte("a\nb\n"))
		if n != 4 || err != nil || out.String() != want {
			t.Errorf("raw %v: %d, %v, %q", raw, n, err, out.String())
		}
	}
}
