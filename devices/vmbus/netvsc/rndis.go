// SPDX-License-Identifier: Apache-2.0

package netvsc

// Types of RNDIS messages ([MS-RNDIS] 2.2). An answer has bit 31.
const (
	rndisPacketMsg  = 1
	rndisInitialize = 2
	rndisHalt       = 3
	rndisQuery      = 4
	rndisSet        = 5
	rndisReset      = 6
	rndisIndicate   = 7
	rndisKeepAlive  = 8
	rndisComplete   = 1 << 31
)

// Status of an RNDIS message ([MS-RNDIS] 2.2.1).
const (
	statusSuccess       = 0
	statusFailure       = 0xc0000001
	statusNotSupported  = 0xc00000bb
	statusInvalidLength = 0xc0010014
	statusInvalidData   = 0xc0010015
	statusMediaConnect  = 0x4001000b
	statusMediaLost     = 0x4001000c
)

// Sizes of parts of RNDIS messages, bytes.
const (
	rndisHeader = 8  // u32 type, u32 length of the whole message
	packetBody  = 36 // of REMOTE_NDIS_PACKET_MSG
	packetSize  = rndisHeader + packetBody
	ppiHeader   = 12 // u32 size, u32 type, u32 offset of the data
	ppiSize     = 16 // of those that are sent

	// maxPPI is the most bytes of per-packet information of a message, and
	// maxPPIs the most entries: Linux sends up to four of 16 bytes.
	maxPPI  = 256
	maxPPIs = 16
)

// Types of per-packet information. Bit 31 makes it one between host and guest
// alone, whose types are numbered apart.
const (
	ppiChecksum = 0
	ppiLSO      = 2
	ppiVLAN     = 6
	ppiInternal = 1 << 31
	ppiPacketID = ppiInternal | 1
)

// Bits of a checksum's information to send.
const (
	checksumIPv4     = 1 << 0
	checksumIPv6     = 1 << 1
	checksumTCP      = 1 << 2
	checksumUDP      = 1 << 3
	checksumIPHeader = 1 << 4
)

// Bits of a checksum's information of a received frame.
const (
	checksumTCPGood = 1 << 3
	checksumUDPGood = 1 << 4
)

// transportOffset is where the transport header begins in the frame, as the
// checksum's information says.
func transportOffset(checksum uint32) int { return int(checksum >> 16 & 0x3ff) }

// Fields of a large send's information, version 2.
const (
	lsoV2   = 1 << 30
	lsoIPv6 = 1 << 31
)

func lsoMSS(lso uint32) int       { return int(lso & 0xfffff) }
func lsoTransport(lso uint32) int { return int(lso >> 20 & 0x3ff) }

// Flags of a packet id's information: a frame in several pieces.
const (
	pieceSuballocated = 1
	pieceFirst        = 2
	pieceLast         = 4
)

// packetMessage is a REMOTE_NDIS_PACKET_MSG, parsed. Offsets count from the
// message's start.
type packetMessage struct {
	length     int // of the message, padding included
	dataOffset int
	dataLen    int
	ppiOffset  int
	ppiLen     int
}

// parsePacket parses the first packetSize bytes of a message of which there are
// room bytes. ok is false if its parts are not inside.
func parsePacket(h *[packetSize]byte, room int) (m packetMessage, ok bool) {
	length := uint64(le.Uint32(h[4:]))
	data, dataLen := rndisHeader+uint64(le.Uint32(h[8:])), uint64(le.Uint32(h[12:]))
	ppi, ppiLen := rndisHeader+uint64(le.Uint32(h[28:])), uint64(le.Uint32(h[32:]))
	if length < packetSize || length > uint64(room) || data < packetSize || data+dataLen > length {
		return m, false
	}
	if ppiLen == 0 {
		ppi = packetSize
	}
	if ppi < packetSize || ppi+ppiLen > length || ppiLen > maxPPI {
		return m, false
	}
	return packetMessage{int(length), int(data), int(dataLen), int(ppi), int(ppiLen)}, true
}

// packetInfo is the per-packet information of a frame to send.
type packetInfo struct {
	checksum uint32
	lso      uint32
	vlan     uint32
	has      uint8
}

// Which information a packetInfo has.
const (
	hasChecksum = 1 << iota
	hasLSO
	hasVLAN
)

// parsePPI parses all per-packet information. ok is false if sizes and offsets
// are not inside, or there is more than any driver sends.
func parsePPI(p []byte) (info packetInfo, ok bool) {
	for range maxPPIs {
		if len(p) == 0 {
			return info, true
		}
		if len(p) < ppiHeader {
			return info, false
		}
		size, off := le.Uint32(p), le.Uint32(p[8:])
		if size < ppiHeader || uint64(size) > uint64(len(p)) || off < ppiHeader || off > size {
			return info, false
		}
		if !info.take(le.Uint32(p[4:]), p[off:size]) {
			return info, false
		}
		p = p[size:]
	}
	return info, len(p) == 0
}

// take notes one piece of information. Those that are of no use to us are not
// looked at.
func (i *packetInfo) take(typ uint32, data []byte) (ok bool) {
	var to *uint32
	var has uint8
	switch typ {
	case ppiChecksum:
		to, has = &i.checksum, hasChecksum
	case ppiLSO:
		to, has = &i.lso, hasLSO
	case ppiVLAN:
		to, has = &i.vlan, hasVLAN
	default:
		return true
	}
	if len(data) < 4 {
		return false
	}
	*to = le.Uint32(data)
	i.has |= has
	return true
}

// putPacket writes the header of a packet message with ppis entries of
// information behind it, whose n bytes of data begin at headroom.
func putPacket(h []byte, n, ppis int) {
	clear(h[:packetSize])
	le.PutUint32(h[0:], rndisPacketMsg)
	le.PutUint32(h[4:], uint32(headroom+n))
	le.PutUint32(h[8:], headroom-rndisHeader)
	le.PutUint32(h[12:], uint32(n))
	if ppis > 0 {
		le.PutUint32(h[28:], packetSize-rndisHeader)
		le.PutUint32(h[32:], uint32(ppis*ppiSize))
	}
}

// putPPI writes information number i behind a packet's header.
func putPPI(h []byte, i int, typ, data uint32) {
	p := h[packetSize+i*ppiSize:]
	le.PutUint32(p[0:], ppiSize)
	le.PutUint32(p[4:], typ)
	le.PutUint32(p[8:], ppiHeader)
	le.PutUint32(p[12:], data)
}

// packetID is the data of ppiPacketID: u8 version, u8 flags, u16 id.
func packetID(flags uint32) uint32 { return 1 | (pieceSuballocated|flags)<<8 }
