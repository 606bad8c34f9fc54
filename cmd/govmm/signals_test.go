// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// process is a running govmm whose output can be waited for.
type process struct {
	*exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr *bufio.Reader
}

func start(t *testing.T, c *exec.Cmd) *process {
	t.Helper()
	stdin, errIn := c.StdinPipe()
	stdout, errOut := c.StdoutPipe()
	stderr, errErr := c.StderrPipe()
	if errIn != nil || errOut != nil || errErr != nil {
		t.Fatal(errIn, errOut, errErr)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return &process{c, stdin, bufio.NewReader(stdout), bufio.NewReader(stderr)}
}

func (p *process) signal(t *testing.T, s unix.Signal) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// end waits for the end, and returns the exit code and the rest of stderr.
func (p *process) end(t *testing.T) outcome {
	t.Helper()
	stderr, err := io.ReadAll(p.stderr)
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Wait() // the exit code tells
	return outcome{code: p.ProcessState.ExitCode(), stderr: string(stderr)}
}

var endingSignals = map[unix.Signal]string{
	unix.SIGHUP: "reason=signal code=129", unix.SIGINT: "reason=signal code=130", unix.SIGTERM: "reason=signal code=143",
}

func TestSignalWhileRunning(t *testing.T) {
	for s, want := range endingSignals {
		p := start(t, command(t, "echo", "run", "bzImage"))
		expect(t, p.stdout, "READY")
		p.signal(t, s)
		o := p.end(t)
		if o.code != 128+int(s) || !strings.Contains(o.lastLine(), want) || !strings.Contains(o.stderr, "CLOSED") {
			t.Errorf("%v: code %d, %s", s, o.code, o.stderr)
		}
	}
}

// TestSignalWhileStarting: the signal comes while the VM is made.
func TestSignalWhileStarting(t *testing.T) {
	for s, want := range endingSignals {
		p := start(t, command(t, "slow-new", "run", "bzImage"))
		expect(t, p.stderr, "NEW")
		p.signal(t, s)
		if err := p.stdin.Close(); err != nil { // New goes on
			t.Fatal(err)
		}
		o := p.end(t)
		if o.code != 128+int(s) || !strings.Contains(o.lastLine(), want) || !strings.Contains(o.stderr, "CLOSED") {
			t.Errorf("%v: code %d, %s", s, o.code, o.stderr)
		}
	}
}

// TestSecondSignal: a VM that does not end is left behind.
func TestSecondSignal(t *testing.T) {
	c := command(t, "stuck", "run", "bzImage", "--result", "r.json")
	p := start(t, c)
	expect(t, p.stdout, "READY")
	p.signal(t, unix.SIGTERM)
	expect(t, p.stderr, "CANCELLED")
	p.signal(t, unix.SIGINT)
	o := p.end(t)
	if o.code != 130 || !strings.Contains(o.lastLine(), "reason=signal code=130") {
		t.Errorf("code %d, %s", o.code, o.stderr)
	}
	if text, err := os.ReadFile(filepath.Join(c.Dir, "r.json")); err != nil || !strings.Contains(string(text), `"code": 130`) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestStuckAfterSignal: it is left behind after a while, too.
func TestStuckAfterSignal(t *testing.T) {
	t.Parallel()
	p := start(t, command(t, "stuck", "run", "bzImage"))
	expect(t, p.stdout, "READY")
	p.signal(t, unix.SIGTERM)
	o := p.end(t)
	if o.code != 143 || !strings.Contains(o.lastLine(), "the VM did not end in time") {
		t.Errorf("code %d, %s", o.code, o.stderr)
	}
}

// TestIgnoredSignals: nohup ignores SIGHUP for its program, and a shell SIGINT for
// its jobs in the background; govmm leaves it so.
func TestIgnoredSignals(t *testing.T) {
	c := command(t, "echo")
	c.Args = []string{"sh", "-c", `trap "" HUP INT; exec "$0" run bzImage`, c.Path}
	c.Path = "/bin/sh"
	p := start(t, c)
	expect(t, p.stdout, "READY")
	p.signal(t, unix.SIGHUP)
	p.signal(t, unix.SIGINT)
	if _, err := io.WriteString(p.stdin, "hi"); err != nil {
		t.Fatal(err)
	}
	expect(t, p.stdout, "<6869>")
	p.signal(t, unix.SIGTERM)
	if o := p.end(t); o.code != 143 {
		t.Errorf("code %d, %s", o.code, o.stderr)
	}
}
