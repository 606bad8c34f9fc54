// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
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
	if err != nil {
		fmt.Fprintf(os.Stderr, "emuhost: %v\n", err)
		return max(code, 1)
	}
	return code
}

// testRunner runs a test binary on emulated hosts, one for each of the machine's
// CPUs: an emulated host has one CPU itself.
type testRunner struct {
	binary, dir string
	env         []string
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

// run runs the tests that the arguments choose, each top-level test by itself,
// and returns the worst exit status.
func (r *testRunner) run(ctx context.Context) (worst int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unlock, err := lockTests(ctx)
	if err != nil {
		return -1, err
	}
	defer unlock()
	tests, args, err := splitTests(ctx, r.binary, os.Args[1:])
	if err != nil {
		return -1, err
	}
	queue := make(chan []string, len(tests))
	for _, test := range tests {
		queue <- append(slices.Clone(args), test...)
	}
	close(queue)
	failFast := slices.Contains(args, "-test.failfast=true")
	var (
		mu      sync.Mutex // guards worst, err and the output
		workers sync.WaitGroup
	)
	for i := range min(len(tests), runtime.NumCPU()) {
		workers.Go(func() {
			w := &worker{runner: r, first: i == 0, alone: len(tests) == 1, output: &mu}
			defer w.stop()
			for args := range queue {
				code, testErr := w.test(ctx, args)
				mu.Lock()
				worst, err = max(worst, code), errors.Join(err, testErr)
				mu.Unlock()
				if ctx.Err() != nil || code != 0 && failFast {
					cancel()
					return
				}
			}
		})
	}
	workers.Wait()
	return worst, err
}

// worker runs tests one after the other on a host of its own.
type worker struct {
	runner *testRunner
	first  bool        // takes the host that is kept for many commands, if there is one
	alone  bool        // its output need not be kept apart from others'
	output *sync.Mutex // held to write a test's output
	host   *Host       // nil: none runs
}

// test runs the test binary. A busy machine can take an emulated host down; then
// the test is repeated, once, on a new host.
func (w *worker) test(ctx context.Context, args []string) (int, error) {
	code, err := w.attempt(ctx, args)
	if errors.Is(err, errHostGone) && ctx.Err() == nil {
		w.stop()
		fmt.Fprintf(os.Stderr, "emuhost: %v\nemuhost: once more on a new host: %s\n", err, strings.Join(args, " "))
		code, err = w.attempt(ctx, args)
	}
	return code, err
}

func (w *worker) attempt(ctx context.Context, args []string) (int, error) {
	if err := w.start(ctx); err != nil {
		return -1, err
	}
	results := newResultFiles(w.host.Exchange())
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, syscall.SIGQUIT) // the go command asks for stack traces with it
	defer signal.Stop(quit)
	cmd := Cmd{
		Path: w.runner.binary, Args: results.rewrite(args), Dir: w.runner.dir, Env: w.runner.env,
		Stdout: os.Stdout, Stderr: os.Stderr, Signals: systemSignals(ctx, quit),
	}
	var kept bytes.Buffer
	if !w.alone {
		both := &lockedWriter{w: &kept}
		cmd.Stdout, cmd.Stderr = both, both
	}
	code, err := w.host.Run(ctx, cmd)
	if !w.alone {
		w.output.Lock()
		_, writeErr := os.Stdout.Write(kept.Bytes())
		w.output.Unlock()
		err = errors.Join(err, writeErr)
	}
	return code, errors.Join(err, results.collect())
}

func (w *worker) start(ctx context.Context) (err error) {
	switch {
	case w.host != nil:
	case w.first:
		w.host, err = AttachOrStart(ctx, Options{})
	default:
		w.host, err = Start(ctx, Options{})
	}
	return err
}

func (w *worker) stop() {
	if w.host == nil {
		return
	}
	if err := w.host.Stop(); err != nil {
		fmt.Fprintf(os.Stderr, "emuhost: %v\n", err)
	}
	w.host = nil
}

// lockedWriter lets both output streams of a command go to one writer.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
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
	// As package testing does: alternatives first, then the parts of each.
	chosen := map[string][]string{} // the patterns that choose a test
	var order []string
	for _, alternative := range splitOutside(pattern, '|') {
		parts := splitOutside(alternative, '/')
		names, err := listTests(ctx, binary, parts[0])
		if err != nil {
			return nil, nil, err
		}
		for _, name := range names {
			if chosen[name] == nil {
				order = append(order, name)
			}
			one := strings.Join(append([]string{"^" + name + "$"}, parts[1:]...), "/")
			chosen[name] = append(chosen[name], one)
		}
	}
	for _, name := range order {
		tests = append(tests, []string{runFlag + strings.Join(chosen[name], "|")})
	}
	return tests, rest, nil
}

// listTests returns the top-level tests that match a pattern.
func listTests(ctx context.Context, binary, pattern string) (names []string, err error) {
	list := exec.CommandContext(ctx, binary, listFlag+pattern)
	list.Env = append(os.Environ(), InsideVariable+"=1") // Main runs it here
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// splitOutside splits a regular expression at a byte where it stands outside
// brackets and is not escaped.
func splitOutside(s string, sep byte) (parts []string) {
	depth, start := 0, 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '[', '(':
			depth++
		case ']', ')':
			depth--
		case sep:
			if depth == 0 {
				parts = append(parts, s[start:i])
				start = i + 1
			}
		}
	}
	return append(parts, s[start:])
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
