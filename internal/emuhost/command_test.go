// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// runner is where the tests of this file run commands: each is done on a local
// host, and through a daemon.
func eachHost(t *testing.T, test func(t *testing.T, h *Host)) {
	t.Run("local", func(t *testing.T) { test(t, newLocalHost(t)) })
	t.Run("daemon", func(t *testing.T) { test(t, newAttachedHost(t)) })
}

// shell is a command with its output kept.
type shell struct {
	Cmd
	stdout, stderr syncBuffer
}

func newShell(script string, args ...string) *shell {
	s := &shell{}
	s.Cmd = Cmd{Path: "/bin/sh", Args: append([]string{"-c", script, "sh"}, args...), Stdout: &s.stdout, Stderr: &s.stderr}
	return s
}

// syncBuffer is written by Run while the test reads it.
type syncBuffer struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{}
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// await waits until the text has been written.
func (b *syncBuffer) await(text string) {
	for {
		b.mu.Lock()
		if strings.Contains(b.buf.String(), text) {
			b.mu.Unlock()
			return
		}
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
		<-changed
	}
}

func mustRun(t *testing.T, h *Host, cmd Cmd) int {
	t.Helper()
	code, err := h.Run(context.Background(), cmd)
	if err != nil {
		t.Errorf("Run: %v", err)
	}
	return code
}

func TestArgumentsArePassedUnchanged(t *testing.T) {
	var every strings.Builder
	for b := 1; b < 256; b++ { // any byte but NUL
		every.WriteByte(byte(b))
	}
	args := []string{"", " ", "a b", `"`, `'`, "$(false)", "`false`", "\n", "-", "--", "\xff\xfe", "ünï", every.String()}
	eachHost(t, func(t *testing.T, h *Host) {
		s := newShell(`for a; do printf '%s\0' "$a"; done`, args...)
		if code := mustRun(t, h, s.Cmd); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if want := strings.Join(args, "\x00") + "\x00"; s.stdout.String() != want {
			t.Errorf("arguments arrived as %q, want %q", s.stdout.String(), want)
		}
	})
}

func TestEnvironmentAndFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a folder\nwith \xff")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	eachHost(t, func(t *testing.T, h *Host) {
		s := newShell(`printf '%s|%s|%s' "$X" "$(pwd)" "${HOME-none}"`)
		s.Env = []string{"X=\xfe\n'\"", "PATH=/usr/bin:/bin"}
		s.Dir = dir
		mustRun(t, h, s.Cmd)
		if want := "\xfe\n'\"|" + dir + "|none"; s.stdout.String() != want {
			t.Errorf("got %q, want %q", s.stdout.String(), want)
		}
	})
}

func TestProgramIsFoundInItsOwnPath(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "govmm-test-program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho found $0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	h := newLocalHost(t)
	for _, test := range []struct{ path, dir, searchPath string }{
		{"govmm-test-program", "", "/nowhere:" + dir},
		{"./govmm-test-program", dir, ""},
		{program, "", ""},
	} {
		var out bytes.Buffer
		mustRun(t, h, Cmd{Path: test.path, Dir: test.dir, Env: []string{"PATH=" + test.searchPath}, Stdout: &out})
		if !strings.HasPrefix(out.String(), "found ") {
			t.Errorf("%+v: output %q", test, out.String())
		}
	}
}

func TestExitCodes(t *testing.T) {
	eachHost(t, func(t *testing.T, h *Host) {
		for script, want := range map[string]int{
			"exit 0": 0, "exit 1": 1, "exit 22": 22, "exit 126": 126, "exit 255": 255,
			"kill -KILL $$": 128 + 9, "kill -SEGV $$": 128 + 11, "kill -TERM $$": 128 + 15,
		} {
			if code := mustRun(t, h, newShell(script).Cmd); code != want {
				t.Errorf("%s: exit code %d, want %d", script, code, want)
			}
		}
	})
}

func TestCommandsThatCannotStart(t *testing.T) {
	eachHost(t, func(t *testing.T, h *Host) {
		for _, test := range []struct {
			cmd  Cmd
			code int
			text string
		}{
			{Cmd{Path: "govmm-no-such-program"}, 127, "govmm-no-such-program: command not found"},
			{Cmd{Path: "/no/such/program"}, 127, "/no/such/program"},
			{Cmd{Path: "/etc/passwd"}, 126, "permission denied"},
			{Cmd{Path: "/bin/sh", Dir: "/no/such/folder"}, 127, "/no/such/folder"},
			{Cmd{Path: ""}, 127, "command not found"},
		} {
			code, err := h.Run(context.Background(), test.cmd)
			if code != test.code || err == nil || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%q in %q: code %d, error %v; want %d and %q", test.cmd.Path, test.cmd.Dir, code, err, test.code, test.text)
			}
		}
	})
}

