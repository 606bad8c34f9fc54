// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// Config says what a Bus is made of.
type Config struct {
	Memory *guestmem.Memory
	VPs    int // virtual processors; the index of each is its number
	Host   Host
	Log    *slog.Logger // nil logs nothing
}

// Bus is the VMBus of one VM from its power-on to its end.
//
// control is held while a message of the guest is handled, calls of Devices
// included. mu guards the state that Channels' methods need too, and is never
// held during such a call, so that a Device may wait for a thread of its own
// that uses its Channel.
type Bus struct {
	mem   *guestmem.Memory
	host  Host
	log   *slog.Logger
	synic *synic
	out   outbox

	control  sync.Mutex
	devices  map[uint32]Device   // by the relid of the primary channel
	channels map[uint32]*Channel // that are open, by relid

	mu    sync.Mutex
	proto *protocol
	ports [maxRelid + 1]atomic.Pointer[port]

	counts struct{ hypercalls, messages, faults atomic.Uint64 }
}

// New makes a Bus without devices.
func New(cfg Config) *Bus {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Bus{
		mem: cfg.Memory, host: cfg.Host, log: cfg.Log,
		synic:    newSynIC(cfg.Memory, cfg.Host, cfg.VPs),
		devices:  map[uint32]Device{},
		channels: map[uint32]*Channel{},
		proto:    newProtocol(cfg.Memory, cfg.VPs),
	}
	b.out.init(b.synic)
	return b
}

// Add puts a device on the bus, before the guest runs.
func (b *Bus) Add(d Device) error {
	b.control.Lock()
	defer b.control.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	relid, ok := b.proto.add(d.Offer())
	if !ok {
		return errors.New("vmbus: too many devices")
	}
	if err := b.makePort(relid); err != nil {
		return err
	}
	b.devices[relid] = d
	return nil
}

// makePort makes the eventfd of a channel number, once.
func (b *Bus) makePort(relid uint32) error {
	if b.ports[relid].Load() != nil {
		return nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("vmbus: %w", os.NewSyscallError("eventfd", err))
	}
	p := &port{relid: relid, connection: connectionOf(relid), kickFD: fd}
	if err := b.host.Connect(p.connection, fd); err != nil {
		return errors.Join(fmt.Errorf("vmbus: %w", err), unix.Close(fd))
	}
	b.ports[relid].Store(p)
	return nil
}

// portOf finds the port of a connection, or nil.
func (b *Bus) portOf(connection uint32) *port {
	relid := connection - connectionOf(0)
	if relid > maxRelid {
		return nil
	}
	return b.ports[relid].Load()
}

// Counters counts since the bus was made.
type Counters struct {
	Hypercalls uint64 `json:"hypercalls"` // that KVM passed on
	Messages   uint64 `json:"messages"`   // from the guest
	Faults     uint64 `json:"faults"`     // of the guest, those on channels included
}

// LogValue implements slog.LogValuer: a group with the names of JSON.
func (c Counters) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Uint64("hypercalls", c.Hypercalls),
		slog.Uint64("messages", c.Messages),
		slog.Uint64("faults", c.Faults),
	)
}

// Counters may be called at any time.
func (b *Bus) Counters() Counters {
	c := Counters{
		Hypercalls: b.counts.hypercalls.Load(),
		Messages:   b.counts.messages.Load(),
		Faults:     b.counts.faults.Load() + b.synic.faults.Load(),
	}
	for relid := range b.ports {
		if p := b.ports[relid].Load(); p != nil {
			c.Faults += p.faults.Load()
		}
	}
	return c
}

// Run delivers messages that found the guest's slot taken, until ctx ends.
func (b *Bus) Run(ctx context.Context) { b.out.run(ctx, b.host.AckFD()) }

// Stop closes all channels and ends the contact: when it returns, neither the
// bus nor a device touches guest memory. The guest must not run.
func (b *Bus) Stop() {
	b.control.Lock()
	defer b.control.Unlock()
	b.mu.Lock()
	b.proto.disconnect()
	actions := b.proto.take()
	b.mu.Unlock()
	b.execute(actions)
	b.synic.reset()
}

