// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/govmm/govmm/internal/initramfs"
)

const (
	// TestHostVariable chooses where guest tests run: "direct" on this machine,
	// "emulated" on an emulated host, "auto" (the default) directly if its KVM
	// can run Linux.
	TestHostVariable = "GOVMM_TEST_HOST"

	// InsideVariable is set to 1 in the environment of what runs on an emulated host.
	InsideVariable = "GOVMM_EMULATED_HOST"
)

// Inside tells whether this process runs on an emulated host.
func Inside() bool { return os.Getenv(InsideVariable) != "" }

// Main is the TestMain of packages whose tests run Linux guests:
//
//	func TestMain(m *testing.M) { emuhost.Main(m, verdict) }
//
// It runs the tests here, or this same test binary with the same arguments,
// folder and environment on an emulated host, as TestHostVariable says, and
// exits with its status. canRunLinux tells whether this machine's KVM can run
// Linux guests, and if not why.
func Main(m interface{ Run() int }, canRunLinux func() (ok bool, reason string)) {
	mode := os.Getenv(TestHostVariable)
	if mode == "" {
		mode = "auto"
	}
	switch {
	case Inside() || mode == "direct":
		os.Exit(m.Run())
	case mode == "auto":
		ok, reason := canRunLinux()
		if ok {
			os.Exit(m.Run())
		}
		os.Exit(runTestsEmulated(reason))
	case mode == "emulated":
		os.Exit(runTestsEmulated(TestHostVariable + " says so"))
	}
	fmt.Fprintf(os.Stderr, "%s=%s: must be auto, direct or emulated\n", TestHostVariable, mode)
	os.Exit(2)
}

// runTestsEmulated runs this test binary's tests on an emulated host and returns
// the exit status.
func runTestsEmulated(reason string) int {
	fmt.Fprintf(os.Stderr, "emuhost: these tests run on an emulated host: %s\n", reason)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer cancel()
	r, err := newTestRunner()
	if err != nil {
		fmt.Fprintf(os.Stderr, "emuhost: %v\n", err)
		return 1
	}
	code, err := r.run(ctx)
	if err = errors.Join(err, r.stop()); err != nil {
		fmt.Fprintf(os.Stderr, "emuhost: %v\n", err)
		return max(code, 1)
	}
	return code
}

// testRunner runs a test binary on emulated hosts.
type testRunner struct {
	binary, dir string
	env         []string
	host        *Host // nil: none runs yet
}

func newTestRunner() (*testRunner, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	env, err := Environment()
	if err != nil {
		return nil, err
	}
	return &testRunner{binary: binary, dir: dir, env: env}, nil
}

// run runs the tests that the arguments choose, one top-level test at a time,
// and returns the worst exit status. An emulator under load can take a host
// down; then only one test must be repeated, on a new host.
func (r *testRunner) run(ctx context.Context) (worst int, err error) {
	tests, args, err := splitTests(ctx, r.binary, os.Args[1:])
	if err != nil {
		return -1, err
	}
	for _, test := range tests {
		code, err := r.runOne(ctx, append(slices.Clone(args), test...))
		if err != nil && r.hostDied() && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "emuhost: %v\nemuhost: once more on a new host: %s\n", err, strings.Join(test, " "))
			code, err = r.runOne(ctx, append(slices.Clone(args), test...))
		}
		if err != nil {
			return code, err
		}
		worst = max(worst, code)
		if code != 0 && slices.Contains(args, "-test.failfast=true") {
			break
		}
	}
	return worst, nil
}

// hostDied tells whether the host has ended, and forgets it if so.
func (r *testRunner) hostDied() bool {
	if r.host == nil {
		return false
	}
	select {
	case <-r.host.Done():
		_ = r.stop() // of a dead host only the temporary files are left
		return true
	default:
		return false
	}
}

func (r *testRunner) stop() error {
	if r.host == nil {
		return nil
	}
	h := r.host
	r.host = nil
	return h.Stop()
}

