// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"github.com/govmm/govmm/internal/guestmem"
)

// Layout of a ring's first page (hv_ring_buffer of the Linux driver). Fields are
// little-endian u32. Indices are byte offsets into the data area, which is all
// pages after the first, and multiples of 8.
const (
	ringWriteIndex    = 0  // where the writer goes on
	ringReadIndex     = 4  // where the reader goes on; equal is empty
	ringInterruptMask = 8  // the reader sets it to 1 while it needs no signal
	ringPendingSend   = 12 // the writer waits for more than so many free bytes
	ringFeatures      = 64 // bit 0: pending send size is supported

	featurePendingSend = 1
)

// Layout of a packet: descriptor, type-specific header, payload, padding to 8
// bytes, trailer.
const (
	descriptorSize = 16 // u16 type, u16 offset8, u16 len8, u16 flags, u64 transaction id
	trailerSize    = 8  // u32 0, u32 index of the packet's start
	align          = 8
)

// PacketType is what a packet is.
type PacketType uint16

// Packet types that devices use.
const (
	PacketInBand        PacketType = 6  // VM_PKT_DATA_INBAND: the payload is all
	PacketTransferPages PacketType = 7  // VM_PKT_DATA_USING_XFER_PAGES: ranges in a buffer that was agreed on
	PacketGPADirect     PacketType = 9  // VM_PKT_DATA_USING_GPA_DIRECT: ranges of guest memory
	PacketCompletion    PacketType = 11 // VM_PKT_COMP: the answer to the packet of the same transaction id
)

// CompletionRequested is the flag of a packet that wants a PacketCompletion.
const CompletionRequested = 1

// MaxPacket is the largest packet that is read or written, bytes without the
// trailer. The largest of a Linux driver, a GPA-direct packet of 32 ranges of one
// page, has less than 1 KiB, and it reads no more than 4.5 KiB.
const MaxPacket = 8 << 10

// ringMemory is the memory of one ring: the header page, and the data pages,
// which are contiguous for the ring but not in guest RAM.
type ringMemory struct {
	header guestmem.View
	pages  []guestmem.View
	size   uint32 // bytes of the data area
}

// newRingMemory makes a ring of the pages [first, last) of a GPADL.
func newRingMemory(g *GPADL, first, last int) (ringMemory, error) {
	m := ringMemory{size: uint32(last-first-1) * PageSize}
	for i, gpa := range g.pages[first:last] {
		v, err := g.mem.View(gpa, PageSize, PageSize)
		if err != nil {
			return m, err
		}
		if i == 0 {
			m.header = v
		} else {
			m.pages = append(m.pages, v)
		}
	}
	return m, nil
}

// copyIn copies len(p) bytes from index off on, around the ring's end, into p.
func (m *ringMemory) copyIn(off uint32, p []byte) {
	for len(p) > 0 {
		page, within := off/PageSize, off%PageSize
		n := min(len(p), int(PageSize-within))
		m.pages[page].CopyIn(uint64(within), p[:n])
		p, off = p[n:], m.advance(off, uint32(n))
	}
}

// copyOut copies p into the ring from index off on.
func (m *ringMemory) copyOut(off uint32, p []byte) {
	for len(p) > 0 {
		page, within := off/PageSize, off%PageSize
		n := min(len(p), int(PageSize-within))
		m.pages[page].CopyOut(uint64(within), p[:n])
		p, off = p[n:], m.advance(off, uint32(n))
	}
}

// advance is the index n bytes after off. n is at most the size.
func (m *ringMemory) advance(off, n uint32) uint32 {
	if off += n; off >= m.size {
		off -= m.size
	}
	return off
}

// between is the number of bytes from index a on to index b.
func (m *ringMemory) between(a, b uint32) uint32 {
	if b >= a {
		return b - a
	}
	return b + m.size - a
}

// good reports whether an index that the guest wrote can be one.
func (m *ringMemory) good(index uint32) bool { return index < m.size && index%align == 0 }

func roundUp(n int) int { return (n + align - 1) &^ (align - 1) }
