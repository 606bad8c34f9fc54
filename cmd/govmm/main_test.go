// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/machine"
	"golang.org/x/sys/unix"
)

// The test binary is also govmm: with testMain in its environment it does what
// the command does, with a real machine or with a fake one that behaves as the
// variable says. So the tests run the command as a user does, as a process of
// its own.
const testMain = "GOVMM_TEST_MAIN"

func TestMain(m *testing.M) {
	switch mode := os.Getenv(testMain); {
	case mode == "":
		os.Exit(m.Run())
	case mode == "job":
		os.Exit(runJob())
	case mode == "real":
		main()
	default:
		a := newApp()
		a.newVM = func(c machine.Config, s machine.Streams, log *slog.Logger) (vm, error) {
			return newFake(mode, s)
		}
		os.Exit(a.main(os.Args[1:]))
	}
}

// fake is a VM that does what its mode says.
type fake struct {
	mode string
	s    machine.Streams
	quit chan struct{}
}

func newFake(mode string, s machine.Streams) (*fake, error) {
	switch mode {
	case "refuse":
		return nil, result.Errorf(result.BadImage, "not a kernel: use a bzImage")
	case "panic-new":
		panic("the fake panics in New")
	case "slow-new":
		fmt.Fprintln(os.Stderr, "NEW")
		_, _ = io.Copy(io.Discard, s.In) // until the test lets go
	}
	return &fake{mode, s, make(chan struct{}, 1)}, nil
}

func (f *fake) Quit() {
	if f.mode == "panic-quit" {
		panic("the fake panics in Quit")
	}
	f.quit <- struct{}{}
}

func (f *fake) Close() error {
	fmt.Fprintln(os.Stderr, "CLOSED")
	if f.mode == "close-fails" {
		return result.Errorf(result.Host, "tap9 could not be removed")
	}
	return nil
}

func (f *fake) Run(ctx context.Context) result.Result {
	if reason, ok := strings.CutPrefix(f.mode, "end:"); ok {
		return result.Of(result.Reason(reason), "the detail of %s", reason)
	}
	switch f.mode {
	case "prompt":
		f.print("/ # ")
	case "panic-run":
		panic("the fake panics in Run")
	case "flood":
		for i := range 10000 {
			f.print(fmt.Sprintf("line %d\r\n", i))
		}
		return f.orEnded(ctx)
	case "stuck":
		f.print("READY\r\n")
		<-ctx.Done()
		fmt.Fprintln(os.Stderr, "CANCELLED")
		select {}
	case "echo", "panic-quit", "slow-new":
		return f.echo(ctx)
	}
	return result.Of(result.PowerOff, "the guest powered itself off")
}

// orEnded is the result of a VM that does not look at ctx before its end.
func (f *fake) orEnded(ctx context.Context) result.Result {
	if ctx.Err() != nil {
		return result.OfContext(ctx)
	}
	return result.Of(result.PowerOff, "the guest powered itself off")
}

// print prints to the console or, without one, to standard error.
func (f *fake) print(s string) {
	var w io.Writer = os.Stderr
	if f.s.Out != nil {
		w = f.s.Out
	}
	_, _ = io.WriteString(w, s) // as a VM, it goes on without a reader
}

// echo prints what it gets until it is ended.
func (f *fake) echo(ctx context.Context) result.Result {
	f.print("READY\r\n")
	go func() {
		if f.s.In == nil {
			return
		}
		buf := make([]byte, 256)
		for {
			n, err := f.s.In.Read(buf)
			if n > 0 {
				f.print(fmt.Sprintf("<%x>\r\n", buf[:n]))
			}
			if err != nil {
				f.print("EOF\r\n")
				return
			}
		}
	}()
	select {
	case <-ctx.Done():
		return result.OfContext(ctx)
	case <-f.quit:
		return result.Of(result.Stopped, "by the user")
	}
}

// command is govmm as a process that has not started. It has no configuration of
// the user's or folder's, and ends in any case.
func command(t *testing.T, mode string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(ctx, self, args...)
	c.Dir = t.TempDir()
	// The race detector would let each process sleep for a second at its end.
	c.Env = append(os.Environ(), testMain+"="+mode, "XDG_CONFIG_HOME="+c.Dir, "GORACE=atexit_sleep_ms=0")
	return c
}

