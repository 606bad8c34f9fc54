// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"fmt"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// headroom is where a frame's bytes begin in a section of the receive buffer:
// behind the RNDIS header and as much per-packet information as there can be.
const headroom = 128

// receiveBuffer is the memory into which frames are received, in sections of the
// same size. A section begins at a page, so that its header lies in one.
type receiveBuffer struct {
	handle   uint32
	gpadl    *vmbus.GPADL
	section  int             // bytes of a section, a multiple of a page
	heads    []guestmem.View // the first headroom bytes of each section
	vecs     []unix.Iovec    // the rest of all sections
	firstVec []int32         // of each section, and the end
}

// sectionSize is the size of sections that hold a frame with the given MTU, but
// at least a page.
func sectionSize(mtu int) int {
	n := headroom + ethernetLen + vlanLen + mtu
	return (n + vmbus.PageSize - 1) &^ (vmbus.PageSize - 1)
}

func newReceiveBuffer(mem *guestmem.Memory, handle uint32, g *vmbus.GPADL, section int) (*receiveBuffer, error) {
	r := &receiveBuffer{handle: handle, gpadl: g, section: section}
	for off := uint64(0); off+uint64(section) <= g.Size(); off += uint64(section) {
		ranges, err := g.Ranges(nil, off, headroom)
		if err != nil {
			return nil, err
		}
		v, err := mem.View(ranges[0].GPA, headroom, vmbus.PageSize)
		if err != nil {
			return nil, err
		}
		r.heads = append(r.heads, v)
		r.firstVec = append(r.firstVec, int32(len(r.vecs)))
		if r.vecs, err = g.Vec(r.vecs, off+headroom, uint64(section)-headroom); err != nil {
			return nil, err
		}
	}
	r.firstVec = append(r.firstVec, int32(len(r.vecs)))
	return r, nil
}

// count is the number of sections.
func (r *receiveBuffer) count() int { return len(r.heads) }

// room is how many bytes of a frame a section holds.
func (r *receiveBuffer) room() int { return r.section - headroom }

// leastSections is the least that a channel needs: the largest frame twice over.
func (r *receiveBuffer) leastSections() int {
	return 2 * ((netio.MaxFrame + r.room() - 1) / r.room())
}

// vec is the memory of a section for a frame's bytes.
func (r *receiveBuffer) vec(section int32) []unix.Iovec {
	return r.vecs[r.firstVec[section]:r.firstVec[section+1]]
}

// sendSection is the size of a section of the send buffer, bytes: four full
// frames of the usual MTU, which is what the driver's own default asks for.
const sendSection = 6144

// sendBuffer is the memory out of which the guest sends small frames.
type sendBuffer struct {
	handle uint32
	gpadl  *vmbus.GPADL
}

// count is the number of sections.
func (s *sendBuffer) count() uint64 { return s.gpadl.Size() / sendSection }

// ranges appends the first size bytes of a section to dst, which has room for
// all pages of one.
func (s *sendBuffer) ranges(dst []guestmem.Range, p rndisPacket) ([]guestmem.Range, error) {
	if p.size > sendSection || uint64(p.section) >= s.count() {
		return dst, fmt.Errorf("%d bytes in section %d of %d of the send buffer", p.size, p.section, s.count())
	}
	return s.gpadl.Ranges(dst, uint64(p.section)*sendSection, uint64(p.size))
}

// stream is what one packet refers to: bytes in guest memory, in pieces. The
// guest may change them at any time, but not where they are.
type stream struct {
	mem    *guestmem.Memory
	pieces []guestmem.Range
	size   int
}

// maxPieces is the most pieces of a stream, those of a send section included:
// what a frame of the largest size has if each page is a piece, many times over.
const maxPieces = 256

// maxStream is the size of the largest stream: that of eight large frames is
// beyond all that a driver sends in one packet, which is one large frame, or a
// section of small ones.
const maxStream = 2 * (netio.MaxFrame + packetSize + maxPPI)

// measure sets the size. ok is false if it is too large.
func (s *stream) measure() (ok bool) {
	var n uint64
	for i := range s.pieces {
		if n += s.pieces[i].Size; n > maxStream {
			return false
		}
	}
	s.size = int(n)
	return true
}

// read copies len(p) bytes at off into p.
func (s *stream) read(off int, p []byte) error {
	for i := range s.pieces {
		r := &s.pieces[i]
		if off >= int(r.Size) {
			off -= int(r.Size)
			continue
		}
		n := min(len(p), int(r.Size)-off)
		if err := s.mem.ReadAt(r.GPA+uint64(off), p[:n]); err != nil {
			return err
		}
		p, off = p[n:], 0
		if len(p) == 0 {
			return nil
		}
	}
	if len(p) > 0 {
		return guestmem.ErrRange
	}
	return nil
}

// vec appends the iovecs of [off, off+n), which is inside, to dst.
func (s *stream) vec(dst []unix.Iovec, off, n int) (_ []unix.Iovec, err error) {
	for i := range s.pieces {
		r := &s.pieces[i]
		if off >= int(r.Size) {
			off -= int(r.Size)
			continue
		}
		k := min(n, int(r.Size)-off)
		if dst, err = s.mem.Vec(dst, r.GPA+uint64(off), uint64(k)); err != nil {
			return dst, err
		}
		n, off = n-k, 0
		if n == 0 {
			break
		}
	}
	return dst, nil
}
