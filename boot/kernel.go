// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/govmm/govmm/internal/guestmem"
	"github.com/govmm/govmm/internal/result"
)

// Kind is the format of a kernel image.
type Kind string

// The formats.
const (
	BzImage Kind = "bzImage"
	ELF     Kind = "ELF"
)

// Ways into a kernel, as in Params.Entry and Entry.Name.
const (
	EntryAuto    = "auto"
	EntryLinux64 = "linux64"
	EntryPVH     = "pvh"
)

// Kernel is an image that Open has accepted. It keeps the file open, so that
// each reboot loads the same kernel. It is not safe for concurrent use.
type Kernel struct {
	path string
	file *os.File
	img  image
}

// image is what the formats have in common.
type image interface {
	kind() Kind
	version() string
	// entries lists the ways into the kernel, the preferred one first.
	entries() []string
	// forEntry is the image to load for one of the ways.
	forEntry(name string) (image, error)
	// span is all that the kernel occupies before it reads the memory map.
	span() guestmem.Range
	// cmdlineSize is the longest command line in bytes, without the NUL.
	cmdlineSize() uint64
	// initrdAddrMax is the highest address of an initrd's last byte.
	initrdAddrMax() uint64
	// load copies the kernel to guest RAM, all of it inside span.
	load(mem *guestmem.Memory) error
	// setupHeader is what the zero page gets from setupHeaderStart on.
	setupHeader() []byte
	// entryAddr is the address to jump to.
	entryAddr(name string) uint64
}

// Open opens a kernel image: a bzImage or an ELF vmlinux for x86-64, or a
// kernel build folder that has one. Errors have result.BadImage and say what
// was found and what was expected.
func Open(path string) (*Kernel, error) {
	k, err := open(path)
	if err != nil {
		return nil, result.Errorf(result.BadImage, "kernel %w", err)
	}
	return k, nil
}

func open(path string) (*Kernel, error) {
	path, err := inFolder(path)
	if err != nil {
		return nil, err
	}
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	img, err := parse(f, uint64(size))
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Kernel{path, f, img}, nil
}

// inFolder finds the image if path is a kernel build folder.
func inFolder(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil || !st.IsDir() {
		return path, nil // an error is reported when the file is opened
	}
	for _, name := range []string{"arch/x86/boot/bzImage", "vmlinux"} {
		p := filepath.Join(path, name)
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: is a folder with neither arch/x86/boot/bzImage nor vmlinux in it; build the kernel there, or name an image file", path)
}

// parse recognises an image and checks its headers.
func parse(r io.ReaderAt, size uint64) (image, error) {
	head := make([]byte, min(size, headSize))
	if _, err := r.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case isLinuxX86(head):
		return parseBzImage(r, size, head)
	case isELF(head):
		return parseELF(r, size)
	}
	return nil, fmt.Errorf("is %s; %s", identify(head), expected)
}

// headSize is how much of a file is looked at to tell what it is.
const headSize = 4096

// expected ends the message about a file that is no kernel.
const expected = "expected a Linux bzImage or an ELF vmlinux for x86-64"

// Close closes the file.
func (k *Kernel) Close() error { return k.file.Close() }

// Path is the image file, which is inside the folder that Open was given, if
// it was one.
func (k *Kernel) Path() string { return k.path }

// Kind is the image's format.
func (k *Kernel) Kind() Kind { return k.img.kind() }

// Version is the kernel's release, for example 6.1.0-57-amd64, or empty if the
// image does not tell. It is printable ASCII.
func (k *Kernel) Version() string { return k.img.version() }

// CmdlineSize is the longest command line in bytes, without a NUL.
func (k *Kernel) CmdlineSize() uint64 { return cmdlineSize(k.img) }

// InitrdAddrMax is the highest address of the last byte of an initrd.
func (k *Kernel) InitrdAddrMax() uint64 { return k.img.initrdAddrMax() }

// MinMemory is how much RAM from address 0 on the kernel needs to start, in
// bytes, without an initrd.
func (k *Kernel) MinMemory() uint64 { return k.img.span().End() }

// EntryNames lists the ways into the kernel, the one of EntryAuto first.
func (k *Kernel) EntryNames() []string { return k.img.entries() }

// ELFEntry is the entry point in an ELF image's header, a physical address.
func (k *Kernel) ELFEntry() (addr uint64, ok bool) {
	e, ok := k.img.(*elfImage)
	if !ok {
		return 0, false
	}
	return e.entry, true
}

// PVHEntry is the address of the 32-bit entry in an ELF image's note.
func (k *Kernel) PVHEntry() (addr uint64, ok bool) {
	e, ok := k.img.(*elfImage)
	if !ok || e.pvh == 0 {
		return 0, false
	}
	return e.pvh, true
}

// Params is what a kernel is loaded with.
type Params struct {
	// Entry is EntryAuto, EntryLinux64 or EntryPVH. Empty means EntryAuto.
	Entry   string
	Cmdline string
	Initrds []Source
	// E820 is the machine's memory map. Kernel and initrd are put into its RAM
	// only. If nil, it is made from the guest's RAM and LowReserved.
	E820 []E820Entry
	// RSDP is the address of ACPI's root pointer; 0 if there is none.
	RSDP uint64
}

