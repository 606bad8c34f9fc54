// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/govmm/govmm/internal/guestmem"
)

func TestBzImageRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*bzSpec)
		patch  func([]byte) []byte
		want   string
	}{
		{"protocol 2.11", func(s *bzSpec) { s.protocol = 0x20b }, nil, "boot protocol 2.11, expected 2.12 or newer"},
		{"protocol 2.00", func(s *bzSpec) { s.protocol = 0x200 }, nil, "boot protocol 2.00"},
		{"zImage", func(s *bzSpec) { s.loadflags = 0 }, nil, "is a zImage"},
		{"32-bit", func(s *bzSpec) { s.xloadflags = 0x7e }, nil, "is a 32-bit kernel"},
		{"header too short", func(s *bzSpec) { s.jump = 0x40 }, nil, "jump instruction is 0xeb 0x40"},
		{"header jumps back", func(s *bzSpec) { s.jump = 0x80 }, nil, "jump instruction is 0xeb 0x80"},
		{"no jump", nil, func(b []byte) []byte { b[0x200] = 0x90; return b }, "jump instruction is 0x90"},
		{"alignment 0", func(s *bzSpec) { s.align = 0 }, nil, "kernel_alignment 0x0 is not a power of two"},
		{"alignment 3", func(s *bzSpec) { s.align = 3 }, nil, "kernel_alignment 0x3 is not a power of two"},
		{"preferred below 1 MiB", func(s *bzSpec) { s.pref = 0x10000 }, nil, "pref_address 0x10000"},
		{"preferred above 4 GiB", func(s *bzSpec) { s.pref = 1 << 32 }, nil, "pref_address 0x100000000"},
		{"preferred at the end of 64 bits", func(s *bzSpec) { s.pref = ^uint64(0) }, nil, "pref_address 0xffffffffffffffff"},
		{"aligned out of the map", func(s *bzSpec) { s.align, s.pref = 0x80000000, 0x80000001 }, nil, "kernel_alignment 0x80000000"},
		{"not relocatable, no address", func(s *bzSpec) { s.relocatable, s.pref = 0, 0 }, nil, "pref_address 0x0"},
		{"needs no memory", func(s *bzSpec) { s.initSize = 0 }, nil, "init_size is 0x0"},
		{"needs too much memory", func(s *bzSpec) { s.initSize = 0xffffffff }, nil, "init_size is 0xffffffff"},
		{"tiny kernel", func(s *bzSpec) { s.prot = make([]byte, 0x200) }, nil, "do not reach to the entry"},
		{"cut after the magic", nil, func(b []byte) []byte { return b[:0x206] }, "not even all of a bzImage's header"},
		{"cut in the header", nil, func(b []byte) []byte { return b[:0x263] }, "has 611 bytes"},
		{"cut in the setup", nil, func(b []byte) []byte { return b[:0x300] }, "is truncated: the file has 768 bytes, its header tells of 12288"},
		{"cut by one byte", nil, func(b []byte) []byte { return b[:len(b)-1] }, "is truncated: the file has 12287 bytes, its header tells of 12288 (setup_sects 7, syssize 0x200)"},
		{"syssize over all limits", nil, func(b []byte) []byte { le.PutUint32(b[0x1f4:], 0xffffffff); return b }, "is truncated"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := linuxLike()
			if c.change != nil {
				c.change(&s)
			}
			b := s.build()
			if c.patch != nil {
				b = c.patch(b)
			}
			path := writeFile(t, "bzImage", b)
			_, err := Open(path)
			wantBadImage(t, err, path, c.want)
		})
	}
}

