// SPDX-License-Identifier: Apache-2.0

// Package govmm_test checks the rules that hold for the whole tree: which
// package may import which, and where unsafe may be used.
package govmm_test

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/govmm/govmm/"

// layers says, for each part of the tree, which other parts it may import. The
// longest matching prefix counts; a trailing slash means everything below.
var layers = []struct {
	pkg string
	may []string
}{
	{"cmd/", []string{"machine", "machine/probe", "internal/"}},
	{"scripts/", []string{"machine/probe", "kvm", "internal/"}},
	{"guest-images/", []string{"internal/"}},
	{"tests/", []string{"kvm", "boot", "machine/probe", "internal/"}},
	{"machine", []string{"kvm", "boot", "devices/", "internal/", "machine/"}},
	{"boot", []string{"internal/"}},
	{"kvm", []string{"kvm"}},
	{"devices/netio", []string{"internal/", "devices/netio"}},
	{"devices/virtio", []string{"internal/", "devices/netio", "devices/virtio", "devices/pci"}},
	{"devices/vmbus", []string{"internal/", "devices/netio", "devices/vmbus"}},
	{"devices/", []string{"internal/", "devices/netio"}},
	{"internal/guestmem", nil},
	{"internal/irq", nil},
	{"internal/bus", nil},
	{"internal/netbench", []string{"internal/", "devices/"}},
	{"internal/", []string{"internal/"}},
}

// leaves may use the standard library and golang.org/x/sys alone.
var leaves = []string{"kvm", "internal/guestmem", "internal/irq", "internal/bus"}

// unsafeIn are the packages that may have *_unsafe.go files.
var unsafeIn = []string{"kvm", "internal/guestmem", "devices/netio/tap"}

type pkg struct {
	ImportPath string
	Imports    []string
	Dir        string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Dir", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal("go list:", err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// matches tells whether the path is rule, or below it.
func matches(path, rule string) bool {
	rule = strings.TrimSuffix(rule, "/")
	return path == rule || strings.HasPrefix(path, rule+"/")
}

func TestImportsPointOneWay(t *testing.T) {
	all := packages(t)
	if len(all) < 10 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	for _, p := range all {
		path := strings.TrimPrefix(p.ImportPath, module)
		if path == p.ImportPath { // the root, which holds this test only
			continue
		}
		i := slices.IndexFunc(layers, func(l struct {
			pkg string
			may []string
		}) bool {
			return matches(path, l.pkg)
		})
		if i < 0 {
			t.Errorf("%s: the import rules don't know this package", path)
			continue
		}
		for _, imp := range p.Imports {
			in, ours := strings.CutPrefix(imp, module)
			if !ours {
				if leaf(path) && strings.Contains(imp, ".") && !strings.HasPrefix(imp, "golang.org/x/sys/") {
					t.Errorf("%s imports %s: it may use the standard library and x/sys only", path, imp)
				}
				continue
			}
			if !slices.ContainsFunc(layers[i].may, func(r string) bool { return matches(in, r) }) {
				t.Errorf("%s imports %s, which the layout forbids", path, in)
			}
			if imp == p.ImportPath || matches(in, "cmd") {
				t.Errorf("%s imports %s", path, in)
			}
		}
	}
}

func leaf(path string) bool {
	return slices.ContainsFunc(leaves, func(l string) bool { return path == l })
}

// TestNICsDontKnowEachOther checks that a device model imports no sibling.
func TestNICsDontKnowEachOther(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		for _, imp := range p.Imports {
			in, ours := strings.CutPrefix(imp, module)
			if !ours || !matches(path, "devices") || !matches(in, "devices") || matches(in, "devices/netio") {
				continue
			}
			if matches(path, in) || in == "devices/pci" && path == "devices/virtio/pci" || in == "devices/virtio" {
				continue // a device and its bus package
			}
			t.Errorf("%s imports its sibling %s", path, in)
		}
	}
}

func TestUnsafeIsConfined(t *testing.T) {
	_, self, _, _ := runtime.Caller(0)
	root := filepath.Dir(self)
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imp := range f.Imports {
			if name, err := strconv.Unquote(imp.Path.Value); err != nil || name != "unsafe" {
				continue
			}
			seen++
			base := strings.TrimSuffix(filepath.Base(rel), ".go")
			named := strings.Contains(base, "_unsafe")
			if !named || !slices.ContainsFunc(unsafeIn, func(p string) bool { return filepath.Dir(rel) == p }) {
				t.Errorf("%s uses unsafe: only *_unsafe.go in %v may", rel, unsafeIn)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen == 0 {
		t.Fatal("found no use of unsafe at all: the search is broken")
	}
}
