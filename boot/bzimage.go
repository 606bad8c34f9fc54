// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/govmm/govmm/internal/guestmem"
)

// Offsets in the file, and in the zero page, of the fields of the setup header
// (boot.rst, "The Real-Mode Kernel Header").
const (
	setupHeaderStart = 0x1f1

	offSetupSects      = 0x1f1
	offSyssize         = 0x1f4
	offVidMode         = 0x1fa
	offBootFlag        = 0x1fe
	offJump            = 0x200
	offHeader          = 0x202
	offVersion         = 0x206
	offKernelVersion   = 0x20e
	offTypeOfLoader    = 0x210
	offLoadflags       = 0x211
	offCode32Start     = 0x214
	offRamdiskImage    = 0x218
	offRamdiskSize     = 0x21c
	offCmdLinePtr      = 0x228
	offInitrdAddrMax   = 0x22c
	offKernelAlignment = 0x230
	offRelocatable     = 0x234
	offXloadflags      = 0x236
	offCmdlineSize     = 0x238
	offPayloadOffset   = 0x248
	offPayloadLength   = 0x24c
	offPrefAddress     = 0x258
	offInitSize        = 0x260
	offHandoverOffset  = 0x264
)

// Values of the fields.
const (
	bootFlag         = 0xaa55
	headerMagic      = "HdrS"
	protocol212      = 0x020c // the first version with xloadflags, Linux 3.8
	loadedHigh       = 1 << 0 // loadflags
	xlfKernel64      = 1 << 0 // xloadflags
	defaultSetupSect = 4
	sectorSize       = 512

	// protectedModeAddr is where a kernel that is not relocatable is loaded.
	protectedModeAddr = 0x100000
	// entry64 is the offset of the 64-bit entry in the protected-mode code.
	entry64 = 0x200
	// The jump's signed displacement gives the end of the header.
	jumpEnd = 0x202
	maxJump = 0x7f
	// maxImage bounds load addresses and sizes, so that sums of a few of them
	// can't overflow. The identity map ends there.
	maxImage = mappedEnd
)

// bzImage is a checked bzImage.
type bzImage struct {
	r     io.ReaderAt
	size  uint64 // of the file
	setup []byte // boot sector and setup code: the first (setup_sects+1)*512 bytes

	protSize      uint64 // of the protected-mode code, from syssize
	loadAddr      uint64
	runtimeStart  uint64
	initSize      uint64
	headerEnd     uint64 // offset in setup
	payloadOffset uint64 // in the protected-mode code
	payloadLength uint64
}

// isLinuxX86 tells a Linux image with a setup header from other files.
func isLinuxX86(head []byte) bool {
	return len(head) >= offHeader+4 &&
		binary.LittleEndian.Uint16(head[offBootFlag:]) == bootFlag &&
		string(head[offHeader:offHeader+4]) == headerMagic
}

func parseBzImage(r io.ReaderAt, size uint64, head []byte) (image, error) {
	b := &bzImage{r: r, size: size}
	if err := b.checkProtocol(head); err != nil {
		return nil, err
	}
	if err := b.readSetup(head); err != nil {
		return nil, err
	}
	if err := b.locate(); err != nil {
		return nil, err
	}
	return b, nil
}

// checkProtocol makes sure that the header is long and new enough and that the
// kernel has a 64-bit entry.
func (b *bzImage) checkProtocol(head []byte) error {
	le := binary.LittleEndian
	if len(head) < offInitSize+4 {
		return fmt.Errorf("is truncated: the file has %d bytes, not even all of a bzImage's header", b.size)
	}
	if v := le.Uint16(head[offVersion:]); v < protocol212 {
		return fmt.Errorf("speaks boot protocol %d.%02d, expected 2.12 or newer (Linux 3.8), which has a 64-bit entry", v>>8, v&0xff)
	}
	if head[offLoadflags]&loadedHigh == 0 {
		return errors.New("is a zImage (loadflags has no LOADED_HIGH), expected a bzImage")
	}
	if le.Uint16(head[offXloadflags:])&xlfKernel64 == 0 {
		return errors.New("is a 32-bit kernel (xloadflags has no XLF_KERNEL_64), expected one for x86-64 (CONFIG_X86_64=y)")
	}
	jump := head[offJump+1]
	b.headerEnd = jumpEnd + uint64(jump)
	if head[offJump] != 0xeb || jump > maxJump || b.headerEnd < offInitSize+4 {
		return fmt.Errorf("is damaged: its header's jump instruction is %#02x %#02x, which does not lead behind the header", head[offJump], jump)
	}
	return nil
}

