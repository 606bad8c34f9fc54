// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"bytes"
	"io"
	"strings"

	"github.com/govmm/govmm/internal/guestmem"
	"github.com/govmm/govmm/internal/result"
)

// Source is an initrd: a file, or bytes if Data is not nil. It is read on each
// Load, so that a guest that reboots gets it again.
type Source struct {
	Path string // of the file; with Data, its name in messages
	Data []byte
}

// initrdAlign is what each initrd but the first starts at a multiple of. The
// kernel skips zeros between archives, but takes an uncompressed one at a
// multiple of 4 bytes only (init/initramfs.c).
const initrdAlign = 4

// part is an opened Source. Its offset is within the concatenation.
type part struct {
	name   string
	r      io.Reader
	close  func() error
	offset uint64
	size   uint64
}

// initrd is all Sources opened, in order.
type initrd struct {
	parts []part
	size  uint64 // of the concatenation, with the padding
}

// openInitrd opens the sources. The caller closes the result, also after an
// error.
func openInitrd(sources []Source) (*initrd, error) {
	rd := &initrd{}
	for _, s := range sources {
		p, err := s.open()
		if err != nil {
			return rd, err
		}
		p.offset = alignUp(rd.size, initrdAlign)
		rd.size = end(p.offset, p.size)
		rd.parts = append(rd.parts, p)
	}
	return rd, nil
}

func (s Source) open() (part, error) {
	if s.Data != nil {
		return s.check(part{name: s.Path, r: bytes.NewReader(s.Data), close: func() error { return nil }, size: uint64(len(s.Data))})
	}
	f, size, err := openRegular(s.Path)
	if err != nil {
		return part{}, result.Errorf(result.BadImage, "initrd %w", err)
	}
	return s.check(part{name: s.Path, r: f, close: f.Close, size: uint64(size)})
}

// check refuses an empty initrd, which the kernel would silently ignore.
func (s Source) check(p part) (part, error) {
	if p.size > 0 {
		return p, nil
	}
	p.close()
	return part{}, result.Errorf(result.BadImage, "initrd %s: is empty; name a cpio archive, or leave the initrd out", s.Path)
}

func (rd *initrd) close() {
	for _, p := range rd.parts {
		p.close()
	}
}

func (rd *initrd) names() string {
	var names []string
	for _, p := range rd.parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

// write copies the concatenation to addr, zeros in between.
func (rd *initrd) write(mem *guestmem.Memory, addr uint64) error {
	if err := mem.Zero(addr, rd.size); err != nil {
		return err
	}
	for _, p := range rd.parts {
		if err := copyIn(mem, addr+p.offset, p.r, p.size); err != nil {
			return result.Errorf(result.BadImage, "initrd %s: %w", p.name, err)
		}
	}
	return nil
}

// place finds room for the initrd: as high as possible in RAM, outside the
// kernel, its last byte at most at maxAddr. It is page aligned, since the kernel
// reserves and frees it by pages.
func (rd *initrd) place(ram []guestmem.Range, kernel guestmem.Range, maxAddr uint64) (guestmem.Range, error) {
	if rd.size == 0 {
		return guestmem.Range{}, nil
	}
	limit := end(maxAddr, 1)
	var room uint64
	for _, gap := range gaps(ram, kernel) {
		hi := min(gap.End(), limit)
		lo := alignUp(gap.GPA, pageSize)
		if hi <= lo {
			continue
		}
		room = max(room, hi-lo)
		if rd.size > hi-lo {
			continue
		}
		return guestmem.Range{GPA: (hi - rd.size) &^ (pageSize - 1), Size: rd.size}, nil
	}
	return guestmem.Range{}, rd.tooLarge(room, kernel, limit)
}

func (rd *initrd) tooLarge(room uint64, kernel guestmem.Range, limit uint64) error {
	lo := alignUp(kernel.End(), pageSize)
	need := end(lo, rd.size)
	if need > limit {
		return result.Errorf(result.BadImage,
			"initrd %s: has %s, but the kernel ends at %#x and takes an initrd only below %#x, which leaves %s; use a smaller one",
			rd.names(), sizeOf(rd.size), kernel.End(), limit, sizeOf(max(lo, limit)-lo))
	}
	return result.Errorf(result.BadImage,
		"initrd %s: has %s, but only %s of RAM are free for it, and the kernel needs %s; give the VM more memory, at least %s",
		rd.names(), sizeOf(rd.size), sizeOf(room), sizeOf(kernel.Size), sizeOf(alignUp(need, 1<<20)))
}

// gaps is RAM without the kernel, the highest range first.
func gaps(ram []guestmem.Range, kernel guestmem.Range) []guestmem.Range {
	var out []guestmem.Range
	add := func(lo, hi uint64) {
		if lo < hi {
			out = append(out, guestmem.Range{GPA: lo, Size: hi - lo})
		}
	}
	for i := len(ram) - 1; i >= 0; i-- {
		r := ram[i]
		if kernel.End() <= r.GPA || kernel.GPA >= r.End() {
			add(r.GPA, r.End())
			continue
		}
		add(max(r.GPA, kernel.End()), r.End())
		add(r.GPA, min(r.End(), kernel.GPA))
	}
	return out
}
