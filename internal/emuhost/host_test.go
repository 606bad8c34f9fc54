// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestEmulatedHost starts a host, for which scripts/fetch-kernels must have run,
// and looks at what only a real one has. The protocol's details are tested with
// local hosts.
func TestEmulatedHost(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx := context.Background()
	h, err := Start(ctx, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("devices", func(t *testing.T) { testDevices(t, h) })
	t.Run("files", func(t *testing.T) { testFiles(t, h) })
	t.Run("exchange", func(t *testing.T) { testExchange(t, h) })
	t.Run("streams", func(t *testing.T) { testStreams(t, h) })
	t.Run("terminal", func(t *testing.T) { testHostTerminal(t, h) })
	t.Run("orphans", func(t *testing.T) { testOrphans(t, h) })
	t.Run("stop", func(t *testing.T) { testStop(t, h) })
}

// output runs a script on the host and returns what it printed.
func output(t *testing.T, h *Host, script string, args ...string) string {
	t.Helper()
	s := newShell(script, args...)
	if code := mustRun(t, h, s.Cmd); code != 0 {
		t.Errorf("%s: exit code %d, stderr %s", script, code, s.stderr.String())
	}
	return s.stdout.String()
}

func testDevices(t *testing.T, h *Host) {
	const script = `for f in /dev/kvm /dev/net/tun /dev/vhost-net /dev/ptmx; do test -c $f && echo $f; done; uname -n; cat /sys/class/net/lo/operstate`
	want := "/dev/kvm\n/dev/net/tun\n/dev/vhost-net\n/dev/ptmx\nemuhost\n"
	if got := output(t, h, script); !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q first", got, want)
	}
	if got := output(t, h, "grep -ow svm /proc/cpuinfo | sort -u"); got != "svm\n" {
		t.Errorf("the CPU has no SVM: %q", got)
	}
	output(t, h, "ping -c 1 -q 127.0.0.1") // lo is up
}

// testFiles: the machine's files are there, also those that change later;
// changes on the host stay there.
func testFiles(t *testing.T, h *Host) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	for _, content := range []string{"first", "second and longer", "3rd"} {
		// As a build does it: a new file takes the old one's name.
		if err := os.WriteFile(file+".new", []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		if got := output(t, h, "cat $1", file); got != content {
			t.Errorf("the host reads %q, the machine wrote %q", got, content)
		}
	}
	if got := output(t, h, "echo changed >$1; cat $1", file); got != "changed\n" {
		t.Errorf("the host's own change reads %q", got)
	}
	if content, err := os.ReadFile(file); string(content) != "3rd" || err != nil {
		t.Errorf("a change on the host reached the machine: %q, %v", content, err)
	}
	output(t, h, "mkdir -p $HOME/.made-there /made-there && rm -r $HOME/.made-there /made-there")
}

func testExchange(t *testing.T, h *Host) {
	if err := os.WriteFile(filepath.Join(h.Exchange(), "in"), []byte("from the machine"), 0o644); err != nil {
		t.Fatal(err)
	}
	output(t, h, "cd $1 && cat in in >out", ExchangeDir)
	got, err := os.ReadFile(filepath.Join(h.Exchange(), "out"))
	if want := "from the machinefrom the machine"; string(got) != want || err != nil {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// testStreams moves more than all buffers hold, both ways, in several commands.
func testStreams(t *testing.T, h *Host) {
	input := bytes.Repeat([]byte{0, 1, '\n', 0xff, 'x', 0x04, 0x11, 0x13}, 1<<17)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			s := newShell("cat; echo done >&2; exit 17")
			s.Stdin = bytes.NewReader(input)
			if code := mustRun(t, h, s.Cmd); code != 17 {
				t.Errorf("exit code %d", code)
			}
			if s.stdout.String() != string(input) || s.stderr.String() != "done\n" {
				t.Errorf("%d bytes came back of %d, or they differ; stderr %q", len(s.stdout.String()), len(input), s.stderr.String())
			}
		})
	}
	all.Wait()
}

func testHostTerminal(t *testing.T, h *Host) {
	s := newShell("stty size; tty")
	s.TTY = true
	s.Size = WindowSize{Rows: 30, Cols: 100}
	mustRun(t, h, s.Cmd)
	if got := s.stdout.String(); !strings.HasPrefix(got, "30 100\r\n/dev/pts/") {
		t.Errorf("output %q", got)
	}
}

// testOrphans: process 1 collects what others leave behind.
func testOrphans(t *testing.T, h *Host) {
	const zombies = `for i in 1 2 3; do (sh -c 'exit 0' & ) ; done; sleep 0.5; grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l`
	if got := output(t, h, zombies); strings.TrimSpace(got) != "0" {
		t.Errorf("%s zombies are left", got)
	}
}

func testStop(t *testing.T, h *Host) {
	ended := make(chan error)
	s := newShell("echo ready; exec sleep 1000")
	go func() {
		_, err := h.Run(context.Background(), s.Cmd)
		ended <- err
	}()
	s.stdout.await("ready")
	exchange, qemu := h.Exchange(), h.process.cmd.Process.Pid
	if err := h.Stop(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("a command that the stop cut off ended without an error")
	}
	awaitEnd(t, qemu)
	if _, err := os.Stat(exchange); !os.IsNotExist(err) {
		t.Errorf("the exchange folder %s is left: %v", exchange, err)
	}
	left, err := os.ReadDir(os.TempDir())
	if len(left) != 0 || err != nil {
		t.Errorf("left in the folder for temporary files: %v, %v", left, err)
	}
}

func TestStartExplainsFailure(t *testing.T) {
	var first string
	options := Options{
		Kernel:      "/etc/passwd",
		BootTimeout: time.Minute,
		Logf:        func(format string, args ...any) { first = format },
	}
	if _, err := Start(context.Background(), options); err == nil || !strings.Contains(err.Error(), "/etc/passwd") {
		t.Errorf("a file that is no kernel: %v", err)
	}
	options = Options{QEMU: fakeQEMU(t, "echo trouble with the machine >&2; exit 3"), Logf: options.Logf}
	_, err := Start(context.Background(), options)
	if err == nil || !strings.Contains(err.Error(), "trouble with the machine") || !strings.Contains(err.Error(), "console") {
		t.Errorf("QEMU that fails: %v", err)
	}
	if first == "" {
		t.Error("the first attempt's failure was not reported")
	}
}

func TestStartTimesOut(t *testing.T) {
	options := Options{
		QEMU:        fakeQEMU(t, "exec sleep 1000"),
		BootTimeout: 10 * time.Millisecond,
		Logf:        t.Logf,
	}
	_, err := Start(context.Background(), options)
	if err == nil || !strings.Contains(err.Error(), "not up after 10ms") {
		t.Errorf("error %v", err)
	}
}

// fakeQEMU returns a script to be started in QEMU's place.
func fakeQEMU(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAFrozenHostIsGivenUp: a QEMU that answers the greeting and then nothing.
func TestAFrozenHostIsGivenUp(t *testing.T) {
	// The frame that an agent sends first, and silence.
	const hello = `printf '\001\000\000\000\000\000\000\000\015{"Version":1}' >&3; exec sleep 1000`
	h, err := Start(context.Background(), Options{QEMU: fakeQEMU(t, hello), FreezeTimeout: 200 * time.Millisecond, Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Run(context.Background(), newShell("exit 0").Cmd)
	if err == nil || !strings.Contains(err.Error(), "frozen") {
		t.Errorf("error %v, want one that says frozen", err)
	}
	if err := h.Stop(); err != nil {
		t.Error(err)
	}
}
