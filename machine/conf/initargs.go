// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"slices"
	"strings"

	"github.com/govmm/govmm/machine"
)

// maxInitArgs is how many arguments a stock kernel passes to init
// (CONFIG_INIT_ENV_ARG_LIMIT is 32, and one is init's own name); with one more it
// panics.
const maxInitArgs = 31

// dashes end the kernel's own parameters; what follows goes to init
// (Documentation/admin-guide/kernel-parameters.rst).
const dashes = "--"

// AddInitArgs adds arguments for the guest's init to the kernel command line of
// c, quoted so that each arrives as it is. The kernel knows no way to pass a
// double quote, an empty argument, or another "--".
func AddInitArgs(c *machine.Config, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if len(args) > maxInitArgs {
		return usagef("%d arguments for init are too many: the kernel passes %d; put them in a file of the initrd", len(args), maxInitArgs)
	}
	var words []string
	if !hasDashes(*c) {
		words = append(words, dashes)
	}
	for _, arg := range args {
		word, err := quote(arg)
		if err != nil {
			return err
		}
		words = append(words, word)
	}
	c.Append = append(slices.Clone(c.Append), strings.Join(words, " "))
	return nil
}

// hasDashes tells whether the command line has arguments for init already.
func hasDashes(c machine.Config) bool {
	line := c.Cmdline + " " + strings.Join(c.Append, " ")
	return slices.Contains(strings.Fields(line), dashes)
}

// quote makes one word of an argument, as the kernel's next_arg (lib/cmdline.c)
// takes it: quotes around it go, all between them stays.
func quote(arg string) (string, error) {
	switch {
	case arg == "":
		return "", usagef("an empty argument can't be passed to init: leave it out")
	case strings.ContainsAny(arg, "\"\x00"):
		return "", usagef("the argument %q can't be passed to init: the kernel's command line has no way to say '\"'; put it in a file of the initrd", arg)
	case arg == dashes:
		return "", usagef("the argument \"--\" can't be passed to init: the kernel ends init's arguments there; leave it out")
	case strings.ContainsFunc(arg, needsQuotes):
		return `"` + arg + `"`, nil
	}
	return arg, nil
}

// needsQuotes is true for all that the kernel may take for a space: in its
// Latin-1 ctype table, 0xa0 is one, which is a part of many UTF-8 letters.
func needsQuotes(r rune) bool { return r <= ' ' || r >= 0x7f }
