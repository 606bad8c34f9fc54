// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// beCommand makes the test binary the command under test.
const beCommand = "EMUHOST_TEST_BE_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(beCommand) != "" {
		main()
		os.Exit(0) // never the tests again, which would start more of us
	}
	os.Exit(m.Run())
}

func emuhostCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), beCommand+"=1")
	return cmd
}

// result is what a run of the command left.
type result struct {
	stdout, stderr string
	status         int
}

func runCommand(t *testing.T, input io.Reader, args ...string) result {
	t.Helper()
	cmd := emuhostCommand(t, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args   []string
		status int
		stderr string
	}{
		{nil, exitUsage, "emuhost run"},
		{[]string{"bogus"}, exitUsage, `unknown command "bogus"`},
		{[]string{"run"}, exitUsage, "no command"},
		{[]string{"run", "-t", "--"}, exitUsage, "no command"},
		{[]string{"help"}, 0, ""},
	} {
		got := runCommand(t, nil, test.args...)
		if got.status != test.status || !strings.Contains(got.stderr, test.stderr) {
			t.Errorf("%q: status %d, stderr %q; want %d, %q", test.args, got.status, got.stderr, test.status, test.stderr)
		}
	}
}

// TestKeptHost goes through the life of a kept host; it needs what
// scripts/fetch-kernels gets.
func TestKeptHost(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if got := runCommand(t, nil, "status"); got.status != exitNotRunning {
		t.Errorf("status before the start: %+v", got)
	}
	if got := runCommand(t, nil, "stop"); got.status != 0 {
		t.Errorf("stop before the start: %+v", got)
	}
	if got := runCommand(t, nil, "start"); got.status != 0 {
		t.Fatalf("start: %+v", got)
	}
	t.Cleanup(func() { runCommand(t, nil, "stop") })
	if got := runCommand(t, nil, "start"); got.status != 0 || !strings.Contains(got.stderr, "running already") {
		t.Errorf("a second start: %+v", got)
	}
	t.Run("streams", testStreams)
	t.Run("environment", testEnvironment)
	t.Run("signal", testSignal)
	t.Run("terminal", testTerminal)
	t.Run("killed", testKilledDaemon)
}

func testStreams(t *testing.T) {
	input := bytes.Repeat([]byte("0123\x00\xff\n"), 1<<17)
	got := runCommand(t, bytes.NewReader(input), "run", "--", "sh", "-c", `cat; echo "$1" >&2; exit 42`, "sh", "a 'b' \"c\"")
	if got.stdout != string(input) || got.stderr != "a 'b' \"c\"\n" || got.status != 42 {
		t.Errorf("%d of %d bytes came back, stderr %q, status %d", len(got.stdout), len(input), got.stderr, got.status)
	}
	if got := runCommand(t, nil, "run", "govmm-no-such-program"); got.status != 127 || !strings.Contains(got.stderr, "command not found") {
		t.Errorf("a program that does not exist: %+v", got)
	}
}

func testEnvironment(t *testing.T) {
	t.Setenv("EMUHOST_TEST", "a b\nc")
	dir := t.TempDir()
	t.Chdir(dir)
	got := runCommand(t, nil, "run", "sh", "-c", `printf '%s|%s|%s' "$EMUHOST_TEST" "$(pwd)" "$GOVMM_EMULATED_HOST"`)
	if want := "a b\nc|" + dir + "|1"; got.stdout != want {
		t.Errorf("got %q, want %q; stderr %s", got.stdout, want, got.stderr)
	}
}

func testSignal(t *testing.T) {
	cmd := emuhostCommand(t, "run", "sh", "-c", `trap 'echo got it; exit 7' TERM; echo ready; while :; do sleep 0.1; done`)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	readUntil(t, stdout, "ready\n")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(stdout)
	if string(rest) != "got it\n" || err != nil {
		t.Errorf("output after the signal: %q, %v", rest, err)
	}
	_ = cmd.Wait() // its error is the status
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit status %d, want 7", code)
	}
}

// readUntil reads up to a text, and returns all that came.
func readUntil(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	var got []byte
	one := make([]byte, 1)
	for !bytes.HasSuffix(got, []byte(text)) {
		n, err := r.Read(one)
		got = append(got, one[:n]...)
		if err != nil {
			t.Fatalf("waiting for %q: %v after %q", text, err, got)
		}
	}
	return string(got)
}

func testTerminal(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	if err := pty.Setsize(master, &pty.Winsize{Rows: 41, Cols: 123}); err != nil {
		t.Fatal(err)
	}
	before := terminalModes(t, slave)
	cmd := emuhostCommand(t, "run", "-t", "sh", "-c", `stty size; trap 'stty size; echo changed' WINCH; echo ready; while :; do sleep 0.1; done`)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got := readUntil(t, master, "ready\r\n"); !strings.HasPrefix(got, "41 123\r\n") {
		t.Errorf("output %q", got)
	}
	if during := terminalModes(t, slave); during.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != 0 {
		t.Errorf("the terminal is not raw while the command runs: %#x", during.Lflag)
	}
	if err := pty.Setsize(master, &pty.Winsize{Rows: 20, Cols: 60}); err != nil {
		t.Fatal(err)
	}
	if got := readUntil(t, master, "changed\r\n"); !strings.Contains(got, "20 60\r\n") {
		t.Errorf("after the change of size: %q", got)
	}
	if _, err := master.Write([]byte{0x03}); err != nil { // Ctrl-C is for the command there
		t.Fatal(err)
	}
	_ = cmd.Wait() // its error is the status
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGINT) {
		t.Errorf("exit status %d, want %d", code, 128+int(syscall.SIGINT))
	}
	if after := terminalModes(t, slave); *after != *before {
		t.Errorf("the terminal is left in mode %+v, was %+v", *after, *before)
	}
}

func terminalModes(t *testing.T, f *os.File) *unix.Termios {
	t.Helper()
	modes, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return modes
}

// testKilledDaemon: QEMU ends with the process that keeps it, however that ends.
func testKilledDaemon(t *testing.T) {
	got := runCommand(t, nil, "status")
	match := regexp.MustCompile(`^running, process (\d+)\n`).FindStringSubmatch(got.stdout)
	if got.status != 0 || match == nil {
		t.Fatalf("status: %+v", got)
	}
	daemon, err := strconv.Atoi(match[1])
	if err != nil {
		t.Fatal(err)
	}
	qemu := children(t, daemon)
	if len(qemu) == 0 {
		t.Fatal("the daemon has no child process")
	}
	if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, pid := range append(qemu, daemon) {
		awaitEnd(t, pid)
	}
	if got := runCommand(t, nil, "status"); got.status != exitNotRunning {
		t.Errorf("status after the kill: %+v", got)
	}
}

// children returns the processes whose parent is pid.
func children(t *testing.T, pid int) (found []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(data), ") ")
		fields := strings.Fields(rest) // state, parent, ...
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, child)
		}
	}
	return found
}

// awaitEnd waits until a process is gone, or at least a zombie.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return
		}
	}
	t.Errorf("process %d is still there", pid)
}
