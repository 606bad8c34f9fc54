// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is the version of the source.
const release = "0.1.0"

// build is what a binary was built from.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source; empty if it was built without version control
	Modified bool   `json:"modified,omitempty"` // the source was not as in the revision
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildOf(info *debug.BuildInfo) build {
	b := build{Version: release, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func thisBuild() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return buildOf(info)
}

// String is such as 0.1.0+1234567890ab.
func (b build) String() string {
	s := b.Version
	if b.Revision != "" {
		const short = 12
		s += "+" + b.Revision[:min(short, len(b.Revision))]
	}
	if b.Modified {
		s += ".modified"
	}
	return s
}

func version() string { return thisBuild().String() }

// versionCommand is govmm version.
func versionCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:               "version",
		Short:             "show the version",
		Example:           "  govmm version\n  govmm version --json",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			b := thisBuild()
			if asJSON {
				return writeJSON(c, b)
			}
			write(c, "govmm %s %s %s\n", b, b.Go, b.Platform)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}

func writeJSON(c *cobra.Command, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	write(c, "%s\n", text)
	return nil
}
