// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"encoding/binary"

	"github.com/govmm/govmm/devices/vmbus"
)

var le = binary.LittleEndian

// Types of NVSP messages (struct nvsp_message of the Linux driver).
const (
	nvspInit             = 1
	nvspInitComplete     = 2
	nvspSendNDISVersion  = 100
	nvspSendReceiveBuf   = 101
	nvspReceiveBufDone   = 102
	nvspRevokeReceiveBuf = 103
	nvspSendSendBuf      = 104
	nvspSendBufDone      = 105
	nvspRevokeSendBuf    = 106
	nvspSendRNDIS        = 107
	nvspSendRNDISDone    = 108
	nvspSendNDISConfig   = 125
	nvspSwitchDataPath   = 129
	nvspSubchannel       = 133
	nvspSendIndirection  = 134
)

// Status of an NVSP message.
const (
	nvspSuccess = 1
	nvspFail    = 2
)

// Versions of NVSP.
const (
	version1  = 0x00002
	version2  = 0x30002
	version4  = 0x40000
	version5  = 0x50000
	version6  = 0x60000
	version61 = 0x60001
)

// nvspSize is the size of all NVSP messages but those about RNDIS packets, whose
// last fields Linux leaves to the larger ones.
const nvspSize = 40

// noSection is the section index of a message that lies in pages of its own.
const noSection = ^uint32(0)

// receiveBufferID is the id that the guest gives its receive buffer, and that
// transfer pages name (NETVSC_RECEIVE_BUFFER_ID).
const receiveBufferID = 0xcafe

// configRSC is the capability of a guest that takes coalesced segments, in
// NDIS_CONFIG.
const configRSC = 1 << 7

// nvspMinimum is the least that a message of a type must have, bytes; 0 is a
// type that the guest doesn't send.
func nvspMinimum(typ uint32) int {
	switch typ {
	case nvspInit, nvspSendNDISVersion, nvspSubchannel:
		return 12
	case nvspSendReceiveBuf, nvspSendSendBuf:
		return 10
	case nvspRevokeReceiveBuf, nvspRevokeSendBuf:
		return 6
	case nvspSendRNDIS:
		return 16
	case nvspSendNDISConfig:
		return 20
	case nvspSwitchDataPath:
		return 8
	case nvspSendIndirection:
		return 12
	}
	return 0
}

// parseNVSP returns the type of a message. ok is false if the guest doesn't send
// that, or it is too short.
func parseNVSP(m []byte) (typ uint32, ok bool) {
	if len(m) < 4 {
		return 0, false
	}
	typ = le.Uint32(m)
	n := nvspMinimum(typ)
	return typ, n > 0 && len(m) >= n
}

// rndisPacket is NVSP_MSG1_TYPE_SEND_RNDIS_PKT.
type rndisPacket struct {
	section uint32 // noSection is none
	size    uint32 // bytes in the section
}

// parseRNDISPacket parses what parseNVSP has found to be one.
func parseRNDISPacket(m []byte) rndisPacket {
	return rndisPacket{section: le.Uint32(m[8:]), size: le.Uint32(m[12:])}
}

// nvspMessage builds a message of the given type and u32 fields.
func nvspMessage(typ uint32, fields ...uint32) []byte {
	m := make([]byte, nvspSize)
	le.PutUint32(m, typ)
	for i, f := range fields {
		le.PutUint32(m[4+4*i:], f)
	}
	return m
}

// knownVersion reports whether we speak a version of NVSP.
func knownVersion(v uint32) bool {
	switch v {
	case version1, version2, version4, version5, version6, version61:
		return true
	}
	return false
}

// sendDone is the completion of a SEND_RNDIS_PKT.
var sendDone = [8]byte{nvspSendRNDISDone, 4: nvspSuccess}

// receiveMessage is the SEND_RNDIS_PKT that goes with transfer pages: section
// index and size say that there is no section. Byte 4 is 0 for data, 1 for
// control.
func receiveMessage(control bool) (m [nvspSize]byte) {
	le.PutUint32(m[:], nvspSendRNDIS)
	if control {
		m[4] = 1
	}
	le.PutUint32(m[8:], noSection)
	return m
}

// transferHeader is the size of a PacketTransferPages's header before its
// ranges, and transferRange that of one range: u32 length, u32 offset.
const (
	transferHeader = 8
	transferRange  = 8
)

// classGUID is that of network cards: f8615163-df3e-46c5-913f-f2d2f965ed0e.
var classGUID = vmbus.GUID{
	0x63, 0x51, 0x61, 0xf8, 0x3e, 0xdf, 0xc5, 0x46, 0x91, 0x3f, 0xf2, 0xd2, 0xf9, 0x65, 0xed, 0x0e,
}

// instanceGUID is that of a NIC with the given address, so that it is the same
// after a reboot. It has the form of a random GUID (RFC 9562, version 8).
func instanceGUID(mac MAC) vmbus.GUID {
	g := vmbus.GUID{'g', 'o', 'v', 'm', 'm', 0, 'n', 0x80, 0x80, 0}
	copy(g[10:], mac[:])
	return g
}
