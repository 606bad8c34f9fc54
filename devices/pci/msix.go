// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/govmm/govmm/internal/irq"
)

// MSIX describes a function's MSI-X. Table and pending bits have a BAR of
// their own.
type MSIX struct {
	// Vectors is the number of table entries, at most 2048; 0 is no MSI-X.
	Vectors int
	// BAR is the index of the BAR for table and pending bits. Its entry in
	// Config.BARs says Kind only.
	BAR int
}

// MaxVectors is the largest MSI-X table.
const MaxVectors = 2048

// Layout of the MSI-X BAR and of a table entry (PCI 3.0, 6.8.2).
const (
	msixEntrySize = 16
	entryAddrLow  = 0 // indices of 32-bit words
	entryAddrHigh = 1
	entryData     = 2
	entryControl  = 3

	entryMasked = 1 // bit of the control word

	// msixPage keeps table and pending bits apart, so that a guest can map them
	// with different rights.
	msixPage = 4096
)

// msix is the table, the pending bits and the BAR that shows both.
type msix struct {
	msi     irq.MSI
	pba     uint64 // offset of the pending bit array in the BAR
	enabled atomic.Bool

	mu      sync.Mutex
	live    bool // enabled, not masked as a whole, and allowed to write to memory
	entries [][4]uint32
	pending []uint64
	vectors []Vector
}

func newMSIX(c MSIX, msi irq.MSI) (*msix, error) {
	if c.Vectors < 1 || c.Vectors > MaxVectors {
		return nil, fmt.Errorf("%d MSI-X vectors: 1 to %d are possible", c.Vectors, MaxVectors)
	}
	if msi == nil {
		return nil, fmt.Errorf("MSI-X without a way to send messages")
	}
	x := &msix{
		msi:     msi,
		pba:     uint64(c.Vectors*msixEntrySize+msixPage-1) &^ (msixPage - 1),
		entries: make([][4]uint32, c.Vectors),
		pending: make([]uint64, (c.Vectors+63)/64),
		vectors: make([]Vector, c.Vectors),
	}
	for i := range x.vectors {
		x.vectors[i].x, x.vectors[i].index = x, i
	}
	x.reset()
	return x, nil
}

// barSize is the size of the BAR: one page of pending bits always suffices.
func (x *msix) barSize() uint64 { return 1 << bits.Len64(x.pba+msixPage-1) }

// capability is the MSI-X capability.
func (x *msix) capability(bar int) Capability {
	body := make([]byte, 10)
	binary.LittleEndian.PutUint16(body[0:], uint16(len(x.entries)-1))
	binary.LittleEndian.PutUint32(body[2:], uint32(bar))
	binary.LittleEndian.PutUint32(body[6:], uint32(x.pba)|uint32(bar))
	return Capability{ID: capMSIX, Body: body, Mask: []byte{0, (msixEnable | msixFunctionMask) >> 8}}
}

func (x *msix) reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.enabled.Store(false)
	x.live = false
	clear(x.pending)
	for i := range x.entries {
		x.entries[i] = [4]uint32{entryControl: entryMasked}
		x.refresh(i)
	}
}

// control follows the enable and function mask bits and the bus master bit.
// Without the latter a function can't write to memory, so messages wait as if
// they were masked.
func (x *msix) control(control uint16, master bool) {
	enabled := control&msixEnable != 0
	live := enabled && control&msixFunctionMask == 0 && master
	x.mu.Lock()
	defer x.mu.Unlock()
	x.enabled.Store(enabled)
	if live == x.live {
		return
	}
	x.live = live
	for i := range x.entries {
		x.refresh(i)
	}
}

// refresh publishes what Raise does for entry i, and sends what has waited.
// x.mu is held.
func (x *msix) refresh(i int) {
	e, v := &x.entries[i], &x.vectors[i]
	if !x.live || e[entryControl]&entryMasked != 0 {
		v.message.Store(nil)
		return
	}
	m := &irq.Message{Addr: uint64(e[entryAddrHigh])<<32 | uint64(e[entryAddrLow]), Data: e[entryData]}
	v.message.Store(m)
	if bit := uint64(1) << (i % 64); x.pending[i/64]&bit != 0 {
		x.pending[i/64] &^= bit
		x.msi.Send(*m)
	}
}

// BusRead shows table and pending bits. Accesses of any size are answered;
// bytes between and after the two are zero.
func (x *msix) BusRead(off uint64, p []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range p {
		p[i] = x.byteAt(off + uint64(i))
	}
}

func (x *msix) byteAt(off uint64) byte {
	if off < uint64(len(x.entries))*msixEntrySize {
		word := x.entries[off/msixEntrySize][off%msixEntrySize/4]
		return byte(word >> (off % 4 * 8))
	}
	if off >= x.pba && off-x.pba < uint64(len(x.pending))*8 {
		return byte(x.pending[(off-x.pba)/8] >> (off % 8 * 8))
	}
	return 0
}

// BusWrite changes a table entry by an aligned write of 4 or 8 bytes; all other
// writes are undefined (PCI 3.0, 6.8.2) and ignored here.
func (x *msix) BusWrite(off uint64, p []byte) {
	n := uint64(len(p))
	if n != 4 && n != 8 || off%n != 0 || off >= uint64(len(x.entries))*msixEntrySize {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	i := int(off / msixEntrySize)
	for w := off % msixEntrySize / 4; len(p) > 0; w, p = w+1, p[4:] {
		x.entries[i][w] = binary.LittleEndian.Uint32(p) & entryMask[w]
	}
	x.refresh(i)
}

// entryMask are the writable bits of a table entry: the message address is
// 4-byte aligned, and of the control word only the mask bit is defined.
var entryMask = [4]uint32{^uint32(3), ^uint32(0), ^uint32(0), entryMasked}

// Vector is one MSI-X table entry as the device sees it. It is an irq.Vector.
type Vector struct {
	x       *msix
	index   int
	message atomic.Pointer[irq.Message] // nil: don't send now
}

// Raise sends the vector's message, or marks it pending while it is masked.
// While MSI-X is disabled it does nothing.
func (v *Vector) Raise() { v.TryRaise() }

// TryRaise is Raise that reports false if MSI-X is disabled, so that the caller
// can interrupt otherwise. It takes no lock unless the vector is masked or the
// guest changes it at the same time.
func (v *Vector) TryRaise() bool {
	m := v.message.Load()
	if m == nil {
		return v.raiseSlow()
	}
	v.x.msi.Send(*m)
	if v.message.Load() != m {
		// The guest changed the entry meanwhile and may no longer listen to the
		// old message. One interrupt too many is allowed, a lost one is not.
		return v.raiseSlow()
	}
	return true
}

func (v *Vector) raiseSlow() bool {
	v.x.mu.Lock()
	defer v.x.mu.Unlock()
	if !v.x.enabled.Load() {
		return false
	}
	if m := v.message.Load(); m != nil {
		v.x.msi.Send(*m)
	} else {
		v.x.pending[v.index/64] |= 1 << (v.index % 64)
	}
	return true
}
