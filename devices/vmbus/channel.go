// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"fmt"
	"sync/atomic"

	"github.com/govmm/govmm/internal/fault"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// Device is a client of the bus: the model of one synthetic device. The Bus
// calls it from the guest's vCPU threads, one call at a time, and holds no lock
// meanwhile that a method of Channel needs: a method may wait for the device's
// own threads. It must not wait for the guest.
type Device interface {
	// Offer is what the guest is told of the device. It does not change.
	Offer() Offer
	// Open starts the device on a channel that the guest has opened. An error
	// fails the guest's open. The guest learns of the success only after Open returns, and a Linux 6.1 guest
	// may lose an interrupt that comes before it spoke: a device waits for the
	// guest's first packet.
	Open(*Channel) error
	// Close ends it: when it returns, the device touches neither the channel nor
	// the memory of its GPADLs. Sub-channels are closed before their primary.
	// Each opened channel is closed once: by the guest's wish, its reset, a new
	// contact, or the end of the VM.
	Close(*Channel)
	// Revoke takes a GPADL of an open channel away: when it returns, the device
	// doesn't touch its memory any more. The GPADL can't be looked up since before
	// the call; a device that does so on a thread of its own looks up and
	// remembers it under a lock that Revoke takes too.
	Revoke(ch *Channel, gpadl uint32)
}

// Offer describes a device to the guest.
type Offer struct {
	Class    GUID // which driver binds
	Instance GUID // unique on the bus and the same over reboots, the name in the guest's sysfs
}

// Channel is an open channel: two rings, a way to signal each side, and the
// GPADLs that the guest made for it. In and Out are for one goroutine at a time;
// the other methods are for any.
type Channel struct {
	bus    *Bus
	device Device
	port   *port
	index  int
	in     InRing
	out    OutRing

	target atomic.Uint32 // VP that is interrupted, or noInterrupt
}

// noInterrupt is the target VP of a channel that wants no interrupts.
const noInterrupt = ^uint32(0)

// port is what a channel number stands for, open or not, for the whole life of
// the bus: the eventfd that the guest's HvCallSignalEvent signals.
type port struct {
	relid      uint32
	connection uint32
	kickFD     int
	faults     atomic.Uint64
}

// Index is the sub-channel's index, from 1 on; 0 is the primary channel.
func (c *Channel) Index() int { return c.index }

// In is the ring from the guest.
func (c *Channel) In() *InRing { return &c.in }

// Out is the ring to the guest.
func (c *Channel) Out() *OutRing { return &c.out }

// KickFD is the eventfd that is signalled when the guest put packets into an
// empty, armed In ring, or made the room in Out that OutRing.Await asked for. The
// bus owns it.
func (c *Channel) KickFD() int { return c.port.kickFD }

// Kick signals KickFD itself, for a device that has work for the thread that
// waits there.
func (c *Channel) Kick() { kick(c.port.kickFD) }

// kick signals an eventfd. The value is a native-endian number; any that is not
// zero does.
func kick(fd int) {
	// Fails only if the counter is full, when the event is already there.
	_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// Memory is the guest's RAM.
func (c *Channel) Memory() *guestmem.Memory { return c.bus.mem }

// GPADL finds the pages that the guest shared as the given handle for this
// channel. ok is false for a handle that is unknown, incomplete, or another
// channel's. The pages are good until Revoke or Close.
func (c *Channel) GPADL(handle uint32) (g *GPADL, ok bool) {
	c.bus.mu.Lock()
	defer c.bus.mu.Unlock()
	return c.bus.proto.gpadl(c.port.relid, handle)
}

// ReserveSubchannels sets up to n sub-channels of this primary channel aside,
// and returns how many: those that OfferSubchannels then offers to the guest. A
// guest that was promised some waits until all are there.
func (c *Channel) ReserveSubchannels(n int) (granted int) {
	return c.bus.reserveSubchannels(c.port.relid, n)
}

// OfferSubchannels offers the guest the sub-channels that were reserved. They
// are rescinded when the primary channel closes.
func (c *Channel) OfferSubchannels() { c.bus.offerSubchannels(c.port.relid) }

// Faultf makes a fault of the guest on this channel, and counts it. The device
// stops working on the channel; the guest can close it and open it again.
func (c *Channel) Faultf(format string, args ...any) *fault.Guest {
	c.port.faults.Add(1)
	return fault.Guestf(c.name(), format, args...)
}

func (c *Channel) name() string {
	return fmt.Sprintf("vmbus channel %d", c.port.relid)
}

// signal interrupts the guest for this channel. It does not allocate.
func (c *Channel) signal() {
	if vp := c.target.Load(); vp != noInterrupt {
		c.bus.synic.signalEvent(vp, c.port.relid)
	}
}
