// SPDX-License-Identifier: Apache-2.0

// Command init is process 1 of govmm's guest image. It mounts the kernel's file
// systems, loads the modules that were packed for this kernel, configures the
// network from the kernel command line, and runs a shell, or a command whose
// exit status it reports (see package layout). Then it powers the machine off.
//
// Under the names reboot, halt and poweroff it is those commands.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "reboot":
		end(unix.LINUX_REBOOT_CMD_RESTART)
	case "halt", "poweroff":
		end(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: process 1 of govmm's guest image; it does nothing elsewhere")
		os.Exit(2)
	}
	start()
	end(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// start does everything between the kernel and the end.
func start() {
	mountAll()
	parameters := readCommandLine()
	for _, failure := range loadModules() {
		logf("%v", failure)
	}
	setHostname(parameters)
	if err := configureNetwork(parameters); err != nil {
		logf("network: %v", err)
	}
	command := runCommand(parameters)
	if command == nil {
		shell()
		return
	}
	reportExit(runOnConsole(command))
}

// logf prints to the console.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "govmm-init: "+format+"\n", args...)
}

// end writes out what is pending and stops the machine. It returns only if the
// kernel refuses.
func end(how int) {
	unix.Sync()
	drain(os.Stdout)
	if err := unix.Reboot(how); err != nil {
		logf("cannot stop the machine: %v", err)
		os.Exit(1)
	}
}

// drain waits until a terminal has sent what was written to it, as tcdrain does:
// the kernel does not when it stops the machine. There is nothing to do about a
// failure, and with a pipe there is nothing to wait for.
func drain(terminal *os.File) {
	const waitOnly = 1 // TCSBRK sends a break if it is 0
	_ = unix.IoctlSetInt(int(terminal.Fd()), unix.TCSBRK, waitOnly)
}
