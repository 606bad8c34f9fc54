// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"encoding/binary"

	"github.com/govmm/govmm/internal/guestmem"
)

// Offsets in struct boot_params (Documentation/arch/x86/zero-page.rst), beside
// those of the setup header.
const (
	offACPIRSDPAddr    = 0x070
	offExtRamdiskImage = 0x0c0
	offExtRamdiskSize  = 0x0c4
	offE820Entries     = 0x1e8
	offE820Table       = 0x2d0

	zeroPageSize  = 0x1000
	e820EntrySize = 20
	maxE820       = 128 // E820_MAX_ENTRIES_ZEROPAGE
)

// Values that a boot loader writes into the setup header.
const (
	loaderUndefined = 0xff   // type_of_loader
	vidModeNormal   = 0xffff // vid_mode, as with vga=normal
)

// writeZeroPage writes struct boot_params. Fields that are not set here are
// zero, as the protocol demands; the sentinel among them tells the kernel so.
func (l *loading) writeZeroPage(mem *guestmem.Memory) error {
	le := binary.LittleEndian
	z := make([]byte, zeroPageSize)
	copy(z[setupHeaderStart:], l.img.setupHeader())
	le.PutUint16(z[offVidMode:], vidModeNormal)
	z[offTypeOfLoader] = loaderUndefined
	le.PutUint32(z[offRamdiskImage:], uint32(l.initrd.GPA))
	le.PutUint32(z[offExtRamdiskImage:], uint32(l.initrd.GPA>>32))
	le.PutUint32(z[offRamdiskSize:], uint32(l.initrd.Size))
	le.PutUint32(z[offExtRamdiskSize:], uint32(l.initrd.Size>>32))
	le.PutUint32(z[offCmdLinePtr:], cmdlineAddr)
	le.PutUint64(z[offACPIRSDPAddr:], l.params.RSDP)

	z[offE820Entries] = uint8(len(l.params.E820))
	for i, e := range l.params.E820 {
		b := z[offE820Table+i*e820EntrySize:]
		le.PutUint64(b, e.GPA)
		le.PutUint64(b[8:], e.Size)
		le.PutUint32(b[16:], uint32(e.Type))
	}
	return mem.WriteAt(zeroPageAddr, z)
}
