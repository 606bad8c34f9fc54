// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/govmm/govmm/internal/guestmem"
	"github.com/govmm/govmm/internal/result"
)

// wantBadImage checks an error's reason, and that it says what is asked for.
func wantBadImage(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	var re *result.Error
	if !errors.As(err, &re) || re.Reason != result.BadImage {
		t.Errorf("reason is not %s: %v", result.BadImage, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	z.Write(b)
	z.Close()
	return out.Bytes()
}

// peImage builds the start of a PE file with one section.
func peImage(machine uint16, section string) []byte {
	b := make([]byte, 1024)
	copy(b, "MZ")
	le.PutUint32(b[0x3c:], 0x80)
	copy(b[0x80:], "PE\x00\x00")
	le.PutUint16(b[0x84:], machine)
	copy(b[0x188:], section)
	return b
}

func at(size, offset int, s string) []byte {
	b := make([]byte, size)
	copy(b[offset:], s)
	return b
}

func TestOpenRefusesForeignFiles(t *testing.T) {
	elfOf := func(change func(*elfSpec)) []byte {
		s := vmlinuxLike()
		change(&s)
		return s.build()
	}
	mbr := at(512, 510, "\x55\xaa")
	bigEndian := at(64, 0, "\x7fELF\x02\x02\x01")
	bigEndian[19] = 21
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "is empty"},
		{"one byte", []byte{0x7f}, "file of 1 bytes, too short"},
		{"short binary", bytes.Repeat([]byte{0x80}, 100), "file of 100 bytes, too short"},
		{"zeros", make([]byte, 8192), "unknown type that starts with 00 00"},
		{"text", []byte("menuentry 'Linux' {\n\tlinux /vmlinuz\n}\n"), "a text file"},
		{"UTF-8 text cut in a character", append(bytes.Repeat([]byte("a"), headSize-1), "ä"...), "a text file"},
		{"script", []byte("#!/bin/sh\n"), "a script"},
		{"gzip", gzipped([]byte("x")), "a gzip file; gunzip it first"},
		{"xz", at(600, 0, "\xfd7zXZ\x00"), "an xz file"},
		{"zstd", at(600, 0, "\x28\xb5\x2f\xfd"), "a zstd file"},
		{"cpio", []byte("0707010000"), "a cpio archive, which is an initrd"},
		{"deb", []byte("!<arch>\ndebian-binary"), "Debian package"},
		{"tar", at(1024, 257, "ustar"), "a tar archive"},
		{"qcow2", at(1024, 0, "QFI\xfb"), "a qcow2 disk image"},
		{"uImage", at(1024, 0, "\x27\x05\x19\x56"), "a U-Boot uImage"},
		{"arm64 Image", at(1024, 56, "ARM\x64"), "Linux Image for arm64"},
		{"arm64 EFI Image", append([]byte("MZ"), at(1024, 54, "ARM\x64")...), "Linux Image for arm64"},
		{"riscv Image", at(1024, 56, "RSC\x05"), "Linux Image for RISC-V"},
		{"EFI zboot", append([]byte("MZ\x00\x00"), at(1024, 0, "zimg")...), "EFI zboot image"},
		{"EFI x86-64", peImage(0x8664, ".text"), "EFI or Windows program for x86-64 that is not Linux"},
		{"EFI arm64", peImage(0xaa64, ".text"), "for arm64"},
		{"EFI other", peImage(0x5064, ".text"), "machine 0x5064"},
		{"UKI", peImage(0x8664, ".linux\x00\x00"), "unified kernel image"},
		{"DOS", at(1024, 0, "MZ"), "a DOS or Windows program"},
		{"DOS, PE offset outside", append(at(0x3c, 0, "MZ"), bytes.Repeat([]byte{0xff}, 64)...), "a DOS or Windows program"},
		{"disk image", mbr, "too short"},
		{"disk image with data", append(mbr, make([]byte, 512)...), "a disk image or boot sector"},
		{"ELF magic only", []byte("\x7fELF"), "truncated ELF file of 4 bytes"},
		{"ELF header cut", elfOf(func(*elfSpec) {})[:63], "truncated ELF file of 63 bytes"},
		{"ELF arm64", elfOf(func(s *elfSpec) { s.machine = 183 }), "ELF file for EM_AARCH64"},
		{"ELF ppc64le", elfOf(func(s *elfSpec) { s.machine = 21 }), "ELF file for EM_PPC64"},
		{"ELF i386", elfOf(func(s *elfSpec) { s.machine, s.class = 3, 1 }), "ELF file for EM_386"},
		{"ELF x32", elfOf(func(s *elfSpec) { s.class = 1 }), "32-bit ELF file"},
		{"ELF big-endian", bigEndian, "big-endian ELF file for EM_PPC64"},
		{"ELF object", elfOf(func(s *elfSpec) { s.typ = 1 }), "object file or kernel module"},
		{"ELF PIE", elfOf(func(s *elfSpec) { s.typ = 3 }), "program or shared library"},
		{"ELF core", elfOf(func(s *elfSpec) { s.typ = 4 }), "type ET_CORE"},
		{"ELF program", elfOf(func(s *elfSpec) { s.notes, s.extraProgTypes = nil, []uint32{3} }), "user space (it has a PT_INTERP header)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := writeFile(t, "kernel", c.data)
			_, err := Open(path)
			wantBadImage(t, err, c.want, path, "expected")
		})
	}
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{"", "the file name is empty"},
		{filepath.Join(dir, "none"), "no such file or directory"},
		{fifo, "is a pipe, expected a regular file"}, // and does not wait for a writer
		{"/dev/zero", "is a device, expected a regular file"},
		{loop, "too many levels of symbolic links"},
		{dir, "neither arch/x86/boot/bzImage nor vmlinux"},
	} {
		_, err := Open(c.path)
		wantBadImage(t, err, c.want)
	}
	_, err := Open(filepath.Join(dir, "none"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

func TestOpenBuildFolder(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	check := func(path string, kind Kind) {
		t.Helper()
		k, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		if k.Path() != path || k.Kind() != kind {
			t.Errorf("opened %s as %s, want %s as %s", k.Path(), k.Kind(), path, kind)
		}
	}
	check(write("vmlinux", vmlinuxLike().build()), ELF)
	check(write("arch/x86/boot/bzImage", linuxLike().build()), BzImage)

	bad := write("arch/x86/boot/bzImage", []byte("oops"))
	_, err := Open(dir)
	wantBadImage(t, err, bad) // it is named, and not silently passed over
}

func TestKernelFacts(t *testing.T) {
	bz := openImage(t, linuxLike().build())
	if got := bz.Version(); got != "6.1.0-test" {
		t.Errorf("bzImage version %q", got)
	}
	if got := bz.CmdlineSize(); got != 2047 {
		t.Errorf("bzImage cmdline size %d", got)
	}
	if got := bz.InitrdAddrMax(); got != 0x7fffffff {
		t.Errorf("bzImage initrd_addr_max %#x", got)
	}
	if got := bz.MinMemory(); got != 0x1800000 { // pref_address + init_size
		t.Errorf("bzImage needs %#x", got)
	}
	if _, ok := bz.ELFEntry(); ok {
		t.Error("bzImage has an ELF entry")
	}
	if _, ok := bz.PVHEntry(); ok {
		t.Error("bzImage has a PVH entry before it is unpacked")
	}

	vm := openImage(t, vmlinuxLike().build())
	if got := vm.Version(); got != "6.1.0-elf" {
		t.Errorf("ELF version %q", got)
	}
	if got := vm.CmdlineSize(); got != 2047 {
		t.Errorf("ELF cmdline size %d", got)
	}
	if got := vm.MinMemory(); got != 0x1205000 { // the end of bss
		t.Errorf("ELF needs %#x", got)
	}
	if got, ok := vm.ELFEntry(); got != 0x1000000 || !ok {
		t.Errorf("ELF entry %#x %v", got, ok)
	}
	if got, ok := vm.PVHEntry(); got != 0x1000100 || !ok {
		t.Errorf("PVH entry %#x %v", got, ok)
	}
	if got := strings.Join(vm.EntryNames(), " "); got != "pvh linux64" {
		t.Errorf("entries %q", got)
	}
}

func TestVersionNeverHasControlCharacters(t *testing.T) {
	for _, v := range []string{"\x1b[31m6.1 x", "6.1\nfoo bar", strings.Repeat("9", 500), "ä 1", ""} {
		s := linuxLike()
		s.version = v
		if got := openImage(t, s.build()).Version(); got != "" {
			t.Errorf("version of %q is %q", v, got)
		}
	}
	b := linuxLike().build()
	le.PutUint16(b[0x20e:], 0xffff) // points outside the setup code
	if got := openImage(t, b).Version(); got != "" {
		t.Errorf("version from outside is %q", got)
	}
}

func TestELFVersionAcrossBlocks(t *testing.T) {
	for _, off := range []int{1<<20 - 5, 1<<20 + 250, 1<<20 + 256 - 14, 3<<20 - 20} {
		s := vmlinuxLike()
		text := make([]byte, 4<<20)
		copy(text[off:], "Linux version 6.9.1-split (x)")
		s.segments = []segment{{paddr: 0x1000000, data: text, memsz: 4 << 20}}
		if got := openImage(t, s.build()).Version(); got != "6.9.1-split" {
			t.Errorf("banner at %#x: version %q", off, got)
		}
	}
	s := vmlinuxLike()
	s.segments[0].data = pattern(0x3000, 3)
	if got := openImage(t, s.build()).Version(); got != "" {
		t.Errorf("version %q of a kernel without a banner", got)
	}
}

func TestCmdlineIsChecked(t *testing.T) {
	mem := newRAM(t, ramOf(64*mib))
	small := linuxLike()
	small.cmdlineSize = 255
	huge := linuxLike()
	huge.cmdlineSize = 0xffffffff
	for _, c := range []struct {
		name    string
		image   []byte
		cmdline string
		want    []string // of the error; none: it is taken
	}{
		{"empty", linuxLike().build(), "", nil},
		{"longest", linuxLike().build(), strings.Repeat("a", 2047), nil},
		{"too long", linuxLike().build(), strings.Repeat("a", 2048), []string{"has 2048 bytes", "at most 2047"}},
		{"longest of a small kernel", small.build(), strings.Repeat("a", 255), nil},
		{"too long for a small kernel", small.build(), strings.Repeat("a", 256), []string{"256", "at most 255"}},
		{"too long in bytes, not characters", small.build(), strings.Repeat("ä", 128), []string{"256", "at most 255"}},
		{"as much as there is room", huge.build(), strings.Repeat("a", 0x70000-1), nil},
		{"more than there is room", huge.build(), strings.Repeat("a", 0x70000), []string{"at most 458751"}},
		{"ELF, longest", vmlinuxLike().build(), strings.Repeat("a", 2047), nil},
		{"ELF, too long", vmlinuxLike().build(), strings.Repeat("a", 2048), []string{"at most 2047"}},
		{"NUL", linuxLike().build(), "console=ttyS0\x00init=/bin/sh", []string{"byte 13", `'\x00'`}},
		{"newline", linuxLike().build(), "a\nb", []string{"byte 1", `'\n'`}},
		{"not ASCII", linuxLike().build(), "init=/größe\t\"a b\"", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := openImage(t, c.image).Load(mem, Params{Cmdline: c.cmdline})
			if c.want != nil {
				wantBadImage(t, err, append(c.want, "command line")...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if e.Cmdline.Size != uint64(len(c.cmdline))+1 {
				t.Errorf("cmdline has %d bytes", e.Cmdline.Size)
			}
			if got := read(t, mem, e.Cmdline.GPA, e.Cmdline.Size); string(got) != c.cmdline+"\x00" {
				t.Errorf("cmdline in memory is %q", got)
			}
		})
	}
}

func TestEntryNames(t *testing.T) {
	mem := newRAM(t, ramOf(64*mib))
	noNote := vmlinuxLike()
	noNote.notes = nil
	pvhOnly := vmlinuxLike()
	pvhOnly.entry = 0xffffffff81000000
	packed := linuxLike()
	packed.payload = vmlinuxLike().build()
	packedNoNote := linuxLike()
	packedNoNote.payload = noNote.build()
	for _, c := range []struct {
		name  string
		image []byte
		entry string
		want  string // name of the entry, or part of the error
		rip   uint64
	}{
		{"bzImage, default", linuxLike().build(), "", "linux64", 0x1000200},
		{"bzImage, auto", linuxLike().build(), "auto", "linux64", 0x1000200},
		{"bzImage, linux64", linuxLike().build(), "linux64", "linux64", 0x1000200},
		{"bzImage, pvh", packed.build(), "pvh", "pvh", 0x1000100},
		{"bzImage without CONFIG_PVH", packedNoNote.build(), "pvh", "CONFIG_PVH=y", 0},
		{"bzImage without a payload", linuxLike().build(), "pvh", "payload", 0},
		{"ELF, auto", vmlinuxLike().build(), "auto", "pvh", 0x1000100},
		{"ELF, linux64", vmlinuxLike().build(), "linux64", "linux64", 0x1000000},
		{"ELF without note, auto", noNote.build(), "auto", "linux64", 0x1000000},
		{"ELF without note, pvh", noNote.build(), "pvh", "CONFIG_PVH=y", 0},
		{"ELF with a note only, auto", pvhOnly.build(), "auto", "pvh", 0x1000100},
		{"ELF with a note only, linux64", pvhOnly.build(), "linux64", "can't be entered by linux64, only by pvh", 0},
		{"unknown", linuxLike().build(), "efi", `unknown entry "efi"; expected auto, linux64 or pvh`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := openImage(t, c.image).Load(mem, Params{Entry: c.entry})
			if c.rip == 0 {
				wantBadImage(t, err, c.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if e.Name != c.want || e.RIP != c.rip {
				t.Errorf("entry %s at %#x, want %s at %#x", e.Name, e.RIP, c.want, c.rip)
			}
		})
	}
}

func TestKernelNeedsItsMemory(t *testing.T) {
	for _, c := range []struct {
		name  string
		image []byte
		ram   uint64
		want  []string
	}{
		{"bzImage, just enough", linuxLike().build(), 24 * mib, nil},
		{"bzImage, a page less", linuxLike().build(), 24*mib - 4096, []string{"needs 24 MiB", "0x17ff000", "at least 24 MiB"}},
		{"bzImage, far too little", linuxLike().build(), 4 * mib, []string{"0x400000, 4 MiB;", "at least 24 MiB"}},
		{"ELF, just enough", vmlinuxLike().build(), 0x1205000, nil},
		{"ELF, a page less", vmlinuxLike().build(), 0x1204000, []string{"0x1204000", "at least 19 MiB"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := newRAM(t, ramOf(c.ram))
			_, err := openImage(t, c.image).Load(mem, Params{})
			if c.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantBadImage(t, err, c.want...)
		})
	}
}

// A refused Load leaves the guest's memory alone.
func TestRefusedLoadWritesNothing(t *testing.T) {
	mem := newRAM(t, ramOf(32*mib))
	want := read(t, mem, 0, 32*mib)
	k := openImage(t, linuxLike().build())
	for _, p := range []Params{
		{Entry: "x"},
		{Cmdline: "\n"},
		{Initrds: []Source{{Path: "big", Data: make([]byte, 32*mib)}}},
		{Initrds: []Source{{Path: "empty", Data: []byte{}}}},
		{E820: make([]E820Entry, 129)},
	} {
		if _, err := k.Load(mem, p); err == nil {
			t.Errorf("%+v: no error", p)
		}
	}
	if !bytes.Equal(read(t, mem, 0, 32*mib), want) {
		t.Error("memory was changed")
	}
}

func TestImageThatShrinksWhileInUse(t *testing.T) {
	for _, image := range [][]byte{linuxLike().build(), vmlinuxLike().build()} {
		path := writeFile(t, "kernel", image)
		k, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		if err := os.Truncate(path, int64(len(image))/2); err != nil {
			t.Fatal(err)
		}
		_, err = k.Load(newRAM(t, ramOf(64*mib)), Params{})
		wantBadImage(t, err, path, "was the file changed")
	}
}

// A reboot loads the same kernel again, whatever the guest has done to its RAM.
func TestLoadTwice(t *testing.T) {
	rd := writeFile(t, "initrd", pattern(5000, 9))
	for _, c := range []struct {
		image   []byte
		written []guestmem.Range // beside the kernel and the initrd
	}{
		{linuxLike().build(), []guestmem.Range{{GPA: 0x1000, Size: 48}, {GPA: 0x7000, Size: 0x1000}, {GPA: 0x9000, Size: 0x6000}}},
		{vmlinuxLike().build(), []guestmem.Range{{GPA: 0x1000, Size: 48}, {GPA: 0x6000, Size: 0x1000 - 0x400}}},
	} {
		k := openImage(t, c.image)
		mem := newRAM(t, ramOf(32*mib))
		p := Params{Cmdline: "console=ttyS0", Initrds: []Source{{Path: rd}, {Path: rd}}, RSDP: 0xe0000}
		first := load(t, k, mem, p)
		written := append(c.written, first.Initrd, first.Cmdline, guestmem.Range{GPA: first.RIP, Size: 0x1000})
		var want [][]byte
		for _, r := range written {
			want = append(want, read(t, mem, r.GPA, r.Size))
		}
		if err := mem.WriteAt(0, bytes.Repeat([]byte{0x5a}, 32*mib)); err != nil {
			t.Fatal(err)
		}
		if again := load(t, k, mem, p); again != first {
			t.Errorf("second entry %+v, first %+v", again, first)
		}
		for i, r := range written {
			if !bytes.Equal(read(t, mem, r.GPA, r.Size), want[i]) {
				t.Errorf("memory at %#x differs", r.GPA)
			}
		}
	}
}
