// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/govmm/govmm/internal/guestmem"
)

const (
	// elfCmdlineSize is the kernel's COMMAND_LINE_SIZE for x86, 2048, without
	// the NUL. An ELF image does not tell.
	elfCmdlineSize = 2047
	// elfInitrdAddrMax is what the setup header of every x86-64 kernel says.
	elfInitrdAddrMax = 0x7fffffff
	// elfProtocol is the boot protocol that a made-up setup header speaks.
	elfProtocol = 0x020f
	// maxPhnum and maxNotes bound what is read of an image's headers. Linux has
	// five program headers and some hundred bytes of notes.
	maxPhnum = 256
	maxNotes = 1 << 20
)

const (
	ehdrSize = 64 // Elf64_Ehdr
	phdrSize = 56 // Elf64_Phdr

	offMachine = 18 // e_machine, the same for 32 and 64 bits
)

// elfImage is a checked ELF kernel.
type elfImage struct {
	r        io.ReaderAt
	size     uint64       // of the file
	segments []elf.Prog64 // PT_LOAD with memory, sorted by physical address
	entry    uint64
	pvh      uint64       // 0: none
	user     elf.ProgType // a header that only programs for user space have; 0: none
}

func isELF(head []byte) bool { return bytes.HasPrefix(head, []byte(elf.ELFMAG)) }

func parseELF(r io.ReaderAt, size uint64) (image, error) {
	hdr, err := readEhdr(r, size)
	if err != nil {
		return nil, err
	}
	progs, err := readPhdrs(r, size, hdr)
	if err != nil {
		return nil, err
	}
	e := &elfImage{r: r, size: size, entry: hdr.Entry}
	if err := e.take(progs); err != nil {
		return nil, err
	}
	if err := e.checkSegments(); err != nil {
		return nil, err
	}
	if err := e.checkEntries(); err != nil {
		return nil, err
	}
	return e, nil
}

