// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/internal/term"
	"github.com/govmm/govmm/machine"
	"github.com/govmm/govmm/machine/conf"
	"github.com/spf13/cobra"
)

const runLong = `Boot a kernel in a virtual machine and stay with it until it ends.

The guest's first serial port is on standard input and output. Messages and, at
the very end, a line with the reason and the exit code are on standard error:

  govmm: reason=poweroff code=0 detail="the guest powered itself off"

On a terminal, Ctrl-A x ends the VM, Ctrl-A h shows the keys, and all other keys,
Ctrl-C and Ctrl-Z too, go to the guest. Elsewhere every byte goes to the guest;
the end of the input does not end the VM. In the background, the VM runs on
without input until it gets the terminal back.

ARGS after -- become arguments of the guest's init.

SIGINT, SIGTERM and SIGHUP end the VM, and a second one ends it at once. govmm
outlives its parent, so that nohup works; to end with it, start govmm through
setpriv --pdeathsig TERM.`

// runCommand is govmm run.
func (a *app) runCommand() *cobra.Command {
	var o runOptions
	var settings []*setting
	c := &cobra.Command{
		Use:   "run [flags] [KERNEL] [-- ARGS...]",
		Short: "boot a kernel",
		Long:  runLong,
		Example: `  govmm run bzImage
  govmm run ~/linux -i initrd.zst -a quiet -c 2 -m 1G
  govmm run bzImage -n tap,ip=10.0.0.1/24 --timeout 10m
  govmm run bzImage --dry-run >vm.json && govmm run --config vm.json`,
		DisableFlagsInUseLine: true,
		Args:                  cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			return a.run(c, &o, settings, args)
		},
	}
	settings = defineFlags(c, &o)
	return c
}

// run is the whole of govmm run.
func (a *app) run(c *cobra.Command, o *runOptions, settings []*setting, args []string) error {
	if err := a.setUp(c, o); err != nil {
		return err
	}
	cfg, err := a.resolve(c, o, settings, args)
	if err != nil {
		return err
	}
	if o.dryRun {
		if err := conf.Write(c.OutOrStdout(), cfg); err != nil {
			return result.Errorf(result.Host, "standard output: %w: free space, or redirect it", err)
		}
		return nil
	}
	return result.End{Result: a.boot(c.Context(), cfg)}
}

// setUp sets up what every end of the run needs.
func (a *app) setUp(c *cobra.Command, o *runOptions) error {
	if err := o.fromEnv(c.Flags(), a.lookup); err != nil {
		return err
	}
	a.quiet = o.quiet
	log, err := a.newLog(o)
	if err != nil {
		return err
	}
	a.log = log
	for name, meant := range mistyped(c.Flags(), os.Environ()) {
		log.Warn("unknown variable in the environment", "name", name, "meant", meant)
	}
	if !o.dryRun {
		a.record, err = openRecord(o.result)
	}
	return err
}

// newLog makes the log that goes to standard error.
func (a *app) newLog(o *runOptions) (*slog.Logger, error) {
	var level slog.Level
	switch o.logLevel {
	case "debug", "info", "warn", "error":
		if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
			return nil, usagef("--log-level: %w", err)
		}
	default:
		return nil, usagef("--log-level %q is unknown: use debug, info, warn or error", o.logLevel)
	}
	if o.quiet {
		level = max(level, slog.LevelError)
	}
	w := a.messages()
	opts := &slog.HandlerOptions{Level: level}
	switch o.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, usagef("--log-format %q is unknown: use text or json", o.logFormat)
}

// messages is standard error for what is written while the VM runs.
func (a *app) messages() io.Writer {
	return term.Lines{W: a.stderr, Raw: func() bool {
		console := a.console.Load()
		return console != nil && console.IsRaw()
	}}
}

// resolve makes the configuration from its layers, the lowest first.
func (a *app) resolve(c *cobra.Command, o *runOptions, settings []*setting, args []string) (machine.Config, error) {
	var cfg machine.Config
	files := []string{o.config}
	if o.config == "" {
		files = conf.Default(a.lookup)
	}
	for _, f := range files {
		if err := conf.File(&cfg, f); err != nil {
			return cfg, err
		}
		a.log.Debug("configuration", "file", f)
	}
	if err := conf.Env(&cfg, a.lookup); err != nil {
		return cfg, err
	}
	for _, s := range settings {
		if len(s.values) == 0 {
			continue
		}
		if err := s.Setting.Set(&cfg, s.values...); err != nil {
			return cfg, usagef("--%s: %w", s.Flag, err)
		}
	}
	if err := positional(c, &cfg, args); err != nil {
		return cfg, err
	}
	a.record.name(cfg.WithDefaults().Name, cfg.Kernel)
	return cfg, cfg.Validate()
}

