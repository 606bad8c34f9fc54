// SPDX-License-Identifier: Apache-2.0

// Command emuhost runs commands on an emulated x86-64 host whose KVM can run
// Linux guests (see package internal/emuhost).
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/govmm/govmm/internal/emuhost"
	"github.com/govmm/govmm/internal/initramfs"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

const usage = `emuhost runs commands on an emulated x86-64 host whose KVM can run Linux guests.

  emuhost run [-t] [--] COMMAND [ARG]...
            run COMMAND there, in this folder and with this environment; input,
            output, signals and exit status are passed on. Uses the host that
            "start" keeps, or one of its own for the time of the command.
            -t: give it a terminal
  emuhost start     keep a host running for many commands
  emuhost status    tell whether one is kept, and where its console log is
  emuhost stop      end it

The host sees this machine's files. What it writes is lost when it ends, but for
` + emuhost.ExchangeDir + `, which "emuhost status" shows the place of.
`

// Exit statuses of emuhost itself.
const (
	exitNotRunning = 1
	exitUsage      = 2
	exitNoHost     = 122 // the host could not be started or has ended
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(exitUsage)
	}
	arguments := os.Args[2:]
	switch os.Args[1] {
	case "run":
		os.Exit(run(arguments))
	case "start":
		os.Exit(start())
	case "status":
		os.Exit(status())
	case "stop":
		os.Exit(stop())
	case daemonArgument:
		os.Exit(daemon())
	case "help", "-h", "--help":
		fmt.Print(usage)
	default:
		fmt.Fprintf(os.Stderr, "emuhost: unknown command %q\n\n%s", os.Args[1], usage)
		os.Exit(exitUsage)
	}
}

// fail prints an error and returns the exit status.
func fail(err error) int {
	fmt.Fprintf(os.Stderr, "emuhost: %v\n", err)
	return exitNoHost
}

// run is "emuhost run".
func run(arguments []string) int {
	tty := false
	for len(arguments) > 0 && (arguments[0] == "-t" || arguments[0] == "--") {
		end := arguments[0] == "--"
		tty = tty || !end
		arguments = arguments[1:]
		if end {
			break
		}
	}
	if len(arguments) == 0 {
		fmt.Fprint(os.Stderr, "emuhost run: no command\n\n", usage)
		return exitUsage
	}
	cmd, err := command(arguments, tty)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopStart := cancelOnSignal(cancel)
	host, err := emuhost.AttachOrStart(ctx, emuhost.Options{})
	stopStart()
	if err != nil {
		return fail(err)
	}
	code, err := runOn(ctx, host, cmd)
	return report(code, errors.Join(err, host.Stop()))
}

func report(code int, err error) int {
	switch {
	case err == nil:
		return code
	case code > 0:
		fail(err)
		return code
	}
	return fail(err)
}

// command describes the command as it would run here.
func command(arguments []string, tty bool) (emuhost.Cmd, error) {
	dir, err := os.Getwd()
	if err != nil {
		return emuhost.Cmd{}, err
	}
	env, err := emuhost.Environment()
	if err != nil {
		return emuhost.Cmd{}, err
	}
	return emuhost.Cmd{
		Path: arguments[0], Args: arguments[1:], Dir: dir, Env: env,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, TTY: tty,
	}, nil
}

// runOn runs the command with this process's signals and terminal.
func runOn(ctx context.Context, host *emuhost.Host, cmd emuhost.Cmd) (int, error) {
	signals := make(chan syscall.Signal, 16)
	incoming := make(chan os.Signal, 16)
	signal.Notify(incoming, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(incoming)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go forwardSignals(ctx, incoming, signals)
	cmd.Signals = signals
	if cmd.TTY {
		restore, err := useTerminal(ctx, &cmd)
		if err != nil {
			return -1, err
		}
		defer restore()
	}
	return host.Run(ctx, cmd)
}

func forwardSignals(ctx context.Context, in <-chan os.Signal, out chan<- syscall.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-in:
			if number, ok := s.(syscall.Signal); ok {
				out <- number
			}
		}
	}
}