// The kernel is loaded and started where boot.rst says: the code follows
// setup_sects+1 sectors, at pref_address if the kernel can be relocated and else
// at 1 MiB; the 64-bit entry is 0x200 bytes behind; and it needs init_size bytes
// from its run-time address on.
func TestBzImagePlacement(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(*bzSpec)
		load     uint64
		from, to uint64 // what the kernel occupies
	}{
		{"as Debian's", func(*bzSpec) {}, 0x1000000, 0x1000000, 0x1800000},
		{"setup_sects 0 means 4", func(s *bzSpec) { s.setupSects = 0 }, 0x1000000, 0x1000000, 0x1800000},
		{"most setup_sects", func(s *bzSpec) { s.setupSects = 255 }, 0x1000000, 0x1000000, 0x1800000},
		{"no preference", func(s *bzSpec) { s.pref = 0 }, 0x200000, 0x200000, 0xa00000},
		{"preferred address not aligned", func(s *bzSpec) { s.pref = 0x1100000 }, 0x1100000, 0x1100000, 0x1a00000},
		{"not relocatable", func(s *bzSpec) { s.relocatable = 0 }, 0x100000, 0x100000, 0x1800000},
		{"not relocatable, alignment unused", func(s *bzSpec) { s.relocatable, s.align = 0, 0 }, 0x100000, 0x100000, 0x1800000},
		{"file larger than init_size", func(s *bzSpec) { s.initSize = 0x1000 }, 0x1000000, 0x1000000, 0x1002000},
		{"protocol 2.12, shortest header", func(s *bzSpec) { s.protocol, s.jump = 0x20c, 0x62 }, 0x1000000, 0x1000000, 0x1800000},
		{"trailing data, as a signature", func(*bzSpec) {}, 0x1000000, 0x1000000, 0x1800000},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := linuxLike()
			c.change(&s)
			mem := newRAM(t, ramOf(32*mib))
			e := load(t, openImage(t, append(s.build(), "signature"...)), mem, Params{})
			if e.RIP != c.load+0x200 {
				t.Errorf("RIP %#x, want %#x", e.RIP, c.load+0x200)
			}
			if want := (guestmem.Range{GPA: c.from, Size: c.to - c.from}); e.Kernel != want {
				t.Errorf("occupies %#x+%#x, want %#x+%#x", e.Kernel.GPA, e.Kernel.Size, want.GPA, want.Size)
			}
			if !bytes.Equal(read(t, mem, c.load, uint64(len(s.prot))), s.prot) {
				t.Error("the protected-mode code is not there")
			}
			if after := read(t, mem, c.load+uint64(len(s.prot)), 16); !bytes.Equal(after, make([]byte, 16)) {
				t.Errorf("behind the kernel is % x", after)
			}
			if got := le.Uint32(read(t, mem, 0x7000+0x214, 4)); uint64(got) != c.load {
				t.Errorf("code32_start %#x, want %#x", got, c.load)
			}
		})
	}
}

// The offsets are those of zero-page.rst and boot.rst.
func TestZeroPage(t *testing.T) {
	s := linuxLike()
	image := s.build()
	mem := newRAM(t, ramOf(64*mib))
	rd := pattern(10000, 1)
	e := load(t, openImage(t, image), mem, Params{
		Cmdline: "console=ttyS0 quiet",
		Initrds: []Source{{Path: "rd", Data: rd}},
		RSDP:    0x1234567890,
		E820: []E820Entry{
			{guestmem.Range{GPA: 0, Size: 0x9fc00}, E820RAM},
			{guestmem.Range{GPA: 0xf0000, Size: 0x10000}, E820Reserved},
			{guestmem.Range{GPA: 0x100000, Size: 63 * mib}, E820RAM},
			{guestmem.Range{GPA: 1 << 32, Size: 1 << 40}, E820RAM},
		},
	})
	if e.RSI != 0x7000 || e.RBX != 0 {
		t.Fatalf("RSI %#x RBX %#x", e.RSI, e.RBX)
	}
	z := read(t, mem, e.RSI, 4096)

	want := make([]byte, 4096)
	copy(want[0x1f1:0x26c], image[0x1f1:0x26c]) // the header's end is 0x202 + 0x6a
	le.PutUint64(want[0x70:], 0x1234567890)     // acpi_rsdp_addr
	want[0x1e8] = 4                             // e820_entries
	le.PutUint16(want[0x1fa:], 0xffff)          // vid_mode: normal
	want[0x210] = 0xff                          // type_of_loader: undefined
	le.PutUint32(want[0x214:], 0x1000000)       // code32_start
	le.PutUint32(want[0x218:], 64*mib-0x3000)   // ramdisk_image
	le.PutUint32(want[0x21c:], 10000)           // ramdisk_size
	le.PutUint32(want[0x228:], 0x20000)         // cmd_line_ptr
	for i, r := range [][3]uint64{{0, 0x9fc00, 1}, {0xf0000, 0x10000, 2}, {0x100000, 63 * mib, 1}, {1 << 32, 1 << 40, 1}} {
		le.PutUint64(want[0x2d0+20*i:], r[0])
		le.PutUint64(want[0x2d8+20*i:], r[1])
		le.PutUint32(want[0x2e0+20*i:], uint32(r[2]))
	}
	if z[0x1ef] != 0 {
		t.Error("the sentinel is not 0: the kernel would take this for a broken boot loader")
	}
	for i := range z {
		if z[i] != want[i] {
			t.Errorf("offset %#x is %#02x, want %#02x", i, z[i], want[i])
		}
	}
	if got := read(t, mem, 64*mib-0x3000, 10000); !bytes.Equal(got, rd) {
		t.Error("the initrd is not where ramdisk_image says")
	}
	if got := read(t, mem, 0x20000, 20); string(got) != "console=ttyS0 quiet\x00" {
		t.Errorf("the command line is %q", got)
	}
}

