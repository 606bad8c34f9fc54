// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/u-root/u-root/pkg/cpio"

	"github.com/govmm/govmm/internal/initramfs"
)

// deadline bounds one VM on an emulated host, where a boot takes 10 to 25 s.
const deadline = 4 * time.Minute

// govmm is the program under test.
func govmm(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/govmm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `make guest-test`", err)
	}
	return path
}

// kernel is the image of one of the cache's kernels: 6.1, 6.1-cloud, 6.12-cloud.
func kernel(t *testing.T, flavour string) string {
	t.Helper()
	cache, err := initramfs.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "kernels", flavour, "boot", "vmlinuz-*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no kernel %s in the cache: run scripts/fetch-kernels", flavour)
	}
	return found[0]
}

// archive packs files into an initrd.
func archive(t *testing.T, files ...cpio.Record) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.cpio")
	var buf bytes.Buffer
	w := cpio.Newc.Writer(&buf)
	if err := cpio.WriteRecords(w, files); err != nil {
		t.Fatal(err)
	}
	if err := cpio.WriteTrailer(w); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// script is an initrd with a script that the guest's init runs. At its end the
// guest prints what clean looks at: on the console itself, which is quiet, kernel
// messages would stand in the middle of a script's output.
func script(t *testing.T, text string) string {
	t.Helper()
	return archive(t,
		cpio.Directory("etc", 0o755), cpio.Directory("etc/govmm", 0o755),
		cpio.StaticFile("etc/govmm/run", "#!/bin/sh\n"+text+marked("dmesg", complaints), 0o755))
}

// complaints are the guest kernel's messages of level "warning" and above, after
// the number of all its messages: the whole log takes seconds on an emulated host.
const complaints = `dmesg | grep -c '^<[0-7]>'
dmesg | grep '^<[0-4]>'`

// scripted are the arguments for a guest that runs a script.
func scripted(t *testing.T, text string, more ...string) []string {
	t.Helper()
	cmdline := "quiet"
	if onEmulatedHost() {
		// There a vCPU may stand still for longer than the kernel's watchdogs allow.
		cmdline += " rcupdate.rcu_cpu_stall_timeout=300 watchdog_thresh=60"
	}
	return append([]string{"run", "--log-level", "info", "-a", cmdline, "-i", "default", "-i", script(t, text)}, more...)
}

// vm is one run of govmm.
type vm struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}
	err   error // of cmd.Wait

	mu      sync.Mutex
	console bytes.Buffer
	stderr  bytes.Buffer
	more    chan struct{} // closed and replaced when output comes
}

// start runs govmm with args in ns. It is killed if the test ends without
// having waited for it.
func start(t *testing.T, ns *netns, args ...string) *vm {
	t.Helper()
	v := &vm{t: t, done: make(chan struct{}), more: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), 10*deadline)
	t.Cleanup(cancel)
	v.cmd = exec.CommandContext(ctx, govmm(t), args...)
	v.cmd.Stdout = &tee{v, &v.console}
	v.cmd.Stderr = &tee{v, &v.stderr}
	v.cmd.WaitDelay = 5 * time.Second
	var err error
	if v.stdin, err = v.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := ns.start(v.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		v.err = v.cmd.Wait()
		close(v.done)
	}()
	t.Cleanup(func() {
		v.quit()
		if t.Failed() {
			t.Logf("govmm %s\n--- stderr\n%s\n--- console\n%s", strings.Join(args, " "), v.text(&v.stderr), tailOf(v.text(&v.console)))
		}
	})
	return v
}

// quit ends a govmm that still runs, with a stack trace of what it does.
func (v *vm) quit() {
	select {
	case <-v.done:
		return
	default:
	}
	stop := quitAfter(v.cmd.Process, 0)
	defer stop()
	<-v.done
}

// quitAfter makes a process that runs longer than d say what it does and end:
// the Go runtime prints the stacks of all goroutines on SIGQUIT.
func quitAfter(p *os.Process, d time.Duration) (stop func()) {
	const patience = 5 * time.Second
	kill := time.AfterFunc(d+patience, func() { p.Kill() })
	quit := time.AfterFunc(d, func() { p.Signal(syscall.SIGQUIT) })
	return func() { quit.Stop(); kill.Stop() }
}

