// SPDX-License-Identifier: Apache-2.0

package pci

import "encoding/binary"

// space is a configuration space whose every bit is either read-only or
// writable.
type space struct {
	data [spaceSize]byte
	mask [spaceSize]byte // set bits are writable
}

// read fills p; bytes past the end are all ones.
func (s *space) read(off int, p []byte) {
	for i := range p {
		p[i] = 0xff
		if off+i < spaceSize {
			p[i] = s.data[off+i]
		}
	}
}

// write changes the writable bits; bytes past the end are lost.
func (s *space) write(off int, p []byte) {
	for i, v := range p {
		if off+i >= spaceSize {
			return
		}
		m := s.mask[off+i]
		s.data[off+i] = s.data[off+i]&^m | v&m
	}
}

func (s *space) get16(off int) uint16    { return binary.LittleEndian.Uint16(s.data[off:]) }
func (s *space) get32(off int) uint32    { return binary.LittleEndian.Uint32(s.data[off:]) }
func (s *space) set16(off int, v uint16) { binary.LittleEndian.PutUint16(s.data[off:], v) }
func (s *space) set32(off int, v uint32) { binary.LittleEndian.PutUint32(s.data[off:], v) }

func (s *space) mask16(off int, v uint16) { binary.LittleEndian.PutUint16(s.mask[off:], v) }
func (s *space) mask32(off int, v uint32) { binary.LittleEndian.PutUint32(s.mask[off:], v) }

// overlaps tells whether [off, off+n) and [reg, reg+size) share a byte.
func overlaps(off, n, reg, size int) bool { return off < reg+size && reg < off+n }

func (s *space) mask32At(off int) uint32 { return binary.LittleEndian.Uint32(s.mask[off:]) }
