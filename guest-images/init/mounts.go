// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// mountAll mounts the kernel's file systems. What a kernel was built without is
// left out: a small kernel is no reason not to start.
func mountAll() {
	mounts := []struct{ source, target, fstype, data string }{
		{"proc", "/proc", "proc", ""},
		{"sysfs", "/sys", "sysfs", ""},
		{"devtmpfs", "/dev", "devtmpfs", ""},
		{"devpts", "/dev/pts", "devpts", "ptmxmode=0666,mode=0620"},
		{"tmpfs", "/dev/shm", "tmpfs", "mode=1777"},
		{"tmpfs", "/tmp", "tmpfs", "mode=1777"},
		{"tmpfs", "/run", "tmpfs", "mode=0755"},
		{"debugfs", "/sys/kernel/debug", "debugfs", ""},
	}
	for _, m := range mounts {
		err := os.MkdirAll(m.target, 0o755)
		if err == nil {
			err = unix.Mount(m.source, m.target, m.fstype, 0, m.data)
		}
		if err != nil && m.fstype != "debugfs" && !errors.Is(err, unix.EBUSY) {
			logf("mount %s: %v", m.target, err)
		}
	}
	_ = os.Symlink("/proc/self/fd", "/dev/fd")
	_ = os.Symlink("/proc/mounts", "/etc/mtab")
}
