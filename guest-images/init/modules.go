// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/govmm/govmm/internal/initramfs/layout"
	"golang.org/x/sys/unix"
)

// loadModules loads the modules of the list and returns what failed. A module
// whose device is not there (the Hyper-V bus, for example) says ENODEV: that is
// as it should be, and those that need it are left out too, for the kernel
// would complain about each of their symbols.
func loadModules() (failures []error) {
	data, err := os.ReadFile(layout.ModuleList)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel with everything built in
	}
	if err != nil {
		return []error{err}
	}
	return loadListed(string(data), loadModule)
}

// loadListed goes through a list of modules with a function that loads one.
func loadListed(list string, load func(path string) error) (failures []error) {
	absent := map[string]bool{}
	for line := range strings.Lines(list) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		file, depends := words[0], words[1:]
		name := moduleName(file)
		if anyOf(absent, depends) {
			absent[name] = true
			continue
		}
		err := load(file)
		switch {
		case err == nil, errors.Is(err, unix.EEXIST):
		case errors.Is(err, unix.ENODEV):
			absent[name] = true
		default:
			absent[name] = true
			failures = append(failures, fmt.Errorf("module %s: %w", name, err))
		}
	}
	return failures
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

func anyOf(set map[string]bool, names []string) bool {
	for _, name := range names {
		if set[name] {
			return true
		}
	}
	return false
}

// moduleName is the file's name as the kernel has it.
func moduleName(path string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".ko"), "-", "_")
}
