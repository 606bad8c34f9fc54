// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/govmm/govmm/internal/initramfs/layout"
	"golang.org/x/sys/unix"
)

// environment is that of everything init starts.
var environment = []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin:/bbin", "HOME=/root", "TERM=linux", "USER=root"}

const shellPath = "/bin/sh"

// runCommand returns the command to run instead of a shell, or nil.
func runCommand(c commandLine) []string {
	if _, err := os.Stat(layout.Run); err == nil {
		return append([]string{layout.Run}, c.command...)
	}
	return c.command
}

// runOnConsole runs a command to its end and returns its exit status.
func runOnConsole(command []string) int {
	path, err := lookPath(command[0])
	if err != nil {
		logf("%v", err)
		return 127
	}
	status, err := wait(path, command, &syscall.SysProcAttr{Setsid: true})
	if err != nil {
		logf("%s: %v", path, err)
		return 126
	}
	return status
}

func reportExit(status int) {
	fmt.Printf("%s%d\n", layout.ExitMarker, status)
}

// shell runs shells on the console until one ends by itself. One that was
// killed (or a window of the out-of-memory killer) gets a successor.
func shell() {
	greet()
	for {
		terminal, err := controlTerminal()
		if err != nil {
			logf("no terminal: %v", err)
		}
		attributes := &syscall.SysProcAttr{Setsid: true, Setctty: terminal != nil}
		status, err := wait(shellPath, []string{shellPath}, attributes, terminal)
		if terminal != nil {
			terminal.Close()
		}
		if err != nil {
			logf("%s: %v", shellPath, err)
			return
		}
		if status < 128 {
			return
		}
		logf("the shell was killed (status %d), here is another", status)
		time.Sleep(time.Second) // no busy loop if it is always killed
	}
}

// controlTerminal opens the console's own device: /dev/console can not be a
// controlling terminal, without which a shell has no job control and Ctrl-C
// reaches nobody.
func controlTerminal() (*os.File, error) {
	data, err := os.ReadFile("/sys/class/tty/console/active")
	if err != nil {
		return nil, err
	}
	names := strings.Fields(string(data))
	if len(names) == 0 {
		return nil, errors.New("the kernel has no console")
	}
	// The last one is what /dev/console means. O_NOCTTY: it is for the shell.
	terminal, err := os.OpenFile("/dev/"+names[len(names)-1], os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	setDefaultSize(int(terminal.Fd()))
	return terminal, nil
}

// setDefaultSize gives a terminal that knows no size (a serial line) the usual
// one, for programs that divide by it.
func setDefaultSize(fd int) {
	size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err != nil || size.Row != 0 && size.Col != 0 {
		return
	}
	_ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
}

// wait starts a program and collects all children until it ends: orphans of
// what runs in the guest are process 1's. Standard streams are the terminal, or
// init's own without one.
func wait(path string, argv []string, attributes *syscall.SysProcAttr, terminal ...*os.File) (status int, err error) {
	files := []uintptr{0, 1, 2}
	if len(terminal) > 0 && terminal[0] != nil {
		fd := terminal[0].Fd()
		files = []uintptr{fd, fd, fd}
	}
	child, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Dir: "/", Env: environment, Files: files, Sys: attributes})
	runtime.KeepAlive(terminal)
	if err != nil {
		return 0, err
	}
	for {
		var s unix.WaitStatus
		pid, err := unix.Wait4(-1, &s, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, os.NewSyscallError("wait4", err)
		case pid == child && s.Signaled():
			return 128 + int(s.Signal()), nil
		case pid == child:
			return s.ExitStatus(), nil
		}
	}
}

// lookPath finds a program in the PATH of the environment above.
func lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path, _ := strings.CutPrefix(environment[0], "PATH=")
	for _, dir := range filepath.SplitList(path) {
		if file := filepath.Join(dir, name); isProgram(file) {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s: command not found", name)
}

func isProgram(path string) bool {
	stat, err := os.Stat(path)
	return err == nil && stat.Mode().IsRegular() && stat.Mode()&0o111 != 0
}

func greet() {
	var uts unix.Utsname
	var info unix.Sysinfo_t
	if unix.Uname(&uts) != nil || unix.Sysinfo(&info) != nil {
		return
	}
	memory := info.Totalram * uint64(info.Unit) >> 20
	fmt.Printf("\nLinux %s, %d vCPU, %d MiB. Type exit or poweroff to end.\n",
		unix.ByteSliceToString(uts.Release[:]), runtime.NumCPU(), memory)
}
