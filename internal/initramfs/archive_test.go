// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"bytes"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/govmm/govmm/internal/initramfs/layout"
	"pgregory.net/rapid"
)

// entry is a file of a cpio archive as the kernel sees it.
type entry struct {
	name               string
	ino, mode, mtime   uint64
	rdevMajor, rdevMin uint64
	data               []byte
}

// readNewc is an independent reader of the format, after
// Documentation/driver-api/early-userspace/buffer-format.rst. It stops at the
// first trailer and returns the rest.
func readNewc(t testing.TB, archive []byte) (entries []entry, rest []byte) {
	t.Helper()
	const headerSize = 110
	offset := 0
	align := func() { offset = (offset + 3) &^ 3 }
	for {
		if offset+headerSize > len(archive) || string(archive[offset:offset+6]) != "070701" {
			t.Fatalf("no header at offset %d of %d", offset, len(archive))
		}
		field := func(n int) uint64 {
			at := offset + 6 + 8*n
			value, err := strconv.ParseUint(string(archive[at:at+8]), 16, 32)
			if err != nil {
				t.Fatalf("field %d at offset %d: %v", n, offset, err)
			}
			return value
		}
		e := entry{ino: field(0), mode: field(1), mtime: field(5), rdevMajor: field(9), rdevMin: field(10)}
		size, nameSize := int(field(6)), int(field(11))
		offset += headerSize
		name := archive[offset : offset+nameSize]
		if name[nameSize-1] != 0 {
			t.Fatalf("name %q does not end with NUL", name)
		}
		e.name = string(name[:nameSize-1])
		offset += nameSize
		align()
		e.data = archive[offset : offset+size]
		offset += size
		align()
		if e.name == "TRAILER!!!" {
			return entries, archive[offset:]
		}
		entries = append(entries, e)
	}
}

func find(entries []entry, name string) *entry {
	for i := range entries {
		if entries[i].name == name {
			return &entries[i]
		}
	}
	return nil
}

func TestArchive(t *testing.T) {
	var a Archive
	a.AddFile("/etc/govmm/run", 0o755, []byte("#!/bin/sh\n"))
	a.AddFile("etc/govmm/run", 0o600, []byte("a second time"))
	a.AddFile("../../escape", 0o644, nil)
	a.AddSymlink("bin/reboot", "/init")
	a.AddCharDevice("dev/console", 0o600, 5, 1)
	a.AddDir("/")
	data, err := a.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if len(data)%4 != 0 {
		t.Errorf("the archive has %d bytes: no multiple of 4", len(data))
	}
	entries, _ := readNewc(t, data)
	const dir, regular, link, char = 0o040000, 0o100000, 0o120000, 0o020000
	want := []entry{
		{name: "etc", mode: dir | 0o755},
		{name: "etc/govmm", mode: dir | 0o755},
		{name: "etc/govmm/run", mode: regular | 0o755, data: []byte("#!/bin/sh\n")},
		{name: "escape", mode: regular | 0o644},
		{name: "bin", mode: dir | 0o755},
		{name: "bin/reboot", mode: link | 0o777, data: []byte("/init")},
		{name: "dev", mode: dir | 0o755},
		{name: "dev/console", mode: char | 0o600, rdevMajor: 5, rdevMin: 1},
	}
	if len(entries) != len(want) {
		t.Fatalf("%d entries, want %d: %+v", len(entries), len(want), entries)
	}
	for i, w := range want {
		got := entries[i]
		if got.name != w.name || got.mode != w.mode || !bytes.Equal(got.data, w.data) ||
			got.rdevMajor != w.rdevMajor || got.rdevMin != w.rdevMin {
			t.Errorf("entry %d is %+v, want %+v", i, got, w)
		}
		if got.mtime != 0 || got.ino != uint64(i+1) {
			t.Errorf("%s: mtime %d, inode %d: the archive must not depend on when it is made", got.name, got.mtime, got.ino)
		}
	}
}

func TestArchiveOfAnyFiles(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		files := rapid.MapOfN(
			rapid.StringMatching(`[a-z]{1,3}(/[a-z]{1,3}){0,3}\.f`), rapid.SliceOf(rapid.Byte()), 0, 10,
		).Draw(rt, "files")
		var a Archive
		for name, data := range files {
			a.AddFile(name, 0o644, data)
		}
		archive, err := a.Bytes()
		if err != nil {
			rt.Fatal(err)
		}
		entries, _ := readNewc(t, archive)
		seen := map[string]bool{".": true}
		for _, e := range entries {
			if parent := filepath.Dir(e.name); !seen[parent] || seen[e.name] {
				rt.Fatalf("%s comes twice, or before its folder", e.name)
			}
			seen[e.name] = true
		}
		for name, data := range files {
			if e := find(entries, name); e == nil || !bytes.Equal(e.data, data) {
				rt.Fatalf("%s is missing or differs", name)
			}
		}
	})
}

