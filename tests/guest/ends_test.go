// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// TestRefusals starts what can't run: each ends at once with the right status and
// a reason that names the thing.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := kernel(t, "6.1-cloud")
	image, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	truncated := file("truncated", image[:len(image)/2])
	text := file("text", []byte("#!/bin/sh\necho I am no kernel\n"))
	empty := file("empty", nil)
	large := filepath.Join(dir, "large.cpio")
	if err := os.Truncate(file("large.cpio", []byte("070701")), 300<<20); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		reason string
		says   []string
	}{
		{"no kernel", []string{"run", filepath.Join(dir, "none")}, 121, "bad-image", []string{"none", "no such file"}},
		{"a folder without a kernel", []string{"run", dir}, 121, "bad-image", []string{dir}},
		{"a script", []string{"run", text}, 121, "bad-image", []string{text}},
		{"an empty file", []string{"run", empty}, 121, "bad-image", []string{empty}},
		{"a truncated bzImage", []string{"run", truncated}, 121, "bad-image", []string{truncated}},
		{"no initrd", []string{"run", "-i", filepath.Join(dir, "no.cpio"), good}, 121, "bad-image", []string{"no.cpio"}},
		{"initrd larger than memory", []string{"run", "-m", "256M", "-i", large, good}, 121, "bad-image", []string{large, "300"}},
		{"memory too small for the kernel", []string{"run", "-m", "32M", good}, 121, "bad-image", []string{"memory", "32"}},
		{"command line too long", []string{"run", "-a", strings.Repeat("x", 3000), good}, 121, "bad-image", []string{"command line", "2047"}},
		{"PVH entry of a kernel that has none", []string{"run", "--entry", "pvhh", good}, 2, "usage", []string{"pvhh"}},
		{"no CPU", []string{"run", "-c", "0", good}, 2, "usage", []string{"cpus", "0"}},
		{"too many CPUs", []string{"run", "-c", "33", good}, 2, "usage", []string{"33", "32"}},
		{"unknown flag", []string{"run", "--memry", "1G", good}, 2, "usage", []string{"--memry", "--memory"}},
		{"unknown key", []string{"run", "-n", "tap=x0,mtuu=1500", good}, 2, "usage", []string{"mtuu", "mtu"}},
		{"no such tap", []string{"run", "-n", "tap=nosuch0", good}, 122, "host", []string{"nosuch0", "ip tuntap add"}},
		{"tap name too long", []string{"run", "-n", "tap=a-name-of-17-char", good}, 2, "usage", []string{"a-name-of-17-char", "15"}},
		{"not a tap", []string{"run", "-n", "tap=lo", good}, 122, "host", []string{"lo"}},
		{"descriptor that is no tap", []string{"run", "-n", "fd=99", good}, 122, "host", []string{"99"}},
		{"queues of a single-queue tap", []string{"run", "-n", "tap=single0,queues=2", good}, 122, "host", []string{"single0", "multi_queue"}},
		{"MTU below IPv6's least", []string{"run", "-n", "tap,mtu=1200", good}, 2, "usage", []string{"1200", "1280"}},
		{"serial file in no folder", []string{"run", "--serial", "file=" + dir + "/no/such", good}, 122, "host", []string{dir + "/no/such"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := newNetns(t)
			ns.run(t, "ip", "tuntap", "add", "mode", "tap", "name", "single0")
			v := start(t, ns, c.args...)
			v.ends(c.code, c.reason)
			for _, want := range c.says {
				if !strings.Contains(v.log(), want) {
					t.Errorf("the message does not say %q: %s", want, v.log())
				}
			}
			if n := strings.Count(strings.TrimSpace(v.log()), "\n"); n > 3 {
				t.Errorf("the message has %d lines:\n%s", n+1, v.log())
			}
		})
	}
}

// TestWithoutPermission runs govmm as a user who may use neither KVM nor a tap
// of somebody else.
func TestWithoutPermission(t *testing.T) {
	const nobody = 65534
	dir, err := os.MkdirTemp("/tmp", "govmm-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// The user can read neither the cache nor, perhaps, the folder of the program.
	for from, to := range map[string]string{kernel(t, "6.1-cloud"): "vmlinuz", govmm(t): "govmm"} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, to), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Where only root may open the device of all taps, the message is about that.
	tun, err := os.Stat("/dev/net/tun")
	if err != nil {
		t.Fatal(err)
	}
	anothers, anew := "user", "CAP_NET_ADMIN"
	if tun.Mode().Perm()&0o006 != 0o006 {
		anothers, anew = "chmod 666 /dev/net/tun", "chmod 666 /dev/net/tun"
	}
	for _, c := range []struct {
		name string
		args []string
		says []string
	}{
		{"KVM", nil, []string{"/dev/kvm", "group"}},
		{"another user's tap", []string{"-n", "tap=root0"}, []string{"root0", anothers}},
		{"a new tap", []string{"-n", "tap"}, []string{anew}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := newNetns(t)
			ns.run(t, "ip", "tuntap", "add", "mode", "tap", "user", "root", "name", "root0")
			args := append([]string{"run", "-i", filepath.Join(dir, "vmlinuz")}, c.args...)
			cmd := exec.Command(filepath.Join(dir, "govmm"), append(args, filepath.Join(dir, "vmlinuz"))...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := ns.start(cmd); err != nil {
				t.Fatal(err)
			}
			if got := status(t, cmd.Wait()); got != 122 {
				t.Errorf("exit status %d, want 122", got)
			}
			for _, want := range c.says {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("the message does not say %q: %s", want, stderr.String())
				}
			}
		})
	}
}