// runOne runs the test binary with the given arguments.
func (r *testRunner) runOne(ctx context.Context, args []string) (int, error) {
	if r.host == nil {
		h, err := AttachOrStart(ctx, Options{})
		if err != nil {
			return -1, err
		}
		r.host = h
	}
	results := newResultFiles(r.host.Exchange())
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, syscall.SIGQUIT) // the go command asks for stack traces with it
	defer signal.Stop(quit)
	code, err := r.host.Run(ctx, Cmd{
		Path: r.binary, Args: results.rewrite(args), Dir: r.dir, Env: r.env,
		Stdout: os.Stdout, Stderr: os.Stderr, Signals: systemSignals(ctx, quit),
	})
	return code, errors.Join(err, results.collect())
}

const runFlag, listFlag = "-test.run=", "-test.list="

// splitTests returns the arguments that choose each of the tests that args
// choose, and the other arguments. A run that does more than test (benchmarks,
// fuzzing, profiles, which would overwrite each other) is not split.
func splitTests(ctx context.Context, binary string, args []string) (tests [][]string, rest []string, err error) {
	whole := slices.ContainsFunc(args, func(a string) bool {
		return slices.ContainsFunc(append(resultFlags, "list", "bench", "fuzz"), func(f string) bool {
			return strings.HasPrefix(a, "-test."+f+"=")
		})
	})
	if whole {
		return [][]string{nil}, args, nil
	}
	pattern := "."
	for _, a := range args {
		if p, ok := strings.CutPrefix(a, runFlag); ok {
			pattern = p
			continue
		}
		rest = append(rest, a)
	}
	top, sub, hasSub := strings.Cut(pattern, "/")
	list := exec.CommandContext(ctx, binary, listFlag+top)
	list.Env = append(os.Environ(), InsideVariable+"=1") // Main runs it here
	list.Stderr = os.Stderr
	names, err := list.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("list the tests: %w", err)
	}
	for name := range strings.Lines(string(names)) {
		one := runFlag + "^" + strings.TrimSpace(name) + "$"
		if hasSub {
			one += "/" + sub
		}
		tests = append(tests, []string{one})
	}
	return tests, rest, nil
}

// Environment returns this process's environment for a command on an emulated
// host: with the mark, and with the cache's place, whatever HOME is there.
func Environment() ([]string, error) {
	cache, err := initramfs.CacheDir()
	if err != nil {
		return nil, err
	}
	return append(os.Environ(), InsideVariable+"=1", "GOVMM_CACHE="+cache), nil
}

// systemSignals turns os.Signal values into system call numbers until ctx ends.
func systemSignals(ctx context.Context, in <-chan os.Signal) <-chan syscall.Signal {
	out := make(chan syscall.Signal)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case s := <-in:
				number, ok := s.(syscall.Signal)
				if !ok {
					continue
				}
				select {
				case out <- number:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

// resultFiles moves what a test binary writes for the go command (coverage,
// profiles) through the exchange folder: changes to other files on the host do
// not reach the machine.
type resultFiles struct {
	folder string            // on the machine
	moves  map[string]string // name in the folder to where it belongs
}

// resultFlags are the flags of test binaries that name an output file.
var resultFlags = []string{"coverprofile", "cpuprofile", "memprofile", "blockprofile", "mutexprofile", "trace"}

func newResultFiles(folder string) *resultFiles {
	return &resultFiles{folder: folder, moves: map[string]string{}}
}

// rewrite returns the arguments with the output files in the exchange folder.
func (r *resultFiles) rewrite(args []string) []string {
	out := make([]string, 0, len(args))
	for _, arg := range args {
		out = append(out, r.rewriteOne(arg))
	}
	return out
}

func (r *resultFiles) rewriteOne(arg string) string {
	for _, flag := range resultFlags {
		prefix := "-test." + flag + "="
		target, ok := strings.CutPrefix(arg, prefix)
		if !ok {
			continue
		}
		name := fmt.Sprintf("test-%d-%s", os.Getpid(), flag)
		r.moves[name] = target
		return prefix + filepath.Join(ExchangeDir, name)
	}
	return arg
}

// collect copies the files that were written to their places.
func (r *resultFiles) collect() error {
	for name, target := range r.moves {
		source := filepath.Join(r.folder, name)
		data, err := os.ReadFile(source)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(target, data, 0o644); err != nil {
			return err
		}
		_ = os.Remove(source)
	}
	return nil
}
