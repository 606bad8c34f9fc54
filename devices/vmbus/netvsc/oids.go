// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"bytes"
	"encoding/hex"
	"unicode/utf16"

	"github.com/govmm/govmm/devices/netio"
)

// Object identifiers that a driver asks for or sets ([MS-RNDIS], and NDIS's
// ntddndis.h).
const (
	oidMaximumFrameSize = 0x00010106
	oidLinkSpeed        = 0x00010107
	oidPacketFilter     = 0x0001010e
	oidMediaConnect     = 0x00010114
	oidReceiveScaleCaps = 0x00010203
	oidReceiveScale     = 0x00010204
	oidConfigParameter  = 0x0001021b
	oidFriendlyName     = 0x00020216
	oidPermanentAddress = 0x01010101
	oidCurrentAddress   = 0x01010102
	oidOffloadSettings  = 0xfc01020c
	oidOffloadHardware  = 0xfc01020d
)

// rndisState is what RNDIS has agreed on.
type rndisState struct {
	ready    bool
	filter   uint32 // of received frames; 0: the guest wants none
	coalesce bool   // the guest has turned receive segment coalescing on
	spread   bool   // the guest has set how frames are spread over channels
	linkTold bool   // what the guest knows: the link is up
}

// linkSpeed is what the guest is told, in units of 100 bit/s: the 10 Gbit/s that
// a tap says too.
const linkSpeed = 10_000_000_000 / 100

// rndisMessage builds a message of u32 fields.
func rndisMessage(typ uint32, fields ...uint32) []byte {
	m := make([]byte, rndisHeader+4*len(fields))
	le.PutUint32(m[0:], typ)
	le.PutUint32(m[4:], uint32(len(m)))
	for i, f := range fields {
		le.PutUint32(m[rndisHeader+4*i:], f)
	}
	return m
}

// rndisControl handles a message that is no frame and returns the answer, nil if
// there is none. ok is false if it is none that a guest may send.
func (s *session) rndisControl(m []byte) (reply []byte, ok bool) {
	typ, body := le.Uint32(m), m[rndisHeader:]
	if typ == rndisHalt {
		s.rndis = rndisState{}
		return nil, true
	}
	if len(body) < 4 {
		return nil, false
	}
	id := le.Uint32(body)
	switch typ {
	case rndisInitialize:
		return s.rndisInit(id), true
	case rndisKeepAlive:
		return rndisMessage(rndisKeepAlive|rndisComplete, id, statusSuccess), true
	case rndisQuery, rndisSet:
	default:
		return nil, false
	}
	if !s.rndis.ready || len(body) < 20 {
		return nil, false
	}
	oid := le.Uint32(body[4:])
	n, off := uint64(le.Uint32(body[8:])), uint64(le.Uint32(body[12:]))
	var info []byte
	if n > 0 {
		if off < 20 || off+n > uint64(len(body)) {
			return nil, false
		}
		info = body[off : off+n]
	}
	if typ == rndisSet {
		return rndisMessage(rndisSet|rndisComplete, id, s.set(oid, info)), true
	}
	value, status := s.query(oid, info)
	const valueOffset = 16 // from the body
	reply = append(rndisMessage(rndisQuery|rndisComplete, id, status, uint32(len(value)), valueOffset), value...)
	le.PutUint32(reply[4:], uint32(len(reply)))
	return reply, true
}

// rndisInit answers REMOTE_NDIS_INITIALIZE_MSG ([MS-RNDIS] 2.2.10).
func (s *session) rndisInit(id uint32) []byte {
	s.rndis = rndisState{ready: true, linkTold: true}
	const (
		major, minor   = 1, 0
		connectionless = 1
		medium         = 0 // 802.3
		maxTransfer    = 0xefffffff
		alignment      = 3 // as a power of two
	)
	return rndisMessage(rndisInitialize|rndisComplete, id, statusSuccess, major, minor, connectionless,
		medium, maxMessages, maxTransfer, alignment, 0, 0)
}

