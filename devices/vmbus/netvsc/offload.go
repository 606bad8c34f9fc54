// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"encoding/binary"

	"github.com/govmm/govmm/devices/netio"
)

// Sizes and places of network headers, bytes.
const (
	ethernetLen = 14
	vlanLen     = 4
	etherTypeAt = 12
	ipv4Min     = 20
	ipv6Len     = 40
	tcpMin      = 20

	// maxHead is the most of a frame's headers that is copied to be changed:
	// Ethernet, a tag, IP with options, TCP with options, and some to spare.
	maxHead = 192

	// minMSS is that of the smallest MTU of IPv4. Smaller segments only make work.
	minMSS = 68 - ipv4Min - tcpMin
)

// EtherTypes and protocols.
const (
	etherIPv4 = 0x0800
	etherVLAN = 0x8100
	etherIPv6 = 0x86dd
	protoTCP  = 6
	protoUDP  = 17
)

// Offsets of checksums in transport headers.
const (
	tcpChecksumAt = 16
	udpChecksumAt = 6
)

// Values of struct virtio_net_hdr (virtio 1.2, 5.1.6).
const (
	vnetNeedsCsum = 1 // flags
	vnetDataValid = 2 // flags
	vnetTCPv4     = 1 // gso_type
	vnetTCPv6     = 4 // gso_type
)

func putVnet(h *netio.Header, gso byte, hdrLen, mss, start, offset int) {
	h[0], h[1] = vnetNeedsCsum, gso
	binary.LittleEndian.PutUint16(h[2:], uint16(hdrLen))
	binary.LittleEndian.PutUint16(h[4:], uint16(mss))
	binary.LittleEndian.PutUint16(h[6:], uint16(start))
	binary.LittleEndian.PutUint16(h[8:], uint16(offset))
}

// checksumHeader makes the virtio header of a frame of n bytes whose transport
// checksum is to be completed. ok is false if there is no such checksum inside.
func checksumHeader(h *netio.Header, checksum uint32, n int) (ok bool) {
	at := 0
	switch {
	case checksum&checksumTCP != 0:
		at = tcpChecksumAt
	case checksum&checksumUDP != 0:
		at = udpChecksumAt
	default:
		return true
	}
	start := transportOffset(checksum)
	if start < ethernetLen || start+at+2 > n {
		return false
	}
	putVnet(h, 0, 0, 0, start, at)
	return true
}

// networkHeader finds the network header of a frame: its offset and EtherType.
func networkHeader(head []byte) (at int, etherType uint16) {
	at, etherType = ethernetLen, binary.BigEndian.Uint16(head[etherTypeAt:])
	if etherType == etherVLAN && len(head) >= ethernetLen+vlanLen {
		at, etherType = at+vlanLen, binary.BigEndian.Uint16(head[etherTypeAt+vlanLen:])
	}
	return at, etherType
}

// largeSend makes the virtio header of a frame of n bytes that is to be cut into
// segments, and puts into its head, the copy of its first bytes, what the driver
// has left out: it zeroes the IP length and IPv4 checksum, and the pseudo
// header's sum in the TCP checksum lacks the length. ok is false if the headers
// are not what the information says.
func largeSend(h *netio.Header, head []byte, n int, lso uint32) (ok bool) {
	l3, etherType := networkHeader(head)
	l4, mss := lsoTransport(lso), lsoMSS(lso)
	if lso&lsoV2 == 0 || mss < minMSS || mss > 0xffff || l4+tcpMin > min(n, len(head)) || n-l3 > 0xffff {
		return false
	}
	gso := byte(vnetTCPv4)
	if lso&lsoIPv6 != 0 {
		gso = vnetTCPv6
		if etherType != etherIPv6 || l4 < l3+ipv6Len {
			return false
		}
		binary.BigEndian.PutUint16(head[l3+4:], uint16(n-l3-ipv6Len))
	} else if etherType != etherIPv4 || !fixIPv4(head[:l4], l3, n) {
		return false
	}
	hdrLen := l4 + int(head[l4+12]>>4)*4
	if hdrLen < l4+tcpMin || hdrLen > n {
		return false
	}
	tcp := head[l4+tcpChecksumAt:]
	binary.BigEndian.PutUint16(tcp, fold(uint64(binary.BigEndian.Uint16(tcp))+uint64(n-l4)))
	putVnet(h, gso, hdrLen, mss, l4, tcpChecksumAt)
	return true
}

// fixIPv4 sets length and checksum of the IPv4 header at l3 that the transport
// header follows at the end of head, in a frame of n bytes.
func fixIPv4(head []byte, l3, n int) (ok bool) {
	if len(head) < l3+ipv4Min || int(head[l3]&15)*4 != len(head)-l3 {
		return false
	}
	ip := head[l3:]
	binary.BigEndian.PutUint16(ip[2:], uint16(n-l3))
	sumIPv4(ip)
	return true
}

// sumIPv4 sets the checksum of a whole IPv4 header.
func sumIPv4(ip []byte) {
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip)))
}

// completeIPv4 computes the checksum of an IPv4 header in head, if that is one.
func completeIPv4(head []byte) {
	l3, etherType := networkHeader(head)
	if etherType != etherIPv4 || len(head) < l3+ipv4Min {
		return
	}
	if n := int(head[l3]&15) * 4; n >= ipv4Min && l3+n <= len(head) {
		sumIPv4(head[l3 : l3+n])
	}
}

// tag is the TCI of an 802.1Q tag, from its information: priority in bits 0 to 2,
// CFI in bit 3, the VLAN's number from bit 4 on.
func tag(info uint32) uint16 { return uint16(info&7<<13 | info>>3&1<<12 | info>>4&0xfff) }

// sum adds p, 16-bit words in network order, to s: the sum of RFC 1071.
func sum(s uint64, p []byte) uint64 {
	for len(p) >= 8 {
		v := binary.BigEndian.Uint64(p)
		s += v>>32 + v&0xffffffff
		p = p[8:]
	}
	for len(p) >= 2 {
		s += uint64(binary.BigEndian.Uint16(p))
		p = p[2:]
	}
	if len(p) == 1 {
		s += uint64(p[0]) << 8
	}
	return s
}

// fold makes 16 bits of a sum.
func fold(s uint64) uint16 {
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// transportOf returns the transport protocol of a frame, of which p has the first
// bytes; 0 if it can't be told.
func transportOf(p []byte) byte {
	if len(p) < ethernetLen {
		return 0
	}
	l3, etherType := networkHeader(p)
	switch {
	case etherType == etherIPv4 && len(p) >= l3+ipv4Min:
		return p[l3+9]
	case etherType == etherIPv6 && len(p) >= l3+ipv6Len:
		return p[l3+6]
	}
	return 0
}
