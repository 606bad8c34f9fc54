// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/govmm/govmm/internal/suggest"
	"github.com/govmm/govmm/machine"
	"github.com/govmm/govmm/machine/conf"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagHelp is what a flag of govmm run is for; the name of its value is in
// backquotes.
type flagHelp struct {
	name, short, group, usage string
	words                     []string // the values to choose from, for completion
}

// The groups of flags, in their order in the help.
var groups = []string{"Kernel", "Machine", "Network and console", "Ending", "govmm itself"}

// vmFlags are the flags that set a conf.Setting.
var vmFlags = []flagHelp{
	{"kernel", "k", groups[0], "boot `FILE`, a bzImage or vmlinux, or the one in a kernel build folder; as KERNEL does", nil},
	{"initrd", "i", groups[0], "use `FILE` as initramfs; again: one more, behind it; the word default: govmm's own (which is the default)", nil},
	{"append", "a", groups[0], "add `TEXT` to the kernel command line; again: more", nil},
	{"cmdline", "", groups[0], "replace the kernel command line by `TEXT` (default \"" + machine.DefaultCmdline + "\")", nil},
	{"entry", "", groups[0], "enter the kernel by `PROTOCOL` auto, linux64 or pvh (default auto)", []string{"auto", "linux64", "pvh"}},
	{"cpus", "c", groups[1], "give it `N` virtual CPUs, 1 to 32 (default 1)", nil},
	{"memory", "m", groups[1], "give it memory of `SIZE`, such as 512M or 4G; a bare number is in MiB (default 512M)", nil},
	{"name", "", groups[1], "call it `NAME`; MAC addresses derive from it (default " + machine.DefaultName + ")", nil},
	{"hyperv", "", groups[1], "show it Hyper-V with a VMBus instead of KVM: `ON` or off (default: on if a NIC is netvsc)", []string{"on", "off"}},
	{"nested", "", groups[1], "let the guest use KVM itself", nil},
	{"net", "n", groups[2], "give it a NIC by `LIST`, such as tap=tap0; again: one more (default none; see govmm help net)", nil},
	{"serial", "", groups[2], "connect the serial console to `PLACE` stdio, file=PATH or none (default stdio)", []string{"stdio", "file=", "none"}},
	{"timeout", "", groups[3], "end it after `TIME`, such as 90s or 10m (default: never)", nil},
	{"on-panic", "", groups[3], "after a kernel panic, `ACT`: exit or continue (default exit)", []string{"exit", "continue"}},
	{"on-reboot", "", groups[3], "after a reset by the guest, `ACT`: reboot or exit (default reboot)", []string{"reboot", "exit"}},
}

// runOptions are the flags that concern the command, not the VM.
type runOptions struct {
	config, result      string
	dryRun, quiet       bool
	logLevel, logFormat string
}

// define defines them.
func (o *runOptions) define(fs *pflag.FlagSet) {
	fs.StringVar(&o.config, "config", "", "read settings from `FILE`, not from the usual ones (see govmm help config)")
	fs.BoolVar(&o.dryRun, "dry-run", false, "print the resolved configuration as JSON, which --config reads, and make no VM")
	fs.StringVar(&o.result, "result", "", "write the result to `FILE`, as JSON")
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "no messages but errors, no last line if the exit code is 0")
	fs.StringVar(&o.logLevel, "log-level", "warn", "show messages from `LEVEL` on: debug, info, warn or error")
	fs.StringVar(&o.logFormat, "log-format", "text", "write messages as `FORMAT` text or json")
}

// setting is the pflag.Value of a conf.Setting: it keeps what is given until all
// lower layers are applied.
type setting struct {
	*conf.Setting
	values []string
}

func (s *setting) String() string     { return strings.Join(s.values, " ") }
func (s *setting) Set(v string) error { s.values = append(s.values, v); return nil }

// Type names the type for completion, which knows that a list's flag may come
// again by its name's end.
func (s *setting) Type() string {
	switch {
	case s.Setting == nil:
		return ""
	case s.Switch():
		return "bool"
	case s.IsList():
		return "stringArray"
	}
	return "string"
}

// groupKey is the annotation of a flag that names its group.
const groupKey = "govmm_group"

// defineFlags defines the flags of govmm run and returns those of the VM.
func defineFlags(c *cobra.Command, o *runOptions) []*setting {
	fs := c.Flags()
	fs.SortFlags = false
	var settings []*setting
	for _, h := range vmFlags {
		s := &setting{Setting: conf.Find(h.name)}
		settings = append(settings, s)
		f := fs.VarPF(s, h.name, h.short, h.usage)
		if s.Switch() {
			f.NoOptDefVal = "true"
		}
		f.Annotations = map[string][]string{groupKey: {h.group}}
		complete(c, h.name, h.words)
	}
	o.define(fs)
	complete(c, "log-level", []string{"debug", "info", "warn", "error"})
	complete(c, "log-format", []string{"text", "json"})
	complete(c, "net", completeNet())
	return settings
}

// complete makes the shell offer words for the flag's value. Without words it
// offers files.
func complete(c *cobra.Command, flag string, words []string) {
	if len(words) == 0 {
		return
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	if slices.ContainsFunc(words, func(w string) bool { return strings.HasSuffix(w, "=") }) {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, directive)); err != nil {
		panic(err) // the flag does not exist, or has a completion: a mistake in this file
	}
}

// completeNet are the beginnings of a --net list.
func completeNet() []string { return []string{conf.NoNet, "tap=", "tap,ip=", "fd="} }

// fromEnv sets the flags of o that are not given from the environment.
func (o *runOptions) fromEnv(fs *pflag.FlagSet, lookup func(string) (string, bool)) error {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(runOptions).define(own)
	var failed error
	own.VisitAll(func(f *pflag.Flag) {
		env := envName(f.Name)
		value, ok := lookup(env)
		if failed != nil || !ok || value == "" || fs.Changed(f.Name) {
			return
		}
		if f.Value.Type() == "bool" {
			b, err := conf.ParseBool(value)
			if err != nil {
				failed = usagef("%s: %w", env, err)
				return
			}
			value = map[bool]string{true: "true", false: "false"}[b]
		}
		if err := fs.Set(f.Name, value); err != nil {
			failed = usagef("%s: %w", env, err)
		}
	})
	return failed
}

// mistyped returns the variables of environ that look like one of govmm's and are
// none, each with the one that was meant. Other variables that begin as govmm's
// do are somebody else's.
func mistyped(fs *pflag.FlagSet, environ []string) map[string]string {
	var known []string
	fs.VisitAll(func(f *pflag.Flag) { known = append(known, strings.TrimPrefix(envName(f.Name), conf.EnvPrefix)) })
	meant := map[string]string{}
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		rest, ours := strings.CutPrefix(name, conf.EnvPrefix)
		if !ours || slices.Contains(known, rest) {
			continue
		}
		if near := suggest.Nearest(rest, known); near != "" {
			meant[name] = conf.EnvPrefix + near
		}
	}
	return meant
}

func envName(flag string) string {
	return conf.EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
