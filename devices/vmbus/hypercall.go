// SPDX-License-Identifier: Apache-2.0

package vmbus

// Call codes and the fast flag of a hypercall's input value (TLFS 3.3 and
// appendix A).
const (
	callPostMessage = 0x5c // HvCallPostMessage
	callSignalEvent = 0x5d // HvCallSignalEvent
	callCodeMask    = 0xffff
	callFast        = 1 << 16 // the parameters are in registers
)

// Results of a hypercall (TLFS 3.8).
const (
	statusSuccess             = 0
	statusInvalidCode         = 2
	statusInvalidInput        = 3
	statusInvalidAlignment    = 4
	statusInvalidParameter    = 5
	statusInvalidConnection   = 18
	statusInsufficientBuffers = 19
)

// Layout of HvCallPostMessage's input (TLFS 11.11.1).
const (
	postConnection  = 0  // u32, of which 24 bits count
	postMessageType = 8  // u32
	postPayloadSize = 12 // u32
	postPayload     = 16
	postSize        = postPayload + maxPayload

	connectionMask = 1<<24 - 1
)

// Hypercall does a hypercall that the hypervisor passes on and returns its
// result value. params are the guest's two parameters: addresses of input and
// output, or what a fast call carries itself.
func (b *Bus) Hypercall(input uint64, params [2]uint64) (result uint64) {
	b.counts.hypercalls.Add(1)
	fast := input&callFast != 0
	switch input & callCodeMask {
	case callPostMessage:
		if fast {
			return statusInvalidInput // 256 bytes don't fit
		}
		return b.postMessage(params[0])
	case callSignalEvent:
		if !fast {
			return statusInvalidInput // nobody uses it, and KVM has overwritten the address
		}
		return b.signalEvent(params[0])
	}
	b.counts.faults.Add(1)
	return statusInvalidCode
}

// signalEvent is for connections that the hypervisor has no eventfd for: none
// that the guest was told of.
func (b *Bus) signalEvent(param uint64) uint64 {
	connection := uint32(param) & connectionMask
	if p := b.portOf(connection); p != nil {
		kick(p.kickFD)
		return statusSuccess
	}
	b.counts.faults.Add(1)
	return statusInvalidConnection
}

// postMessage copies the message once and handles the copy.
func (b *Bus) postMessage(gpa uint64) uint64 {
	if gpa%8 != 0 {
		return statusInvalidAlignment
	}
	var in [postSize]byte
	if gpa%PageSize > PageSize-postSize || b.mem.ReadAt(gpa, in[:]) != nil {
		b.counts.faults.Add(1)
		return statusInvalidParameter
	}
	size := le.Uint32(in[postPayloadSize:])
	if size > maxPayload {
		b.counts.faults.Add(1)
		return statusInvalidParameter
	}
	connection := le.Uint32(in[postConnection:]) & connectionMask
	if connection != connectionMessages && connection != connectionMessages5 {
		b.counts.faults.Add(1)
		return statusInvalidConnection
	}
	if le.Uint32(in[postMessageType:]) != channelMessage {
		b.counts.faults.Add(1)
		return statusInvalidParameter
	}
	return b.handleMessage(in[postPayload : postPayload+size])
}