func TestZeroPageWithoutInitrd(t *testing.T) {
	mem := newRAM(t, ramOf(64*mib))
	b := linuxLike().build()
	le.PutUint32(b[0x218:], 0xdeadbeef) // what the image has there is not kept
	le.PutUint32(b[0x21c:], 0xdeadbeef)
	load(t, openImage(t, b), mem, Params{})
	z := read(t, mem, 0x7000, 4096)
	if a, n := le.Uint32(z[0x218:]), le.Uint32(z[0x21c:]); a != 0 || n != 0 {
		t.Errorf("initrd at %#x+%#x", a, n)
	}
	if p := le.Uint32(z[0x228:]); p != 0x20000 {
		t.Errorf("cmd_line_ptr %#x: it must be set without a command line, too", p)
	}
}

// A vmlinux has no setup header; this is what the kernel proper looks at.
func TestZeroPageOfELF(t *testing.T) {
	mem := newRAM(t, ramOf(64*mib))
	load(t, openImage(t, vmlinuxLike().build()), mem, Params{Entry: "linux64", Initrds: []Source{{Data: pattern(100, 1)}}})
	z := read(t, mem, 0x7000, 4096)
	for _, f := range []struct {
		name string
		off  int
		size int
		want uint64
	}{
		{"sentinel", 0x1ef, 1, 0},
		{"boot_flag", 0x1fe, 2, 0xaa55},
		{"header", 0x202, 4, 0x53726448},
		{"type_of_loader", 0x210, 1, 0xff},
		{"loadflags", 0x211, 1, 1},
		{"code32_start", 0x214, 4, 0x1000000},
		{"ramdisk_image", 0x218, 4, 64*mib - 4096},
		{"ramdisk_size", 0x21c, 4, 100},
		{"cmd_line_ptr", 0x228, 4, 0x20000},
		{"initrd_addr_max", 0x22c, 4, 0x7fffffff},
		{"cmdline_size", 0x238, 4, 2047},
		{"setup_data", 0x250, 8, 0},
		{"e820_entries", 0x1e8, 1, 4},
	} {
		b := make([]byte, 8)
		copy(b, z[f.off:f.off+f.size])
		if got := le.Uint64(b); got != f.want {
			t.Errorf("%s is %#x, want %#x", f.name, got, f.want)
		}
	}
	if v := le.Uint16(z[0x206:]); v < 0x20c {
		t.Errorf("version is %#x, want 2.12 or newer", v)
	}
}

// E820 has room for 128 entries.
func TestLongMemoryMap(t *testing.T) {
	mem := newRAM(t, ramOf(64*mib))
	m := []E820Entry{{guestmem.Range{GPA: 0x100000, Size: 63 * mib}, E820RAM}}
	for i := range uint64(127) {
		m = append(m, E820Entry{guestmem.Range{GPA: 1<<32 + i<<21, Size: 1 << 20}, E820RAM})
	}
	bz, vm := openImage(t, linuxLike().build()), openImage(t, vmlinuxLike().build())
	load(t, bz, mem, Params{E820: m})
	if z := read(t, mem, 0x7000, 4096); z[0x1e8] != 128 || le.Uint64(z[0x2d0+127*20:]) != 1<<32+126<<21 {
		t.Error("the last entry is missing in the zero page")
	}
	load(t, vm, mem, Params{E820: m})
	s := read(t, mem, 0x6000, 0x1000)
	if n := le.Uint32(s[48:]); n != 128 {
		t.Errorf("PVH's map has %d entries", n)
	}
	last := le.Uint64(s[40:]) + 127*24
	if got := le.Uint64(read(t, mem, last, 8)); got != 1<<32+126<<21 {
		t.Errorf("PVH's last entry is at %#x", got)
	}
	m = append(m, m[0])
	for _, k := range []*Kernel{bz, vm} {
		if _, err := k.Load(mem, Params{E820: m}); err == nil || !bytes.Contains(fmt.Append(nil, err), []byte("129 entries")) {
			t.Errorf("129 entries: %v", err)
		}
	}
}
