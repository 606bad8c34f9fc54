// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"encoding/binary"
	"math/bits"
)

// Opcodes that the x86 filter looks for: CALL rel32 and JMP rel32, 0xe8 and 0xe9.
const (
	opcodeBits = 0xe8
	opcodeMask = 0xfe
	insnSize   = 5 // opcode and displacement
)

// decodeX86 undoes the x86 filter of XZ in place. The packer has turned the
// targets of calls and jumps from relative to absolute, which repeat more often
// and so pack better; here they become relative again.
//
// Any byte may look like one of the opcodes. So only targets within 16 MiB, whose
// top byte is 0x00 or 0xff, were converted, and not where one of the last three
// bytes looked like an opcode too, except in a case where it could be told which
// of the two it was. Bit k of recent says that the byte k+1 positions ago was an
// opcode that was not converted.
func decodeX86(b []byte) {
	recent := uint(0)
	for i := 0; i+insnSize <= len(b); {
		switch {
		case b[i]&opcodeMask != opcodeBits:
			recent = recent << 1 & 7
			i++
		case wasConverted(b[i:], recent):
			d := toRelative(binary.LittleEndian.Uint32(b[i+1:]), uint32(i+insnSize), recent)
			binary.LittleEndian.PutUint32(b[i+1:], d)
			recent = 0
			i += insnSize
		default:
			recent = (recent<<1 | 1) & 7
			i++
		}
	}
}

// wasConverted tells whether the packer has converted the instruction insn.
func wasConverted(insn []byte, recent uint) bool {
	if !isSign(insn[4]) {
		return false
	}
	if recent == 0 {
		return true
	}
	// If the earlier opcode were the true one, this would be its top byte.
	top := insn[4-bits.Len(recent)]
	return bits.OnesCount(recent) == 1 && !isSign(top)
}

// toRelative turns an absolute target into a displacement from next, the address
// of the next instruction. With an opcode in recent bytes, the packer has
// inverted the result if that made the top byte of the other candidate differ
// from a sign; one inversion is always enough.
func toRelative(abs, next uint32, recent uint) uint32 {
	rel := abs - next
	if recent != 0 {
		low := 8 * (4 - bits.Len(recent)) // the width of the bytes both candidates share
		if isSign(byte(rel >> (low - 8))) {
			rel = rel ^ (1<<low - 1) - next
		}
	}
	const used = 25 // bits; the rest is their sign
	return uint32(int32(rel<<(32-used)) >> (32 - used))
}

// isSign tells whether b can be the top byte of a short displacement.
func isSign(b byte) bool { return b == 0x00 || b == 0xff }