// positional applies KERNEL and the arguments for init.
func positional(c *cobra.Command, cfg *machine.Config, args []string) error {
	var init []string
	if dash := c.ArgsLenAtDash(); dash >= 0 {
		args, init = args[:dash], args[dash:]
	}
	switch {
	case len(args) > 1:
		return usagef("%q and %q are two kernels: name one; arguments for init follow --", args[0], args[1])
	case len(args) == 1 && args[0] == "":
		return usagef("the kernel has an empty name: name a bzImage, a vmlinux or a kernel build folder")
	case len(args) == 1 && c.Flags().Changed("kernel"):
		return usagef("%q and --kernel %s are two kernels: name one", args[0], c.Flags().Lookup("kernel").Value)
	case len(args) == 1:
		cfg.Kernel = args[0]
	}
	return conf.AddInitArgs(cfg, init)
}

// boot runs the VM.
func (a *app) boot(parent context.Context, cfg machine.Config) result.Result {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	defer a.watchSignals(cancel)()

	streams, err := a.connect(cfg, cancel)
	if err != nil {
		return result.OfError(err)
	}
	m, err := a.newVM(cfg, streams, a.log)
	if err != nil {
		return result.OfError(err)
	}
	r := a.runVM(ctx, m, cfg.Timeout)
	if err := m.Close(); err != nil {
		a.log.Error("cleaning up after the VM", "err", err)
		if r.Code == 0 {
			return result.OfError(err)
		}
	}
	return r
}

// runVM runs a VM that is made, with the user's terminal in raw mode.
func (a *app) runVM(ctx context.Context, m vm, timeout time.Duration) result.Result {
	if ctx.Err() != nil { // a signal came while the VM was made
		return result.OfContext(ctx)
	}
	if console := a.console.Load(); console != nil {
		if err := console.Start(func(c term.Command) { a.command(c, m) }); err != nil {
			return result.Of(result.Host, "%v: use --serial file=PATH, or redirect standard input", err)
		}
		if console.IsRaw() && !a.quiet {
			a.tell("govmm: Ctrl-A x ends the VM, Ctrl-A h shows the keys\n")
		}
	}
	defer a.restoreTerminal()
	if timeout > 0 { // the VM ends by itself; this is for one that is stuck
		late := a.endAfter(timeout+2*grace, result.Of(result.Timeout, "--timeout %v ran out, and the VM did not end in time", timeout))
		defer late.Stop()
	}
	return m.Run(ctx)
}

// endAfter ends the command with r after some time, whatever else it does.
func (a *app) endAfter(d time.Duration, r result.Result) *time.Timer {
	return time.AfterFunc(d, func() { os.Exit(a.end(r)) })
}

// tell writes a message to the user. If nobody can read it, that is no harm.
func (a *app) tell(text string) { _, _ = io.WriteString(a.messages(), text) }

// command does what the user asked for with Ctrl-A.
func (a *app) command(c term.Command, m vm) {
	switch c {
	case term.Quit:
		m.Quit()
		a.endAfter(grace, result.Of(result.Bug, "the VM did not end after Ctrl-A x; please report it, with the output of --log-level debug"))
	case term.Help: // apart, because nothing must keep the next command from being read
		a.guard(func() { a.tell("\n" + term.HelpText) })
	}
}

// connect returns the streams of the VM's console.
func (a *app) connect(cfg machine.Config, cancel context.CancelCauseFunc) (machine.Streams, error) {
	if mode := cfg.WithDefaults().Serial.Mode; mode != "stdio" {
		return machine.Streams{}, nil
	}
	console, err := term.NewConsole(a.stdin)
	if err != nil {
		return machine.Streams{}, result.Errorf(result.Host, "standard input: %w", err)
	}
	onTerminal := term.OpenTerminal(syscall.Stdout) != nil
	output := &outputWatch{w: a.stdout, failed: func(err error) {
		if errors.Is(err, syscall.EPIPE) || onTerminal && errors.Is(err, syscall.EIO) {
			return // who went away wants no more
		}
		cancel(result.End{Result: result.Of(result.Host, "standard output: %v: free space, or use --serial file=PATH", err)})
	}}
	console.Crashed = a.crashed
	a.console.Store(console)
	a.output.Store(output)
	return machine.Streams{In: console, Out: output}, nil
}