// TestGuestEnds lets guests end in every way they can, and checks status and
// reason.
func TestGuestEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		script string
		args   []string
		code   int
		reason string
	}{
		{"poweroff", "poweroff\n", nil, 0, "poweroff"},
		{"poweroff by sysrq", "echo o > /proc/sysrq-trigger\nsleep 100\n", nil, 0, "poweroff"},
		{"reset by sysrq, to exit", "echo b > /proc/sysrq-trigger\n", []string{"--on-reboot", "exit"}, 117, "reset"},
		{"reset, to exit", "reboot -f\n", []string{"--on-reboot", "exit"}, 117, "reset"},
		{"triple fault", "reboot -f\n", []string{"-a", "reboot=t", "--on-reboot", "exit"}, 117, "triple-fault"},
		{"panic that resets", "echo c > /proc/sysrq-trigger\n", []string{"-a", "panic=-1"}, 116, "panic"},
		{"panic that hangs", "echo c > /proc/sysrq-trigger\n", []string{"-a", "panic=0"}, 116, "panic"},
		{"nothing printed, nothing done", "while true; do sleep 100; done\n", []string{"--cmdline", "quiet", "--timeout", "20s"}, 124, "timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := start(t, newNetns(t), scripted(t, c.script, append(c.args, kernel(t, "6.1-cloud"))...)...)
			v.ends(c.code, c.reason)
		})
	}
}

// TestSignals stops govmm in each phase of a run by each signal that users send:
// the status is the signal's, and nothing stays behind.
func TestSignals(t *testing.T) {
	phases := []struct {
		name  string
		reach func(*vm)
	}{
		{"at once", func(*vm) {}},
		{"in the kernel", func(v *vm) { v.expect("Linux version", 1) }},
		{"in user space", func(v *vm) { v.expect("IN-USER-SPACE", 1) }},
	}
	for _, phase := range phases {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
			t.Run(fmt.Sprintf("%s/%s", unix.SignalName(sig), phase.name), func(t *testing.T) {
				ns := newNetns(t)
				v := start(t, ns, "run", "-n", "tap", "-i", "default", "-i", script(t, "echo IN-USER-SPACE\nsleep 1000\n"), kernel(t, "6.1-cloud"))
				phase.reach(v)
				if err := v.cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				if phase.name == "at once" {
					// The process may not even have run its first instruction: then the
					// kernel's default ends it.
					<-v.done
					if ws := v.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() && ws.Signal() == sig {
						return
					}
				}
				v.ends(128+int(sig), "signal")
				if links := ns.run(t, "ip", "-o", "link"); strings.Contains(links, tapName) {
					t.Errorf("the tap is still there:\n%s", links)
				}
			})
		}
	}
}

// TestStreams runs guests with standard streams that are closed, full or slow.
func TestStreams(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	stuckReader, stuckPipe := smallPipe(t)
	defer stuckReader.Close()
	defer stuckPipe.Close()
	goneReader, gonePipe := smallPipe(t)
	goneReader.Close()
	defer gonePipe.Close()
	for _, c := range []struct {
		name   string
		change func(*exec.Cmd)
		code   int
	}{
		{"closed stdin", func(c *exec.Cmd) { c.Stdin = nil }, 0},
		{"stdout whose reader is gone", func(c *exec.Cmd) { c.Stdout = gonePipe }, 0},
		{"stdout whose reader does not read", func(c *exec.Cmd) { c.Stdout = stuckPipe }, 0},
		{"full stdout", func(c *exec.Cmd) { c.Stdout = full }, 122},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(govmm(t), scripted(t, moreThanAPage, kernel(t, "6.1-cloud"))...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			c.change(cmd)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stop := quitAfter(cmd.Process, deadline)
			defer stop()
			if got := status(t, cmd.Wait()); got != c.code {
				t.Errorf("exit status %d, want %d\n%s", got, c.code, stderr.String())
			}
		})
	}
}

// moreThanAPage is a script that prints more than a small pipe holds.
const moreThanAPage = "head -c 6000 /proc/kallsyms\n"

// smallPipe is a pipe that holds one page.
func smallPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize()); err != nil {
		t.Fatal(err)
	}
	return r, w
}

// TestTerminal runs govmm on a terminal: a prompt, commands, Ctrl-A, and the
// terminal as it was before, however the run ends.
func TestTerminal(t *testing.T) {
	for _, how := range []string{"poweroff", "Ctrl-A x", "SIGTERM"} {
		t.Run(how, func(t *testing.T) {
			master, slave, err := pty.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer master.Close()
			defer slave.Close()
			before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			screen := &screen{changed: make(chan struct{}, 1)}
			go func() { _, _ = io.Copy(screen, master) }()
			cmd := exec.Command(govmm(t), "run", "-a", "quiet", kernel(t, "6.1-cloud"))
			cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stop := quitAfter(cmd.Process, deadline)
			defer stop()
			screen.wait(t, "exit or poweroff to end")
			send := func(s string) {
				if _, err := io.WriteString(master, s); err != nil {
					t.Fatal(err)
				}
			}
			send("echo THE-SUM-IS $((40+2))\r")
			screen.wait(t, "THE-SUM-IS 42")
			want := 0
			switch how {
			case "poweroff":
				send("poweroff\r")
			case "Ctrl-A x":
				send("\x01x")
			default:
				want = 143
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			if got := status(t, cmd.Wait()); got != want {
				t.Errorf("exit status %d, want %d\n%s", got, want, screen)
			}
			after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
			if err != nil || *after != *before {
				t.Errorf("the terminal was %+v and is %+v (%v)", before, after, err)
			}
		})
	}
}