// Close frees what the bus holds of the host, after Stop.
func (b *Bus) Close() error {
	var errs []error
	for relid := range b.ports {
		if p := b.ports[relid].Swap(nil); p != nil {
			errs = append(errs, b.host.Disconnect(p.connection, p.kickFD), unix.Close(p.kickFD))
		}
	}
	return errors.Join(errs...)
}

// WriteSynIC takes over the SynIC's registers of a virtual processor after the
// guest has changed one of them: SCONTROL, SIMP and SIEFP.
func (b *Bus) WriteSynIC(vp uint32, control, simp, siefp uint64) {
	b.synic.write(vp, control, simp, siefp)
	b.out.flush()
}

// handleMessage takes a message of the guest, a private copy, and returns the
// result of the hypercall that it came by.
func (b *Bus) handleMessage(msg []byte) uint64 {
	if b.out.full() {
		return statusInsufficientBuffers // the guest tries again
	}
	b.counts.messages.Add(1)
	b.control.Lock()
	defer b.control.Unlock()
	b.mu.Lock()
	faults := b.proto.faults
	actions := b.proto.handle(msg)
	bad := b.proto.faults != faults
	b.mu.Unlock()
	if bad {
		b.counts.faults.Add(1)
		b.log.Debug("guest fault: bad VMBus message", "message", fmt.Sprintf("%x", msg))
	}
	b.execute(actions)
	return statusSuccess
}

// execute does what the protocol asks for. control is held.
func (b *Bus) execute(actions []action) {
	for _, a := range actions {
		switch a.kind {
		case actSend:
			b.out.send(a.vp, a.msg)
		case actDiscard:
			b.out.discard()
		case actOpen:
			ok := b.open(a)
			b.mu.Lock()
			then := b.proto.opened(a, ok)
			b.mu.Unlock()
			b.execute(then)
		case actClose:
			b.close(a.relid)
		case actRevoke:
			if ch := b.channels[a.relid]; ch != nil {
				ch.device.Revoke(ch, a.gpadl)
			}
		case actRetarget:
			if ch := b.channels[a.relid]; ch != nil {
				ch.target.Store(a.vp)
			}
		}
	}
}

// open makes the channel and starts its device.
func (b *Bus) open(a action) (ok bool) {
	ch, err := b.newChannel(a)
	if err == nil {
		err = ch.device.Open(ch)
	}
	if err != nil {
		b.log.Warn("a VMBus channel can't be opened", "channel", a.relid, "err", err)
		return false
	}
	b.channels[a.relid] = ch
	return true
}

func (b *Bus) newChannel(a action) (*Channel, error) {
	b.mu.Lock()
	c := b.proto.channels[a.relid]
	b.mu.Unlock()
	ch := &Channel{bus: b, device: b.devices[c.primary], port: b.ports[a.relid].Load(), index: c.index}
	ch.target.Store(a.vp)
	in, err := newRingMemory(a.ring, 0, a.split)
	if err != nil {
		return nil, err
	}
	out, err := newRingMemory(a.ring, a.split, len(a.ring.pages))
	if err != nil {
		return nil, err
	}
	if err := ch.in.open(ch, in); err != nil {
		return nil, err
	}
	if err := ch.out.open(ch, out); err != nil {
		return nil, err
	}
	return ch, nil
}

func (b *Bus) close(relid uint32) {
	ch := b.channels[relid]
	if ch == nil {
		return
	}
	ch.device.Close(ch)
	delete(b.channels, relid)
}

// reserveSubchannels serves Channel.ReserveSubchannels.
func (b *Bus) reserveSubchannels(primary uint32, n int) (granted int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, relid := range b.proto.reserve(primary, n) {
		if err := b.makePort(relid); err != nil {
			b.log.Warn("fewer sub-channels", "err", err)
			n = granted // those after it would leave a gap in the indexes
		}
		if granted == n {
			b.proto.unreserve(relid)
			continue
		}
		granted++
	}
	return granted
}

// offerSubchannels serves Channel.OfferSubchannels. The messages are queued under
// the lock, so that a rescind comes after the offer.
func (b *Bus) offerSubchannels(primary uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.proto.offerReserved(primary) {
		b.out.send(a.vp, a.msg)
	}
}