func TestConcat(t *testing.T) {
	got := Concat([]byte("abc"), nil, []byte("defgh"), []byte("i"))
	if want := "abc\x00defgh\x00\x00\x00i"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestModulesSegment(t *testing.T) {
	tree := makeTree(t, map[string][]string{
		"kernel/net/virtio_net.ko.xz": {"depends=virtio,failover"},
		"kernel/virtio.ko":            {},
		"kernel/failover.ko.zst":      {},
	})
	segment, missing, err := ModulesSegment(tree, "virtio_net", "9p")
	if err != nil || strings.Join(missing, " ") != "9p" {
		t.Fatalf("missing %v, error %v", missing, err)
	}
	again, _, err := ModulesSegment(tree, "virtio_net", "9p")
	if err != nil || !bytes.Equal(segment, again) {
		t.Errorf("made twice, the segment differs (error %v)", err)
	}
	entries, rest := readNewc(t, segment)
	if len(bytes.Trim(rest, "\x00")) != 0 {
		t.Errorf("%d bytes after the trailer", len(rest))
	}
	list := find(entries, strings.TrimPrefix(layout.ModuleList, "/"))
	if list == nil {
		t.Fatal("there is no list")
	}
	const dir = "/lib/modules/1.2.3/kernel/"
	want := dir + "virtio.ko\n" + dir + "failover.ko\n" + dir + "net/virtio_net.ko virtio failover\n"
	if string(list.data) != want {
		t.Errorf("the list is %q, want %q", list.data, want)
	}
	module := find(entries, "lib/modules/1.2.3/kernel/net/virtio_net.ko")
	if module == nil || !bytes.HasPrefix(module.data, []byte("\x7fELF")) {
		t.Error("the module is missing or still compressed")
	}
}

func TestDefault(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("GOVMM_CACHE", cache)
	kernel := writeFile(t, cache, "k/boot/vmlinuz-1.0", nil)
	if _, err := Default(kernel, ""); err == nil || !strings.Contains(err.Error(), "make images") {
		t.Errorf("without an image: %v, want an error that says make images", err)
	}
	writeFile(t, cache, "images/"+baseImageName(), []byte("BASE"))
	segments, err := Default(kernel, "")
	if err != nil || len(segments) != 1 || string(segments[0]) != "BASE" {
		t.Errorf("without modules: %d segments, error %v", len(segments), err)
	}
	writeFile(t, cache, "k/lib/modules/1.0/virtio_net.ko", makeModule("depends="))
	segments, err = Default(kernel, "1.0 (who@where)")
	if err != nil || len(segments) != 2 || string(segments[1]) != "BASE" {
		t.Fatalf("with modules: %d segments, error %v", len(segments), err)
	}
	entries, _ := readNewc(t, segments[0])
	if find(entries, "lib/modules/1.0/virtio_net.ko") == nil {
		t.Errorf("the module is not in the first segment: %v", entries)
	}
	writeFile(t, cache, "k/lib/modules/1.0/virtio_blk.ko", []byte("junk"))
	if _, err := Default(kernel, ""); err == nil || !strings.Contains(err.Error(), "virtio_blk.ko") {
		t.Errorf("a broken module: %v, want an error that names it", err)
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv("GOVMM_CACHE", "/somewhere/else")
	if dir, err := CacheDir(); dir != "/somewhere/else" || err != nil {
		t.Errorf("%s, %v", dir, err)
	}
	t.Setenv("GOVMM_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/xdg")
	if dir, err := CacheDir(); dir != "/xdg/govmm" || err != nil {
		t.Errorf("%s, %v", dir, err)
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	if _, err := CacheDir(); err == nil || !strings.Contains(err.Error(), "GOVMM_CACHE") {
		t.Errorf("without a home: %v, want an error that says GOVMM_CACHE", err)
	}
}

// TestTreeVersionInPaths: a release with odd characters makes a path, not more.
func TestTreeVersionInPaths(t *testing.T) {
	tree := makeTree(t, map[string][]string{"x.ko": nil})
	tree.Version = "../../6.1+deb~1"
	segment, _, err := ModulesSegment(tree, "x")
	if err != nil {
		t.Fatal(err)
	}
	entries, _ := readNewc(t, segment)
	for _, e := range entries {
		if strings.Contains(e.name, "..") || strings.HasPrefix(e.name, "/") {
			t.Errorf("entry %q leaves the root", e.name)
		}
	}
}
