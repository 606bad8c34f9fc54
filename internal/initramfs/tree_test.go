// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// writeFile writes a file below dir, with its folders.
func writeFile(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// makeTree makes a module tree: paths to the modinfo tags of the module.
func makeTree(t testing.TB, modules map[string][]string, builtin ...string) *Tree {
	t.Helper()
	dir := t.TempDir()
	for path, tags := range modules {
		data := makeModule(tags...)
		if _, suffix, _ := strings.Cut(filepath.Base(path), ".ko"); suffix != "" {
			data = compressed(t, data)[".ko"+suffix]
		}
		writeFile(t, dir, path, data)
	}
	if builtin != nil {
		writeFile(t, dir, "modules.builtin", []byte(strings.Join(builtin, "\n")+"\n"))
	}
	tree, err := OpenTree(dir, "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func namesOf(modules []Module) string {
	var names []string
	for _, m := range modules {
		names = append(names, m.Name)
	}
	return strings.Join(names, " ")
}

func TestResolve(t *testing.T) {
	tree := makeTree(t, map[string][]string{
		"kernel/virtio.ko":         {"depends=virtio_ring"},
		"kernel/virtio_ring.ko.xz": {"depends="},
		"kernel/virtio-net.ko.zst": {"depends=virtio,net-failover,crc"},
		"kernel/net_failover.ko":   {"depends=failover"},
		"kernel/failover.ko.gz":    {},
		"kernel/other.ko":          {"depends=virtio"},
		"kernel/soft.ko":           {"softdep=pre: failover absent crc post: other"},
		"updates/virtio-ring.ko":   {"depends="},
	}, "kernel/lib/crc.ko", "kernel/drivers/built-in-one.ko")

	for _, test := range []struct {
		wanted        []string
		want, missing string
	}{
		{[]string{"virtio_net"}, "virtio_ring virtio failover net_failover virtio_net", ""},
		{[]string{"virtio-net", "virtio_net", "virtio"}, "virtio_ring virtio failover net_failover virtio_net", ""},
		{[]string{"other", "virtio-net"}, "virtio_ring virtio other failover net_failover virtio_net", ""},
		{[]string{"crc", "built_in_one"}, "", ""},
		{[]string{"nothing", "failover", "no-way"}, "failover", "nothing no_way"},
		{[]string{"soft"}, "failover soft", ""},
		{nil, "", ""},
	} {
		modules, missing, err := tree.Resolve(test.wanted...)
		if err != nil {
			t.Errorf("%v: %v", test.wanted, err)
		}
		if got := namesOf(modules); got != test.want || strings.Join(missing, " ") != test.missing {
			t.Errorf("%v: got %q, missing %q; want %q and %q", test.wanted, got, missing, test.want, test.missing)
		}
	}
	modules, _, err := tree.Resolve("virtio-net")
	if err != nil {
		t.Fatal(err)
	}
	last := modules[len(modules)-1]
	if last.Path != "kernel/virtio-net.ko" || !slices.Equal(last.Depends, []string{"virtio", "net_failover"}) {
		t.Errorf("path %q, depends %q: want the plain name, and no built-in module", last.Path, last.Depends)
	}
}

func TestResolveErrors(t *testing.T) {
	tree := makeTree(t, map[string][]string{
		"a.ko":     {"depends=b"},
		"b.ko":     {"depends=a"},
		"self.ko":  {"depends=self"},
		"lacks.ko": {"depends=gone"},
	})
	writeFile(t, tree.Dir, "junk.ko", []byte("not ELF"))
	tree, err := OpenTree(tree.Dir, "1")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"a": "in a circle", "self": "in a circle", "lacks": "lacks needs gone", "junk": "junk.ko: not a kernel module",
	} {
		if _, _, err := tree.Resolve(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", name, err, want)
		}
	}
	if err := os.Remove(filepath.Join(tree.Dir, "a.ko")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tree.Resolve("a"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that went away: %v", err)
	}
}

// TestResolveOrder: in any acyclic graph the result is the closure, each module
// once, and none before what it depends on.
func TestResolveOrder(t *testing.T) {
	names := []string{"m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"}
	rapid.Check(t, func(rt *rapid.T) {
		depends := map[string][]string{}
		modules := map[string][]string{}
		for i, name := range names {
			// Only earlier ones: no circle.
			subset := rapid.SliceOfNDistinct(rapid.IntRange(0, max(i-1, 0)), 0, i, rapid.ID).Draw(rt, name)
			for _, d := range subset {
				depends[name] = append(depends[name], names[d])
			}
			modules["k/"+name+".ko"] = []string{"depends=" + strings.Join(depends[name], ",")}
		}
		wanted := rapid.SliceOf(rapid.SampledFrom(names)).Draw(rt, "wanted")
		got, missing, err := makeTree(t, modules).Resolve(wanted...)
		if err != nil || len(missing) > 0 {
			rt.Fatalf("error %v, missing %v", err, missing)
		}
		closure := map[string]bool{}
		var visit func(string)
		visit = func(name string) {
			closure[name] = true
			for _, d := range depends[name] {
				visit(d)
			}
		}
		for _, name := range wanted {
			visit(name)
		}
		position := map[string]int{}
		for i, m := range got {
			if _, twice := position[m.Name]; twice || !closure[m.Name] {
				rt.Fatalf("%s is there twice or not needed: %s", m.Name, namesOf(got))
			}
			position[m.Name] = i
			for _, d := range depends[m.Name] {
				if at, ok := position[d]; !ok || at >= i {
					rt.Fatalf("%s comes before %s: %s", m.Name, d, namesOf(got))
				}
			}
		}
		if len(got) != len(closure) {
			rt.Fatalf("%d modules, want %d", len(got), len(closure))
		}
	})
}

func TestFindTree(t *testing.T) {
	root := t.TempDir()
	module := makeModule("name=x")
	installed := writeFile(t, root, "debian/boot/vmlinuz-6.1.0-1-amd64", nil)
	writeFile(t, root, "debian/lib/modules/6.1.0-1-amd64/kernel/x.ko", module)
	usr := writeFile(t, root, "usr/boot/vmlinuz", nil)
	writeFile(t, root, "usr/usr/lib/modules/7.0/kernel/x.ko", module)
	build := writeFile(t, root, "linux/arch/x86/boot/bzImage", nil)
	vmlinux := writeFile(t, root, "linux/vmlinux", nil)
	writeFile(t, root, "linux/include/config/kernel.release", []byte("6.9.0-rc1+\n"))
	writeFile(t, root, "linux/drivers/net/x.ko", module)
	link := filepath.Join(root, "current")
	if err := os.Symlink(filepath.Join(root, "debian"), link); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ kernel, version, dir, release string }{
		{installed, "6.1.0-1-amd64 (builder@host) #1 SMP", "debian/lib/modules/6.1.0-1-amd64", "6.1.0-1-amd64"},
		{installed, "", "debian/lib/modules/6.1.0-1-amd64", "6.1.0-1-amd64"},
		{link + "/boot/vmlinuz-6.1.0-1-amd64", "", "debian/lib/modules/6.1.0-1-amd64", "6.1.0-1-amd64"},
		{usr, "7.0", "usr/usr/lib/modules/7.0", "7.0"},
		{build, "", "linux", "6.9.0-rc1+"},
		{build, "6.9.0-rc1+", "linux", "6.9.0-rc1+"},
		{vmlinux, "", "linux", "6.9.0-rc1+"},
	} {
		tree, err := FindTree(test.kernel, test.version)
		if err != nil {
			t.Errorf("%s, %q: %v", test.kernel, test.version, err)
			continue
		}
		if tree.Dir != filepath.Join(root, test.dir) || tree.Version != test.release {
			t.Errorf("%s, %q: %s of %s, want %s of %s", test.kernel, test.version, tree.Dir, tree.Version, test.dir, test.release)
		}
		if _, ok := tree.files["x"]; !ok {
			t.Errorf("%s: the module is not there", test.kernel)
		}
	}
	for _, test := range []struct{ kernel, version string }{
		{installed, "no-such-release"}, {usr, ""}, {filepath.Join(root, "nowhere/vmlinuz-0.0"), ""}, {build, "another"},
	} {
		if _, err := FindTree(test.kernel, test.version); !errors.Is(err, ErrNoModules) {
			t.Errorf("%s, %q: %v, want %v", test.kernel, test.version, err, ErrNoModules)
		}
	}
}

// TestDebianKernels resolves what guests get from the kernels that
// scripts/fetch-kernels has downloaded.
func TestDebianKernels(t *testing.T) {
	cache, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	for flavour, wanted := range map[string][]string{
		"6.1":        {"virtio_pci", "virtio_net", "virtio_blk", "9p", "hv_netvsc"},
		"6.1-cloud":  {"virtio_pci", "virtio_net", "virtio_blk", "hv_netvsc"},
		"6.12-cloud": {"virtio_net", "virtio_blk", "hv_netvsc"}, // virtio_pci is built in
	} {
		images, err := filepath.Glob(filepath.Join(cache, "kernels", flavour, "boot", "vmlinuz-*"))
		if err != nil || len(images) != 1 {
			t.Fatalf("%s: images %v, error %v: run scripts/fetch-kernels", flavour, images, err)
		}
		tree, err := FindTree(images[0], "")
		if err != nil {
			t.Fatal(err)
		}
		modules, _, err := tree.Resolve(GuestModules...)
		if err != nil {
			t.Fatal(err)
		}
		var loaded []string
		for _, m := range modules {
			for _, d := range m.Depends {
				if !slices.Contains(loaded, d) {
					t.Errorf("%s: %s comes before %s", flavour, m.Name, d)
				}
			}
			loaded = append(loaded, m.Name)
		}
		for _, name := range wanted {
			if !slices.Contains(loaded, name) {
				t.Errorf("%s: no %s among %v", flavour, name, loaded)
			}
		}
	}
}