// tailOf keeps a log of a failure readable.
func tailOf(s string) string {
	const max = 12000
	if len(s) > max {
		return "...\n" + s[len(s)-max:]
	}
	return s
}

type tee struct {
	v   *vm
	buf *bytes.Buffer
}

func (w *tee) Write(p []byte) (int, error) {
	w.v.mu.Lock()
	defer w.v.mu.Unlock()
	w.buf.Write(p)
	close(w.v.more)
	w.v.more = make(chan struct{})
	return len(p), nil
}

func (v *vm) text(b *bytes.Buffer) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return b.String()
}

// output is what the guest has printed so far.
func (v *vm) output() string { return v.text(&v.console) }

// log is what govmm itself has printed so far.
func (v *vm) log() string { return v.text(&v.stderr) }

// expect waits until the console has n matches of the pattern and returns the
// last one's groups.
func (v *vm) expect(pattern string, n int) []string {
	v.t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(deadline)
	for {
		v.mu.Lock()
		found, more := re.FindAllStringSubmatch(v.console.String(), -1), v.more
		v.mu.Unlock()
		if len(found) >= n {
			return found[n-1]
		}
		select {
		case <-more:
		case <-v.done:
			if found := re.FindAllStringSubmatch(v.output(), -1); len(found) >= n {
				return found[n-1]
			}
			v.t.Fatalf("govmm ended (%v) before the console had %d of %q", v.err, n, pattern)
		case <-timeout:
			v.t.Fatalf("the console has only %d of %d of %q after %v", len(found), n, pattern, deadline)
		}
	}
}

// send types text at the guest's console.
func (v *vm) send(text string) {
	v.t.Helper()
	if _, err := io.WriteString(v.stdin, text); err != nil {
		v.t.Fatal(err)
	}
}

// wait waits for the end of govmm and returns its exit status.
func (v *vm) wait() int {
	v.t.Helper()
	select {
	case <-v.done:
	case <-time.After(deadline):
		v.t.Fatalf("govmm still runs after %v", deadline)
	}
	return status(v.t, v.err)
}

// status is the exit status, as a shell gives it.
func status(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			t.Fatalf("govmm was killed by %v", ws.Signal())
		}
		return exit.ExitCode()
	}
	t.Fatal(err)
	return -1
}

// ends waits for govmm's end and checks its status and reason.
func (v *vm) ends(code int, reason string) {
	v.t.Helper()
	if got := v.wait(); got != code {
		v.t.Errorf("exit status %d, want %d", got, code)
	}
	if last := lastLine(v.log()); !strings.Contains(last, "reason="+reason+" ") {
		v.t.Errorf("the last line is %q, want reason=%s", last, reason)
	}
	if strings.Contains(v.log(), "goroutine ") {
		v.t.Error("a stack trace")
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// clean checks the guest's kernel log: no line of it may be a complaint.
func (v *vm) clean() {
	v.t.Helper()
	count, lines, _ := strings.Cut(v.section("dmesg"), "\n")
	if n, err := strconv.Atoi(count); err != nil || n < 100 {
		v.t.Errorf("the guest's kernel log has %q messages", count)
	}
	for line := range strings.Lines(lines) {
		if complaint.MatchString(line) {
			v.t.Errorf("the guest's kernel complains: %s", strings.TrimSpace(line))
		}
	}
}

var complaint = regexp.MustCompile(`\] (BUG|WARNING):|Oops|ACPI (BIOS )?Error|Call Trace|INFO: rcu|soft lockup|hung_task|NETDEV WATCHDOG|Kernel panic|virtio_net.*(error|fail)|\bnet_ratelimit`)

// section returns what the guest printed between two marks "[name" and "name]".
func (v *vm) section(name string) string {
	v.t.Helper()
	_, rest, ok := strings.Cut(v.output(), "["+name+"\r\n")
	if !ok {
		v.t.Fatalf("the console has no section %s", name)
	}
	text, _, ok := strings.Cut(rest, name+"]")
	if !ok {
		v.t.Fatalf("section %s has no end", name)
	}
	return strings.ReplaceAll(text, "\r\n", "\n")
}

// marked makes a script print the output of a command as a section.
func marked(name, command string) string {
	return fmt.Sprintf("echo '[%s'\n%s\necho '%s]'\n", name, command, name)
}