// query returns the value of an object.
func (s *session) query(oid uint32, in []byte) (value []byte, status uint32) {
	u32 := func(v uint32) ([]byte, uint32) { return le.AppendUint32(nil, v), statusSuccess }
	switch oid {
	case oidMaximumFrameSize:
		return u32(uint32(s.nvsp.mtu))
	case oidLinkSpeed:
		return u32(linkSpeed)
	case oidMediaConnect:
		s.rndis.linkTold = !s.d.linkDown.Load()
		if s.rndis.linkTold {
			return u32(0)
		}
		return u32(1)
	case oidPacketFilter:
		return u32(s.rndis.filter)
	case oidPermanentAddress, oidCurrentAddress:
		return s.d.cfg.MAC[:], statusSuccess
	case oidFriendlyName:
		var name []byte
		for _, c := range utf16.Encode([]rune(s.d.cfg.Name)) {
			name = le.AppendUint16(name, c)
		}
		return name[:min(len(name), maxName)], statusSuccess
	case oidReceiveScaleCaps:
		return s.receiveScaleCaps(), statusSuccess
	case oidOffloadHardware:
		return s.offloadHardware(in)
	}
	return nil, statusNotSupported
}

// maxName is the most bytes of a friendly name that Linux takes.
const maxName = 512

// Sizes, types and revisions of NDIS objects: u8 type, u8 revision, u16 size.
const (
	ndisHeader = 4

	typeOffload      = 0xa7
	offloadSize      = 156 // NDIS_OFFLOAD, revision 3
	offloadSize2     = 144
	offloadSize1     = 112
	typeScaleCaps    = 0x88
	scaleCapsSize    = 18
	typeScale        = 0x89
	scaleSize        = 40
	scaleKeySize     = 40
	typeOffloadSet   = 0x80
	offloadSetMin    = 22
	scaleFlagDisable = 1 << 4
	scaleMaxTable    = 256
)

// receiveScaleCaps is NDIS_RECEIVE_SCALE_CAPABILITIES.
func (s *session) receiveScaleCaps() []byte {
	const toeplitz, ipv4, ipv6 = 1, 0x100, 0x200
	v := []byte{typeScaleCaps, 2, scaleCapsSize, 0}
	v = le.AppendUint32(v, toeplitz|ipv4|ipv6)
	v = le.AppendUint32(v, uint32(s.d.cfg.Queues)) // interrupt messages
	v = le.AppendUint32(v, uint32(s.d.cfg.Queues)) // receive queues
	return le.AppendUint16(v, 128)                 // entries of the indirection table
}

// Bits and fields of NDIS_OFFLOAD.
const (
	encap8023    = 2
	csumIPv4     = 0x4 | 0x10 | 0x40       // TCP options, TCP, UDP
	csumIPv6     = 0x1 | 0x4 | 0x10 | 0x40 // extension headers, TCP options, TCP, UDP
	lsoMaxSize   = 0xf53c                  // what the host's own drivers know: 62780
	lsoMinCount  = 2
	lsoIPv6Opts  = 0x5 // extension headers, TCP options
	lsoIPv4At    = 80
	lsoIPv6At    = 92
	checksumAt   = 4
	coalesceAt   = 144
	offloadFlags = netio.OffloadTSO4 | netio.OffloadTSO6
)

// offloadHardware is NDIS_OFFLOAD, in the revision that the guest asks for.
func (s *session) offloadHardware(in []byte) (value []byte, status uint32) {
	if len(in) < ndisHeader || in[0] != typeOffload {
		return nil, statusInvalidData
	}
	size, revision := offloadSize, byte(3)
	switch asked := int(le.Uint16(in[2:])); {
	case asked < offloadSize1:
		return nil, statusInvalidLength
	case asked < offloadSize2:
		size, revision = offloadSize1, 1
	case asked < offloadSize:
		size, revision = offloadSize2, 2
	}
	v := make([]byte, offloadSize)
	v[0], v[1] = typeOffload, revision
	le.PutUint16(v[2:], uint16(size))
	if s.d.cfg.Offload {
		s.putOffload(v)
	}
	return v[:size], statusSuccess
}

func (s *session) putOffload(v []byte) {
	put := func(at int, fields ...uint32) {
		for i, f := range fields {
			le.PutUint32(v[at+4*i:], f)
		}
	}
	can := s.d.cfg.Backend.Offloads().Normalise()
	if can&netio.OffloadCsum != 0 {
		// Encapsulation and what can be offloaded: IPv4 sent and received, then IPv6.
		put(checksumAt, encap8023, csumIPv4, encap8023, csumIPv4, encap8023, csumIPv6, encap8023, csumIPv6)
	}
	if can&offloadFlags == offloadFlags {
		put(lsoIPv4At, encap8023, lsoMaxSize, lsoMinCount)
		put(lsoIPv6At, encap8023, lsoMaxSize, lsoMinCount, lsoIPv6Opts)
	}
	if s.mayCoalesce() {
		v[coalesceAt], v[coalesceAt+1] = 1, 1
	}
}

