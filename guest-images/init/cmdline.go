// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"

	"github.com/govmm/govmm/internal/initramfs/layout"
	"golang.org/x/sys/unix"
)

// commandLine is what the kernel command line means to init.
type commandLine struct {
	values  map[string][]string // of "name=value", in order
	command []string            // the words after "--"
}

func readCommandLine() commandLine {
	data, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		logf("no kernel command line: %v", err)
	}
	return parseCommandLine(string(data))
}

// parseCommandLine splits as the kernel does (lib/cmdline.c, next_arg): at
// white space outside double quotes, which are then dropped.
func parseCommandLine(text string) commandLine {
	parsed := commandLine{values: map[string][]string{}}
	words := splitWords(text)
	for i, word := range words {
		if word == "--" {
			parsed.command = words[i+1:]
			break
		}
		if name, value, ok := strings.Cut(word, "="); ok {
			parsed.values[name] = append(parsed.values[name], value)
		}
	}
	return parsed
}

func splitWords(text string) []string {
	var (
		words  []string
		word   strings.Builder
		quoted bool
		inside bool // of a word, which may be empty if it was quoted
	)
	for _, c := range strings.TrimRight(text, "\n\x00") {
		switch {
		case c == '"':
			quoted = !quoted
			inside = true
		case !quoted && (c == ' ' || c == '\t' || c == '\n'):
			if inside {
				words = append(words, word.String())
			}
			word.Reset()
			inside = false
		default:
			word.WriteRune(c)
			inside = true
		}
	}
	if inside {
		words = append(words, word.String())
	}
	return words
}

// last returns the last value of a parameter, or "".
func (c commandLine) last(name string) string {
	values := c.values[name]
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

func setHostname(c commandLine) {
	name := c.last(layout.HostnameParameter)
	if name == "" {
		name = "govmm"
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		logf("cannot set the host name %q: %v", name, err)
	}
}
