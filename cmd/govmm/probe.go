// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/govmm/govmm/machine/probe"
	"github.com/spf13/cobra"
)

// probeCommand is govmm probe.
func (a *app) probeCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "probe",
		Short: "tell what this host can do",
		Long: `Tell whether this host can run Linux guests, and if not, why and what to do: KVM
and its capabilities, taps, huge pages, limits.

The exit code is 0 if all is well, 1 if guests run with something missing, and
122 if they don't run.`,
		Example:           "  govmm probe\n  govmm probe --json",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			report := probe.Host(c.Context())
			if asJSON {
				if err := writeJSON(c, report); err != nil {
					return err
				}
			} else if err := report.WriteText(c.OutOrStdout()); err != nil {
				return err
			}
			if code := report.Code(); code != probe.CodeOK {
				return exitCode(code)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}
