// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"strings"
	"time"

	"github.com/govmm/govmm/machine"
)

// serialFields are the keys of the serial port in a file.
var serialFields = []field[machine.Serial]{
	text("mode", textKind, func(s *machine.Serial) *string { return &s.Mode }),
	text("path", pathKind, func(s *machine.Serial) *string { return &s.Path }),
}

// Setting is one setting of a VM, wherever it is set.
type Setting struct {
	Key  string // in a file
	Flag string // on the command line, without dashes
	Env  string // in the environment

	list   bool // more than one value: the flag repeats, the file has an array
	scalar *field[machine.Config]
	set    func(*machine.Config, []string) error // for a list or a group
	path   bool                                  // of a list: its values are paths
	split  string                                // of a list: what separates values in the environment; empty: there is one
}

// Settings are all settings of a VM, in the order in which they are listed.
var Settings = []Setting{
	scalar("kernel", text("kernel", pathKind, func(c *machine.Config) *string { return &c.Kernel })),
	list("initrds", "initrd", ";", func(c *machine.Config) *[]string { return &c.Initrds }, true),
	list("append", "append", "", func(c *machine.Config) *[]string { return &c.Append }, false),
	scalar("cmdline", text("cmdline", textKind, func(c *machine.Config) *string { return &c.Cmdline })),
	scalar("entry", text("entry", textKind, func(c *machine.Config) *string { return &c.Entry })),
	scalar("cpus", number("cpus", 1, machine.MaxCPUs, func(c *machine.Config) *int { return &c.CPUs })),
	scalar("memory", size("memory", func(c *machine.Config) *uint64 { return &c.Memory })),
	{Key: "net", Flag: "net", Env: envName("net"), list: true, split: ";", set: setNets},
	{Key: "serial", Flag: "serial", Env: envName("serial"), set: setSerial},
	scalar("name", text("name", textKind, func(c *machine.Config) *string { return &c.Name })),
	scalar("timeout", duration("timeout", func(c *machine.Config) *time.Duration { return &c.Timeout })),
	scalar("on-panic", text("on_panic", textKind, func(c *machine.Config) *string { return &c.OnPanic })),
	scalar("on-reboot", text("on_reboot", textKind, func(c *machine.Config) *string { return &c.OnReboot })),
	scalar("hyperv", onOff("hyperv", func(c *machine.Config) *string { return &c.HyperV })),
	scalar("nested", boolean("nested", func(c *machine.Config) *bool { return &c.Nested })),
}

func scalar(flag string, f field[machine.Config]) Setting {
	return Setting{Key: f.key, Flag: flag, Env: envName(flag), scalar: &f}
}

func list(key, flag, split string, at func(*machine.Config) *[]string, path bool) Setting {
	set := func(c *machine.Config, values []string) error {
		for _, v := range values {
			if v == "" {
				return usagef("the value is empty: give one, or leave it out")
			}
		}
		*at(c) = values
		return nil
	}
	return Setting{Key: key, Flag: flag, Env: envName(flag), list: true, set: set, path: path, split: split}
}

func envName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func setNets(c *machine.Config, lists []string) error {
	nets, err := ParseNets(lists)
	if err == nil {
		c.Nets = nets
	}
	return err
}

func setSerial(c *machine.Config, values []string) error {
	mode, path, valued := strings.Cut(values[len(values)-1], "=")
	switch {
	case mode != "stdio" && mode != "file" && mode != "none":
		return usagef("%q is unknown: use stdio, file=PATH or none", mode)
	case mode == "file" && path == "":
		return usagef("file has no path: use file=PATH")
	case mode != "file" && valued:
		return usagef("%s takes no value: use stdio, file=PATH or none", mode)
	}
	c.Serial = machine.Serial{Mode: mode, Path: path}
	return nil
}

// Find returns the setting of a flag, or nil.
func Find(flag string) *Setting {
	for i := range Settings {
		if Settings[i].Flag == flag {
			return &Settings[i]
		}
	}
	return nil
}

// IsList tells whether the setting has more than one value.
func (s *Setting) IsList() bool { return s.list }

// Switch tells whether the setting is true or false.
func (s *Setting) Switch() bool { return s.scalar != nil && s.scalar.kind == boolKind }

// Set replaces the setting in c by the values, of which there is one at least.
// Of a setting that is no list, the last counts.
func (s *Setting) Set(c *machine.Config, values ...string) error {
	if s.scalar != nil {
		return s.scalar.set(c, values[len(values)-1])
	}
	return s.set(c, values)
}

// EnvPrefix begins the name of every variable of the environment that govmm reads.
const EnvPrefix = "GOVMM_"

// Env applies the environment to c; an empty variable counts as none. The
// variables of lists hold values separated by ';', except for GOVMM_APPEND, of
// which the whole is one value because ';' may stand in a kernel's command line.
func Env(c *machine.Config, lookup func(string) (string, bool)) error {
	for i := range Settings {
		s := &Settings[i]
		value, ok := lookup(s.Env)
		if !ok || value == "" {
			continue
		}
		values := []string{value}
		if s.split != "" {
			values = strings.Split(value, s.split)
		}
		if err := s.Set(c, values...); err != nil {
			return usagef("%s: %w", s.Env, err)
		}
	}
	return nil
}
