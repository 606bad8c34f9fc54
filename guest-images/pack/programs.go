// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/govmm/govmm/internal/initramfs"
)

// addPrograms adds programs below root, and the libraries and the loader that
// they need, from below root too: nothing of the building machine gets in.
func addPrograms(archive *initramfs.Archive, root string, programs []string) error {
	if len(programs) == 0 {
		return nil
	}
	libraries, err := findLibraries(root)
	if err != nil {
		return err
	}
	p := packer{archive: archive, root: root, libraries: libraries, done: map[string]bool{}}
	for _, program := range programs {
		if err := p.add(program, path.Join("/usr/bin", path.Base(program))); err != nil {
			return err
		}
	}
	return nil
}

// findLibraries maps the file names of all shared libraries below root to their
// paths.
func findLibraries(root string) (map[string]string, error) {
	libraries := map[string]string{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if strings.Contains(entry.Name(), ".so") {
			relative, err := filepath.Rel(root, file)
			if err != nil {
				return err
			}
			libraries[entry.Name()] = relative
		}
		return nil
	})
	return libraries, err
}

type packer struct {
	archive   *initramfs.Archive
	root      string
	libraries map[string]string // file name to path below root
	done      map[string]bool   // targets
}

// add stores the file at source below root as target, and what it needs.
func (p *packer) add(source, target string) error {
	if p.done[target] {
		return nil
	}
	p.done[target] = true
	data, err := os.ReadFile(filepath.Join(p.root, source))
	if err != nil {
		return err
	}
	p.archive.AddFile(target, 0o755, data)
	needed, loader, err := dependencies(data)
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	if loader != "" {
		if err := p.addLibrary(path.Base(loader), loader); err != nil {
			return err
		}
	}
	for _, name := range needed {
		// The loader's default folders include this one.
		if err := p.addLibrary(name, path.Join("/usr/lib", name)); err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
	}
	return nil
}

func (p *packer) addLibrary(name, target string) error {
	source, ok := p.libraries[name]
	if !ok {
		return fmt.Errorf("needs %s, which no package below %s has", name, p.root)
	}
	return p.add(source, target)
}

// dependencies returns the libraries that an ELF file names, and its loader.
func dependencies(data []byte) (needed []string, loader string, err error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, "", err
	}
	needed, err = f.ImportedLibraries()
	if err != nil {
		return nil, "", err
	}
	if section := f.Section(".interp"); section != nil {
		name, err := section.Data()
		if err != nil {
			return nil, "", err
		}
		loader = string(bytes.TrimRight(name, "\x00"))
	}
	return needed, loader, nil
}
