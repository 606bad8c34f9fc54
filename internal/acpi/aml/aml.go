// SPDX-License-Identifier: Apache-2.0

// Package aml encodes ACPI machine language: the few terms that a virtual
// machine's DSDT needs. Encodings are those of the ACPI specification 6.3,
// chapter 20. A term is a value; Encode turns terms into bytes.
package aml

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Op codes (table 20-445).
const (
	opZero        = 0x00
	opOne         = 0x01
	opName        = 0x08
	opBytePrefix  = 0x0a
	opWordPrefix  = 0x0b
	opDWordPrefix = 0x0c
	opString      = 0x0d
	opQWordPrefix = 0x0e
	opScope       = 0x10
	opBuffer      = 0x11
	opPackage     = 0x12
	opMethod      = 0x14
	opDualName    = 0x2e
	opMultiName   = 0x2f
	opExtended    = 0x5b
	opDevice      = 0x82 // after opExtended
	opArg0        = 0x68
	opReturn      = 0xa4
	opOnes        = 0xff
)

// Term is a piece of AML.
type Term func(*encoder)

// encoder collects bytes and the first error.
type encoder struct {
	b   []byte
	err error
}

func (e *encoder) fail(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf("aml: "+format, args...)
	}
}

func (e *encoder) add(b ...byte) { e.b = append(e.b, b...) }

func (e *encoder) terms(ts []Term) {
	for _, t := range ts {
		t(e)
	}
}

// Encode returns the terms' bytes, or what is wrong with the first bad one.
func Encode(ts ...Term) ([]byte, error) {
	var e encoder
	e.terms(ts)
	return e.b, e.err
}

// pkg puts a PkgLength in front of what body encodes.
func (e *encoder) pkg(body func(*encoder)) {
	var in encoder
	body(&in)
	if in.err != nil && e.err == nil {
		e.err = in.err
	}
	length, err := pkgLength(len(in.b))
	if err != nil {
		e.fail("%w", err)
		return
	}
	e.add(length...)
	e.add(in.b...)
}

// pkgLength encodes the length of a package with n bytes of content (section
// 20.2.4). The length counts its own one to four bytes. The lead byte has the
// number of bytes that follow in bits 7:6; if there are any it has only the low
// four bits of the length, and they the rest.
func pkgLength(n int) ([]byte, error) {
	if n+1 < 1<<6 {
		return []byte{byte(n + 1)}, nil
	}
	for follow := 1; follow <= 3; follow++ {
		length := n + 1 + follow
		if length >= 1<<(4+8*follow) {
			continue
		}
		b := []byte{byte(follow<<6 | length&0xf)}
		for rest := length >> 4; len(b) <= follow; rest >>= 8 {
			b = append(b, byte(rest))
		}
		return b, nil
	}
	return nil, fmt.Errorf("a package of %d bytes is longer than 2^28-1", n)
}

