// SPDX-License-Identifier: Apache-2.0

// Command agent is the first process of an emulated host. As process 1 it
// prepares the system and collects orphans; its child runs commands for the
// machine outside (package wire).
package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == workerArgument {
		if err := work(); err != nil {
			logf("%v", err)
			os.Exit(1)
		}
		return
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "agent: the emulated host's first process; it does nothing elsewhere")
		os.Exit(2)
	}
	if err := boot(); err != nil {
		logf("cannot set the host up: %v", err)
	} else if err := superviseWorker(); err != nil {
		logf("%v", err)
	}
	powerOff()
}

// logf prints to the console, which the machine outside keeps in a file.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "emuhost agent: "+format+"\n", args...)
}

func powerOff() {
	unix.Sync()
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	logf("cannot power off: %v", err)
}
