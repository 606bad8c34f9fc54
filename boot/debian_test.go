// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// debianKernel finds a stock kernel in the cache.
func debianKernel(t *testing.T, flavour string) string {
	t.Helper()
	cache := os.Getenv("GOVMM_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, ".cache", "govmm")
	}
	pattern := filepath.Join(cache, "kernels", flavour, "boot", "vmlinuz-*")
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatalf("no kernel at %s; run scripts/fetch-kernels", pattern)
	}
	return found[0]
}

// Debian's kernels have their payloads packed by XZ, LZ4 and ZSTD. Each of them
// loads by all entries with the least memory that govmm promises to be enough,
// and the vmlinux unpacked is what the standard library reads, too.
func TestDebianKernels(t *testing.T) {
	for _, flavour := range []string{"6.1", "6.1-cloud", "6.12-cloud"} {
		t.Run(flavour, func(t *testing.T) {
			t.Parallel()
			path := debianKernel(t, flavour)
			release := strings.TrimPrefix(filepath.Base(path), "vmlinuz-")
			image, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			k, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			if k.Kind() != BzImage || k.Version() != release || k.CmdlineSize() != 2047 {
				t.Errorf("%s %q, command line %d", k.Kind(), k.Version(), k.CmdlineSize())
			}
			checkDebianBzImage(t, k, image)

			vmlinux, err := Extract(path)
			if err != nil {
				t.Fatal(err)
			}
			vm := openImage(t, vmlinux)
			if vm.Kind() != ELF || vm.Version() != release {
				t.Errorf("vmlinux: %s %q", vm.Kind(), vm.Version())
			}
			if vm.MinMemory() > k.MinMemory() {
				t.Errorf("vmlinux ends at %#x, its bzImage says %#x", vm.MinMemory(), k.MinMemory())
			}
			checkDebianELF(t, vm, vmlinux)
			if flavour == "6.1-cloud" { // LZ4, the fastest to unpack again
				checkPVHFromBzImage(t, k, vm)
			}
		})
	}
}

func checkDebianBzImage(t *testing.T, k *Kernel, image []byte) {
	t.Helper()
	if k.MinMemory() > 128*mib {
		t.Errorf("needs %s, more than a VM of 128 MiB has", sizeOf(k.MinMemory()))
	}
	rd := pattern(1<<20, 1)
	mem := newRAM(t, ramOf(k.MinMemory()+mib))
	e := load(t, k, mem, Params{Cmdline: "console=ttyS0", Initrds: []Source{{Data: rd}}})
	setup := (int(image[0x1f1]) + 1) * 512
	code := image[setup : setup+16*int(le.Uint32(image[0x1f4:]))]
	if e.RIP != 0x1000200 || !bytes.Equal(read(t, mem, 0x1000000, uint64(len(code))), code) {
		t.Errorf("entry %#x, or the code is not at 16 MiB", e.RIP)
	}
	if !bytes.Equal(read(t, mem, e.Initrd.GPA, e.Initrd.Size), rd) || e.Initrd.GPA != k.MinMemory() {
		t.Errorf("initrd at %#x", e.Initrd.GPA)
	}
}

func checkDebianELF(t *testing.T, vm *Kernel, vmlinux []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(vmlinux))
	if err != nil {
		t.Fatal(err)
	}
	mem := newRAM(t, ramOf(vm.MinMemory()))
	e := load(t, vm, mem, Params{Entry: "linux64"})
	if e.RIP != f.Entry {
		t.Errorf("entry %#x, want %#x", e.RIP, f.Entry)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD {
			continue
		}
		want := make([]byte, p.Memsz)
		if _, err := p.ReadAt(want[:p.Filesz], 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(read(t, mem, p.Paddr, p.Memsz), want) {
			t.Errorf("segment at %#x differs", p.Paddr)
		}
	}
	// The code at the PVH entry starts with CLD (arch/x86/platform/pvh/head.S).
	e = load(t, vm, mem, Params{})
	if e.Name != EntryPVH || read(t, mem, e.RIP, 1)[0] != 0xfc {
		t.Errorf("entry %s at %#x: % x", e.Name, e.RIP, read(t, mem, e.RIP, 8))
	}
}

func checkPVHFromBzImage(t *testing.T, k, vm *Kernel) {
	t.Helper()
	mem := newRAM(t, ramOf(k.MinMemory()))
	got := load(t, k, mem, Params{Entry: "pvh"})
	if want := load(t, vm, mem, Params{Entry: "pvh"}); got != want {
		t.Errorf("entry by bzImage %+v, by vmlinux %+v", got, want)
	}
}
