// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/govmm/govmm/internal/result"
	"golang.org/x/sys/unix"
)

// grace is how long the VM has to end after a signal, before govmm ends without
// it.
const grace = 5 * time.Second

// watchSignals ends the run by cancel when a signal says so, and keeps the
// terminal right when govmm is stopped and goes on. The caller calls the function
// that it returns when the run is over.
func (a *app) watchSignals(cancel context.CancelCauseFunc) (stop func()) {
	signals := make(chan os.Signal, 8)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		// nohup ignores SIGHUP, and a shell SIGINT for its background jobs.
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	signal.Notify(signals, syscall.SIGTSTP, syscall.SIGCONT)
	done := make(chan struct{})
	a.guard(func() { a.handleSignals(signals, done, cancel) })
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

func (a *app) handleSignals(signals <-chan os.Signal, done <-chan struct{}, cancel context.CancelCauseFunc) {
	var end result.Result
	var late <-chan time.Time
	for {
		select {
		case s := <-signals:
			switch {
			case s == syscall.SIGTSTP:
				a.stop()
			case s == syscall.SIGCONT:
				a.resume()
			case late == nil:
				end = ofSignal(s)
				late = time.After(grace)
				cancel(result.End{Result: end})
			default:
				end = ofSignal(s)
				os.Exit(a.end(end))
			}
		case <-late:
			end.Detail += "; the VM did not end in time"
			os.Exit(a.end(end))
		case <-done:
			return
		}
	}
}

func ofSignal(s os.Signal) result.Result {
	n, _ := s.(syscall.Signal) // as all signals of this system are
	return result.OfSignal(int(n), unix.SignalName(n))
}

// stop stops this process as SIGTSTP would, with the terminal put back before.
func (a *app) stop() {
	if console := a.console.Load(); console != nil {
		if err := console.Suspend(); err != nil {
			a.log.Warn("the terminal may be in a strange mode", "err", err)
		}
	}
	if err := unix.Kill(unix.Getpid(), unix.SIGSTOP); err != nil {
		a.log.Error("stopping", "err", err)
	}
}

func (a *app) resume() {
	console := a.console.Load()
	if console == nil {
		return
	}
	if err := console.Resume(); err != nil {
		a.log.Error("the terminal's mode", "err", err)
	}
}