func TestStandardInput(t *testing.T) {
	large := strings.Repeat("0123456789abcdef\x00\n", 1<<16) // more than a window
	eachHost(t, func(t *testing.T, h *Host) {
		for name, input := range map[string]string{"empty": "", "short": "x", "large": large} {
			s := newShell("cat")
			s.Stdin = strings.NewReader(input)
			mustRun(t, h, s.Cmd)
			if s.stdout.String() != input {
				t.Errorf("%s: %d bytes came back of %d, or they differ", name, len(s.stdout.String()), len(input))
			}
		}
	})
}

func TestNoStandardInputIsDevNull(t *testing.T) {
	eachHost(t, func(t *testing.T, h *Host) {
		s := newShell("readlink /proc/self/fd/0; wc -c")
		mustRun(t, h, s.Cmd)
		if want := "/dev/null\n0\n"; s.stdout.String() != want {
			t.Errorf("got %q, want %q", s.stdout.String(), want)
		}
	})
}

// TestInputThatNobodyReads: neither a full pipe nor a reader that never ends
// keeps a command's end from being seen.
func TestInputThatNobodyReads(t *testing.T) {
	eachHost(t, func(t *testing.T, h *Host) {
		for name, script := range map[string]string{"at once": "exit 4", "after closing it": "exec <&-; sleep 0.1; exit 4"} {
			never, w := io.Pipe()
			s := newShell(script)
			s.Stdin = io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), never)
			if code := mustRun(t, h, s.Cmd); code != 4 {
				t.Errorf("%s: exit code %d", name, code)
			}
			w.Close()
		}
	})
}

func TestOutputsAreApart(t *testing.T) {
	eachHost(t, func(t *testing.T, h *Host) {
		s := newShell("echo out; echo err >&2; echo more")
		mustRun(t, h, s.Cmd)
		if s.stdout.String() != "out\nmore\n" || s.stderr.String() != "err\n" {
			t.Errorf("stdout %q, stderr %q", s.stdout.String(), s.stderr.String())
		}
	})
}

func TestManyCommandsAtOnce(t *testing.T) {
	eachHost(t, func(t *testing.T, h *Host) {
		var all sync.WaitGroup
		for i := range 24 {
			all.Go(func() {
				s := newShell(`i=0; while [ $i -lt 100 ]; do echo $1 $i; i=$((i+1)); done; exit $1`, strconv.Itoa(i))
				if code := mustRun(t, h, s.Cmd); code != i {
					t.Errorf("command %d: exit code %d", i, code)
				}
				lines := strings.Split(strings.TrimSpace(s.stdout.String()), "\n")
				if want := fmt.Sprintf("%d 99", i); len(lines) != 100 || lines[99] != want {
					t.Errorf("command %d: %d lines, the last is %q", i, len(lines), lines[len(lines)-1])
				}
			})
		}
		all.Wait()
	})
}

// blockedWriter takes nothing until it is opened.
type blockedWriter struct {
	open  chan struct{}
	total int
}

func (w *blockedWriter) Write(p []byte) (int, error) {
	<-w.open
	w.total += len(p)
	return len(p), nil
}

func TestASlowReaderHoldsUpOnlyItsCommand(t *testing.T) {
	const size = 3 << 20
	eachHost(t, func(t *testing.T, h *Host) {
		slow := &blockedWriter{open: make(chan struct{})}
		done := make(chan struct{})
		go func() {
			defer close(done)
			s := newShell(fmt.Sprintf("head -c %d /dev/zero", size))
			s.Stdout = slow
			mustRun(t, h, s.Cmd)
		}()
		for range 3 {
			other := newShell("echo quick")
			mustRun(t, h, other.Cmd)
			if other.stdout.String() != "quick\n" {
				t.Errorf("the other command's output is %q", other.stdout.String())
			}
		}
		select {
		case <-done:
			t.Error("the command ended although its output was not read")
		default:
		}
		close(slow.open)
		<-done
		if slow.total != size {
			t.Errorf("%d bytes came, want %d", slow.total, size)
		}
	})
}

func TestSignals(t *testing.T) {
	eachHost(t, func(t *testing.T, h *Host) {
		s := newShell(`trap 'echo got USR1' USR1; trap 'echo got INT; exit 9' INT; echo ready; while :; do sleep 0.05; done`)
		signals := make(chan syscall.Signal)
		s.Signals = signals
		go func() {
			s.stdout.await("ready")
			signals <- syscall.SIGUSR1
			s.stdout.await("got USR1")
			signals <- syscall.SIGINT
		}()
		if code := mustRun(t, h, s.Cmd); code != 9 {
			t.Errorf("exit code %d, want 9", code)
		}
	})
}

func TestCancelAsksFirst(t *testing.T) {
	h := newLocalHost(t)
	ctx, cancel := context.WithCancel(context.Background())
	s := newShell(`trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done`)
	go func() {
		s.stdout.await("ready")
		cancel()
	}()
	code, err := h.Run(ctx, s.Cmd)
	if code != 3 || !errors.Is(err, context.Canceled) || s.stdout.String() != "ready\nbye\n" {
		t.Errorf("code %d, error %v, output %q", code, err, s.stdout.String())
	}
}