// useTerminal puts the terminal on standard input, if it is one, into raw mode
// and follows its size. The returned function puts it back.
func useTerminal(ctx context.Context, cmd *emuhost.Cmd) (restore func(), err error) {
	fd := int(os.Stdin.Fd())
	if !term.IsTerminal(fd) {
		return func() {}, nil
	}
	cmd.Size = terminalSize(fd)
	sizes := make(chan emuhost.WindowSize, 1)
	cmd.Resize = sizes
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		defer signal.Stop(changed)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				sizes <- terminalSize(fd)
			}
		}
	}()
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("cannot set the terminal to raw mode: %w", err)
	}
	return func() { _ = term.Restore(fd, state) }, nil
}

func terminalSize(fd int) emuhost.WindowSize {
	size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err != nil {
		return emuhost.WindowSize{}
	}
	return emuhost.WindowSize{Rows: size.Row, Cols: size.Col}
}

// cancelOnSignal ends the start of a host at the signals that end programs.
func cancelOnSignal(cancel func()) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		select {
		case <-signals:
			cancel()
		case <-done:
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// daemonArgument makes the program the process that keeps a host. It tells on
// file descriptor 3 how the start went: readyWord, or an error message.
const (
	daemonArgument = "daemon"
	readyWord      = "ready"
)

// start is "emuhost start".
func start() int {
	if host, _, err := emuhost.Attach(); err == nil {
		host.Stop()
		fmt.Fprintln(os.Stderr, "emuhost: a host is running already")
		return 0
	} else if !errors.Is(err, emuhost.ErrNotRunning) {
		return fail(err)
	}
	self, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	log, err := daemonLog()
	if err != nil {
		return fail(err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	cmd := exec.Command(self, daemonArgument)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	w.Close()
	answer := make([]byte, 1<<16)
	n, _ := r.Read(answer)
	if string(answer[:n]) == readyWord {
		return 0
	}
	if n == 0 {
		return fail(fmt.Errorf("the host's process ended; see %s", log.Name()))
	}
	return fail(errors.New(string(answer[:n])))
}

// daemonLog opens the file for what the daemon has to say.
func daemonLog() (*os.File, error) {
	cache, err := initramfs.CacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "emuhost")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return os.Create(filepath.Join(dir, "daemon.log"))
}

// daemon keeps a host until it is stopped.
func daemon() int {
	answer := os.NewFile(3, "answer")
	refuse := func(err error) int {
		fmt.Fprint(answer, err)
		return fail(err)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer cancel()
	path, err := emuhost.SocketPath()
	if err != nil {
		return refuse(err)
	}
	host, err := emuhost.Start(ctx, emuhost.Options{})
	if err != nil {
		return refuse(err)
	}
	defer host.Stop()
	// A socket that nobody answers is what a killed daemon left.
	_ = os.Remove(path)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return refuse(err)
	}
	fmt.Fprint(answer, readyWord)
	answer.Close()
	if err := host.Serve(ctx, listener); err != nil {
		return fail(err)
	}
	return 0
}

// status is "emuhost status".
func status() int {
	host, info, err := emuhost.Attach()
	if errors.Is(err, emuhost.ErrNotRunning) {
		fmt.Println("no emulated host is running")
		return exitNotRunning
	}
	if err != nil {
		return fail(err)
	}
	defer host.Stop()
	fmt.Printf("running, process %d\nconsole log  %s\nexchange     %s (there: %s)\n", info.PID, info.Console, info.Exchange, emuhost.ExchangeDir)
	return 0
}

// stop is "emuhost stop". It is no error if none is running.
func stop() int {
	host, info, err := emuhost.Attach()
	if errors.Is(err, emuhost.ErrNotRunning) {
		return 0
	}
	if err != nil {
		return fail(err)
	}
	defer host.Stop()
	if err := host.StopDaemon(); err != nil {
		return fail(err)
	}
	const patience = 20 * time.Second
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if errors.Is(syscall.Kill(info.PID, 0), syscall.ESRCH) {
			return 0
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fail(fmt.Errorf("the host's process %d does not end", info.PID))
}