// readEhdr reads the file header and refuses what is not for this machine.
func readEhdr(r io.ReaderAt, size uint64) (*elf.Header64, error) {
	b := make([]byte, ehdrSize)
	n, err := r.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if n < offMachine+2 {
		return nil, fmt.Errorf("is a truncated ELF file of %d bytes; %s", size, expected)
	}
	if elf.Data(b[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, fmt.Errorf("is a big-endian ELF file for %s; %s", elf.Machine(binary.BigEndian.Uint16(b[offMachine:])), expected)
	}
	if m := elf.Machine(binary.LittleEndian.Uint16(b[offMachine:])); m != elf.EM_X86_64 {
		return nil, fmt.Errorf("is an ELF file for %s; %s", m, expected)
	}
	if elf.Class(b[elf.EI_CLASS]) != elf.ELFCLASS64 {
		return nil, fmt.Errorf("is a 32-bit ELF file; %s", expected)
	}
	if n < ehdrSize {
		return nil, fmt.Errorf("is a truncated ELF file of %d bytes; %s", size, expected)
	}
	var h elf.Header64
	if _, err := binary.Decode(b, binary.LittleEndian, &h); err != nil {
		return nil, err
	}
	switch t := elf.Type(h.Type); t {
	case elf.ET_EXEC:
		return &h, nil
	case elf.ET_REL:
		return nil, errors.New("is an ELF object file or kernel module, expected the linked vmlinux")
	case elf.ET_DYN:
		return nil, errors.New("is an ELF program or shared library for user space, expected a kernel")
	default:
		return nil, fmt.Errorf("is an ELF file of type %s, expected ET_EXEC as a vmlinux has", t)
	}
}

func readPhdrs(r io.ReaderAt, size uint64, h *elf.Header64) ([]elf.Prog64, error) {
	if h.Phentsize != phdrSize || h.Phnum == 0 || h.Phnum > maxPhnum {
		return nil, fmt.Errorf("is an ELF file with %d program headers of %d bytes, expected 1 to %d of %d bytes", h.Phnum, h.Phentsize, maxPhnum, phdrSize)
	}
	n := uint64(h.Phnum) * phdrSize
	if h.Phoff > size || n > size-h.Phoff {
		return nil, fmt.Errorf("is truncated: its program headers end at %#x+%#x, the file at %#x", h.Phoff, n, size)
	}
	b := make([]byte, n)
	if _, err := r.ReadAt(b, int64(h.Phoff)); err != nil {
		return nil, err
	}
	progs := make([]elf.Prog64, h.Phnum)
	_, err := binary.Decode(b, binary.LittleEndian, progs)
	return progs, err
}

// take picks what is needed from the program headers.
func (e *elfImage) take(progs []elf.Prog64) error {
	for _, p := range progs {
		switch elf.ProgType(p.Type) {
		case elf.PT_LOAD, elf.PT_NOTE:
			if p.Off > e.size || p.Filesz > e.size-p.Off {
				return fmt.Errorf("is truncated: a segment ends at %#x+%#x of the file, which has %#x bytes", p.Off, p.Filesz, e.size)
			}
		case elf.PT_INTERP, elf.PT_DYNAMIC, elf.PT_TLS, elf.PT_PHDR:
			e.user = elf.ProgType(p.Type)
		}
		switch elf.ProgType(p.Type) {
		case elf.PT_LOAD:
			if p.Memsz > 0 {
				e.segments = append(e.segments, p)
			}
		case elf.PT_NOTE:
			if err := e.readNotes(p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *elfImage) readNotes(p elf.Prog64) error {
	b := make([]byte, min(p.Filesz, maxNotes))
	if _, err := e.r.ReadAt(b, int64(p.Off)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	align := uint64(4)
	if p.Align == 8 {
		align = 8
	}
	if addr := findPVHEntry(b, align); addr != 0 {
		e.pvh = addr
	}
	return nil
}

// checkSegments sorts the segments and checks their physical addresses. That
// they don't overlap bounds the work of loading them by the RAM's size.
func (e *elfImage) checkSegments() error {
	if len(e.segments) == 0 {
		return errors.New("is an ELF file without a segment to load, expected a kernel")
	}
	slices.SortFunc(e.segments, func(a, b elf.Prog64) int {
		if a.Paddr < b.Paddr {
			return -1
		}
		return 1
	})
	prev := uint64(HighMemory)
	for _, p := range e.segments {
		switch {
		case p.Filesz > p.Memsz:
			return fmt.Errorf("is damaged: the segment at %#x has %#x bytes in the file, but only %#x in memory", p.Paddr, p.Filesz, p.Memsz)
		case p.Paddr < HighMemory:
			return fmt.Errorf("has a segment at physical address %#x, below %#x, where govmm keeps boot data; link it to 1 MiB or above", p.Paddr, HighMemory)
		case p.Paddr < prev:
			return fmt.Errorf("is damaged: the segment at %#x overlaps the one before, which ends at %#x", p.Paddr, prev)
		case end(p.Paddr, p.Memsz) > maxImage:
			return fmt.Errorf("is no kernel or damaged: a segment at physical address %#x+%#x is not below 4 GiB", p.Paddr, p.Memsz)
		}
		prev = p.Paddr + p.Memsz
	}
	return nil
}

// checkEntries checks that the entry addresses are inside what is loaded. A
// kernel with a PVH note need not have another entry.
func (e *elfImage) checkEntries() error {
	if e.pvh == 0 && e.user != 0 {
		return fmt.Errorf("is a program for x86-64 user space (it has a %s header), expected a kernel", e.user)
	}
	if e.pvh != 0 && !e.loaded(e.pvh) {
		return fmt.Errorf("is damaged: its PVH entry %#x is in no segment", e.pvh)
	}
	if e.pvh == 0 && !e.loaded(e.entry) {
		return fmt.Errorf("is no kernel or damaged: its entry %#x is not a physical address in a segment", e.entry)
	}
	return nil
}

// loaded tells whether an address is in a segment's contents.
func (e *elfImage) loaded(addr uint64) bool {
	for _, p := range e.segments {
		if addr >= p.Paddr && addr-p.Paddr < p.Filesz {
			return true
		}
	}
	return false
}

func (e *elfImage) kind() Kind { return ELF }

func (e *elfImage) entries() []string {
	var names []string
	if e.pvh != 0 {
		names = append(names, EntryPVH)
	}
	if e.loaded(e.entry) {
		names = append(names, EntryLinux64)
	}
	return names
}

func (e *elfImage) forEntry(string) (image, error) { return e, nil }

func (e *elfImage) span() guestmem.Range {
	lo := e.segments[0].Paddr
	last := e.segments[len(e.segments)-1]
	return guestmem.Range{GPA: lo, Size: last.Paddr + last.Memsz - lo}
}

func (e *elfImage) cmdlineSize() uint64   { return elfCmdlineSize }
func (e *elfImage) initrdAddrMax() uint64 { return elfInitrdAddrMax }

func (e *elfImage) load(mem *guestmem.Memory) error {
	for _, p := range e.segments {
		src := io.NewSectionReader(e.r, int64(p.Off), int64(p.Filesz))
		if err := copyIn(mem, p.Paddr, src, p.Filesz); err != nil {
			return fmt.Errorf("segment at %#x: %w", p.Paddr, err)
		}
		if err := mem.Zero(p.Paddr+p.Filesz, p.Memsz-p.Filesz); err != nil {
			return fmt.Errorf("segment at %#x: %w", p.Paddr, err)
		}
	}
	return nil
}

// setupHeader makes up what a bzImage would have brought along. The kernel
// proper looks at the magic numbers, the version and what writeZeroPage sets.
func (e *elfImage) setupHeader() []byte {
	le := binary.LittleEndian
	z := make([]byte, offHandoverOffset)
	le.PutUint16(z[offBootFlag:], bootFlag)
	copy(z[offHeader:], headerMagic)
	le.PutUint16(z[offVersion:], elfProtocol)
	z[offLoadflags] = loadedHigh
	le.PutUint16(z[offXloadflags:], xlfKernel64)
	le.PutUint32(z[offCode32Start:], uint32(e.span().GPA))
	le.PutUint32(z[offInitrdAddrMax:], elfInitrdAddrMax)
	le.PutUint32(z[offCmdlineSize:], elfCmdlineSize)
	return z[setupHeaderStart:]
}

func (e *elfImage) entryAddr(name string) uint64 {
	if name == EntryPVH {
		return e.pvh
	}
	return e.entry
}

// banner starts linux_banner, the kernel's version string.
const banner = "Linux version "

// version searches the segments for the kernel's banner.
func (e *elfImage) version() string {
	for _, p := range e.segments {
		if v := scanVersion(io.NewSectionReader(e.r, int64(p.Off), int64(p.Filesz))); v != "" {
			return v
		}
	}
	return ""
}

// scanVersion reads on in blocks that overlap by as much as a banner and a
// release can have.
func scanVersion(r io.Reader) string {
	const block, overlap = 1 << 20, 256
	buf := make([]byte, 0, block+overlap)
	for {
		n, err := io.ReadFull(r, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if v := bannerIn(buf); v != "" {
			return v
		}
		if err != nil {
			return ""
		}
		buf = buf[:copy(buf[:cap(buf)], buf[len(buf)-overlap:])]
	}
}

// bannerIn returns the release after the first banner that has one. The same
// words stand in format strings of the kernel, without a digit behind.
func bannerIn(b []byte) string {
	for {
		i := bytes.Index(b, []byte(banner))
		if i < 0 {
			return ""
		}
		b = b[i+len(banner):]
		if v := firstWord(b); v != "" && v[0] >= '0' && v[0] <= '9' {
			return v
		}
	}
}