// outcome is what a run of the command left behind.
type outcome struct {
	code           int
	stdout, stderr string
}

// lastLine is the last line of standard error.
func (o outcome) lastLine() string {
	text := strings.TrimSuffix(o.stderr, "\n")
	return text[strings.LastIndexByte(text, '\n')+1:]
}

func run(t *testing.T, c *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if c.Stdout == nil {
		c.Stdout = &stdout
	}
	c.Stderr = &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{c.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func govmm(t *testing.T, mode string, args ...string) outcome {
	t.Helper()
	return run(t, command(t, mode, args...))
}

// noTrace fails if a Go stack trace reached the user.
func noTrace(t *testing.T, o outcome) {
	t.Helper()
	if all := o.stdout + o.stderr; strings.Contains(all, "goroutine ") || strings.Contains(all, ".go:") {
		t.Errorf("a stack trace reached the user:\n%s", all)
	}
}

func TestUsageErrors(t *testing.T) {
	tests := []struct {
		args string
		want string
	}{
		{"", "no command: govmm run KERNEL"},
		{"rum bzImage", `unknown command \"rum\": did you mean govmm run?`},
		{"bzImage", `unknown command \"bzImage\": govmm help shows`},
		{"/", `to boot it, use govmm run /`},
		{"-k bzImage", "unknown flag -k: it is one of govmm run, so write govmm run -k"},
		{"--cpus 2", "unknown flag --cpus: it is one of govmm run"},
		{"help exitcodes", "did you mean govmm help exit-codes?"},
		{"help disks", `there is no help on \"disks\": there is on`},
		{"completion tcsh", `there is no completion for \"tcsh\"`},
		{"completion bsh", "did you mean bash?"},
		{"completion", "completion needs one shell"},
		{"man", "man needs one folder"},
		{"version now", `\"now\" is one argument too many`},
		{"probe --jsn", "unknown flag --jsn: did you mean --json?"},

		{"run", "no kernel"},
		{"run a b", `\"a\" and \"b\" are two kernels`},
		{"run a -k b", `\"a\" and --kernel b are two kernels`},
		{"run -- a", "no kernel"},
		{"run --memry 1G a", "unknown flag --memry: did you mean --memory?"},
		{"run --colour a", "unknown flag --colour: govmm run --help shows the flags"},
		{"run -Z a", "unknown flag -Z: govmm run --help shows the flags"},
		{"run -qZ a", "unknown flag -Z"},
		{"run -smp 2 a", "unknown flag -smp: use --cpus"},
		{"run --smp 2 a", "unknown flag --smp: use --cpus"},
		{"run -nographic a", "leave it out"},
		{"run -kernel a", "-kernel has one dash: write --kernel"},
		{"run a -append=quiet", "-append=quiet has one dash"},
		{"run a -c", "--cpus has no value: write --cpus N"},
		{"run a --memory", "--memory has no value: write --memory SIZE"},
		{"run a -c 0", "--cpus: 0 is out of range: use 1 to 32"},
		{"run a -c 33", "--cpus: 33 is out of range: use 1 to 32"},
		{"run a -c -1", "--cpus: -1 is out of range"},
		{"run a -c two", `--cpus: \"two\" is not a number`},
		{"run a -m 0", "--memory: size 0 is nothing"},
		{"run a -m 16M", "memory of 16777216 bytes is out of range: use 32M"},
		{"run a -m 2T", "out of range"},
		{"run a -m 1.5G", `--memory: \"1.5G\" is not a size`},
		{"run a -m -1", `--memory: \"-1\" is not a size`},
		{"run a --entry bios", `entry \"bios\" is unknown: use auto, linux64 or pvh`},
		{"run a -n tapp=x", `--net: net key \"tapp\" is unknown: did you mean tap?`},
		{"run a -n tap=a23456789012345678", "at most 15"},
		{"run a -n tap=a,ring=100", "ring 100 can't be"},
		{"run a -n tap=a,mac=01:00:00:00:00:00", "group address"},
		{"run a -n none -n tap=a", "net none stands beside other NICs"},
		{"run a -n tap=a -n tap=a", `both use tap \"a\"`},
		{"run a -n fd=2", "2 is out of range"},
		{"run a --serial pty", `--serial: \"pty\" is unknown`},
		{"run a --serial file=", "file has no path"},
		{"run a --name x/y", "name"},
		{"run a --timeout 10", `--timeout: \"10\" is not a duration`},
		{"run a --timeout -5s", "negative"},
		{"run a --on-panic reboot", "on-panic"},
		{"run a --on-reboot never", "on-reboot"},
		{"run a --nested=perhaps", "--nested: "},
		{"run a --quiet=perhaps", `--quiet: \"perhaps\" can't be its value`},
		{"run a --log-level loud", "use debug, info, warn or error"},
		{"run a --log-format xml", "use text or json"},
		{"run a --config none.toml", "none.toml: no such file"},
		{"run a --config /", "is a directory"},
		{"run a --result /", "--result / is a folder"},
		{"run a -- ", ""}, // replaced below by an argument that can't be passed
	}
	for _, tt := range tests {
		args := strings.Fields(tt.args)
		if tt.want == "" {
			args, tt.want = append(args, `say "hi"`), "can't be passed to init"
		}
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			o := govmm(t, "end:poweroff", args...)
			noTrace(t, o)
			if o.code != 2 && !strings.Contains(tt.args, "--config /") {
				t.Errorf("exit code %d, want 2", o.code)
			}
			if o.stdout != "" {
				t.Errorf("standard output has %q", o.stdout)
			}
			if strings.Count(o.stderr, "\n") != 1 || !strings.HasPrefix(o.stderr, "govmm: reason=") {
				t.Errorf("standard error has not just the last line:\n%s", o.stderr)
			}
			if !strings.Contains(o.stderr, tt.want) {
				t.Errorf("got %s\nwant %s", o.stderr, tt.want)
			}
		})
	}
}

