// SPDX-License-Identifier: Apache-2.0

// Package conf reads and writes a machine.Config as text: the values of flags,
// the environment, configuration files in TOML or JSON, and the --net list. All
// of them go through one table of settings, so that a value means the same
// wherever it stands, and an unknown one is refused everywhere alike.
//
// The layers of a configuration are applied from the lowest to the highest to
// one Config; each replaces what it names, lists as a whole:
//
//	var c machine.Config
//	conf.File(&c, "govmm.toml")
//	conf.Env(&c, os.LookupEnv)
//	conf.Find("cpus").Set(&c, "4")
//
// Every error is a *result.Error of reason usage, except for a file that can't
// be read, which is of reason host.
package conf
