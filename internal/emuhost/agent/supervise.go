// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/govmm/govmm/internal/emuhost/executor"
	"golang.org/x/sys/unix"
)

// workerArgument makes the program the worker.
const workerArgument = "worker"

// superviseWorker runs the worker until it ends, and collects the orphans that
// process 1 inherits. It is a process of its own because waiting for any child
// here would steal the exit statuses that the worker waits for.
func superviseWorker() error {
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

func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return "signal " + status.Signal().String()
	}
	return fmt.Sprintf("status %d", status.ExitStatus())
}