// readSetup reads the boot sector and the setup code, and checks that the rest
// is all there.
func (b *bzImage) readSetup(head []byte) error {
	sects := uint64(head[offSetupSects])
	if sects == 0 {
		sects = defaultSetupSect
	}
	setupSize := (sects + 1) * sectorSize
	b.protSize = uint64(binary.LittleEndian.Uint32(head[offSyssize:])) * 16
	if b.size < setupSize+b.protSize {
		return fmt.Errorf("is truncated: the file has %d bytes, its header tells of %d (setup_sects %d, syssize %#x); copy or build it again",
			b.size, setupSize+b.protSize, head[offSetupSects], b.protSize/16)
	}
	if b.protSize <= entry64 {
		return fmt.Errorf("is damaged: its header tells of %d bytes of kernel, which do not reach to the entry", b.protSize)
	}
	b.setup = make([]byte, setupSize)
	if _, err := b.r.ReadAt(b.setup, 0); err != nil {
		return err
	}
	// What was checked is what is used, even if the file has just changed.
	copy(b.setup, head)
	return nil
}

// locate finds out where the kernel is loaded and runs (boot.rst, pref_address
// and init_size).
func (b *bzImage) locate() error {
	le := binary.LittleEndian
	pref := le.Uint64(b.setup[offPrefAddress:])
	align := uint64(le.Uint32(b.setup[offKernelAlignment:]))
	relocatable := b.setup[offRelocatable] != 0
	b.initSize = uint64(le.Uint32(b.setup[offInitSize:]))
	b.payloadOffset = uint64(le.Uint32(b.setup[offPayloadOffset:]))
	b.payloadLength = uint64(le.Uint32(b.setup[offPayloadLength:]))

	if relocatable && (align == 0 || align&(align-1) != 0) {
		return fmt.Errorf("is damaged: kernel_alignment %#x is not a power of two", align)
	}
	switch {
	case !relocatable:
		b.loadAddr, b.runtimeStart = protectedModeAddr, pref
	case pref == 0:
		b.loadAddr = alignUp(HighMemory, align)
		b.runtimeStart = b.loadAddr
	default:
		b.loadAddr, b.runtimeStart = pref, alignUp(pref, align)
	}
	if b.loadAddr < HighMemory || b.runtimeStart < HighMemory || b.loadAddr >= maxImage || b.runtimeStart >= maxImage {
		return fmt.Errorf("is damaged or unusual: pref_address %#x with kernel_alignment %#x is not between %#x and %#x", pref, align, HighMemory, uint64(maxImage))
	}
	if b.initSize == 0 || b.runtimeStart+b.initSize > maxImage {
		return fmt.Errorf("is damaged: init_size is %#x at address %#x", b.initSize, b.runtimeStart)
	}
	return nil
}

func (b *bzImage) kind() Kind { return BzImage }

func (b *bzImage) version() string {
	off := uint64(binary.LittleEndian.Uint16(b.setup[offKernelVersion:]))
	if off == 0 || off+0x200 >= uint64(len(b.setup)) {
		return ""
	}
	return firstWord(b.setup[off+0x200:])
}

// entries are linux64 and, if the payload is a kernel with that option, pvh:
// only unpacking it tells.
func (b *bzImage) entries() []string { return []string{EntryLinux64, EntryPVH} }

func (b *bzImage) forEntry(name string) (image, error) {
	if name == EntryLinux64 {
		return b, nil
	}
	vmlinux, err := b.extract(maxVmlinux)
	if err != nil {
		return nil, err
	}
	img, err := parseELF(bytes.NewReader(vmlinux), uint64(len(vmlinux)))
	if err != nil {
		return nil, fmt.Errorf("its payload %w", err)
	}
	if e := img.(*elfImage); e.pvh == 0 {
		return nil, errNoPVH
	}
	return img, nil
}

// span covers the image as loaded and the room it needs at its run-time
// address.
func (b *bzImage) span() guestmem.Range {
	lo := min(b.loadAddr, b.runtimeStart)
	hi := max(b.loadAddr+b.protSize, b.runtimeStart+b.initSize)
	return guestmem.Range{GPA: lo, Size: hi - lo}
}

func (b *bzImage) cmdlineSize() uint64 {
	return uint64(binary.LittleEndian.Uint32(b.setup[offCmdlineSize:]))
}

func (b *bzImage) initrdAddrMax() uint64 {
	return uint64(binary.LittleEndian.Uint32(b.setup[offInitrdAddrMax:]))
}

func (b *bzImage) load(mem *guestmem.Memory) error {
	return copyIn(mem, b.loadAddr, io.NewSectionReader(b.r, int64(len(b.setup)), int64(b.protSize)), b.protSize)
}

// setupHeader is the image's own header, with code32_start pointing to where it
// was loaded.
func (b *bzImage) setupHeader() []byte {
	h := bytes.Clone(b.setup[setupHeaderStart:b.headerEnd])
	binary.LittleEndian.PutUint32(h[offCode32Start-setupHeaderStart:], uint32(b.loadAddr))
	return h
}

func (b *bzImage) entryAddr(string) uint64 { return b.loadAddr + entry64 }

// firstWord returns printable ASCII up to a space or NUL: the release at the
// start of a version string. What comes from a file must not reach a terminal
// raw.
func firstWord(b []byte) string {
	const longest = 128
	for i, c := range b[:min(len(b), longest)] {
		if c == ' ' || c == 0 {
			return string(b[:i])
		}
		if c < '!' || c > '~' {
			return ""
		}
	}
	return ""
}
