// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"encoding/binary"
	"errors"

	"github.com/govmm/govmm/internal/guestmem"
)

// errNoPVH is for a kernel without the note of the direct boot ABI.
var errNoPVH = errors.New("has no PVH entry (no ELF note XEN_ELFNOTE_PHYS32_ENTRY); build it with CONFIG_PVH=y, or enter it by linux64")

// The structures of xen/interface/hvm/start_info.h.
const (
	startInfoMagic   = 0x336ec578 // XEN_HVM_START_MAGIC_VALUE
	startInfoVersion = 1          // the first with a memory map
	startInfoHeader  = 56         // struct hvm_start_info
	modlistSize      = 32         // struct hvm_modlist_entry, one
	memmapEntrySize  = 24         // struct hvm_memmap_table_entry

	modlistAddr   = startInfoAddr + startInfoHeader
	memmapAddr    = modlistAddr + modlistSize
	startInfoSize = memmapAddr + maxE820*memmapEntrySize - startInfoAddr
)

// writeStartInfo writes struct hvm_start_info, and the initrd's module and the
// memory map behind it.
func (l *loading) writeStartInfo(mem *guestmem.Memory) error {
	le := binary.LittleEndian
	b := make([]byte, startInfoSize)
	le.PutUint32(b[0:], startInfoMagic)
	le.PutUint32(b[4:], startInfoVersion)
	le.PutUint64(b[24:], cmdlineAddr)
	le.PutUint64(b[32:], l.params.RSDP)
	le.PutUint64(b[40:], memmapAddr)
	le.PutUint32(b[48:], uint32(len(l.params.E820)))
	if l.initrd.Size > 0 {
		le.PutUint32(b[12:], 1) // nr_modules; the kernel takes the first as its initrd
		le.PutUint64(b[16:], modlistAddr)
		m := b[modlistAddr-startInfoAddr:]
		le.PutUint64(m[0:], l.initrd.GPA)
		le.PutUint64(m[8:], l.initrd.Size)
	}
	for i, e := range l.params.E820 {
		m := b[memmapAddr-startInfoAddr+i*memmapEntrySize:]
		le.PutUint64(m[0:], e.GPA)
		le.PutUint64(m[8:], e.Size)
		le.PutUint32(m[16:], uint32(e.Type))
	}
	return mem.WriteAt(startInfoAddr, b)
}

// The note with the entry's address (xen/interface/elfnote.h).
const (
	noteNameXen     = "Xen\x00"
	notePhys32Entry = 18 // XEN_ELFNOTE_PHYS32_ENTRY
	noteHeaderSize  = 12 // namesz, descsz, type
)

// findPVHEntry looks for the entry in the contents of a note segment, whose
// names and descriptors are padded to align. Its descriptor is a pointer of the
// kernel's size, 4 or 8 bytes. It returns 0 if there is none: a kernel never
// starts at address 0.
func findPVHEntry(notes []byte, align uint64) uint64 {
	le := binary.LittleEndian
	for len(notes) >= noteHeaderSize {
		namesz, descsz := uint64(le.Uint32(notes)), uint64(le.Uint32(notes[4:]))
		typ := le.Uint32(notes[8:])
		// Sizes are 32 bits wide, so that these sums can't overflow.
		descOff := alignUp(noteHeaderSize+namesz, align)
		next := alignUp(descOff+descsz, align)
		if descOff+descsz > uint64(len(notes)) {
			return 0
		}
		desc := notes[descOff : descOff+descsz]
		if typ == notePhys32Entry && string(notes[noteHeaderSize:noteHeaderSize+namesz]) == noteNameXen {
			return pointer(desc)
		}
		notes = notes[min(next, uint64(len(notes))):]
	}
	return 0
}

func pointer(desc []byte) uint64 {
	switch len(desc) {
	case 4:
		return uint64(binary.LittleEndian.Uint32(desc))
	case 8:
		return binary.LittleEndian.Uint64(desc)
	}
	return 0
}
