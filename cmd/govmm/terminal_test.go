// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// session is a govmm on a terminal of its own.
type session struct {
	*exec.Cmd
	user   *os.File // the user's end
	tty    *os.File // the terminal, kept open to look at its mode
	before unix.Termios
}

// startSession starts c as the leader of a session on a new terminal. What is
// not redirected is the terminal.
func startSession(t *testing.T, c *exec.Cmd) *session {
	t.Helper()
	user, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = user.Close()
		_ = tty.Close()
	})
	s := &session{c, user, tty, termios(t, tty)}
	c.Stdin = tty
	if c.Stdout == nil {
		c.Stdout = tty
	}
	if c.Stderr == nil {
		c.Stderr = tty
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func termios(t *testing.T, tty *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

func (s *session) raw(t *testing.T) bool { return termios(t, s.tty).Lflag&unix.ICANON == 0 }

func (s *session) typed(t *testing.T, keys string) {
	t.Helper()
	if _, err := s.user.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// ends waits for the end of the process and checks the terminal's mode.
func (s *session) ends(t *testing.T, code int) {
	t.Helper()
	_ = s.Wait() // the exit code tells
	if got := s.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	if after := termios(t, s.tty); after != s.before {
		t.Errorf("the terminal's mode was %+v and is %+v", s.before, after)
	}
}

func TestTerminalQuit(t *testing.T) {
	s := startSession(t, command(t, "echo", "run", "bzImage"))
	expect(t, s.user, "govmm: Ctrl-A x ends the VM, Ctrl-A h shows the keys\r\n", "READY")
	if !s.raw(t) {
		t.Error("the terminal is not in raw mode")
	}
	// The keys that a shell's terminal acts on are the guest's.
	s.typed(t, "\x03\x1a\x1c\x11\x13\r")
	expect(t, s.user, "<03", "1a", "1c", "11", "13", "0d>")
	s.typed(t, "\x01\x01")
	expect(t, s.user, "<01>")
	s.typed(t, "\x01h")
	expect(t, s.user, "Ctrl-A x       end the VM\r\n", "Ctrl-A h ")
	s.typed(t, "\x01x")
	expect(t, s.user, "CLOSED\r\n", "govmm: reason=stopped code=0 detail=\"by the user\"\r\n")
	s.ends(t, 0)
}

func TestTerminalQuitPanics(t *testing.T) {
	s := startSession(t, command(t, "panic-quit", "run", "bzImage"))
	expect(t, s.user, "READY")
	s.typed(t, "\x01x")
	expect(t, s.user, "reason=bug code=123")
	s.ends(t, 123)
}

// TestTerminalQuitStuck: the user gets out even if the VM does not end.
func TestTerminalQuitStuck(t *testing.T) {
	t.Parallel()
	s := startSession(t, command(t, "stuck", "run", "bzImage"))
	expect(t, s.user, "READY")
	s.typed(t, "\x01x")
	expect(t, s.user, "reason=bug code=123", "did not end after Ctrl-A x")
	s.ends(t, 123)
}

// TestTerminalRestored: each way that a run can end leaves the terminal as it was.
func TestTerminalRestored(t *testing.T) {
	for mode, code := range map[string]int{
		"real": 121, "end:poweroff": 0, "end:panic": 116, "refuse": 121, "close-fails": 122, "panic-new": 123, "panic-run": 123, "prompt": 0,
	} {
		t.Run(mode, func(t *testing.T) {
			s := startSession(t, command(t, mode, "run", "/dev/null"))
			expect(t, s.user, "govmm: reason=")
			s.ends(t, code)
		})
	}
}

func TestTerminalSignals(t *testing.T) {
	for sig := range endingSignals {
		s := startSession(t, command(t, "echo", "run", "bzImage"))
		expect(t, s.user, "READY")
		if err := s.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		expect(t, s.user, "reason=signal")
		s.ends(t, 128+int(sig))
	}
	s := startSession(t, command(t, "stuck", "run", "bzImage"))
	expect(t, s.user, "READY")
	for _, then := range []string{"CANCELLED", "reason=signal"} {
		if err := s.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		expect(t, s.user, then)
	}
	s.ends(t, 143)
}

// TestTerminalPromptEndsLine: on a terminal, the last line does not stand behind
// the guest's prompt.
func TestTerminalPromptEndsLine(t *testing.T) {
	s := startSession(t, command(t, "prompt", "run", "bzImage"))
	expect(t, s.user, "/ # ", "\r\ngovmm: reason=poweroff")
	s.ends(t, 0)
}

// TestTerminalStop: SIGTSTP gives the terminal back, SIGCONT takes it again.
func TestTerminalStop(t *testing.T) {
	s := startSession(t, command(t, "echo", "run", "bzImage"))
	expect(t, s.user, "READY")
	if err := s.Process.Signal(unix.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(s.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("status %#x, %v", status, err)
	}
	if termios(t, s.tty) != s.before {
		t.Error("the terminal is not put back while govmm is stopped")
	}
	if err := s.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// Typed before the mode is raw again, it may be echoed and wait for its line.
	s.typed(t, "a\n")
	expect(t, s.user, "<61")
	s.typed(t, "\x01x")
	expect(t, s.user, "reason=stopped")
	s.ends(t, 0)
}

// TestTerminalHangUp: the terminal goes away, which also sends SIGHUP.
func TestTerminalHangUp(t *testing.T) {
	var stderr bytes.Buffer
	c := command(t, "echo", "run", "bzImage")
	c.Stderr = &stderr
	s := startSession(t, c)
	expect(t, s.user, "READY")
	if err := s.user.Close(); err != nil {
		t.Fatal(err)
	}
	_ = s.Wait() // the exit code tells
	if code := s.ProcessState.ExitCode(); code != 129 || !strings.Contains(stderr.String(), "reason=signal code=129") {
		t.Errorf("code %d, %s", code, stderr.String())
	}
}

// TestTerminalOutputElsewhere: with output redirected, the terminal still is the
// keyboard.
func TestTerminalOutputElsewhere(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := command(t, "echo", "run", "bzImage")
	c.Stdout = w
	s := startSession(t, c)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, r, "READY")
	s.typed(t, "a")
	expect(t, r, "<61>")
	s.typed(t, "\x01x")
	expect(t, s.user, "reason=stopped")
	s.ends(t, 0)
}

// TestTerminalUntouched: a console that is not the terminal leaves it alone, so
// that Ctrl-C ends govmm.
func TestTerminalUntouched(t *testing.T) {
	for _, serial := range []string{"none", "file=log"} {
		s := startSession(t, command(t, "stuck", "run", "bzImage", "--serial", serial))
		expect(t, s.user, "READY")
		s.typed(t, "\x03")
		expect(t, s.user, "CANCELLED")
		s.typed(t, "\x03")
		expect(t, s.user, "reason=signal code=130")
		s.ends(t, 130)
	}
}

// TestTerminalBackground: a job in the background neither stops nor touches the
// terminal; with the foreground, it gets both keyboard and raw mode.
func TestTerminalBackground(t *testing.T) {
	c := command(t, "job", "run", "bzImage")
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	order, orders, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer orders.Close()
	c.Stdout, c.ExtraFiles = w, []*os.File{order}
	s := startSession(t, c)
	for _, f := range []*os.File{w, order} {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, out, "READY")
	if termios(t, s.tty) != s.before {
		t.Error("a job in the background changed the terminal")
	}
	s.typed(t, "shell\n")
	if _, err := orders.WriteString("read\n"); err != nil { // the shell gets its line
		t.Fatal(err)
	}
	expect(t, out, "job got shell")
	if _, err := orders.WriteString("fg\n"); err != nil {
		t.Fatal(err)
	}
	for !s.raw(t) {
		time.Sleep(10 * time.Millisecond)
	}
	// Only raw mode delivers a key without its line's end.
	s.typed(t, "k")
	expect(t, out, "<6b>")
	s.typed(t, "\x01x")
	expect(t, s.user, "reason=stopped")
	expect(t, out, "job ended with 0")
	s.ends(t, 0)
}

// runJob is a shell with one job: govmm with the fake that echoes, started in the
// background. It takes orders from file descriptor 3.
func runJob() int {
	signal.Ignore(syscall.SIGTTOU)
	c := exec.Command(os.Args[0], os.Args[1:]...)
	c.Env = append(os.Environ(), testMain+"=echo")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		fmt.Println("job:", err)
		return 1
	}
	orders := bufio.NewReader(os.NewFile(3, "orders"))
	for {
		order, err := orders.ReadString('\n')
		switch {
		case order == "read\n":
			line, err := bufio.NewReader(os.Stdin).ReadString('\n')
			fmt.Print("job got ", line)
			if err != nil {
				return 1
			}
		case order == "fg\n":
			if err := unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, c.Process.Pid); err != nil {
				fmt.Println("job:", err)
				return 1
			}
			_ = c.Wait() // the exit code tells
			if err := unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, unix.Getpgrp()); err != nil {
				fmt.Println("job:", err)
				return 1
			}
			fmt.Println("job ended with", c.ProcessState.ExitCode())
			return c.ProcessState.ExitCode()
		case err == io.EOF:
			return 1
		}
	}
}
