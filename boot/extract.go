// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"compress/bzip2"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz/lzma"

	"github.com/govmm/govmm/internal/result"
)

// maxVmlinux bounds an unpacked kernel, in bytes: a compressed file of a few
// kilobytes must not fill the host's memory. Debian's largest kernels have
// less than 100 MiB.
const maxVmlinux = 1 << 30

// Extract unpacks the ELF vmlinux inside a bzImage. The kernel's relocations
// follow the ELF file if the kernel is relocatable.
func Extract(path string) ([]byte, error) {
	k, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	b, ok := k.img.(*bzImage)
	if !ok {
		return nil, result.Errorf(result.BadImage, "kernel %s: is an ELF file already, expected a bzImage to unpack", k.path)
	}
	vmlinux, err := b.extract(maxVmlinux)
	if err != nil {
		return nil, result.Errorf(result.BadImage, "kernel %s: %w", k.path, err)
	}
	return vmlinux, nil
}

// format is how a payload is compressed.
type format struct {
	magic string
	name  string
	// sized tells that the build appends the unpacked size to the payload, as
	// scripts/Makefile.lib does for all but gzip, whose trailer has it anyway.
	sized  bool
	unpack func(payload []byte, size uint64) ([]byte, error)
}

// formats are those of boot.rst, payload_offset.
var formats = []format{
	{"\x1f\x8b", "gzip", false, unpackGzip},
	{"BZh", "bzip2", true, unpackBzip2},
	{"\x5d\x00", "LZMA", true, unpackLZMA},
	{"\xfd7zXZ\x00", "XZ", true, unpackXZ},
	{"\x02\x21\x4c\x18", "LZ4", true, unpackLZ4},
	{"\x28\xb5\x2f\xfd", "ZSTD", true, unpackZstd},
	{"\x89LZO", "LZO", true, func([]byte, uint64) ([]byte, error) {
		return nil, errors.New("is not supported; build the kernel with another compression, or enter it by linux64")
	}},
	{"\x7fELF", "none", false, func(p []byte, _ uint64) ([]byte, error) { return p, nil }},
}

// extract unpacks the payload to at most limit bytes.
func (b *bzImage) extract(limit uint64) ([]byte, error) {
	if b.payloadLength < 8 || b.payloadOffset > b.protSize || b.payloadLength > b.protSize-b.payloadOffset {
		return nil, fmt.Errorf("is damaged: its payload at %#x+%#x is not inside the %#x bytes of the kernel", b.payloadOffset, b.payloadLength, b.protSize)
	}
	if b.payloadLength > limit {
		return nil, fmt.Errorf("its payload has %s, more than the %s that govmm unpacks", sizeOf(b.payloadLength), sizeOf(limit))
	}
	payload := make([]byte, b.payloadLength)
	if _, err := b.r.ReadAt(payload, int64(len(b.setup))+int64(b.payloadOffset)); err != nil {
		return nil, err
	}
	return unpack(payload, limit)
}

// unpack recognises the payload's format, and checks that the result has the
// size that the payload ends with, at most limit.
func unpack(payload []byte, limit uint64) ([]byte, error) {
	for _, f := range formats {
		if !bytes.HasPrefix(payload, []byte(f.magic)) {
			continue
		}
		size := uint64(len(payload))
		if f.name != "none" {
			size = uint64(binary.LittleEndian.Uint32(payload[len(payload)-4:]))
		}
		if size > limit {
			return nil, fmt.Errorf("its %s payload tells of %s, more than the %s that govmm unpacks", f.name, sizeOf(size), sizeOf(limit))
		}
		if f.sized {
			payload = payload[:len(payload)-4]
		}
		out, err := f.unpack(payload, size)
		if err != nil {
			return nil, fmt.Errorf("its payload's format %s: %w", f.name, err)
		}
		if uint64(len(out)) != size {
			return nil, fmt.Errorf("is damaged: its %s payload has %d bytes, expected %d", f.name, len(out), size)
		}
		return out, nil
	}
	return nil, fmt.Errorf("its payload starts with % x, which is no known compression format", payload[:min(8, len(payload))])
}

// readAtMost reads r to its end, or one byte beyond size, which is then noticed
// as a wrong size. Memory grows with what is read, not with what size claims.
func readAtMost(r io.Reader, size uint64) ([]byte, error) {
	var out bytes.Buffer
	_, err := io.Copy(&out, io.LimitReader(r, int64(size)+1))
	return out.Bytes(), err
}

func unpackGzip(p []byte, size uint64) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(p))
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	return readAtMost(z, size)
}

func unpackBzip2(p []byte, size uint64) ([]byte, error) {
	return readAtMost(bzip2.NewReader(bytes.NewReader(p)), size)
}

// unpackLZMA limits the dictionary, which the header may claim to be of any
// size, to that of the largest kernel.
func unpackLZMA(p []byte, size uint64) ([]byte, error) {
	z, err := lzma.ReaderConfig{DictCap: maxDictionary}.NewReader(bytes.NewReader(p))
	if err != nil {
		return nil, err
	}
	return readAtMost(z, size)
}

// maxDictionary bounds the window of XZ, LZMA and ZSTD in bytes. The kernel's
// build uses at most this.
const maxDictionary = 128 << 20

func unpackZstd(p []byte, size uint64) ([]byte, error) {
	z, err := zstd.NewReader(bytes.NewReader(p), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxDictionary))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	return readAtMost(z, size)
}

// lz4Block is the largest unpacked block of LZ4's legacy format, which the
// kernel's build uses.
const lz4Block = 8 << 20

// unpackLZ4 reads the legacy format: the magic number, then blocks, each after
// its packed size as a 32-bit number.
func unpackLZ4(p []byte, size uint64) ([]byte, error) {
	p = p[4:]
	var out []byte
	block := make([]byte, min(lz4Block, size+1))
	for len(p) > 0 && uint64(len(out)) <= size {
		if len(p) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		n := uint64(binary.LittleEndian.Uint32(p))
		p = p[4:]
		if n > uint64(len(p)) {
			return nil, io.ErrUnexpectedEOF
		}
		k, err := lz4.UncompressBlock(p[:n], block)
		if err != nil {
			return nil, err
		}
		out = append(out, block[:k]...)
		p = p[n:]
	}
	return out, nil
}
