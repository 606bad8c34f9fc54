// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// The kernel's build packs with xz's x86 filter before LZMA2, which the library
// does not know. So the container (The .xz File Format 1.2.0) is read here, as
// far as the kernel uses it: one stream, any number of blocks, CRC32 or no
// check. The index, which repeats sizes, is not read.

const (
	xzHeaderSize = 12
	xzCheckNone  = 0
	xzCheckCRC32 = 1

	xzFilterX86   = 0x04
	xzFilterLZMA2 = 0x21
)

var errXZ = errors.New("damaged XZ stream")

// unpackXZ unpacks a stream.
func unpackXZ(p []byte, size uint64) ([]byte, error) {
	r := bytes.NewReader(p)
	check, err := xzStreamHeader(r)
	if err != nil {
		return nil, err
	}
	var out []byte
	for uint64(len(out)) <= size {
		b, err := xzBlockHeader(r)
		if err != nil {
			return nil, err
		}
		if b == nil {
			return out, nil
		}
		data, err := b.read(r, size-uint64(len(out)), check)
		if err != nil {
			return nil, err
		}
		out = append(out, data...)
	}
	return out, nil
}

// xzStreamHeader reads the stream header (2.1.1) and returns the type of check.
func xzStreamHeader(r io.Reader) (byte, error) {
	var h [xzHeaderSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, errXZ
	}
	if crc32.ChecksumIEEE(h[6:8]) != binary.LittleEndian.Uint32(h[8:]) || h[6] != 0 {
		return 0, errXZ
	}
	if h[7] != xzCheckNone && h[7] != xzCheckCRC32 {
		return 0, errors.New("XZ's check is not CRC32, which the kernel demands")
	}
	return h[7], nil
}

// xzBlock is what a block header says.
type xzBlock struct {
	x86     bool
	dictCap uint64 // bytes
}

// xzBlockHeader reads a block header (3.1), or returns nil at the index.
func xzBlockHeader(r io.Reader) (*xzBlock, error) {
	var first [1]byte
	if _, err := io.ReadFull(r, first[:]); err != nil {
		return nil, errXZ
	}
	if first[0] == 0 {
		return nil, nil
	}
	h := make([]byte, (int(first[0])+1)*4)
	h[0] = first[0]
	if _, err := io.ReadFull(r, h[1:]); err != nil {
		return nil, errXZ
	}
	body, sum := h[:len(h)-4], binary.LittleEndian.Uint32(h[len(h)-4:])
	if crc32.ChecksumIEEE(body) != sum {
		return nil, errXZ
	}
	return parseXZFilters(body[1], bytes.NewReader(body[2:]))
}

// parseXZFilters reads the rest of a block header after its flags (3.1.2).
func parseXZFilters(flags byte, r *bytes.Reader) (*xzBlock, error) {
	const hasPackedSize, hasSize, reserved, countMask = 0x40, 0x80, 0x3c, 0x03
	if flags&reserved != 0 {
		return nil, errXZ
	}
	for _, bit := range []byte{hasPackedSize, hasSize} {
		if flags&bit != 0 {
			if _, err := xzVarint(r); err != nil {
				return nil, err
			}
		}
	}
	b := &xzBlock{}
	for range flags&countMask + 1 {
		if b.dictCap != 0 {
			return nil, errXZ // LZMA2 must be the last filter
		}
		if err := b.addFilter(r); err != nil {
			return nil, err
		}
	}
	if b.dictCap == 0 {
		return nil, errXZ
	}
	return b, nil
}

// addFilter reads one entry of the list of filters (3.1.5).
func (b *xzBlock) addFilter(r *bytes.Reader) error {
	id, err := xzVarint(r)
	if err != nil {
		return err
	}
	n, err := xzVarint(r)
	if err != nil || n > uint64(r.Len()) {
		return errXZ
	}
	props := make([]byte, n)
	if _, err := io.ReadFull(r, props); err != nil {
		return errXZ
	}
	switch {
	case id == xzFilterX86 && n == 0 && !b.x86:
		b.x86 = true
	case id == xzFilterLZMA2 && n == 1 && props[0] <= 40:
		b.dictCap = lzma2Dictionary(props[0])
	default:
		return errors.New("XZ filter that the kernel's build does not use")
	}
	return nil
}

// lzma2Dictionary decodes the size of the dictionary (5.3.1).
func lzma2Dictionary(bits byte) uint64 {
	if bits == 40 {
		return 1<<32 - 1
	}
	return (2 | uint64(bits&1)) << (bits/2 + 11)
}

// xzVarint reads a multibyte integer (1.2).
func xzVarint(r io.ByteReader) (uint64, error) {
	var v uint64
	for shift := 0; shift < 63; shift += 7 {
		c, err := r.ReadByte()
		if err != nil || c == 0 && shift > 0 {
			return 0, errXZ
		}
		v |= uint64(c&0x7f) << shift
		if c&0x80 == 0 {
			return v, nil
		}
	}
	return 0, errXZ
}

// read unpacks a block (3.2 to 3.4) of at most size bytes, or returns size+1
// bytes of it.
func (b *xzBlock) read(r *bytes.Reader, size uint64, check byte) ([]byte, error) {
	// A dictionary larger than the data is never used, and would be allocated.
	dict := max(min(b.dictCap, size, maxDictionary), lzma.MinDictCap)
	before := r.Len()
	z, err := lzma.Reader2Config{DictCap: int(dict)}.NewReader2(r)
	if err != nil {
		return nil, err
	}
	out, err := readAtMost(z, size)
	if err != nil || uint64(len(out)) > size {
		return out, err
	}
	if b.x86 {
		decodeX86(out)
	}
	padding := int64(-(before - r.Len()) & 3)
	if _, err := io.CopyN(io.Discard, r, padding); err != nil {
		return nil, errXZ
	}
	if check == xzCheckNone {
		return out, nil
	}
	var sum [4]byte
	if _, err := io.ReadFull(r, sum[:]); err != nil {
		return nil, errXZ
	}
	if crc32.ChecksumIEEE(out) != binary.LittleEndian.Uint32(sum[:]) {
		return nil, errors.New("XZ block has a wrong CRC32")
	}
	return out, nil
}
