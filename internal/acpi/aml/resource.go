// SPDX-License-Identifier: Apache-2.0

package aml

import "encoding/binary"

// Resource descriptor tags: small ones with their length in bits 2:0 (section
// 6.4.2), large ones (section 6.4.3).
const (
	tagIRQ           = 0x23 // three bytes follow
	tagIO            = 0x47
	tagEnd           = 0x79
	tagMemory32Fixed = 0x86
	tagDWordSpace    = 0x87
	tagWordSpace     = 0x88
	tagExtendedIRQ   = 0x89
	tagQWordSpace    = 0x8a
)

// Resource types of address space descriptors.
const (
	spaceMemory = 0
	spaceIO     = 1
	spaceBus    = 2
)

// General flags of address space descriptors (table 6-232): the device passes
// the range on to what is below it, both ends are fixed, decoded positively.
const spaceFixed = 1<<2 | 1<<3

const (
	memReadWrite = 1 << 0 // type-specific flags of memory
	memCacheable = 1 << 1
	ioEntire     = 3 // of I/O: both ISA and non-ISA addresses
)

// Resource is a resource descriptor.
type Resource func(*encoder)

// ResourceTemplate is a buffer of resource descriptors, what _CRS gives.
func ResourceTemplate(rs ...Resource) Term {
	return func(e *encoder) {
		var in encoder
		for _, r := range rs {
			r(&in)
		}
		in.add(tagEnd, 0) // checksum 0: not used (section 6.4.2.9)
		if in.err != nil && e.err == nil {
			e.err = in.err
		}
		Buffer(in.b)(e)
	}
}

// IO is a fixed range of length I/O ports with 16-bit decoding.
func IO(port uint16, length uint8) Resource {
	return func(e *encoder) {
		if length == 0 {
			e.fail("I/O range %#x is empty", port)
		}
		e.add(tagIO, 1)
		e.b = binary.LittleEndian.AppendUint16(e.b, port)
		e.b = binary.LittleEndian.AppendUint16(e.b, port)
		e.add(1, length)
	}
}

// IRQ is an edge-triggered, active-high, exclusive ISA interrupt, 0 to 15.
func IRQ(line int) Resource {
	return func(e *encoder) {
		if line < 0 || line > 15 {
			e.fail("ISA interrupt %d; 0 to 15 are possible", line)
			return
		}
		e.add(tagIRQ)
		e.b = binary.LittleEndian.AppendUint16(e.b, 1<<line)
		e.add(1 << 0) // edge; bit 3 clear: active high; bit 4 clear: exclusive
	}
}

// Interrupt flags (table 6-238).
const (
	intConsumer = 1 << 0
	intEdge     = 1 << 1
	intLow      = 1 << 2
	intShared   = 1 << 3
)

// Interrupt is a global system interrupt in an extended interrupt descriptor.
type Interrupt struct {
	GSI                     uint32
	Edge, ActiveLow, Shared bool
}

// Resource is the descriptor.
func (i Interrupt) Resource(e *encoder) {
	flags := byte(intConsumer)
	for _, f := range [...]struct {
		on  bool
		bit byte
	}{{i.Edge, intEdge}, {i.ActiveLow, intLow}, {i.Shared, intShared}} {
		if f.on {
			flags |= f.bit
		}
	}
	e.large(tagExtendedIRQ, 6)
	e.add(flags, 1)
	e.b = binary.LittleEndian.AppendUint32(e.b, i.GSI)
}

// large adds the head of a large descriptor with n bytes of content.
func (e *encoder) large(tag byte, n uint16) {
	e.add(tag)
	e.b = binary.LittleEndian.AppendUint16(e.b, n)
}

// Memory32Fixed is a writable range of memory below 4 GiB, in bytes.
func Memory32Fixed(base, length uint32) Resource {
	return func(e *encoder) {
		e.large(tagMemory32Fixed, 9)
		e.add(1) // read/write
		e.b = binary.LittleEndian.AppendUint32(e.b, base)
		e.b = binary.LittleEndian.AppendUint32(e.b, length)
	}
}

// WordBusNumber is a window of PCI bus numbers, both ends included.
func WordBusNumber(first, last uint8) Resource {
	return func(e *encoder) { e.word(spaceBus, 0, uint16(first), uint16(last)) }
}

// WordIO is a window of I/O ports that a bridge passes on, both ends included.
func WordIO(first, last uint16) Resource {
	return func(e *encoder) { e.word(spaceIO, ioEntire, first, last) }
}

func (e *encoder) word(kind, flags byte, first, last uint16) {
	if last < first || last-first == 0xffff {
		e.fail("window %#x to %#x is empty or has no 16-bit length", first, last)
		return
	}
	e.large(tagWordSpace, 3+5*2)
	e.add(kind, spaceFixed, flags)
	for _, v := range [...]uint16{0, first, last, 0, last - first + 1} {
		e.b = binary.LittleEndian.AppendUint16(e.b, v)
	}
}

// DWordMemory is a window of uncached memory below 4 GiB that a bridge passes
// on, both ends included.
func DWordMemory(first, last uint32) Resource {
	return func(e *encoder) {
		if last < first || last-first == 0xffffffff {
			e.fail("window %#x to %#x is empty or has no 32-bit length", first, last)
			return
		}
		e.large(tagDWordSpace, 3+5*4)
		e.add(spaceMemory, spaceFixed, memReadWrite)
		for _, v := range [...]uint32{0, first, last, 0, last - first + 1} {
			e.b = binary.LittleEndian.AppendUint32(e.b, v)
		}
	}
}

// QWordMemory is a window of cacheable memory anywhere that a bridge passes on,
// both ends included.
func QWordMemory(first, last uint64) Resource {
	return func(e *encoder) {
		if last < first || last-first == ^uint64(0) {
			e.fail("window %#x to %#x is empty or has no 64-bit length", first, last)
			return
		}
		e.large(tagQWordSpace, 3+5*8)
		e.add(spaceMemory, spaceFixed, memReadWrite|memCacheable)
		for _, v := range [...]uint64{0, first, last, 0, last - first + 1} {
			e.b = binary.LittleEndian.AppendUint64(e.b, v)
		}
	}
}