func TestCancelKillsTheWholeGroup(t *testing.T) {
	eachHost(t, func(t *testing.T, h *Host) {
		ctx, cancel := context.WithCancel(context.Background())
		s := newShell(`trap '' TERM; sleep 1000 & echo $!; wait; sleep 1000`)
		s.Grace = time.Millisecond
		go func() {
			s.stdout.await("\n")
			cancel()
		}()
		_, err := h.Run(ctx, s.Cmd)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		child, err := strconv.Atoi(strings.TrimSpace(s.stdout.String()))
		if err != nil {
			t.Fatal(err)
		}
		awaitEnd(t, child)
	})
}

// awaitEnd waits until a process is gone, or at least a zombie.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return
		}
	}
	t.Errorf("process %d is still there", pid)
}

// TestCancelWithAnEscapedProcess: a process in a session of its own holds the
// output open; Run returns all the same.
func TestCancelWithAnEscapedProcess(t *testing.T) {
	h := newLocalHost(t)
	ctx, cancel := context.WithCancel(context.Background())
	s := newShell(`setsid sh -c 'echo $$; exec sleep 1000' & wait`)
	s.Grace = time.Millisecond
	go func() {
		s.stdout.await("\n")
		cancel()
	}()
	if _, err := h.Run(ctx, s.Cmd); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(s.stdout.String())); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// failingWriter accepts nothing.
type failingWriter struct{}

var errFull = errors.New("no space left")

func (failingWriter) Write([]byte) (int, error) { return 0, errFull }

func TestOutputThatCannotBeWritten(t *testing.T) {
	eachHost(t, func(t *testing.T, h *Host) {
		s := newShell("exec yes")
		s.Stdout = failingWriter{}
		code, err := h.Run(context.Background(), s.Cmd)
		if code != 128+int(syscall.SIGPIPE) || !errors.Is(err, errFull) {
			t.Errorf("code %d, error %v; want SIGPIPE's and %v", code, err, errFull)
		}
	})
}

func TestTerminal(t *testing.T) {
	eachHost(t, func(t *testing.T, h *Host) {
		s := newShell(`stty size; test -t 0 && test -t 1 && test -t 2 && echo all; trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.05; done`)
		s.TTY = true
		s.Size = WindowSize{Rows: 33, Cols: 111}
		sizes := make(chan WindowSize)
		s.Resize = sizes
		go func() {
			s.stdout.await("ready")
			sizes <- WindowSize{Rows: 44, Cols: 99}
		}()
		if code := mustRun(t, h, s.Cmd); code != 5 {
			t.Errorf("exit code %d, want 5", code)
		}
		if want := "33 111\r\nall\r\nready\r\n44 99\r\n"; s.stdout.String() != want {
			t.Errorf("output %q, want %q", s.stdout.String(), want)
		}
	})
}

func TestTerminalInput(t *testing.T) {
	eachHost(t, func(t *testing.T, h *Host) {
		s := newShell("cat")
		s.TTY = true
		s.Stdin = strings.NewReader("hello\n") // and then the end of the input
		if code := mustRun(t, h, s.Cmd); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if want := "hello\r\nhello\r\n"; s.stdout.String() != want { // the echo, and cat's
			t.Errorf("output %q, want %q", s.stdout.String(), want)
		}
	})
}

func TestTerminalInterrupt(t *testing.T) {
	h := newLocalHost(t)
	input, keyboard := io.Pipe()
	s := newShell("echo ready; exec sleep 1000")
	s.TTY = true
	s.Stdin = input
	go func() {
		s.stdout.await("ready")
		_, _ = keyboard.Write([]byte{0x03}) // Ctrl-C
	}()
	if code := mustRun(t, h, s.Cmd); code != 128+int(syscall.SIGINT) {
		t.Errorf("exit code %d, want %d", code, 128+int(syscall.SIGINT))
	}
	keyboard.Close()
}

func TestCommandsEndWithTheHost(t *testing.T) {
	h := newLocalHost(t)
	s := newShell("echo $$; exec sleep 1000")
	go func() {
		s.stdout.await("\n")
		h.close()
	}()
	_, err := h.Run(context.Background(), s.Cmd)
	if !errors.Is(err, errHostGone) {
		t.Errorf("error %v, want %v", err, errHostGone)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(s.stdout.String()))
	if err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, pid)
	if _, err := h.Run(context.Background(), s.Cmd); !errors.Is(err, errHostGone) {
		t.Errorf("a later command: error %v, want %v", err, errHostGone)
	}
}

func TestCancelledBeforeTheStart(t *testing.T) {
	h := newLocalHost(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := h.Run(ctx, newShell("exit 0").Cmd); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
