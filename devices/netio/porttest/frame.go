// SPDX-License-Identifier: Apache-2.0

package porttest

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/govmm/govmm/devices/netio"
)

// Offsets in a test frame: the virtio header, an Ethernet header with the
// EtherType for experiments, and the frame's number.
const (
	etherAt   = netio.HeaderLen
	typeAt    = etherAt + 12
	numberAt  = typeAt + 2
	patternAt = numberAt + 8

	minFrame = patternAt // bytes of the smallest numbered frame, header included

	etherTypeTest = 0x88b5 // IEEE 802 local experimental EtherType 1
)

// pattern fills frames; frame n starts at n modulo patternShift.
var pattern = func() []byte {
	p := make([]byte, jumbo+patternShift)
	x := uint32(1)
	for i := range p {
		x = x*1664525 + 1013904223 // a linear congruential generator
		p[i] = byte(x >> 24)
	}
	return p
}()

const patternShift = 251

// numbered makes frame n of the given size, header included.
func numbered(n uint64, size int) []byte {
	f := make([]byte, max(size, minFrame))
	copy(f[etherAt:], "\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01")
	binary.BigEndian.PutUint16(f[typeAt:], etherTypeTest)
	binary.BigEndian.PutUint64(f[numberAt:], n)
	copy(f[patternAt:], pattern[n%patternShift:])
	return f
}

// check verifies that f is frame n, whatever the header says.
func check(f []byte, n uint64) error {
	if len(f) < minFrame {
		return fmt.Errorf("frame %d has %d bytes only", n, len(f))
	}
	want := numbered(n, len(f))
	if got := binary.BigEndian.Uint64(f[numberAt:]); got != n {
		return fmt.Errorf("frame %d came, %d was expected", got, n)
	}
	if !bytes.Equal(f[etherAt:], want[etherAt:]) {
		return fmt.Errorf("frame %d (%d bytes) was changed on its way", n, len(f))
	}
	return nil
}

// Fields of struct virtio_net_hdr_v1 and their values (virtio 1.2, 5.1.6).
const (
	hdrFlags   = 0
	hdrGSOType = 1
	hdrLen     = 2
	hdrGSOSize = 4
	hdrCsum    = 6
	hdrCsumOff = 8

	flagNeedsCsum = 1
	gsoTCPv4      = 1
)

// Lengths of the headers of a TCP segment without options.
const (
	etherLen = 14
	ipLen    = 20
	tcpLen   = 20
)

// tcp makes a TCP over IPv4 segment of size bytes, virtio header included, that
// is to be cut into pieces of mss bytes and wants a checksum.
func tcp(size, mss int) []byte {
	f := make([]byte, size)
	binary.LittleEndian.PutUint16(f[hdrLen:], etherLen+ipLen+tcpLen)
	f[hdrFlags], f[hdrGSOType] = flagNeedsCsum, gsoTCPv4
	binary.LittleEndian.PutUint16(f[hdrGSOSize:], uint16(mss))
	binary.LittleEndian.PutUint16(f[hdrCsum:], etherLen+ipLen)
	binary.LittleEndian.PutUint16(f[hdrCsumOff:], 16)

	copy(f[etherAt:], "\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x08\x00")
	ip := f[etherAt+etherLen:]
	ip[0] = 0x45 // version 4, header of 5 words
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	ip[8], ip[9] = 64, 6 // TTL, TCP
	copy(ip[12:], "\x0a\x00\x00\x02\x0a\x00\x00\x01")
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:ipLen]))

	t := ip[ipLen:]
	binary.BigEndian.PutUint16(t[0:], 5201)
	binary.BigEndian.PutUint16(t[2:], 5201)
	t[12], t[13] = tcpLen/4<<4, 0x10 // data offset, ACK
	// NEEDS_CSUM: the field holds the sum over the pseudo header.
	pseudo := append(bytes.Clone(ip[12:20]), 0, 6, byte(len(t)>>8), byte(len(t)))
	binary.BigEndian.PutUint16(t[16:], sum(pseudo))
	copy(t[tcpLen:], pattern)
	return f
}

// sum is the ones' complement sum of RFC 1071 over an even number of bytes.
func sum(p []byte) uint16 {
	var s uint32
	for i := 0; i < len(p); i += 2 {
		s += uint32(p[i])<<8 | uint32(p[i+1])
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// sameOffload compares what all headers must carry over: the kind of
// segmentation, the segment size, and whether a checksum is missing. The rest,
// such as hdr_len, is a hint that other NICs don't have.
func sameOffload(a, b []byte) bool {
	return a[hdrGSOType] == b[hdrGSOType] &&
		bytes.Equal(a[hdrGSOSize:hdrGSOSize+2], b[hdrGSOSize:hdrGSOSize+2]) &&
		a[hdrFlags]&flagNeedsCsum == b[hdrFlags]&flagNeedsCsum
}
