// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/govmm/govmm/internal/result"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manCommand is govmm man.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:                   "man FOLDER",
		Short:                 "write the manual pages",
		Example:               "  govmm man /usr/local/share/man\n  MANPATH=/usr/local/share/man man govmm-run",
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usagef("man needs one folder: name the one that holds man1, such as /usr/local/share/man")
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(c *cobra.Command, args []string) error {
			for _, page := range append(c.Root().Commands(), c.Root()) {
				if err := writePage(args[0], page); err != nil {
					return result.Errorf(result.Host, "manual page: %w: name a folder that can be written", err)
				}
			}
			return nil
		},
	}
}

// Manual sections (man-pages(7)).
const (
	commandSection = 1
	topicSection   = 7
)

func section(c *cobra.Command) int {
	if isTopic(c) {
		return topicSection
	}
	return commandSection
}

// pageName is a page's name, such as govmm-run.
func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// writePage writes the page of c below dir, into a folder for its section.
func writePage(dir string, c *cobra.Command) error {
	dir = filepath.Join(dir, fmt.Sprintf("man%d", section(c)))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(dir, fmt.Sprintf("%s.%d", pageName(c), section(c)))
	return os.WriteFile(path, []byte(page(c)), 0o644)
}

// page is the manual page of c in the man macros (groff_man(7)).
func page(c *cobra.Command) string {
	var p roff
	p.line(`.TH "%s" "%d" "" "govmm %s" "govmm"`, escape(strings.ToUpper(pageName(c))), section(c), release)
	p.section("NAME")
	p.line(`%s \- %s`, escape(pageName(c)), escape(c.Short))
	if !isTopic(c) {
		p.section("SYNOPSIS")
		p.text("  " + useLine(c))
	}
	if c.Example != "" {
		p.section("EXAMPLES")
		p.text(c.Example)
	}
	if c.Long != "" {
		p.section("DESCRIPTION")
		p.text(c.Long)
	}
	if !isTopic(c) {
		for _, g := range flagGroups(c) {
			p.section(strings.ToUpper(g.title))
			g.flags.VisitAll(p.flag)
		}
	}
	p.seeAlso(c)
	return p.String()
}

// roff writes the source of a manual page.
type roff struct{ strings.Builder }

func (r *roff) line(format string, args ...any) { fmt.Fprintf(r, format+"\n", args...) }

func (r *roff) section(title string) { r.line(`.SH "%s"`, escape(title)) }

// text writes paragraphs; lines that begin with two spaces stand as they are.
func (r *roff) text(text string) {
	literal := false
	for line := range strings.SplitSeq(text, "\n") {
		rest, indented := strings.CutPrefix(line, "  ")
		switch {
		case indented && !literal:
			r.line(".PP\n.RS 4\n.nf")
		case !indented && literal:
			r.line(".fi\n.RE")
		}
		literal = indented
		if line == "" {
			r.line(".PP")
			continue
		}
		r.line("%s", escape(rest))
	}
	if literal {
		r.line(".fi\n.RE")
	}
}

// flag writes one flag.
func (r *roff) flag(f *pflag.Flag) {
	value, usage := pflag.UnquoteUsage(f)
	r.line(".TP")
	names := `\fB` + escape("--"+f.Name) + `\fR`
	if f.Shorthand != "" {
		names = `\fB` + escape("-"+f.Shorthand) + `\fR, ` + names
	}
	if value != "" {
		names += ` \fI` + escape(value) + `\fR`
	}
	r.line("%s", names)
	r.line("%s", escape(usage))
}

// seeAlso names the other pages.
func (r *roff) seeAlso(c *cobra.Command) {
	r.section("SEE ALSO")
	var pages []string
	for _, other := range append([]*cobra.Command{c.Root()}, c.Root().Commands()...) {
		if other != c {
			pages = append(pages, fmt.Sprintf(`\fB%s\fR(%d)`, escape(pageName(other)), section(other)))
		}
	}
	r.line("%s", strings.Join(pages, ", "))
}

// escape makes text stand as it is: a backslash begins a command of roff, a dot
// or an apostrophe at the beginning of a line does too, and '-' and the quotes
// are typographic otherwise.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, `"`, `\(dq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}
