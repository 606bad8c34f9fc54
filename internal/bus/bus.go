// SPDX-License-Identifier: Apache-2.0

// Package bus finds the device for an address, for port I/O and for MMIO alike.
package bus

import (
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// Handler is one window of a device. Offsets count from the start of the
// window; p has the length of the guest's access: 1, 2, 4 or 8 bytes, or any
// length for accesses that a transport cuts differently. p is in the guest's
// byte order as it crosses the bus, that is little-endian. Accesses come from
// several vCPU threads at once.
type Handler interface {
	BusRead(off uint64, p []byte)
	BusWrite(off uint64, p []byte)
}

// Doorbell is a place in a device's window where a write means only "look at
// your queue": the machine lets the kernel turn it into an eventfd signal
// (KVM_IOEVENTFD), so that no vCPU leaves the kernel for it.
type Doorbell struct {
	Offset uint64 // from the start of the window, bytes
	FD     int    // the eventfd to signal; the device owns it
}

// Ringer is a Handler that has doorbells. The list does not change while the
// window is mapped. A doorbell must work by BusWrite too: the kernel may be
// unable to take it.
type Ringer interface {
	Doorbells() []Doorbell
}

// DoorbellHook is told where doorbells come and go in the address space.
type DoorbellHook interface {
	AddDoorbell(addr uint64, fd int)
	RemoveDoorbell(addr uint64, fd int)
}

type window struct {
	base, last uint64
	h          Handler
}

// Bus is an address space of non-overlapping windows. Look-ups take no lock.
type Bus struct {
	mu      sync.Mutex // orders writers
	hook    DoorbellHook
	windows atomic.Pointer[[]window] // sorted by base
}

// New makes an empty bus. hook may be nil.
func New(hook DoorbellHook) *Bus {
	b := &Bus{hook: hook}
	b.windows.Store(new([]window))
	return b
}

// OverlapError says that a window can't be mapped because of another one.
type OverlapError struct{ Base, Size, Other, OtherSize uint64 }

func (e *OverlapError) Error() string {
	return fmt.Sprintf("window %#x+%#x overlaps the window at %#x+%#x", e.Base, e.Size, e.Other, e.OtherSize)
}

// Map puts h at [base, base+size).
func (b *Bus) Map(base, size uint64, h Handler) error {
	if size == 0 || base+size-1 < base {
		return fmt.Errorf("window %#x+%#x is empty or wraps", base, size)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ws := *b.windows.Load()
	w := window{base, base + size - 1, h}
	i := sort.Search(len(ws), func(i int) bool { return ws[i].last >= base })
	if i < len(ws) && ws[i].base <= w.last {
		return &OverlapError{base, size, ws[i].base, ws[i].last - ws[i].base + 1}
	}
	next := slices.Insert(slices.Clone(ws), i, w)
	b.windows.Store(&next)
	b.doorbells(w, b.add)
	return nil
}

// Unmap removes the window that starts at base; there is nothing to do if
// none does.
func (b *Bus) Unmap(base uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ws := *b.windows.Load()
	i := slices.IndexFunc(ws, func(w window) bool { return w.base == base })
	if i < 0 {
		return
	}
	b.doorbells(ws[i], b.remove)
	next := slices.Delete(slices.Clone(ws), i, i+1)
	b.windows.Store(&next)
}

func (b *Bus) add(addr uint64, fd int)    { b.hook.AddDoorbell(addr, fd) }
func (b *Bus) remove(addr uint64, fd int) { b.hook.RemoveDoorbell(addr, fd) }

func (b *Bus) doorbells(w window, f func(uint64, int)) {
	r, ok := w.h.(Ringer)
	if !ok || b.hook == nil {
		return
	}
	for _, d := range r.Doorbells() {
		f(w.base+d.Offset, d.FD)
	}
}

// find returns the window that holds all n bytes at addr.
func (b *Bus) find(addr uint64, n int) *window {
	ws := *b.windows.Load()
	i := sort.Search(len(ws), func(i int) bool { return ws[i].last >= addr })
	if i == len(ws) || ws[i].base > addr || ws[i].last-addr < uint64(n)-1 {
		return nil
	}
	return &ws[i]
}

// Read reads len(p) > 0 bytes. Where nothing is mapped all bits are ones, as
// on a bus that floats high; found tells which it was.
func (b *Bus) Read(addr uint64, p []byte) (found bool) {
	if w := b.find(addr, len(p)); w != nil {
		w.h.BusRead(addr-w.base, p)
		return true
	}
	for i := range p {
		p[i] = 0xff
	}
	return false
}

// Write writes len(p) > 0 bytes; a write to nothing is lost.
func (b *Bus) Write(addr uint64, p []byte) (found bool) {
	if w := b.find(addr, len(p)); w != nil {
		w.h.BusWrite(addr-w.base, p)
		return true
	}
	return false
}
