// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// makeModule returns a minimal ELF64 little-endian relocatable object with a
// .modinfo section, as the ELF specification has it.
func makeModule(tags ...string) []byte {
	const (
		headerSize, sectionSize = 64, 64
		etRel, emX8664          = 1, 62
		shtProgbits, shtStrtab  = 1, 3
	)
	modinfo := []byte(strings.Join(tags, "\x00") + "\x00")
	names := []byte("\x00.modinfo\x00.shstrtab\x00")
	le := binary.LittleEndian
	tableOffset := headerSize + len(modinfo) + len(names)

	var b bytes.Buffer
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9)) // class 64, little-endian, version 1
	header := []any{
		uint16(etRel), uint16(emX8664), uint32(1), uint64(0), uint64(0), uint64(tableOffset), uint32(0),
		uint16(headerSize), uint16(0), uint16(0), uint16(sectionSize), uint16(3), uint16(2),
	}
	for _, field := range header {
		_ = binary.Write(&b, le, field) // a bytes.Buffer takes all
	}
	b.Write(modinfo)
	b.Write(names)
	section := func(name, kind uint32, offset, size int) {
		for _, field := range []any{
			name, kind, uint64(0), uint64(0), uint64(offset), uint64(size), uint32(0), uint32(0), uint64(1), uint64(0),
		} {
			_ = binary.Write(&b, le, field)
		}
	}
	section(0, 0, 0, 0)
	section(1, shtProgbits, headerSize, len(modinfo))
	section(10, shtStrtab, headerSize+len(modinfo), len(names))
	return b.Bytes()
}

func TestParseModinfo(t *testing.T) {
	info, err := parseModinfo(makeModule("license=GPL", "depends=virtio_ring,snd-pcm", "name=virtio-net",
		"softdep=pre: crc32c aes-x86 post: later", "alias=depends=no", "novalue", ""))
	if err != nil {
		t.Fatal(err)
	}
	if info.name != "virtio_net" {
		t.Errorf("name %q", info.name)
	}
	if got := strings.Join(info.depends, " "); got != "virtio_ring snd_pcm" {
		t.Errorf("depends %q", got)
	}
	if got := strings.Join(info.softPre, " "); got != "crc32c aes_x86" {
		t.Errorf("softdep pre %q", got)
	}
}

func TestParseModinfoRefuses(t *testing.T) {
	good := makeModule("name=x")
	executable := bytes.Clone(good)
	executable[16] = 2 // ET_EXEC
	noSection := bytes.Clone(good)
	copy(noSection[bytes.Index(noSection, []byte(".modinfo")):], ".notinfo")
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"empty":       {nil, "not a kernel module"},
		"text":        {[]byte("#!/bin/sh\n"), "not a kernel module"},
		"cut":         {good[:70], "not a kernel module"},
		"executable":  {executable, "ELF type is ET_EXEC"},
		"no .modinfo": {noSection, "no .modinfo"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseModinfo(test.data)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestModuleName(t *testing.T) {
	for file, want := range map[string]string{
		"virtio-rng.ko": "virtio_rng", "9p.ko.xz": "9p", "tun.ko.zst": "tun", "kvm-amd.ko.gz": "kvm_amd",
		"modules.dep": "", "x.ko.bz2": "", ".ko": "", "ko": "", "foo.ko.debug": "",
	} {
		if got, ok := moduleName(file); got != want || ok != (want != "") {
			t.Errorf("moduleName(%q) = %q, %v; want %q", file, got, ok, want)
		}
	}
}

// compressed returns the data in each format that modules come in.
func compressed(t testing.TB, data []byte) map[string][]byte {
	t.Helper()
	var gz, x, zs bytes.Buffer
	gw := gzip.NewWriter(&gz)
	xw, err := xz.NewWriter(&x)
	if err != nil {
		t.Fatal(err)
	}
	zw, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []interface {
		Write([]byte) (int, error)
		Close() error
	}{gw, xw, zw} {
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return map[string][]byte{".ko": data, ".ko.gz": gz.Bytes(), ".ko.xz": x.Bytes(), ".ko.zst": zs.Bytes()}
}

func TestReadModuleDecompresses(t *testing.T) {
	module := makeModule("name=x", "description="+strings.Repeat("long ", 1000))
	for suffix, data := range compressed(t, module) {
		path := filepath.Join(t.TempDir(), "x"+suffix)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := readModule(path)
		if err != nil || !bytes.Equal(got, module) {
			t.Errorf("%s: %d bytes, error %v", suffix, len(got), err)
		}
		if suffix == ".ko" {
			continue
		}
		if err := os.WriteFile(path, data[:len(data)/2], 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readModule(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s cut in half: error %v, want one that names the file", suffix, err)
		}
	}
}

func FuzzParseModinfo(f *testing.F) {
	good := makeModule("name=virtio_net", "depends=virtio,virtio_ring", "softdep=pre: a post: b")
	f.Add(good)
	f.Add(good[:len(good)-10])
	f.Add([]byte("\x7fELF\x01\x02\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		info, err := parseModinfo(data)
		if err != nil {
			return
		}
		for _, name := range append(info.depends, info.softPre...) {
			if name == "" || strings.Contains(name, "-") {
				t.Errorf("name %q is not canonical", name)
			}
		}
	})
}

func FuzzDecompress(f *testing.F) {
	for suffix, data := range compressed(f, makeModule("name=x")) {
		f.Add("x"+suffix, data)
	}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		out, err := decompress(name, data)
		if err == nil && len(out) > maxModuleSize {
			t.Errorf("%d bytes came out", len(out))
		}
	})
}
