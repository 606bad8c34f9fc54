// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// writeHelp writes the help of a command or topic, examples first.
func writeHelp(c *cobra.Command, _ []string) {
	if isTopic(c) {
		write(c, "%s\n", c.Long)
		return
	}
	write(c, "%s - %s\n\nUsage:\n  %s\n", c.CommandPath(), c.Short, useLine(c))
	if c.Example != "" {
		write(c, "\nExamples:\n%s\n", c.Example)
	}
	if c.Long != "" {
		write(c, "\n%s\n", c.Long)
	}
	writeCommands(c, "Commands", func(sub *cobra.Command) bool { return !isTopic(sub) })
	writeCommands(c, "Topics of govmm help", isTopic)
	for _, g := range flagGroups(c) {
		write(c, "\n%s:\n%s", g.title, g.flags.FlagUsages())
	}
}

// isTopic tells whether c is a text of govmm help, not a command.
func isTopic(c *cobra.Command) bool { return !c.Runnable() && c.HasParent() }

// useLine is the synopsis of a command.
func useLine(c *cobra.Command) string {
	if c.HasSubCommands() {
		return c.CommandPath() + " COMMAND [flags] [arguments]"
	}
	return c.UseLine()
}

func writeCommands(c *cobra.Command, title string, which func(*cobra.Command) bool) {
	var lines strings.Builder
	for _, sub := range c.Commands() {
		if !sub.Hidden && which(sub) {
			fmt.Fprintf(&lines, "  %-12s %s\n", sub.Name(), sub.Short)
		}
	}
	if lines.Len() > 0 {
		write(c, "\n%s:\n%s", title, lines.String())
	}
}

// flagGroup is a part of a command's flags, under a title.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// flagGroups are the flags of c in the order of their definition. The ones that
// belong to no group come last, as Flags or, behind other groups, as govmm's own.
func flagGroups(c *cobra.Command) []flagGroup {
	var found []flagGroup
	add := func(title string, f *pflag.Flag) {
		for _, g := range found {
			if g.title == title {
				g.flags.AddFlag(f)
				return
			}
		}
		set := pflag.NewFlagSet(title, pflag.ContinueOnError)
		set.SortFlags = false
		set.AddFlag(f)
		found = append(found, flagGroup{title, set})
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		switch group := f.Annotations[groupKey]; {
		case f.Hidden:
		case len(group) == 1:
			add(group[0], f)
		case len(found) > 0 && found[0].title != "Flags":
			add(groups[len(groups)-1], f)
		default:
			add("Flags", f)
		}
	})
	return found
}