// set changes an object and returns the status.
func (s *session) set(oid uint32, v []byte) (status uint32) {
	switch oid {
	case oidPacketFilter:
		if len(v) < 4 {
			return statusInvalidLength
		}
		s.rndis.filter = le.Uint32(v)
		return statusSuccess
	case oidOffloadSettings:
		return s.setOffload(v)
	case oidReceiveScale:
		return s.setReceiveScale(v)
	case oidConfigParameter:
		return setConfig(v)
	}
	return statusNotSupported
}

// setOffload takes NDIS_OFFLOAD_PARAMETERS. Checksums and large sends are as each
// frame's own information says; what counts is whether segments come coalesced.
func (s *session) setOffload(v []byte) (status uint32) {
	const (
		coalesceIPv4At, coalesceIPv6At = 22, 23
		unchanged, on                  = 0, 2
	)
	switch {
	case len(v) < offloadSetMin:
		return statusInvalidLength
	case v[0] != typeOffloadSet:
		return statusInvalidData
	}
	if len(v) > coalesceIPv6At && v[coalesceIPv4At] != unchanged {
		s.rndis.coalesce = v[coalesceIPv4At] == on && v[coalesceIPv6At] == on
	}
	return statusSuccess
}

// setReceiveScale takes NDIS_RECEIVE_SCALE_PARAMETERS: from then on, frames are
// spread over all open channels. Which frame goes where is the backend's choice:
// a tap gives each flow to the queue on which the guest sends that flow.
func (s *session) setReceiveScale(v []byte) (status uint32) {
	if len(v) < scaleSize {
		return statusInvalidLength
	}
	if v[0] != typeScale {
		return statusInvalidData
	}
	table, tableAt := uint64(le.Uint16(v[12:])), uint64(le.Uint32(v[16:]))
	key, keyAt := uint64(le.Uint16(v[20:])), uint64(le.Uint32(v[24:]))
	if table > 4*scaleMaxTable || table%4 != 0 || tableAt+table > uint64(len(v)) || key > scaleKeySize || keyAt+key > uint64(len(v)) {
		return statusInvalidLength
	}
	for ; table > 0; table -= 4 {
		if channel := le.Uint32(v[tableAt+table-4:]); channel >= uint32(s.d.cfg.Queues) {
			return statusInvalidData
		}
	}
	s.rndis.spread = le.Uint16(v[4:])&scaleFlagDisable == 0
	return statusSuccess
}

// setConfig takes NDIS_CONFIG_PARAMETER, by which a guest changes its address:
// u32 offset and length of the name, u32 type, u32 offset and length of the value.
// Frames are not filtered by it: the host decides what may come and go.
func setConfig(v []byte) (status uint32) {
	const fixed, typeString, digits = 20, 2, 12
	if len(v) < fixed {
		return statusInvalidLength
	}
	name, ok := within(v, le.Uint32(v[0:]), le.Uint32(v[4:]))
	value, ok2 := within(v, le.Uint32(v[12:]), le.Uint32(v[16:]))
	if !ok || !ok2 {
		return statusInvalidLength
	}
	text, ok := ascii(value)
	if what, known := ascii(name); !known || !bytes.Equal(what, []byte("NetworkAddress")) || le.Uint32(v[8:]) != typeString {
		return statusNotSupported
	}
	var mac MAC
	if n, err := hex.Decode(mac[:], text[:min(len(text), digits)]); !ok || len(text) != digits || err != nil || n != len(mac) || !mac.valid() {
		return statusInvalidData
	}
	return statusSuccess
}

// within is v[off:off+n], if that is inside.
func within(v []byte, off, n uint32) (_ []byte, ok bool) {
	if uint64(off)+uint64(n) > uint64(len(v)) {
		return nil, false
	}
	return v[off : off+n], true
}

// ascii decodes UTF-16 that has ASCII characters only.
func ascii(v []byte) (text []byte, ok bool) {
	if len(v)%2 != 0 {
		return nil, false
	}
	for ; len(v) > 0; v = v[2:] {
		if v[1] != 0 || v[0] > 0x7f {
			return nil, false
		}
		text = append(text, v[0])
	}
	return text, true
}
