// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"fmt"

	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// PageSize is the size of a page of the VMBus, whatever those of host and guest.
const PageSize = 4096

// GPADL is a guest physical address descriptor list: pages of guest RAM, in any
// order, that the guest shares as one contiguous buffer. All pages are in RAM.
// Offsets count from the buffer's start, in bytes.
type GPADL struct {
	mem   *guestmem.Memory
	pages []uint64 // guest physical addresses
}

// Size is the buffer's size in bytes, a multiple of PageSize.
func (g *GPADL) Size() uint64 { return uint64(len(g.pages)) * PageSize }

// contains reports whether [off, off+n) is inside.
func (g *GPADL) contains(off, n uint64) bool {
	return off <= g.Size() && n <= g.Size()-off
}

// run is the longest contiguous piece of guest RAM at off, up to n bytes. The
// offset is inside.
func (g *GPADL) run(off, n uint64) guestmem.Range {
	page, within := off/PageSize, off%PageSize
	r := guestmem.Range{GPA: g.pages[page] + within, Size: PageSize - within}
	for page++; r.Size < n && page < uint64(len(g.pages)) && g.pages[page] == r.End(); page++ {
		r.Size += PageSize
	}
	r.Size = min(r.Size, n)
	return r
}

// each calls f with the contiguous pieces of [off, off+n) in order, until one
// fails.
func (g *GPADL) each(off, n uint64, f func(guestmem.Range) error) error {
	if !g.contains(off, n) {
		return fmt.Errorf("%#x+%#x in a buffer of %#x bytes: %w", off, n, g.Size(), guestmem.ErrRange)
	}
	for n > 0 {
		r := g.run(off, n)
		if err := f(r); err != nil {
			return err
		}
		off, n = off+r.Size, n-r.Size
	}
	return nil
}

// Ranges appends the guest physical ranges behind [off, off+n) to dst, those
// that touch merged. It allocates only if dst lacks capacity.
func (g *GPADL) Ranges(dst []guestmem.Range, off, n uint64) ([]guestmem.Range, error) {
	if !g.contains(off, n) {
		return dst, fmt.Errorf("%#x+%#x in a buffer of %#x bytes: %w", off, n, g.Size(), guestmem.ErrRange)
	}
	for n > 0 {
		r := g.run(off, n)
		dst = append(dst, r)
		off, n = off+r.Size, n-r.Size
	}
	return dst, nil
}

// Vec appends the iovecs of [off, off+n) to dst, for readv and writev. It
// allocates only if dst lacks capacity.
func (g *GPADL) Vec(dst []unix.Iovec, off, n uint64) ([]unix.Iovec, error) {
	if !g.contains(off, n) {
		return dst, fmt.Errorf("%#x+%#x in a buffer of %#x bytes: %w", off, n, g.Size(), guestmem.ErrRange)
	}
	for n > 0 {
		r := g.run(off, n)
		var err error
		if dst, err = g.mem.Vec(dst, r.GPA, r.Size); err != nil {
			return dst, err
		}
		off, n = off+r.Size, n-r.Size
	}
	return dst, nil
}

// ReadAt copies len(p) bytes at off into p.
func (g *GPADL) ReadAt(off uint64, p []byte) error {
	return g.each(off, uint64(len(p)), func(r guestmem.Range) error {
		err := g.mem.ReadAt(r.GPA, p[:r.Size])
		p = p[r.Size:]
		return err
	})
}

// WriteAt copies p into the buffer at off.
func (g *GPADL) WriteAt(off uint64, p []byte) error {
	return g.each(off, uint64(len(p)), func(r guestmem.Range) error {
		err := g.mem.WriteAt(r.GPA, p[:r.Size])
		p = p[r.Size:]
		return err
	})
}
