// SPDX-License-Identifier: Apache-2.0

// Package guestmem is the only door to guest RAM.
//
// Guest RAM is one or more anonymous host mappings at fixed guest physical
// addresses. The guest changes it at any time, so nothing here hands out a
// plain Go slice of it: small things are copied once (ReadAt, CopyIn), shared
// indices are loaded and stored atomically (View), and bulk data is moved by
// the kernel through iovecs (Vec). Every range is checked; a bad range is an
// error value, never a panic.
package guestmem

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrRange says that an address range is not wholly inside guest RAM. It is
// what a guest provokes with a bad pointer; callers count it as a guest fault.
var ErrRange = errors.New("address range is not guest RAM")

// Range is a half-open range of guest physical addresses, in bytes.
type Range struct {
	GPA  uint64
	Size uint64
}

// End is the first address after the range.
func (r Range) End() uint64 { return r.GPA + r.Size }

// Region is one range of guest RAM and the host mapping behind it.
type Region struct {
	Range
	mem []byte
}

// Memory is the whole RAM of one guest. It does not change after New, so it is
// safe for concurrent use.
type Memory struct {
	regions []Region // sorted by address
}

// New maps zeroed, lazily populated RAM for the given ranges. Addresses and
// sizes are multiples of the host's page size; ranges must not overlap.
func New(ranges ...Range) (*Memory, error) {
	m := &Memory{}
	page := uint64(unix.Getpagesize())
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int {
		if a.GPA < b.GPA {
			return -1
		}
		return 1
	})
	var end uint64
	for _, r := range sorted {
		if r.Size == 0 || r.GPA%page != 0 || r.Size%page != 0 || r.Size > math.MaxInt64 || r.GPA+r.Size < r.GPA {
			return nil, errors.Join(fmt.Errorf("guest RAM %#x+%#x: not a whole number of %d-byte pages", r.GPA, r.Size, page), m.Close())
		}
		if r.GPA < end {
			return nil, errors.Join(fmt.Errorf("guest RAM %#x+%#x overlaps the range below it", r.GPA, r.Size), m.Close())
		}
		end = r.End()
		b, err := unix.Mmap(-1, 0, int(r.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("map %d MiB of guest RAM: %w", r.Size>>20, err), m.Close())
		}
		m.regions = append(m.regions, Region{r, b})
	}
	return m, nil
}

// Close unmaps the RAM. Nothing may use the Memory, or a View or iovec made
// from it, any more: stop vCPUs and devices first.
func (m *Memory) Close() error {
	var errs []error
	for _, r := range m.regions {
		errs = append(errs, unix.Munmap(r.mem))
	}
	m.regions = nil
	return errors.Join(errs...)
}

// Regions lists the RAM in address order.
func (m *Memory) Regions() []Region { return m.regions }

// Size is the amount of RAM in bytes.
func (m *Memory) Size() (n uint64) {
	for _, r := range m.regions {
		n += r.Size
	}
	return n
}

// Advise passes one of madvise(2)'s hints on to all of the RAM.
func (m *Memory) Advise(advice int) error {
	for _, r := range m.regions {
		if err := unix.Madvise(r.mem, advice); err != nil {
			return fmt.Errorf("madvise(%d) on guest RAM at %#x: %w", advice, r.GPA, err)
		}
	}
	return nil
}

// span returns the host bytes of [gpa, gpa+n) if they lie in one region.
func (m *Memory) span(gpa, n uint64) (b []byte, ok bool) {
	for i := range m.regions {
		r := &m.regions[i]
		if off := gpa - r.GPA; gpa >= r.GPA && off < r.Size && n <= r.Size-off {
			return r.mem[off : off+n : off+n], true
		}
	}
	return nil, false
}

func rangeError(gpa, n uint64) error {
	return fmt.Errorf("%#x+%#x: %w", gpa, n, ErrRange)
}

// walk calls f with the host bytes of [gpa, gpa+n), in order, in one or more
// pieces. Nothing is called if any part of the range is not RAM.
func (m *Memory) walk(gpa, n uint64, f func([]byte)) error {
	if b, ok := m.span(gpa, n); ok {
		f(b)
		return nil
	}
	if !m.Contains(gpa, n) {
		return rangeError(gpa, n)
	}
	for n > 0 {
		r := m.find(gpa)
		k := min(n, r.End()-gpa)
		f(r.mem[gpa-r.GPA:][:k])
		gpa, n = gpa+k, n-k
	}
	return nil
}

func (m *Memory) find(gpa uint64) *Region {
	for i := range m.regions {
		if r := &m.regions[i]; gpa >= r.GPA && gpa-r.GPA < r.Size {
			return r
		}
	}
	return nil
}

// Contains reports whether all of [gpa, gpa+n) is RAM. The range may cross
// from one region into an adjacent one.
func (m *Memory) Contains(gpa, n uint64) bool {
	if gpa+n < gpa {
		return false
	}
	for n > 0 {
		r := m.find(gpa)
		if r == nil {
			return false
		}
		k := min(n, r.End()-gpa)
		gpa, n = gpa+k, n-k
	}
	return true
}

// ReadAt copies guest RAM at gpa into p.
func (m *Memory) ReadAt(gpa uint64, p []byte) error {
	return m.walk(gpa, uint64(len(p)), func(b []byte) { p = p[copy(p, b):] })
}

// WriteAt copies p into guest RAM at gpa.
func (m *Memory) WriteAt(gpa uint64, p []byte) error {
	return m.walk(gpa, uint64(len(p)), func(b []byte) { p = p[copy(b, p):] })
}

// Zero clears guest RAM.
func (m *Memory) Zero(gpa, n uint64) error {
	return m.walk(gpa, n, func(b []byte) { clear(b) })
}

// Vec appends the host ranges behind [gpa, gpa+n) to dst, for readv and writev
// by the kernel. It allocates only if dst lacks capacity. An empty range adds
// nothing. On error dst is returned as it was.
func (m *Memory) Vec(dst []unix.Iovec, gpa, n uint64) ([]unix.Iovec, error) {
	if n == 0 {
		return dst, nil
	}
	if b, ok := m.span(gpa, n); ok {
		return append(dst, unix.Iovec{Base: &b[0], Len: n}), nil
	}
	if !m.Contains(gpa, n) {
		return dst, rangeError(gpa, n)
	}
	for n > 0 {
		r := m.find(gpa)
		k := min(n, r.End()-gpa)
		dst = append(dst, unix.Iovec{Base: &r.mem[gpa-r.GPA], Len: k})
		gpa, n = gpa+k, n-k
	}
	return dst, nil
}

// Writer is a sequential io.Writer into guest RAM, for loaders.
type Writer struct {
	m   *Memory
	gpa uint64
}

// Writer starts a Writer at gpa.
func (m *Memory) Writer(gpa uint64) *Writer { return &Writer{m, gpa} }

// Write copies p to the current position and moves on.
func (w *Writer) Write(p []byte) (int, error) {
	if err := w.m.WriteAt(w.gpa, p); err != nil {
		return 0, err
	}
	w.gpa += uint64(len(p))
	return len(p), nil
}
