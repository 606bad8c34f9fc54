// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inNetns moves the test to a thread in a network namespace of its own, without
// IPv6, whose neighbour discovery would send frames by itself. The thread ends
// with the test, and the namespace with it.
func inNetns(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("unshare(CLONE_NEWNET): %v", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
}

// withCloneDevice gives the test's thread a /dev/net of its own, in which the
// clone device has the given mode, or is missing if that is 0.
func withCloneDevice(t *testing.T, mode uint32) {
	t.Helper()
	for what, err := range map[string]error{
		"unshare": unix.Unshare(unix.CLONE_NEWNS),
		"private": unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		"tmpfs":   unix.Mount("none", "/dev/net", "tmpfs", 0, ""),
	} {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	if mode == 0 {
		return
	}
	if err := unix.Mknod(cloneDevice, unix.S_IFCHR|mode, int(unix.Mkdev(10, 200))); err != nil {
		t.Fatal(err)
	}
	if err := unix.Chmod(cloneDevice, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

// nobody is a user without any privilege.
const nobody = 65534

// becomeNobody drops the test's thread's privileges, and those of no other.
func becomeNobody(t *testing.T) {
	t.Helper()
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
		t.Fatalf("setresuid: %v", errno)
	}
}

func linkOf(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// run runs a command in the test's network namespace.
func run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}
