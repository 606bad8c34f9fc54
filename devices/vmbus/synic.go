// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"sync"
	"sync/atomic"

	"github.com/govmm/govmm/internal/guestmem"
)

// Host is what the bus needs of the hypervisor.
type Host interface {
	// Inject raises the synthetic interrupt SINT of a virtual processor. It
	// neither blocks nor allocates: it is on the data path.
	Inject(vp uint32)
	// Connect makes the guest's HvCallSignalEvent on a connection signal an
	// eventfd, without a way through Bus.Hypercall if the hypervisor can do that;
	// Disconnect undoes it.
	Connect(connection uint32, fd int) error
	Disconnect(connection uint32, fd int) error
	// AckFD is an eventfd that is signalled when virtual processor 0 has
	// acknowledged the interrupt or wants the next message. It may be -1.
	AckFD() int
}

// SINT is the synthetic interrupt source of the VMBus, as in Hyper-V and in
// Linux's VMBUS_MESSAGE_SINT.
const SINT = 2

// Layout of the message page (SIMP) and the event flags page (SIEFP): a slot for
// each of the 16 sources (TLFS 11.8 and 11.10).
const (
	slotSize      = 256
	messageType   = 0  // u32, 0: the slot is free
	messageSize   = 4  // u8 payload size, u8 flags, u16 reserved
	messageSender = 8  // u64
	messageData   = 16 // up to maxPayload bytes

	flagPending = 1 << 8 // flags bit 0, in the word at messageSize: write EOM, more is waiting

	sintSlot = SINT * slotSize
)

// maxPayload is the largest payload of a message, bytes (TLFS 11.8).
const maxPayload = 240

// channelMessage is the type of all messages of the VMBus (VMBUS_MESSAGE in the
// Linux driver, message type 1).
const channelMessage = 1

// Registers of the SynIC (TLFS 11.8): bit 0 enables, the page number is in bits
// 12 to 63 of the two that name a page.
const registerEnable = 1

// synic is the guest's synthetic interrupt controller as far as the host writes
// to it: the pages that each virtual processor has set up.
type synic struct {
	mem  *guestmem.Memory
	host Host
	vps  []synicVP

	faults atomic.Uint64 // pages that are not RAM
}

// synicVP is one virtual processor's. Its lock is held for a few stores and an
// eventfd's write; the guest can't make them longer.
type synicVP struct {
	mu       sync.Mutex
	messages guestmem.View // empty while disabled
	events   guestmem.View // likewise
}

func newSynIC(mem *guestmem.Memory, host Host, vps int) *synic {
	return &synic{mem: mem, host: host, vps: make([]synicVP, vps)}
}

// write takes over the registers of a virtual processor: SCONTROL, SIMP and
// SIEFP. When it returns, no page that was disabled is written any more.
func (s *synic) write(vp uint32, control, simp, siefp uint64) {
	if vp >= uint32(len(s.vps)) {
		return
	}
	v := &s.vps[vp]
	v.mu.Lock()
	defer v.mu.Unlock()
	v.messages, v.events = guestmem.View{}, guestmem.View{}
	if control&registerEnable == 0 {
		return
	}
	v.messages, v.events = s.page(simp), s.page(siefp)
	// Flags that were set while the source was masked made no interrupt, and the
	// next one of the same channel would make none either.
	if v.events.Len() > 0 {
		s.host.Inject(vp)
	}
}

// page is the page that a register names; empty if it is disabled or not RAM.
func (s *synic) page(register uint64) guestmem.View {
	if register&registerEnable == 0 {
		return guestmem.View{}
	}
	view, err := s.mem.View(register&^(PageSize-1), PageSize, PageSize)
	if err != nil {
		s.faults.Add(1)
	}
	return view
}

// reset forgets all pages.
func (s *synic) reset() {
	for vp := range s.vps {
		s.write(uint32(vp), 0, 0, 0)
	}
}

// postResult is what became of a message.
type postResult int

const (
	posted   postResult = iota
	busy                // the slot holds a message; the guest was asked for an EOM
	disabled            // the guest takes no messages at present
)

// post puts a message into the slot of a virtual processor, if it is free.
//
// The guest frees the slot by a store of 0 to its type, then looks at the pending
// flag, and writes EOM if that is set. So setting the flag and looking at the type
// again loses nothing: either we see the 0 or the guest sees the flag.
func (s *synic) post(vp uint32, payload []byte) postResult {
	v := &s.vps[vp]
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.messages
	if m.Len() == 0 {
		return disabled
	}
	if m.Load32(sintSlot+messageType) != 0 {
		m.Or32(sintSlot+messageSize, flagPending)
		if m.Load32(sintSlot+messageType) != 0 {
			return busy
		}
	}
	m.CopyOut(sintSlot+messageData, payload)
	m.Store64(sintSlot+messageSender, 0)
	m.Store32(sintSlot+messageSize, uint32(len(payload)))
	m.Store32(sintSlot+messageType, channelMessage)
	s.host.Inject(vp)
	return posted
}

// signalEvent sets the event flag of a channel and interrupts the virtual
// processor, unless the flag was set already: then the interrupt is under way.
func (s *synic) signalEvent(vp, relid uint32) {
	v := &s.vps[vp]
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.events.Len() == 0 {
		return
	}
	bit := uint32(1) << (relid % 32)
	if v.events.Or32(sintSlot+uint64(relid/32)*4, bit)&bit == 0 {
		s.host.Inject(vp)
	}
}