// name encodes a NameString (section 20.2.2): an optional root \ or parents ^,
// then segments of up to four characters, separated by dots.
func (e *encoder) name(s string) {
	rest := strings.TrimPrefix(s, `\`)
	if rest == s {
		rest = strings.TrimLeft(s, "^")
	}
	e.b = append(e.b, s[:len(s)-len(rest)]...)
	if rest == "" {
		e.add(0) // NullName
		return
	}
	segs := strings.Split(rest, ".")
	switch n := len(segs); {
	case n == 2:
		e.add(opDualName)
	case n > 255:
		e.fail("name %q has more than 255 segments", s)
	case n > 2:
		e.add(opMultiName, byte(n))
	}
	for _, seg := range segs {
		e.seg(s, seg)
	}
}

// seg encodes a NameSeg, filled up with underscores to four characters.
func (e *encoder) seg(name, seg string) {
	if len(seg) < 1 || len(seg) > 4 {
		e.fail("name %q: a segment has one to four characters", name)
		return
	}
	for i, c := range []byte(seg) {
		letter := c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			e.fail("name %q: %q is not allowed there; letters are A to Z and _, digits not at the start", name, c)
		}
	}
	e.b = append(e.b, seg...)
	e.b = append(e.b, "___"[:4-len(seg)]...)
}

// Name is Name (name, value).
func Name(name string, value Term) Term {
	return func(e *encoder) {
		e.add(opName)
		e.name(name)
		value(e)
	}
}

// Path is a reference to a name.
func Path(name string) Term { return func(e *encoder) { e.name(name) } }

// Scope is Scope (name) {terms}.
func Scope(name string, ts ...Term) Term {
	return func(e *encoder) {
		e.add(opScope)
		e.pkg(func(in *encoder) {
			in.name(name)
			in.terms(ts)
		})
	}
}

// Device is Device (name) {terms}.
func Device(name string, ts ...Term) Term {
	return func(e *encoder) {
		e.add(opExtended, opDevice)
		e.pkg(func(in *encoder) {
			in.name(name)
			in.terms(ts)
		})
	}
}

// Method is Method (name, args) {terms}, not serialized. It takes 0 to 7
// arguments.
func Method(name string, args int, ts ...Term) Term {
	return func(e *encoder) {
		if args < 0 || args > 7 {
			e.fail("method %q: %d arguments; 0 to 7 are possible", name, args)
		}
		e.add(opMethod)
		e.pkg(func(in *encoder) {
			in.name(name)
			in.add(byte(args & 7))
			in.terms(ts)
		})
	}
}

// Return is Return (value).
func Return(value Term) Term {
	return func(e *encoder) {
		e.add(opReturn)
		value(e)
	}
}

// Arg is a method's argument, 0 to 6.
func Arg(i int) Term {
	return func(e *encoder) {
		if i < 0 || i > 6 {
			e.fail("argument %d; 0 to 6 are possible", i)
		}
		e.add(opArg0 + byte(i))
	}
}

// Int is an integer in its shortest encoding. ^uint64(0) is Ones, which is as
// wide as the table's integers: 64 bits from table revision 2 on.
func Int(v uint64) Term {
	return func(e *encoder) {
		switch {
		case v == 0:
			e.add(opZero)
		case v == 1:
			e.add(opOne)
		case v == ^uint64(0):
			e.add(opOnes)
		case v < 1<<8:
			e.add(opBytePrefix, byte(v))
		case v < 1<<16:
			e.add(opWordPrefix)
			e.b = binary.LittleEndian.AppendUint16(e.b, uint16(v))
		case v < 1<<32:
			e.add(opDWordPrefix)
			e.b = binary.LittleEndian.AppendUint32(e.b, uint32(v))
		default:
			e.add(opQWordPrefix)
			e.b = binary.LittleEndian.AppendUint64(e.b, v)
		}
	}
}

// String is an ASCII string without NUL.
func String(s string) Term {
	return func(e *encoder) {
		for _, c := range []byte(s) {
			if c == 0 || c > 0x7f {
				e.fail("string %q is not ASCII without NUL", s)
			}
		}
		e.add(opString)
		e.b = append(e.b, s...)
		e.add(0)
	}
}

// Buffer is Buffer () {bytes}.
func Buffer(b []byte) Term {
	return func(e *encoder) {
		e.add(opBuffer)
		e.pkg(func(in *encoder) {
			Int(uint64(len(b)))(in)
			in.add(b...)
		})
	}
}

// Package is Package () {elements}, up to 255 of them.
func Package(elements ...Term) Term {
	return func(e *encoder) {
		if len(elements) > 255 {
			e.fail("a package of %d elements; 255 are possible", len(elements))
		}
		e.add(opPackage)
		e.pkg(func(in *encoder) {
			in.add(byte(len(elements)))
			in.terms(elements)
		})
	}
}

// EISAID is the integer for an identifier of three capital letters and four
// hexadecimal digits (section 19.6.36): five bits a letter, four a digit, the
// first byte lowest.
func EISAID(id string) Term {
	return func(e *encoder) {
		v, ok := eisaID(id)
		if !ok {
			e.fail("EISA id %q is not three capital letters and four digits in 0-9A-F", id)
			return
		}
		Int(uint64(v))(e)
	}
}

func eisaID(id string) (v uint32, ok bool) {
	if len(id) != 7 {
		return 0, false
	}
	for i, c := range []byte(id) {
		switch {
		case i < 3 && c >= 'A' && c <= 'Z':
			v = v<<5 | uint32(c-'@')
		case i >= 3 && c >= '0' && c <= '9':
			v = v<<4 | uint32(c-'0')
		case i >= 3 && c >= 'A' && c <= 'F':
			v = v<<4 | uint32(c-'A'+10)
		default:
			return 0, false
		}
	}
	return v<<24 | v<<8&0xff0000 | v>>8&0xff00 | v>>24, true
}
