// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govmm/govmm/internal/initramfs"
	"github.com/pierrec/lz4/v4"
	"pgregory.net/rapid"
)

// TestCompress unpacks the blocks as lib/decompress_unlz4.c does: a magic
// number, then size and block until a size of zero.
func TestCompress(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		archive := bytes.Repeat(rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(rt, "pattern"), rapid.IntRange(1, 2000).Draw(rt, "times"))
		packed, err := compress(archive)
		if err != nil {
			rt.Fatal(err)
		}
		if len(packed)%4 != 0 {
			rt.Errorf("%d bytes: what follows is not aligned", len(packed))
		}
		const legacyMagic, blockSize = 0x184c2102, 8 << 20
		if magic := binary.LittleEndian.Uint32(packed); magic != legacyMagic {
			rt.Fatalf("magic number %#x", magic)
		}
		var got []byte
		rest := packed[4:]
		for {
			size := binary.LittleEndian.Uint32(rest)
			if size == 0 {
				break
			}
			block := make([]byte, blockSize)
			n, err := lz4.UncompressBlock(rest[4:4+size], block)
			if err != nil {
				rt.Fatal(err)
			}
			got = append(got, block[:n]...)
			rest = rest[4+size:]
		}
		if !bytes.Equal(got, archive) {
			rt.Errorf("%d bytes came back of %d, or they differ", len(got), len(archive))
		}
		if len(bytes.Trim(rest, "\x00")) != 0 {
			rt.Errorf("%d bytes after the end", len(rest))
		}
	})
}

// TestAddPrograms packs this very machine's shell, whose needs are known to the
// machine's own loader.
func TestAddPrograms(t *testing.T) {
	root := t.TempDir()
	copyFile(t, "/bin/sh", filepath.Join(root, "usr/bin/sh"))
	var archive initramfs.Archive
	err := addPrograms(&archive, root, []string{"usr/bin/sh"})
	if err == nil || !strings.Contains(err.Error(), "which no package below "+root+" has") {
		t.Errorf("without its libraries: %v", err)
	}
	for _, library := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"} {
		copyFile(t, library, filepath.Join(root, "lib", filepath.Base(library)))
	}
	archive = initramfs.Archive{}
	if err := addPrograms(&archive, root, []string{"usr/bin/sh"}); err != nil {
		t.Fatal(err)
	}
	data, err := archive.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"usr/bin/sh", "usr/lib/libc.so.6", "lib64/ld-linux-x86-64.so.2"} {
		if !bytes.Contains(data, []byte(name+"\x00")) {
			t.Errorf("%s is not in the archive", name)
		}
	}
}

func TestAddProgramsErrors(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "script"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"absent", "script"} {
		if err := addPrograms(new(initramfs.Archive), root, []string{program}); err == nil || !strings.Contains(err.Error(), program) {
			t.Errorf("%s: error %v, want one that names it", program, err)
		}
	}
	if err := addPrograms(new(initramfs.Archive), "/no/such/folder", nil); err != nil {
		t.Errorf("no programs: %v", err)
	}
}

// TestPackLeavesNothingHalfDone: an image that cannot be made leaves the old one.
func TestPackLeavesNothingHalfDone(t *testing.T) {
	dir := t.TempDir()
	image, base := filepath.Join(dir, "image"), filepath.Join(dir, "base")
	for _, path := range []string{image, base} {
		if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := pack(base, base, dir, []string{"absent"}, image); err == nil {
		t.Error("a missing program was not noticed")
	}
	if data, err := os.ReadFile(image); string(data) != "old" || err != nil {
		t.Errorf("the old image is %q, %v", data, err)
	}
	if err := pack(base, base, dir, nil, image); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(dir)
	if len(entries) != 2 || err != nil {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		t.Fatal(err)
	}
}
