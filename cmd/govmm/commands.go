// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/internal/suggest"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// execute runs the command line; help and other output goes to out.
func (a *app) execute(args []string, out *checkedWriter) error {
	root := a.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(a.stderr)
	if err := checkDashes(root, args); err != nil {
		return err
	}
	err := root.Execute()
	var e *result.Error
	var end result.End
	var exit exitCode
	switch {
	case errors.As(err, &e), errors.As(err, &end), errors.As(err, &exit):
		return err
	case out.err != nil:
		return result.Errorf(result.Host, "standard output: %w: free space, or redirect it", out.err)
	case err == nil || errors.Is(err, syscall.EPIPE):
		return nil
	}
	// The commands themselves return one of these, so it is about their arguments.
	return result.Errorf(result.Usage, "%w", err)
}

func usagef(format string, args ...any) error {
	return result.Errorf(result.Usage, format, args...)
}

// root makes the tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "govmm",
		Short: "boot Linux in a virtual machine",
		Long: "govmm boots Linux in a virtual machine of KVM. It needs no firmware, no disk and no\n" +
			"other program, and says at the end why the machine ended.",
		Example: `  govmm run bzImage                            boot a kernel with govmm's own initramfs
  govmm run bzImage -i initrd.zst -m 1G -c 2   boot it with yours
  govmm probe                                  tell what this host can do`,
		Args:          unknownCommand,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(*cobra.Command, []string) error {
			return usagef("no command: govmm run KERNEL boots a kernel, govmm help shows all commands")
		},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.AddCommand(a.runCommand(), a.probeCommand(), versionCommand(), completionCommand(), manCommand())
	root.AddCommand(topics()...)
	root.SetHelpCommand(helpCommand())
	root.SetHelpFunc(writeHelp)
	root.SetFlagErrorFunc(flagError)
	root.InitDefaultHelpCmd()
	for _, c := range append(root.Commands(), root) {
		c.InitDefaultHelpFlag()
		c.Flags().Lookup("help").Usage = "show this help"
	}
	return root
}

// noArgs refuses arguments, each by its name.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%q is one argument too many: %s takes none", args[0], c.CommandPath())
	}
	return nil
}

// unknownCommand refuses what is not a command.
func unknownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	name := args[0]
	if near := suggest.Nearest(name, names(c)); near != "" {
		return usagef("unknown command %q: did you mean govmm %s?", name, near)
	}
	if _, err := os.Stat(name); err == nil {
		return usagef("unknown command %q: to boot it, use govmm run %s", name, name)
	}
	return usagef("unknown command %q: govmm help shows all commands", name)
}

// names are the names of c's commands and topics.
func names(c *cobra.Command) []string {
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	return names
}

// flagError explains what is wrong with a flag.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		return unknownFlag(c, unknown)
	}
	var missing *pflag.ValueRequiredError
	if errors.As(err, &missing) {
		f := missing.GetFlag()
		name, _ := pflag.UnquoteUsage(f)
		return usagef("--%s has no value: write --%s %s", f.Name, f.Name, name)
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return usagef("--%s: %q can't be its value: %w", invalid.GetFlag().Name, invalid.GetValue(), invalid.Unwrap())
	}
	return usagef("%w: %s --help shows the flags", err, c.CommandPath())
}

func unknownFlag(c *cobra.Command, e *pflag.NotExistError) error {
	name, dashes := e.GetSpecifiedName(), "--"
	if e.GetSpecifiedShortnames() != "" {
		dashes = "-"
	}
	if cure, ok := foreign[name]; ok {
		return usagef("unknown flag %s%s: %s", dashes, name, cure)
	}
	if sub, ok := flagOwner(c, name); ok {
		return usagef("unknown flag %s%s: it is one of %s, so write %s %s%s", dashes, name, sub, sub, dashes, name)
	}
	if near := suggest.Nearest(name, flagNames(c)); near != "" && dashes == "--" {
		return usagef("unknown flag --%s: did you mean --%s?", name, near)
	}
	return usagef("unknown flag %s%s: %s --help shows the flags", dashes, name, c.CommandPath())
}

// foreign are flags of other VMMs, and what to write here.
var foreign = map[string]string{
	"smp":        "use --cpus",
	"mem":        "use --memory",
	"initramfs":  "use --initrd",
	"params":     "use --append",
	"device":     "use --net for a NIC",
	"netdev":     "use --net tap=NAME",
	"nographic":  "leave it out; the console is on standard input and output",
	"no-reboot":  "use --on-reboot exit",
	"enable-kvm": "leave it out; govmm always uses KVM",
	"accel":      "leave it out; govmm always uses KVM",
	"disk":       "govmm has no disks yet; put files in an --initrd",
	"drive":      "govmm has no disks yet; put files in an --initrd",
	"hda":        "govmm has no disks yet; put files in an --initrd",
}

// flagOwner finds the command that has the flag, if c, which is the root, has not.
func flagOwner(c *cobra.Command, name string) (string, bool) {
	for _, sub := range c.Commands() {
		if sub.Flags().Lookup(name) != nil || len(name) == 1 && sub.Flags().ShorthandLookup(name) != nil {
			return sub.CommandPath(), true
		}
	}
	return "", false
}

func flagNames(c *cobra.Command) []string {
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// checkDashes refuses long flags with one dash, as QEMU has them: -kernel would
// be taken for -k with the value "ernel".
func checkDashes(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	c, _, err := root.Find(args[:1])
	if err != nil {
		return nil // it shows, explained, when the command line is executed
	}
	for i, arg := range args {
		if arg == "--" {
			return nil
		}
		name, ok := strings.CutPrefix(arg, "-")
		name, _, _ = strings.Cut(name, "=")
		if !ok || len(name) < 2 || i > 0 && wantsValue(c.Flags(), args[i-1]) {
			continue
		}
		if cure, ok := foreign[name]; ok {
			return usagef("unknown flag -%s: %s", name, cure)
		}
		if c.Flags().Lookup(name) == nil {
			continue
		}
		return usagef("%s has one dash: write -%s (-%c with the value %q is written -%c %s)",
			arg, arg, name[0], name[1:], name[0], name[1:])
	}
	return nil
}

// wantsValue tells whether the next argument is the value of the flag arg.
func wantsValue(flags *pflag.FlagSet, arg string) bool {
	var f *pflag.Flag
	switch long, ok := strings.CutPrefix(arg, "--"); {
	case ok:
		f = flags.Lookup(long)
	case len(arg) == 2 && arg[0] == '-':
		f = flags.ShorthandLookup(arg[1:])
	}
	return f != nil && f.NoOptDefVal == ""
}

// helpCommand is govmm help [COMMAND|TOPIC].
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND|TOPIC]",
		Short: "show the help of a command or topic",
		Example: `  govmm help run          the flags of govmm run
  govmm help exit-codes   what each exit code means`,
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return names(c.Root()), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			root := c.Root()
			if len(args) == 0 {
				return root.Help()
			}
			for _, sub := range root.Commands() {
				if sub.Name() == args[0] {
					return sub.Help()
				}
			}
			if near := suggest.Nearest(args[0], names(root)); near != "" {
				return usagef("there is no help on %q: did you mean govmm help %s?", args[0], near)
			}
			return usagef("there is no help on %q: there is on %s", args[0], strings.Join(names(root), ", "))
		},
	}
}

// write writes text to the command's output. Errors show at the end, all at once.
func write(c *cobra.Command, format string, args ...any) {
	fmt.Fprintf(c.OutOrStdout(), format, args...)
}
