// SPDX-License-Identifier: Apache-2.0

package vmbus

import "encoding/binary"

// Version is a version of the VMBus protocol, major number in the upper 16 bits.
type Version uint32

// The versions that the Linux driver asks for.
const (
	version2_4 Version = 2<<16 | 4
	version3_0 Version = 3 << 16
	version4_0 Version = 4 << 16
	version4_1 Version = 4<<16 | 1 // MODIFY_CHANNEL
	version5_0 Version = 5 << 16   // messages go to a connection of their own
	version5_1 Version = 5<<16 | 1
	version5_2 Version = 5<<16 | 2
	version5_3 Version = 5<<16 | 3 // MODIFY_CHANNEL is answered
)

// versions are those that the bus speaks.
var versions = []Version{version2_4, version3_0, version4_0, version4_1, version5_0, version5_1, version5_2, version5_3}

// Types of messages (enum vmbus_channel_message_type of the Linux driver).
const (
	typeOffer              = 1
	typeRescind            = 2
	typeRequestOffers      = 3
	typeAllOffersDelivered = 4
	typeOpen               = 5
	typeOpenResult         = 6
	typeClose              = 7
	typeGPADLHeader        = 8
	typeGPADLBody          = 9
	typeGPADLCreated       = 10
	typeGPADLTeardown      = 11
	typeGPADLTorndown      = 12
	typeRelidReleased      = 13
	typeInitiateContact    = 14
	typeVersionResponse    = 15
	typeUnload             = 16
	typeUnloadResponse     = 17
	typeModifyChannel      = 22
	typeModifyResponse     = 24
)

// Sizes of the guest's messages, bytes, variable parts excluded. Each message
// begins with its type, u32, and four reserved bytes.
const (
	messageHeader       = 8
	initiateContactSize = 40
	openSize            = 148
	relidSize           = 12 // CLOSE and RELID_RELEASED
	gpadlHeaderSize     = 28
	gpadlBodySize       = 16
	gpadlTeardownSize   = 16
	modifySize          = 16
)

// Layout of OFFER.
const (
	offerSize         = 196
	offerInterface    = 8   // GUID
	offerInstance     = 24  // GUID
	offerSubIndex     = 180 // u16
	offerRelid        = 184 // u32
	offerDedicated    = 190 // u16, bit 0: the channel has an event flag and a connection of its own
	offerConnectionID = 192 // u32
)

// Connections that the guest posts messages to.
const (
	connectionMessages  = 1 // before 5.0
	connectionMessages5 = 4 // from 5.0 on
)

// statusFailed is what the guest gets for a request that was refused: any value
// that is not zero does. This is NT's STATUS_UNSUCCESSFUL.
const statusFailed = 0xc0000001

// le reads the fields of messages.
var le = binary.LittleEndian

// newMessage makes a message of the given size.
func newMessage(typ uint32, size int) []byte {
	m := make([]byte, size)
	le.PutUint32(m, typ)
	return m
}

// words makes a message that consists of u32 fields.
func words(typ uint32, fields ...uint32) []byte {
	m := newMessage(typ, messageHeader+4*len(fields))
	for i, f := range fields {
		le.PutUint32(m[messageHeader+4*i:], f)
	}
	return m
}

func statusOf(ok bool) uint32 {
	if ok {
		return 0
	}
	return statusFailed
}

// versionResponse answers INITIATE_CONTACT: u8 supported, u8 state (0 is
// success), u16 padding, u32 the connection to post messages to.
func versionResponse(supported bool, connection uint32) []byte {
	m := words(typeVersionResponse, 0, connection)
	if supported {
		m[messageHeader] = 1
	}
	return m
}

// offerMessage tells the guest of a channel. There is no monitor, so the guest
// signals by hypercall, and no MMIO.
func offerMessage(o Offer, subIndex int, relid, connection uint32) []byte {
	m := newMessage(typeOffer, offerSize)
	copy(m[offerInterface:], o.Class[:])
	copy(m[offerInstance:], o.Instance[:])
	le.PutUint16(m[offerSubIndex:], uint16(subIndex))
	le.PutUint32(m[offerRelid:], relid)
	le.PutUint16(m[offerDedicated:], 1)
	le.PutUint32(m[offerConnectionID:], connection)
	return m
}