// TestExitCodes checks that each reason of the table gives its code and line.
func TestExitCodes(t *testing.T) {
	for _, c := range result.Codes {
		if c.Reason == result.Signal {
			continue // TestSignals
		}
		t.Run(string(c.Reason), func(t *testing.T) {
			t.Parallel()
			o := govmm(t, "end:"+string(c.Reason), "run", "bzImage")
			want := fmt.Sprintf("govmm: reason=%s code=%d detail=\"the detail of %s\"", c.Reason, c.Code, c.Reason)
			if o.code != c.Code || o.lastLine() != want {
				t.Errorf("code %d, last line %s; want %d and %s", o.code, o.lastLine(), c.Code, want)
			}
			if o.stdout != "" || !strings.Contains(o.stderr, "CLOSED") {
				t.Errorf("stdout %q, stderr %q", o.stdout, o.stderr)
			}
			quiet := govmm(t, "end:"+string(c.Reason), "run", "-q", "bzImage")
			if said := strings.Contains(quiet.stderr, "reason="); quiet.code != c.Code || said != (c.Code != 0) {
				t.Errorf("with -q: code %d, stderr %q", quiet.code, quiet.stderr)
			}
		})
	}
}

// TestKernelRefused: the real machine refuses what is no kernel, before it needs
// KVM.
func TestKernelRefused(t *testing.T) {
	files := map[string]string{"empty": "", "short": "MZ", "text": strings.Repeat("not a kernel\n", 10000), "folder/README": ""}
	for _, kernel := range []string{"none", "empty", "short", "text", "folder", "/dev/null", "/dev/zero", "/proc/self/mem", "folder/README/x"} {
		c := command(t, "real", "run", kernel)
		writeFiles(t, c.Dir, files)
		if o := run(t, c); o.code != 121 || !strings.Contains(o.lastLine(), kernel) || o.stdout != "" {
			t.Errorf("%s: code %d, %s", kernel, o.code, o.stderr)
		}
	}
}

