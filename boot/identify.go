// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// signature is a magic number of a file format that is often mistaken for a
// kernel.
type signature struct {
	offset int
	magic  string
	name   string
}

// signatures are tried in order.
var signatures = []signature{
	{56, "ARM\x64", "a Linux Image for arm64"},
	{56, "RSC\x05", "a Linux Image for RISC-V"},
	{4, "zimg", "an EFI zboot image, whose kernel is compressed inside"},
	{0, "\x1f\x8b", "a gzip file; gunzip it first if it holds a kernel"},
	{0, "BZh", "a bzip2 file; bunzip2 it first if it holds a kernel"},
	{0, "\xfd7zXZ\x00", "an xz file; unxz it first if it holds a kernel"},
	{0, "\x28\xb5\x2f\xfd", "a zstd file; unzstd it first if it holds a kernel"},
	{0, "\x04\x22\x4d\x18", "an lz4 file; unlz4 it first if it holds a kernel"},
	{0, "\x02\x21\x4c\x18", "an lz4 file; unlz4 it first if it holds a kernel"},
	{0, "\x89LZO\x00", "an lzop file; unpack it first if it holds a kernel"},
	{0, "\x5d\x00\x00", "an lzma file; unlzma it first if it holds a kernel"},
	{0, "070701", "a cpio archive, which is an initrd and no kernel"},
	{0, "070702", "a cpio archive, which is an initrd and no kernel"},
	{0, "\x27\x05\x19\x56", "a U-Boot uImage"},
	{0, "\xd0\x0d\xfe\xed", "a device tree or FIT image"},
	{0, "ANDROID!", "an Android boot image"},
	{0, "hsqs", "a squashfs file system"},
	{0, "QFI\xfb", "a qcow2 disk image"},
	{0, "PK\x03\x04", "a zip file"},
	{0, "!<arch>\n", "an ar archive or Debian package; unpack it first"},
	{257, "ustar", "a tar archive"},
	{0, "#!", "a script"},
}

// identify says what a file is that is no kernel, from its first bytes.
func identify(head []byte) string {
	if len(head) == 0 {
		return "empty"
	}
	for _, s := range signatures {
		if len(head) >= s.offset+len(s.magic) && string(head[s.offset:s.offset+len(s.magic)]) == s.magic {
			return s.name
		}
	}
	switch {
	case bytes.HasPrefix(head, []byte("MZ")):
		return identifyPE(head)
	case isText(head):
		return "a text file"
	case len(head) < offHeader+4:
		return fmt.Sprintf("a file of %d bytes, too short for a kernel", len(head))
	case binary.LittleEndian.Uint16(head[offBootFlag:]) == bootFlag:
		return "a disk image or boot sector"
	}
	return fmt.Sprintf("a file of unknown type that starts with % x", head[:8])
}

// identifyPE tells EFI programs apart by the machine and the sections of the PE
// header. A Linux kernel with an EFI stub does not get here: it has a setup
// header.
func identifyPE(head []byte) string {
	const offLfanew = 0x3c
	const program = "a DOS or Windows program"
	if len(head) < offLfanew+4 {
		return program
	}
	off := uint64(binary.LittleEndian.Uint32(head[offLfanew:]))
	if off+6 > uint64(len(head)) || string(head[off:off+4]) != "PE\x00\x00" {
		return program
	}
	if bytes.Contains(head[off:], []byte(".linux\x00")) {
		return "a unified kernel image (UKI); take the kernel out with `objcopy -O binary --only-section=.linux`"
	}
	switch m := binary.LittleEndian.Uint16(head[off+4:]); m {
	case pe.IMAGE_FILE_MACHINE_AMD64:
		return "an EFI or Windows program for x86-64 that is not Linux"
	case pe.IMAGE_FILE_MACHINE_ARM64:
		return "an EFI or Windows program for arm64"
	default:
		return fmt.Sprintf("an EFI or Windows program for machine %#x", m)
	}
}

// isText tells whether the bytes are text in UTF-8. The last character may be
// cut off.
func isText(head []byte) bool {
	for len(head) > 0 {
		r, n := utf8.DecodeRune(head)
		if r == utf8.RuneError && n == 1 {
			return len(head) < utf8.UTFMax && !utf8.FullRune(head)
		}
		if r == 0x7f || r < ' ' && r != '\t' && r != '\n' && r != '\r' && r != '\f' {
			return false
		}
		head = head[n:]
	}
	return true
}
