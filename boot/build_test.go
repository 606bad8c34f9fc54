// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/govmm/govmm/internal/guestmem"
)

var le = binary.LittleEndian

// bzSpec describes a synthetic bzImage. Offsets in its build are the numbers of
// boot.rst, not the constants of the package.
type bzSpec struct {
	setupSects  uint8
	protocol    uint16
	loadflags   uint8
	xloadflags  uint16
	relocatable uint8
	align       uint32
	pref        uint64
	initSize    uint32
	cmdlineSize uint32
	initrdMax   uint32
	version     string
	jump        uint8
	prot        []byte // protected-mode code without the payload
	payload     []byte
}

// linuxLike is what Debian's kernels say of themselves, only smaller.
func linuxLike() bzSpec {
	return bzSpec{
		setupSects: 7, protocol: 0x20f, loadflags: 1, xloadflags: 0x7f, relocatable: 1,
		align: 0x200000, pref: 0x1000000, initSize: 0x800000, cmdlineSize: 2047, initrdMax: 0x7fffffff,
		version: "6.1.0-test (builder@host) #1 SMP", jump: 0x6a,
		prot: pattern(0x2000, 1),
	}
}

func (s bzSpec) build() []byte {
	sects := int(s.setupSects)
	if sects == 0 {
		sects = 4
	}
	setup := pattern((sects+1)*512, 7)
	prot := append(bytes.Clone(s.prot), s.payload...)
	prot = append(prot, make([]byte, -len(prot)&15)...)
	setup[0x1f1] = s.setupSects
	le.PutUint32(setup[0x1f4:], uint32(len(prot)/16))
	le.PutUint16(setup[0x1fe:], 0xaa55)
	setup[0x200], setup[0x201] = 0xeb, s.jump
	copy(setup[0x202:], "HdrS")
	le.PutUint16(setup[0x206:], s.protocol)
	le.PutUint16(setup[0x20e:], 0x400-0x200)
	copy(setup[0x400:], s.version+"\x00")
	setup[0x211] = s.loadflags
	le.PutUint32(setup[0x214:], 0x100000)
	le.PutUint32(setup[0x22c:], s.initrdMax)
	le.PutUint32(setup[0x230:], s.align)
	setup[0x234] = s.relocatable
	setup[0x235] = 21
	le.PutUint16(setup[0x236:], s.xloadflags)
	le.PutUint32(setup[0x238:], s.cmdlineSize)
	le.PutUint32(setup[0x248:], uint32(len(s.prot)))
	le.PutUint32(setup[0x24c:], uint32(len(s.payload)))
	le.PutUint64(setup[0x250:], 0)
	le.PutUint64(setup[0x258:], s.pref)
	le.PutUint32(setup[0x260:], s.initSize)
	return append(setup, prot...)
}

// segment is a PT_LOAD of a synthetic vmlinux.
type segment struct {
	paddr  uint64
	data   []byte
	memsz  uint64
	filesz uint64 // 0: len(data)
}

// elfSpec describes a synthetic vmlinux.
type elfSpec struct {
	class, data    byte
	typ, machine   uint16
	entry          uint64
	segments       []segment
	notes          []byte
	extraProgTypes []uint32
}

// vmlinuxLike has text, data with bss, and the PVH note.
func vmlinuxLike() elfSpec {
	text := pattern(0x3000, 3)
	copy(text[0x800:], "Linux version %s (%s)\x00Linux version 6.1.0-elf (builder@host) #1")
	return elfSpec{
		class: 2, data: 1, typ: 2, machine: 62, entry: 0x1000000,
		segments: []segment{
			{paddr: 0x1000000, data: text, memsz: 0x3000},
			{paddr: 0x1200000, data: pattern(0x1234, 5), memsz: 0x5000},
		},
		notes: append(note("GNU\x00", 3, pattern(20, 1)), note("Xen\x00", 18, quad(0x1000100))...),
	}
}

func (s elfSpec) build() []byte {
	progs := len(s.segments) + len(s.extraProgTypes)
	if s.notes != nil {
		progs++
	}
	b := make([]byte, 64, 1<<16)
	copy(b, "\x7fELF")
	b[4], b[5], b[6] = s.class, s.data, 1
	le.PutUint16(b[16:], s.typ)
	le.PutUint16(b[18:], s.machine)
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[24:], s.entry)
	le.PutUint64(b[32:], 64) // e_phoff
	le.PutUint16(b[52:], 64)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], uint16(progs))

	body := uint64(64 + progs*56)
	var contents []byte
	phdr := func(typ uint32, paddr uint64, data []byte, filesz, memsz, align uint64) {
		p := make([]byte, 56)
		le.PutUint32(p[0:], typ)
		le.PutUint64(p[8:], body+uint64(len(contents)))
		le.PutUint64(p[16:], paddr+0xffffffff80000000)
		le.PutUint64(p[24:], paddr)
		le.PutUint64(p[32:], filesz)
		le.PutUint64(p[40:], memsz)
		le.PutUint64(p[48:], align)
		b = append(b, p...)
		contents = append(contents, data...)
	}
	for _, g := range s.segments {
		n := g.filesz
		if n == 0 {
			n = uint64(len(g.data))
		}
		phdr(1, g.paddr, g.data, n, g.memsz, 0x200000)
	}
	if s.notes != nil {
		phdr(4, 0x1001000, s.notes, uint64(len(s.notes)), uint64(len(s.notes)), 4)
	}
	for _, t := range s.extraProgTypes {
		phdr(t, 0, nil, 0, 0, 1)
	}
	return append(b, contents...)
}

// note builds an ELF note, name and descriptor padded to 4 bytes.
func note(name string, typ uint32, desc []byte) []byte {
	pad := func(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }
	b := le.AppendUint32(nil, uint32(len(name)))
	b = le.AppendUint32(b, uint32(len(desc)))
	b = le.AppendUint32(b, typ)
	return append(append(b, pad([]byte(name))...), pad(bytes.Clone(desc))...)
}

func quad(v uint64) []byte { return le.AppendUint64(nil, v) }

// pattern is n bytes that differ from zero and from each other's neighbours.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7+i>>8)*2 + seed | 1
	}
	return b
}

// writeFile puts a file into a temporary folder.
func writeFile(t testing.TB, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// openImage opens an image given as bytes.
func openImage(t testing.TB, b []byte) *Kernel {
	t.Helper()
	k, err := Open(writeFile(t, "kernel", b))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

// newRAM makes guest RAM, all of it dirty where boot data goes, as after a
// reboot.
func newRAM(t testing.TB, rs ...guestmem.Range) *guestmem.Memory {
	t.Helper()
	mem, err := guestmem.New(rs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mem.Close(); err != nil {
			t.Error(err)
		}
	})
	if mem.Contains(0, HighMemory) {
		if err := mem.WriteAt(0, bytes.Repeat([]byte{0xa5}, HighMemory)); err != nil {
			t.Fatal(err)
		}
	}
	return mem
}

const mib = 1 << 20

func ramOf(size uint64) guestmem.Range { return guestmem.Range{Size: size} }

// read returns guest RAM.
func read(t testing.TB, mem *guestmem.Memory, addr, n uint64) []byte {
	t.Helper()
	b := make([]byte, n)
	if err := mem.ReadAt(addr, b); err != nil {
		t.Fatal(err)
	}
	return b
}

func load(t testing.TB, k *Kernel, mem *guestmem.Memory, p Params) Entry {
	t.Helper()
	e, err := k.Load(mem, p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}
