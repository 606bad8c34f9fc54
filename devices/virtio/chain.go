// SPDX-License-Identifier: Apache-2.0

package virtio

import (
	"encoding/binary"
	"errors"

	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// Flags of a descriptor (virtio 1.2, 2.7.5).
const (
	descNext     = 1 // VIRTQ_DESC_F_NEXT
	descWrite    = 2 // VIRTQ_DESC_F_WRITE
	descIndirect = 4 // VIRTQ_DESC_F_INDIRECT
)

// maxChainLen is the most bytes that a chain may have in total (2.7.5.2).
const maxChainLen = 1 << 32

// minIndirect is how many entries an indirect table may have, even in a smaller
// queue. The specification allows as many as the queue has (2.7.5.3.1), but
// Linux keeps to that only where there is no indirect table. 1024 is UIO_MAXIOV,
// what the host can take in one call.
const minIndirect = 1024

// ErrSegments says that a chain is in more pieces than there is room for.
var ErrSegments = errors.New("too many segments")

// Run is a range of guest physical addresses in a chain: one descriptor's
// buffer, or several that follow each other in memory. It may not be RAM.
type Run struct {
	GPA uint64
	Len uint64 // bytes, not 0
}

// Chain is one checked descriptor chain (2.7.5): a copy, which the driver can't
// change any more. Its addresses are checked where they are used, by Vec,
// ReadChain and WriteChain.
type Chain struct {
	Head     uint16 // what Push wants
	Read     []Run  // what the device may read, in order
	Write    []Run  // what the device may write, in order
	ReadLen  uint64 // bytes in Read; ReadLen+WriteLen is at most 2^32
	WriteLen uint64 // bytes in Write

	runs    []Run // Read, then Write; its capacity holds the longest chain
	reads   int   // runs that the device may read
	writing bool  // a writable descriptor was seen, so no readable one may follow
}

// descriptor is struct virtq_desc, copied from the guest once.
type descriptor struct {
	addr  uint64
	len   uint32
	flags uint16
	next  uint16
}

func readDescriptor(table guestmem.View, i uint32) descriptor {
	var b [descSize]byte
	table.CopyIn(descSize*uint64(i), b[:])
	return descriptor{
		addr:  binary.LittleEndian.Uint64(b[0:]),
		len:   binary.LittleEndian.Uint32(b[8:]),
		flags: binary.LittleEndian.Uint16(b[12:]),
		next:  binary.LittleEndian.Uint16(b[14:]),
	}
}

// fetch reads the chain that begins at descriptor head into q.chain. Most
// receive buffers are a single descriptor, for which there is little to check.
func (q *Queue) fetch(head uint16) error {
	if head >= q.size {
		return q.Faultf("descriptor %d of a table of %d", head, q.size)
	}
	d := readDescriptor(q.desc, uint32(head))
	if d.flags&(descNext|descIndirect) != 0 || d.len == 0 {
		return q.walk(head, d)
	}
	c := &q.chain
	c.Head = head
	c.runs = append(c.runs[:0], Run{d.addr, uint64(d.len)})
	if d.flags&descWrite != 0 {
		c.Read, c.Write = nil, c.runs
		c.ReadLen, c.WriteLen = 0, uint64(d.len)
	} else {
		c.Read, c.Write = c.runs, nil
		c.ReadLen, c.WriteLen = uint64(d.len), 0
	}
	return nil
}

// walk reads the chain whose descriptor head was read as d into q.chain. It ends
// because each table is followed for no more steps than it has entries, and
// there is at most one further table.
func (q *Queue) walk(head uint16, d descriptor) error {
	c := &q.chain
	c.begin(head)
	table, entries, nested := q.desc, uint32(q.size), false
	for steps := uint32(1); ; steps++ {
		if d.flags&descIndirect != 0 {
			var err error
			if table, err = q.indirectTable(d, nested); err != nil {
				return err
			}
			entries, nested, steps = d.len/descSize, true, 0
			d = readDescriptor(table, 0)
			continue
		}
		if err := q.add(d); err != nil {
			return err
		}
		if d.flags&descNext == 0 {
			c.Read, c.Write = c.runs[:c.reads], c.runs[c.reads:]
			return nil
		}
		if uint32(d.next) >= entries {
			return q.Faultf("descriptor %d of a table of %d", d.next, entries)
		}
		if steps == entries {
			return q.Faultf("chain of descriptor %d is longer than its table of %d: it loops", head, entries)
		}
		d = readDescriptor(table, uint32(d.next))
	}
}

// begin makes c empty. Field by field: a literal would be built elsewhere and
// copied.
func (c *Chain) begin(head uint16) {
	c.Head = head
	c.ReadLen, c.WriteLen = 0, 0
	c.runs, c.reads, c.writing = c.runs[:0], 0, false
}

// maxIndirect is the most entries of an indirect table.
func (q *Queue) maxIndirect() int { return max(int(q.size), minIndirect) }

// indirectTable checks descriptor d, which refers to a table of descriptors
// (2.7.5.3). Its WRITE flag means nothing.
func (q *Queue) indirectTable(d descriptor, nested bool) (guestmem.View, error) {
	switch {
	case !q.indirect:
		return guestmem.View{}, q.Faultf("indirect descriptor, but VIRTIO_F_INDIRECT_DESC was not accepted")
	case nested:
		return guestmem.View{}, q.Faultf("indirect descriptor in an indirect table")
	case d.flags&descNext != 0:
		return guestmem.View{}, q.Faultf("indirect descriptor with NEXT")
	case d.len == 0 || d.len%descSize != 0:
		return guestmem.View{}, q.Faultf("indirect table of %d bytes is not a whole number of descriptors", d.len)
	case int(d.len/descSize) > q.maxIndirect():
		return guestmem.View{}, q.Faultf("indirect table of %d descriptors, more than %d", d.len/descSize, q.maxIndirect())
	}
	view, err := q.mem.View(d.addr, uint64(d.len), 1)
	if err != nil {
		return view, q.Faultf("indirect table: %v", err)
	}
	return view, nil
}

// add appends the buffer of d to q.chain.
func (q *Queue) add(d descriptor) error {
	c := &q.chain
	n := uint64(d.len)
	if c.ReadLen+c.WriteLen+n > maxChainLen {
		return q.Faultf("chain of descriptor %d is longer than 4 GiB", c.Head)
	}
	if d.flags&descWrite != 0 {
		c.writing = true
		c.WriteLen += n
		c.append(c.reads, d.addr, n)
		return nil
	}
	if c.writing {
		return q.Faultf("chain of descriptor %d has a readable buffer after a writable one", c.Head)
	}
	c.ReadLen += n
	c.append(0, d.addr, n)
	c.reads = len(c.runs)
	return nil
}

// append adds a buffer to the runs from index first on, which are those of the
// same direction. A buffer that follows the last one in memory makes it longer:
// each further iovec costs the kernel time.
func (c *Chain) append(first int, gpa, n uint64) {
	if n == 0 {
		return
	}
	if last := len(c.runs) - 1; last >= first && c.runs[last].GPA+c.runs[last].Len == gpa {
		c.runs[last].Len += n
		return
	}
	c.runs = append(c.runs, Run{gpa, n})
}

// Vec appends the host's ranges behind runs to dst, within its capacity, for
// readv and writev. It returns ErrSegments and dst as it was if that doesn't
// suffice, and a *fault.Guest if some of it is not RAM. Every iovec lies in RAM.
func (q *Queue) Vec(dst []unix.Iovec, runs []Run) ([]unix.Iovec, error) {
	vec := dst
	// A run is in more than one piece only where regions of RAM meet.
	pieces := len(q.mem.Regions())
	for _, r := range runs {
		if cap(vec)-len(vec) < pieces {
			return dst, ErrSegments
		}
		var err error
		if vec, err = q.mem.Vec(vec, r.GPA, r.Len); err != nil {
			return dst, q.Faultf("buffer: %v", err)
		}
	}
	return vec, nil
}

// ReadChain copies what the device may read of c, from offset off on, to p. n
// is less than len(p) if the chain ends before. The error is a *fault.Guest.
func (q *Queue) ReadChain(c *Chain, off uint64, p []byte) (n int, err error) {
	return q.copyRuns(c.Read, off, p, q.mem.ReadAt)
}

// WriteChain copies p to what the device may write of c, from offset off on. n
// is less than len(p) if the chain ends before. The error is a *fault.Guest.
func (q *Queue) WriteChain(c *Chain, off uint64, p []byte) (n int, err error) {
	return q.copyRuns(c.Write, off, p, q.mem.WriteAt)
}

func (q *Queue) copyRuns(runs []Run, off uint64, p []byte, transfer func(uint64, []byte) error) (n int, err error) {
	for _, r := range runs {
		if off >= r.Len {
			off -= r.Len
			continue
		}
		k := int(min(uint64(len(p)-n), r.Len-off))
		if err := transfer(r.GPA+off, p[n:n+k]); err != nil {
			return n, q.Faultf("buffer: %v", err)
		}
		n, off = n+k, 0
	}
	return n, nil
}
