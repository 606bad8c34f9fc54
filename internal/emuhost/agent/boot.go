// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/govmm/govmm/internal/emuhost/wire"
	"github.com/govmm/govmm/internal/initramfs/layout"
	"golang.org/x/sys/unix"
)

// Folders in the initramfs that the new root is made from.
const (
	machineDir = "/machine" // the machine's root, read-only
	scratchDir = "/scratch" // tmpfs that takes all changes
	newRoot    = "/newroot" // both together
)

// mount is one call of mount(2) after a mkdir of its target.
type mount struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
}

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s (%s) on %s: %w", m.source, m.fstype, m.target, err)
	}
	return nil
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

// boot takes the system from the bare kernel to a root file system that looks
// like the machine's, in which everything is writable and no change lasts.
func boot() error {
	early := []mount{
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{"devtmpfs", "/dev", "devtmpfs", 0, ""},
	}
	if err := mountAll(early); err != nil {
		return err
	}
	loadModules(layout.ModuleList)
	if err := mountRoot(); err != nil {
		return err
	}
	if err := switchRoot(); err != nil {
		return err
	}
	settle()
	return nil
}

// mountRoot mounts the machine's root with a tmpfs over it, and the kernel's
// file systems in it.
//
// cache=loose lets the kernel keep what it read: a program of 10 MiB starts
// several times faster than with cache=none. The price is that changes on the
// machine may go unseen, so the worker drops the caches before each command.
func mountRoot() error {
	const p9 = "trans=virtio,version=9p2000.L,msize=262144"
	overlay := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", machineDir, scratchDir, scratchDir)
	if err := mountAll([]mount{
		{wire.RootTag, machineDir, "9p", unix.MS_RDONLY, p9 + ",cache=loose"},
		{"tmpfs", scratchDir, "tmpfs", 0, "size=75%"},
	}); err != nil {
		return err
	}
	for _, dir := range []string{"upper", "work"} {
		if err := os.MkdirAll(filepath.Join(scratchDir, dir), 0o755); err != nil {
			return err
		}
	}
	return mountAll([]mount{
		{"overlay", newRoot, "overlay", 0, overlay},
		{"proc", newRoot + "/proc", "proc", 0, ""},
		{"sysfs", newRoot + "/sys", "sysfs", 0, ""},
		{"cgroup2", newRoot + "/sys/fs/cgroup", "cgroup2", 0, ""},
		{"debugfs", newRoot + "/sys/kernel/debug", "debugfs", 0, ""},
		{"devtmpfs", newRoot + "/dev", "devtmpfs", 0, ""},
		{"devpts", newRoot + "/dev/pts", "devpts", 0, "ptmxmode=0666,mode=0620,gid=5"},
		{"tmpfs", newRoot + "/dev/shm", "tmpfs", 0, "mode=1777"},
		{"tmpfs", newRoot + "/run", "tmpfs", 0, "mode=0755"},
		{wire.ExchangeTag, newRoot + wire.ExchangeDir, "9p", 0, p9 + ",cache=none"},
	})
}

// switchRoot makes the new root the root of this process and its children.
func switchRoot() error {
	if err := unix.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return unix.Chdir("/")
}

// settle does what helps but is not worth failing for.
func settle() {
	const quiet = "4" // about dropped caches
	_ = os.WriteFile("/proc/sys/vm/drop_caches", []byte(quiet), 0)
	_ = unix.Sethostname([]byte("emuhost"))
	_ = os.Symlink("/proc/self/fd", "/dev/fd")
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		_ = os.Symlink(fmt.Sprintf("/proc/self/fd/%d", i), "/dev/"+name)
	}
	limit := unix.Rlimit{Cur: 1 << 16, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		logf("cannot raise the limit of open files: %v", err)
	}
	if err := linkUp("lo"); err != nil {
		logf("cannot bring lo up: %v", err)
	}
}

// linkUp sets the interface flag IFF_UP.
func linkUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// loadModules loads what the list names. A module that fails is reported and
// the rest goes on: what really was needed shows itself right after.
func loadModules(list string) {
	data, err := os.ReadFile(list)
	if err != nil {
		logf("no kernel modules: %v", err)
		return
	}
	for line := range strings.Lines(string(data)) {
		file, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if err := loadModule(file); err != nil {
			logf("kernel module %s: %v", file, err)
		}
	}
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}
