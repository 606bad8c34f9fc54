// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ErrNoModules says that no module tree was found for a kernel.
var ErrNoModules = errors.New("no kernel modules found")

// Tree is the modules of one kernel: an installed tree (/lib/modules/VERSION)
// or a kernel build folder.
type Tree struct {
	Dir     string // where the files are
	Version string // the kernel release that the modules are for

	files   map[string]string // module name to path under Dir
	builtin map[string]bool   // names of modules that are part of the kernel image
}

// FindTree finds the modules of the kernel image at path kernel, whose release
// string is version ("6.1.0-57-cloud-amd64"; what follows a space is ignored,
// and "" means unknown). It looks, in this order, in the kernel's build folder,
// in ../lib/modules beside the kernel's folder, and in /lib/modules. The error
// is ErrNoModules when there is none.
func FindTree(kernel, version string) (*Tree, error) {
	version, _, _ = strings.Cut(version, " ")
	kernel, err := filepath.Abs(kernel)
	if err != nil {
		return nil, err
	}
	if resolved, err := filepath.EvalSymlinks(kernel); err == nil {
		kernel = resolved
	}
	if version == "" {
		version = versionFromName(filepath.Base(kernel))
	}
	if dir, release := buildFolder(kernel); dir != "" && (version == "" || version == release) {
		return OpenTree(dir, release)
	}
	if version == "" {
		return nil, fmt.Errorf("%w for %s: its release is not known", ErrNoModules, kernel)
	}
	root := filepath.Dir(filepath.Dir(kernel))
	candidates := []string{
		filepath.Join(root, "lib/modules", version),
		filepath.Join(root, "usr/lib/modules", version),
		filepath.Join("/lib/modules", version),
	}
	for _, dir := range candidates {
		if stat, err := os.Stat(dir); err == nil && stat.IsDir() {
			return OpenTree(dir, version)
		}
	}
	return nil, fmt.Errorf("%w for %s (release %s): looked in %s", ErrNoModules, kernel, version, strings.Join(candidates, ", "))
}

// versionFromName returns the release in a file name as /boot has them
// ("vmlinuz-VERSION"), or "".
func versionFromName(base string) string {
	for _, prefix := range []string{"vmlinuz-", "vmlinux-"} {
		if version, ok := strings.CutPrefix(base, prefix); ok {
			return version
		}
	}
	return ""
}

// buildFolder returns the kernel build folder that an image lies in (vmlinux
// at its top, arch/x86/boot/bzImage below) and the release built there.
func buildFolder(kernel string) (dir, release string) {
	const levels = 4 // arch/x86/boot/bzImage
	dir = filepath.Dir(kernel)
	for range levels {
		data, err := os.ReadFile(filepath.Join(dir, "include/config/kernel.release"))
		if err == nil {
			return dir, strings.TrimSpace(string(data))
		}
		dir = filepath.Dir(dir)
	}
	return "", ""
}

// OpenTree indexes the modules below dir, which belong to kernel release version.
func OpenTree(dir, version string) (*Tree, error) {
	t := &Tree{Dir: dir, Version: version, files: map[string]string{}}
	if err := filepath.WalkDir(dir, t.visit); err != nil {
		return nil, fmt.Errorf("cannot list the kernel modules: %w", err)
	}
	builtin, err := readBuiltin(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	t.builtin = builtin
	return t, nil
}

// visit indexes one file. The first file of a name wins: the walk is in
// lexical order, so the choice does not change from run to run. Links are not
// followed ("build" and "source" point out of the tree).
func (t *Tree) visit(path string, entry fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	name, ok := moduleName(entry.Name())
	if !ok || !entry.Type().IsRegular() {
		return nil
	}
	if _, taken := t.files[name]; taken {
		return nil
	}
	relative, err := filepath.Rel(t.Dir, path)
	if err != nil {
		return err
	}
	t.files[name] = relative
	return nil
}

// readBuiltin reads modules.builtin: one path a line, of what would be a
// module if it were not built in. A tree without the file has none.
func readBuiltin(path string) (map[string]bool, error) {
	builtin := map[string]bool{}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return builtin, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, ok := moduleName(filepath.Base(lines.Text())); ok {
			builtin[name] = true
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return builtin, nil
}