func TestEnds(t *testing.T) {
	tests := []struct {
		mode string
		code int
		want string
	}{
		{"refuse", 121, `reason=bad-image code=121 detail="not a kernel: use a bzImage"`},
		{"close-fails", 122, `reason=host code=122 detail="tap9 could not be removed"`},
		{"panic-new", 123, `reason=bug code=123 detail="the fake panics in New: this should not happen`},
		{"panic-run", 123, `reason=bug code=123 detail="the fake panics in Run: this should not happen`},
	}
	for _, tt := range tests {
		t.Run(tt.mode, func(t *testing.T) {
			o := govmm(t, tt.mode, "run", "bzImage")
			noTrace(t, o)
			if o.code != tt.code || !strings.Contains(o.lastLine(), tt.want) {
				t.Errorf("code %d, last line %s", o.code, o.lastLine())
			}
		})
	}
	if o := govmm(t, "panic-run", "run", "bzImage", "--log-level", "debug"); !strings.Contains(o.stderr, "goroutine ") {
		t.Errorf("the log at level debug has no stack: %s", o.stderr)
	}
}

// TestLastLineBegins checks that the last line begins a line, also behind a
// guest's prompt on the same terminal, file or pipe.
func TestLastLineBegins(t *testing.T) {
	c := command(t, "prompt", "run", "bzImage")
	out, err := os.Create(filepath.Join(c.Dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c.Stdout, c.Stderr = out, out
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out.Name())
	want := "/ # CLOSED\n\ngovmm: reason=poweroff code=0 detail=\"the guest powered itself off\"\n"
	if err != nil || string(text) != want {
		t.Errorf("got %q, %v; want %q", text, err, want)
	}
	if o := govmm(t, "prompt", "run", "bzImage"); o.stdout != "/ # " || !strings.HasPrefix(o.lastLine(), "govmm: reason=poweroff") {
		t.Errorf("apart: %q and %q", o.stdout, o.stderr)
	}
}

// TestStdoutGone: the reader of the console goes away; the VM goes on.
func TestStdoutGone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	c := command(t, "flood", "run", "bzImage")
	c.Stdout = w
	if o := run(t, c); o.code != 0 || !strings.Contains(o.lastLine(), "reason=poweroff") {
		t.Errorf("code %d, %s", o.code, o.stderr)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStdoutFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range []string{"run bzImage", "run bzImage --dry-run", "help", "run --help", "version", "completion bash"} {
		c := command(t, "flood", strings.Fields(args)...)
		c.Stdout = full
		if o := run(t, c); o.code != 122 || !strings.Contains(o.lastLine(), "reason=host code=122 detail=\"standard output: write /dev/stdout: no space left on device: free space") {
			t.Errorf("%s: code %d, %s", args, o.code, o.stderr)
		}
	}
}

// TestStreamsClosed: with no standard streams at all, govmm must not take another
// file for one.
func TestStreamsClosed(t *testing.T) {
	c := command(t, "prompt", "run", "bzImage", "--result", "r.json")
	sh := command(t, "prompt", "-c", `exec "$0" "$@" <&- >&- 2>&-`)
	sh.Path, sh.Dir = "/bin/sh", c.Dir
	sh.Args = append(append([]string{"sh"}, sh.Args[1:]...), c.Args...)
	if err := sh.Run(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(c.Dir, "r.json")); err != nil || !strings.Contains(string(text), `"reason": "poweroff"`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestStdinEnds(t *testing.T) {
	c := command(t, "echo", "run", "bzImage")
	c.Stdin = strings.NewReader("\x01xhi")
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout = w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// From a pipe, Ctrl-A x is the guest's, and the end of input is no end of the VM.
	expect(t, out, "READY", "<01786869>", "EOF")
	if err := c.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // the exit code tells
	if code := c.ProcessState.ExitCode(); code != 143 {
		t.Errorf("code %d", code)
	}
	if used := c.ProcessState.UserTime() + c.ProcessState.SystemTime(); used > 5*time.Second {
		t.Errorf("used %v of CPU", used)
	}
}

// expect reads until each of the texts has come, one behind the other, and
// returns what follows them.
func expect(t *testing.T, r io.Reader, texts ...string) string {
	t.Helper()
	var got, rest strings.Builder
	buf := make([]byte, 1024)
	for _, want := range texts {
		for !strings.Contains(rest.String(), want) {
			n, err := r.Read(buf)
			got.Write(buf[:n])
			rest.Write(buf[:n])
			if err != nil && !strings.Contains(rest.String(), want) {
				t.Fatalf("waiting for %q: %v after %q", want, err, got.String())
			}
		}
		_, after, _ := strings.Cut(rest.String(), want)
		rest.Reset()
		rest.WriteString(after)
	}
	return rest.String()
}
