// SPDX-License-Identifier: Apache-2.0

// Command sh is the shell of govmm's guest image: mvdan.cc/sh with the usual
// arguments, and a line editor that gets along with a serial console.
//
//	sh [-e] [-x]                         interactive, or commands from standard input
//	sh [-e] [-x] -c COMMANDS [NAME [ARG]...]
//	sh [-e] [-x] SCRIPT [ARG]...
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// Exit statuses that POSIX gives a shell's own errors.
const (
	exitUsage    = 2
	exitNoScript = 127
)

// invocation is what the arguments ask for.
type invocation struct {
	options  []string // for "set"
	text     string   // -c
	hasText  bool
	script   string
	name     string // $0
	argument []string
}

func main() {
	in, err := parseArguments(os.Args[1:])
	if err != nil {
		os.Exit(exitUsage)
	}
	os.Exit(in.run())
}

func parseArguments(args []string) (invocation, error) {
	flags := flag.NewFlagSet("sh", flag.ContinueOnError)
	var (
		in       invocation
		errExit  = flags.Bool("e", false, "end at the first command that fails")
		trace    = flags.Bool("x", false, "print commands before they run")
		nounset  = flags.Bool("u", false, "an unset variable is an error")
		commands = flags.Bool("c", false, "run the commands in the next argument")
	)
	if err := flags.Parse(splitFlags(args)); err != nil {
		return in, err
	}
	for option, set := range map[string]*bool{"-e": errExit, "-x": trace, "-u": nounset} {
		if *set {
			in.options = append(in.options, option)
		}
	}
	rest := flags.Args()
	in.name = "sh"
	if *commands {
		if len(rest) == 0 {
			fmt.Fprintln(os.Stderr, "sh: -c needs an argument")
			return in, flag.ErrHelp
		}
		in.text, in.hasText, rest = rest[0], true, rest[1:]
	} else if len(rest) > 0 {
		in.script = rest[0]
	}
	if len(rest) > 0 {
		in.name, in.argument = rest[0], rest[1:]
	}
	return in, nil
}

// splitFlags turns "-ec" into "-e -c", up to the first argument without a dash.
func splitFlags(args []string) []string {
	var out []string
	for i, arg := range args {
		if len(arg) < 2 || arg[0] != '-' || arg == "--" {
			return append(out, args[i:]...)
		}
		for _, letter := range arg[1:] {
			out = append(out, "-"+string(letter))
		}
	}
	return out
}

// run runs the shell and returns its exit status.
func (in invocation) run() int {
	runner, err := interp.New(
		interp.StdIO(os.Stdin, os.Stdout, os.Stderr),
		interp.Params(append(in.options, append([]string{"--"}, in.argument...)...)...),
	)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sh: %v\n", err)
		return exitUsage
	}
	switch {
	case in.hasText:
		return runAll(runner, strings.NewReader(in.text), in.name)
	case in.script != "":
		f, err := os.Open(in.script)
		if err != nil {
			fmt.Fprintf(os.Stderr, "sh: %v\n", err)
			return exitNoScript
		}
		defer f.Close()
		return runAll(runner, f, in.script)
	case term.IsTerminal(int(os.Stdin.Fd())):
		return interact(runner)
	}
	return runAll(runner, os.Stdin, in.name)
}

// runAll runs a whole program.
func runAll(runner *interp.Runner, program io.Reader, name string) int {
	file, err := syntax.NewParser().Parse(program, name)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sh: %v\n", err)
		return exitUsage
	}
	return exitStatus(runner.Run(context.Background(), file))
}

// exitStatus is the status in what the runner returned.
func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	if status, ok := interp.IsExitStatus(err); ok {
		return int(status)
	}
	fmt.Fprintf(os.Stderr, "sh: %v\n", err)
	return 1
}
