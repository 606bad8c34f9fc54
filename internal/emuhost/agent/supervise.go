// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/govmm/govmm/internal/emuhost/executor"
	"golang.org/x/sys/unix"
)

// workerArgument makes the program the worker.
const workerArgument = "worker"

// superviseWorker runs the worker until it ends, and collects the orphans that
// process 1 inherits. It is a process of its own because waiting for any child
// here would steal the exit statuses that the worker waits for.
func superviseWorker() error {
	if err := slackenTimers(); err != nil {
		return err
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"agent", workerArgument}, &syscall.ProcAttr{
		Env:   executor.DefaultEnvironment,
		Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return fmt.Errorf("cannot start the worker: %w", err)
	}
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case ended == pid && status.ExitStatus() != 0:
			return fmt.Errorf("the worker ended: %v", describe(status))
		case ended == pid:
			return nil
		}
	}
}

// slackenTimers lets sleeps of the worker and of all that it starts end later, by
// up to a tick, so that they end together. Without it the Go runtime's monitor
// alone asks for thousands of timer interrupts a second, which a guest of an
// emulated host pays for with an exit each. KVM's timers are not affected.
func slackenTimers() error {
	const slack = 4 * time.Millisecond
	runtime.LockOSThread() // the new process inherits the slack of this thread
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack.Nanoseconds()), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl PR_SET_TIMERSLACK", err)
	}
	return nil
}

func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return "signal " + status.Signal().String()
	}
	return fmt.Sprintf("status %d", status.ExitStatus())
}
