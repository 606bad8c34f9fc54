// SPDX-License-Identifier: Apache-2.0

package aml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// The decoder is written from the grammar of the ACPI specification, chapter 20,
// and knows nothing of the encoder.

var errShort = errors.New("AML ends too soon")

// decodePkgLength returns the length and how many bytes encode it.
func decodePkgLength(b []byte) (length, size int, err error) {
	if len(b) == 0 {
		return 0, 0, errShort
	}
	lead := b[0]
	follow := int(lead >> 6)
	if follow == 0 {
		return int(lead & 0x3f), 1, nil
	}
	if lead&0x30 != 0 {
		return 0, 0, errors.New("bits 5:4 of the lead byte are reserved")
	}
	if len(b) < 1+follow {
		return 0, 0, errShort
	}
	length = int(lead & 0xf)
	for i := range follow {
		length |= int(b[1+i]) << (4 + 8*i)
	}
	return length, 1 + follow, nil
}

// decodeInteger returns the value and the size of its encoding.
func decodeInteger(b []byte) (v uint64, size int, err error) {
	if len(b) == 0 {
		return 0, 0, errShort
	}
	switch b[0] {
	case 0x00:
		return 0, 1, nil
	case 0x01:
		return 1, 1, nil
	case 0xff:
		return ^uint64(0), 1, nil
	}
	n, ok := map[byte]int{0x0a: 1, 0x0b: 2, 0x0c: 4, 0x0e: 8}[b[0]]
	if !ok {
		return 0, 0, fmt.Errorf("op code %#x is no integer", b[0])
	}
	if len(b) < 1+n {
		return 0, 0, errShort
	}
	var wide [8]byte
	copy(wide[:], b[1:1+n])
	return binary.LittleEndian.Uint64(wide[:]), 1 + n, nil
}

// decodeName returns a NameString with its segments at full length.
func decodeName(b []byte) (name string, size int, err error) {
	i := 0
	for i < len(b) && (b[i] == '^' || b[i] == '\\') {
		i++
	}
	prefix := string(b[:i])
	if i == len(b) {
		return "", 0, errShort
	}
	n := 1
	switch b[i] {
	case 0x00:
		return prefix, i + 1, nil
	case 0x2e:
		n, i = 2, i+1
	case 0x2f:
		if i+1 >= len(b) {
			return "", 0, errShort
		}
		n, i = int(b[i+1]), i+2
	}
	var segs []string
	for range n {
		if i+4 > len(b) {
			return "", 0, errShort
		}
		segs = append(segs, string(b[i:i+4]))
		i += 4
	}
	return prefix + strings.Join(segs, "."), i, nil
}
