// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/govmm/govmm/internal/suggest"
	"github.com/spf13/cobra"
)

// shells are those that completion knows.
var shells = []string{"bash", "zsh", "fish"}

// completionCommand is govmm completion.
func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "write a shell's completion script",
		Example: `  source <(govmm completion bash)
  govmm completion zsh >"${fpath[1]}/_govmm"
  govmm completion fish >~/.config/fish/completions/govmm.fish`,
		Args:                  oneShell,
		ValidArgs:             shells,
		DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, args []string) error {
			root, out := c.Root(), c.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			}
			return root.GenFishCompletion(out, true)
		},
	}
}

func oneShell(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("completion needs one shell: use %s", strings.Join(shells, ", "))
	}
	for _, s := range shells {
		if args[0] == s {
			return nil
		}
	}
	if near := suggest.Nearest(args[0], shells); near != "" {
		return usagef("there is no completion for %q: did you mean %s?", args[0], near)
	}
	return usagef("there is no completion for %q: use %s", args[0], strings.Join(shells, ", "))
}