// Load puts the kernel and all that it wants to find into guest RAM. It writes
// nothing before all sizes are known to fit. It may be called again, after the
// guest has changed its RAM at will. Errors that the user can mend have
// result.BadImage.
func (k *Kernel) Load(mem *guestmem.Memory, p Params) (Entry, error) {
	rd, err := openInitrd(p.Initrds)
	defer rd.close()
	if err != nil {
		return Entry{}, err
	}
	l, err := k.plan(mem, p, rd)
	if err != nil {
		return Entry{}, err
	}
	return l.write(mem)
}

// loading is a Load whose checks have all passed.
type loading struct {
	path   string
	name   string // of the entry
	params Params
	img    image
	rd     *initrd
	kernel guestmem.Range
	initrd guestmem.Range
}

// plan checks everything and decides where everything goes.
func (k *Kernel) plan(mem *guestmem.Memory, p Params, rd *initrd) (*loading, error) {
	l := &loading{path: k.path, params: p, rd: rd}
	if l.params.E820 == nil {
		l.params.E820 = E820(ranges(mem), LowReserved()...)
	}
	if n := len(l.params.E820); n > maxE820 {
		return nil, fmt.Errorf("the memory map has %d entries, more than the %d that fit into the boot parameters", n, maxE820)
	}
	var err error
	if l.name, l.img, err = k.choose(p.Entry); err != nil {
		return nil, result.Errorf(result.BadImage, "kernel %s: %w", k.path, err)
	}
	if err := checkCmdline(p.Cmdline, cmdlineSize(l.img)); err != nil {
		return nil, result.Errorf(result.BadImage, "kernel command line: %w", err)
	}
	ram := usableRAM(l.params.E820)
	if l.kernel, err = placeKernel(ram, l.img.span()); err != nil {
		return nil, result.Errorf(result.BadImage, "kernel %s: %w", k.path, err)
	}
	l.initrd, err = rd.place(ram, l.kernel, l.img.initrdAddrMax())
	return l, err
}

// choose returns the way into the kernel and the image to load for it.
func (k *Kernel) choose(entry string) (string, image, error) {
	names := k.img.entries()
	if entry == "" || entry == EntryAuto {
		entry = names[0]
	}
	switch {
	case entry != EntryLinux64 && entry != EntryPVH:
		return "", nil, fmt.Errorf("unknown entry %q; expected %s, %s or %s", entry, EntryAuto, EntryLinux64, EntryPVH)
	case !slices.Contains(names, entry) && entry == EntryPVH:
		return "", nil, errNoPVH
	case !slices.Contains(names, entry):
		return "", nil, fmt.Errorf("can't be entered by %s, only by %s", entry, strings.Join(names, " and "))
	}
	img, err := k.img.forEntry(entry)
	return entry, img, err
}

// placeKernel checks that there is RAM where the kernel wants to be.
func placeKernel(ram []guestmem.Range, span guestmem.Range) (guestmem.Range, error) {
	var top uint64
	for _, r := range ram {
		if span.GPA >= r.GPA && span.End() <= r.End() {
			return span, nil
		}
		if r.GPA <= span.GPA {
			top = r.End()
		}
	}
	return span, fmt.Errorf("needs %s of RAM to start (it runs at %#x to %#x), but the RAM there ends at %#x, %s; give the VM more memory, at least %s",
		sizeOf(span.End()), span.GPA, span.End(), top, sizeOf(top), sizeOf(alignUp(span.End(), 1<<20)))
}

// cmdlineSize is the image's limit, and at most what the layout has room for.
func cmdlineSize(img image) uint64 { return min(img.cmdlineSize(), cmdlineRoom-1) }

func checkCmdline(s string, limit uint64) error {
	if uint64(len(s)) > limit {
		return fmt.Errorf("has %d bytes, but this kernel takes at most %d; shorten it", len(s), limit)
	}
	if i := strings.IndexAny(s, "\x00\n"); i >= 0 {
		return fmt.Errorf("byte %d is %q, which would end it or split a line of the kernel's log; leave it out", i, s[i])
	}
	return nil
}

// ranges lists the guest's RAM.
func ranges(mem *guestmem.Memory) []guestmem.Range {
	var out []guestmem.Range
	for _, r := range mem.Regions() {
		out = append(out, r.Range)
	}
	return out
}

// write fills guest RAM.
func (l *loading) write(mem *guestmem.Memory) (Entry, error) {
	if err := l.img.load(mem); err != nil {
		return Entry{}, result.Errorf(result.BadImage, "kernel %s: %w", l.path, err)
	}
	if err := l.rd.write(mem, l.initrd.GPA); err != nil {
		return Entry{}, err
	}
	mode := Long64
	if l.name == EntryPVH {
		mode = Protected32
	}
	e := newEntry(mode)
	e.Name = l.name
	e.RIP = l.img.entryAddr(l.name)
	e.Kernel, e.Initrd = l.kernel, l.initrd
	e.Cmdline = guestmem.Range{GPA: cmdlineAddr, Size: uint64(len(l.params.Cmdline)) + 1}

	writes := []func() error{
		func() error { return mem.WriteAt(cmdlineAddr, append([]byte(l.params.Cmdline), 0)) },
		func() error { return e.writeGDT(mem) },
	}
	if mode == Protected32 {
		e.RBX = startInfoAddr
		writes = append(writes, func() error { return l.writeStartInfo(mem) })
	} else {
		e.RSI = zeroPageAddr
		writes = append(writes, func() error { return l.writeZeroPage(mem) }, func() error { return writePageTables(mem) })
	}
	for _, w := range writes {
		if err := w(); err != nil {
			return Entry{}, fmt.Errorf("boot data in low memory: %w", err)
		}
	}
	return e, nil
}
