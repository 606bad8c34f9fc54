// SPDX-License-Identifier: Apache-2.0

// Command govmm boots Linux in a virtual machine.
//
// It turns flags into a machine.Config, signals into the end of a run, and the
// end of a run into an exit code and one line that explains it. All the rest is
// in packages that other programs can use.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/internal/term"
	"github.com/govmm/govmm/machine"
)

func main() {
	os.Exit(newApp().main(os.Args[1:]))
}

// vm is what the command needs of a machine.Machine.
type vm interface {
	Run(context.Context) result.Result
	Quit()
	Close() error
}

// app is one execution of the command.
type app struct {
	stdin          int // file descriptor
	stdout, stderr *os.File
	lookup         func(string) (string, bool) // the environment
	newVM          func(machine.Config, machine.Streams, *slog.Logger) (vm, error)

	log     *slog.Logger
	quiet   bool                         // no last line of a run that went well
	record  *record                      // the result's file; nil for none
	console atomic.Pointer[term.Console] // of the VM; nil if its console is not here
	output  atomic.Pointer[outputWatch]  // the same
	ending  sync.Once                    // the last line is written once
}

func newApp() *app {
	return &app{
		stdin: syscall.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		lookup: os.LookupEnv,
		newVM: func(c machine.Config, s machine.Streams, log *slog.Logger) (vm, error) {
			return machine.New(c, s, log)
		},
		log: slog.New(slog.DiscardHandler),
	}
}

// main executes the command and returns its exit code.
func (a *app) main(args []string) (code int) {
	defer func() {
		if p := recover(); p != nil {
			code = a.end(a.crash(p))
		}
	}()
	// A reader of the output that goes away must not take the VM with it, nor
	// must a terminal that was given to another job: write and read fail instead.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGTTIN, syscall.SIGTTOU)

	err := a.execute(args, &checkedWriter{w: a.stdout})
	var exit exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	}
	return a.end(result.OfError(err))
}

// exitCode is the error of a command that has said all it has to say.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// end ends the command: it puts the terminal back, writes the result's file and
// the last line, and returns the exit code. Once only: whoever comes second, such
// as a second signal, waits here for the first to end the process.
func (a *app) end(r result.Result) int {
	first := false
	a.ending.Do(func() {
		first = true
		a.restoreTerminal()
		r = a.record.write(r)
		a.lastLine(r)
	})
	if !first {
		select {}
	}
	return r.Code
}

// restoreTerminal puts the terminal back, if it was changed.
func (a *app) restoreTerminal() {
	console := a.console.Load()
	if console == nil {
		return
	}
	if err := console.Close(); err != nil {
		a.log.Warn("the terminal may be in a strange mode: type reset", "err", err)
	}
}

// lastLine writes the line that explains the end, in a form that scripts can
// rely on.
func (a *app) lastLine(r result.Result) {
	if a.quiet && r.Code == 0 {
		return
	}
	line := fmt.Sprintf("govmm: reason=%s code=%d detail=%q\n", r.Reason, r.Code, r.Detail)
	if a.output.Load().midLine() && sameFile(a.stdout, a.stderr) {
		line = "\n" + line
	}
	_, _ = io.WriteString(a.stderr, line) // there is nowhere left to report to
}

// sameFile tells whether two files are one, such as the same terminal.
func sameFile(a, b *os.File) bool {
	x, errX := a.Stat()
	y, errY := b.Stat()
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// crash is the result of a bug that made govmm panic.
func (a *app) crash(p any) result.Result {
	a.log.Debug("panic", "value", fmt.Sprint(p), "stack", string(debug.Stack()))
	return result.Of(result.Bug, "%v: this should not happen; please report it, with the output of --log-level debug", p)
}

// guard runs f on a goroutine. If f panics, the command ends as it should.
func (a *app) guard(f func()) {
	go func() {
		defer func() {
			if p := recover(); p != nil {
				a.crashed(p)
			}
		}()
		f()
	}()
}

// crashed ends the command after a panic on a goroutine other than main's.
func (a *app) crashed(p any) { os.Exit(a.end(a.crash(p))) }

// checkedWriter remembers the first error of a writer whose user does not look. A
// reader that has gone away is none.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if c.err == nil && !errors.Is(err, syscall.EPIPE) {
		c.err = err
	}
	return n, err
}
