// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Module is one module, ready to be packed.
type Module struct {
	Name    string   // canonical: with underscores
	Path    string   // below the module tree, without a compression ending
	Depends []string // names of modules of the same result that must be loaded before
	Data    []byte   // the uncompressed file
}

// Resolve returns the named modules and all they depend on in load order, and
// the names that this kernel has neither as a module nor built in. Built-in
// ones need no loading and are left out. A module that cannot be read, or a
// dependency that does not exist, is an error.
func (t *Tree) Resolve(names ...string) (modules []Module, missing []string, err error) {
	r := resolver{tree: t, state: map[string]visitState{}}
	for _, name := range names {
		name = canonicalName(name)
		if t.builtin[name] {
			continue
		}
		if _, ok := t.files[name]; !ok {
			missing = append(missing, name)
			continue
		}
		if err := r.add(name); err != nil {
			return nil, nil, err
		}
	}
	return r.modules, missing, nil
}

type visitState int

const (
	unseen visitState = iota
	open              // its dependencies are being added
	done
)

// resolver walks the dependency graph depth first and emits in post-order.
type resolver struct {
	tree    *Tree
	state   map[string]visitState
	modules []Module
}

func (r *resolver) add(name string) error {
	switch r.state[name] {
	case done:
		return nil
	case open:
		return fmt.Errorf("kernel modules depend on each other in a circle through %s", name)
	}
	r.state[name] = open
	path := r.tree.files[name]
	data, err := readModule(filepath.Join(r.tree.Dir, path))
	if err != nil {
		return err
	}
	info, err := parseModinfo(data)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(r.tree.Dir, path), err)
	}
	depends, err := r.addDependencies(name, info)
	if err != nil {
		return err
	}
	r.state[name] = done
	r.modules = append(r.modules, Module{Name: name, Path: plainPath(path), Depends: depends, Data: data})
	return nil
}

// addDependencies adds what the module needs, and returns those of its hard
// dependencies that have to be loaded.
func (r *resolver) addDependencies(name string, info modinfo) ([]string, error) {
	for _, soft := range info.softPre {
		_, exists := r.tree.files[soft]
		if !exists || r.tree.builtin[soft] || r.state[soft] == open {
			continue
		}
		if err := r.add(soft); err != nil {
			return nil, err
		}
	}
	var depends []string
	for _, dep := range info.depends {
		if r.tree.builtin[dep] {
			continue
		}
		if _, exists := r.tree.files[dep]; !exists {
			return nil, fmt.Errorf("kernel module %s needs %s, which %s lacks", name, dep, r.tree.Dir)
		}
		if err := r.add(dep); err != nil {
			return nil, err
		}
		depends = append(depends, dep)
	}
	return depends, nil
}

// plainPath removes a compression ending.
func plainPath(path string) string {
	dir, base := filepath.Split(path)
	stem, _, found := strings.Cut(base, ".ko")
	if !found {
		return path
	}
	return dir + stem + ".ko"
}
