// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/vmbus"
)

// Limits of a Config.
const (
	MaxQueues = 16 // channels

	minMTU = 68    // the driver's own least
	maxMTU = 65521 // its largest
)

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// valid reports whether m can be a NIC's own address: unicast, and not zero.
func (m MAC) valid() bool { return m[0]&1 == 0 && m != MAC{} }

// MarshalText makes the address readable in JSON.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// Config says what a Device is made of.
type Config struct {
	Name    string        // what messages call the device, and the guest's alias of the interface
	MAC     MAC           // the guest's address, unicast; the instance's GUID is made of it
	Backend netio.Backend // the host's side; the caller closes it when the bus has stopped

	Queues int // channels, 1 to MaxQueues; 0 is 1
	MTU    int // the largest that the guest may use, 68 to 65521 bytes; 0 is the backend's

	Offload bool // offer the checksum and segmentation offloads that the backend has

	Batch    int           // as in netio.Options
	BusyPoll time.Duration // as in netio.Options
	Log      *slog.Logger  // nil logs nothing
}

// Device is a synthetic network card. The bus calls it; SetLink and Counters are
// for any goroutine.
type Device struct {
	cfg   Config
	ports []*port       // by channel index
	pumps []*netio.Pump // of ports

	linkDown atomic.Bool
	lost     atomic.Bool // the backend is gone
	counts   struct{ opens, faults, backendErrors, control atomic.Uint64 }

	mu      sync.Mutex
	session *session // nil while the primary channel is closed
}

var _ vmbus.Device = (*Device)(nil)

// New makes a Device. The error says which part of cfg is out of range.
func New(cfg Config) (*Device, error) {
	if err := complete(&cfg); err != nil {
		return nil, fmt.Errorf("netvsc %s: %w", cfg.Name, err)
	}
	d := &Device{cfg: cfg}
	queues := cfg.Backend.Queues()
	for i := range cfg.Queues {
		p := newPort()
		if i == 0 {
			p.attention = d.wake
		}
		d.ports = append(d.ports, p)
		d.pumps = append(d.pumps, netio.NewPump(p, queues[i], netio.Options{
			Name:      fmt.Sprintf("%s queue %d", cfg.Name, i),
			Batch:     cfg.Batch,
			BusyPoll:  cfg.BusyPoll,
			OnFault:   func(error) { d.wake() }, // the session finds it at the port
			OnBackend: d.backendLost,
		}))
	}
	return d, nil
}

// complete puts the defaults into cfg and checks it.
func complete(cfg *Config) error {
	if cfg.Backend == nil {
		return errors.New("no backend")
	}
	if cfg.Queues == 0 {
		cfg.Queues = 1
	}
	if cfg.MTU == 0 {
		cfg.MTU = min(cfg.Backend.MTU(), maxMTU)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	have := len(cfg.Backend.Queues())
	switch {
	case cfg.Queues < 1 || cfg.Queues > MaxQueues:
		return fmt.Errorf("%d queues: use 1 to %d", cfg.Queues, MaxQueues)
	case cfg.Queues > have:
		return fmt.Errorf("%d queues, but the backend %s has %d: open it with as many", cfg.Queues, cfg.Backend.Name(), have)
	case cfg.MTU < minMTU || cfg.MTU > maxMTU:
		return fmt.Errorf("MTU %d: use %d to %d bytes", cfg.MTU, minMTU, maxMTU)
	case !cfg.MAC.valid():
		return fmt.Errorf("MAC address %v: use a unicast address that is not zero", cfg.MAC)
	}
	return nil
}

// Offer implements vmbus.Device.
func (d *Device) Offer() vmbus.Offer {
	return vmbus.Offer{Class: classGUID, Instance: instanceGUID(d.cfg.MAC)}
}

// Open implements vmbus.Device.
func (d *Device) Open(ch *vmbus.Channel) error {
	if ch.Index() > 0 {
		s := d.current()
		if s == nil || ch.Index() >= d.cfg.Queues {
			return ch.Faultf("sub-channel %d of %d", ch.Index(), d.cfg.Queues)
		}
		s.openSub(ch)
		return nil
	}
	s, err := newSession(d, ch)
	if err != nil {
		return fmt.Errorf("netvsc %s: %w", d.cfg.Name, err)
	}
	d.counts.opens.Add(1)
	d.mu.Lock()
	d.session = s
	d.mu.Unlock()
	go s.run()
	return nil
}

// Close implements vmbus.Device.
func (d *Device) Close(ch *vmbus.Channel) {
	s := d.current()
	if ch.Index() > 0 {
		s.closeSub(ch.Index())
		return
	}
	d.mu.Lock()
	d.session = nil
	d.mu.Unlock()
	s.close()
}

// Revoke implements vmbus.Device.
func (d *Device) Revoke(_ *vmbus.Channel, gpadl uint32) {
	if s := d.current(); s != nil {
		s.revoke(gpadl)
	}
}

func (d *Device) current() *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session
}

// wake lets the session look at what has changed. It is quick, and may be called
// by a pump's thread.
func (d *Device) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session != nil {
		d.session.wake()
	}
}

// SetLink tells the guest that its link is up or down.
func (d *Device) SetLink(up bool) {
	if d.linkDown.Swap(!up) == up {
		d.wake()
	}
}

// backendLost is told that the backend is gone, by a pump or by who sets the
// backend up.
func (d *Device) backendLost(err error) {
	d.cfg.Log.Error("network backend lost; the guest's link is down", "device", d.cfg.Name, "backend", d.cfg.Backend.Name(), "err", err)
	d.counts.backendErrors.Add(1)
	d.lost.Store(true)
	d.SetLink(false)
	d.wake()
}

// Counters is what a Device counted since it was made.
type Counters struct {
	Channels []ChannelCounters `json:"channels"`

	Opens         uint64 `json:"opens"`            // times that a driver opened the primary channel
	GuestFaults   uint64 `json:"guest_faults"`     // breaches that ended the work on all channels until the next open
	BackendErrors uint64 `json:"backend_errors"`   // times that the backend was gone or refused a setting
	Control       uint64 `json:"control_messages"` // that were answered
}

// ChannelCounters is what one channel counted.
type ChannelCounters struct {
	netio.Counters
	// TxRefused are frames that were not sent because their headers contradict
	// the offload that is asked for, or because they have no Ethernet header.
	TxRefused uint64 `json:"tx_refused"`
	// RxDropped are frames for which the guest's ring was too small.
	RxDropped uint64 `json:"rx_dropped"`
}

// Counters returns a snapshot; each channel's is consistent in itself.
func (d *Device) Counters() Counters {
	c := Counters{
		Opens:         d.counts.opens.Load(),
		GuestFaults:   d.counts.faults.Load(),
		BackendErrors: d.counts.backendErrors.Load(),
		Control:       d.counts.control.Load(),
	}
	for i, p := range d.ports {
		c.Channels = append(c.Channels, ChannelCounters{
			Counters:  d.pumps[i].Counters(),
			TxRefused: p.send.refused.Load(),
			RxDropped: p.recv.dropped.Load(),
		})
	}
	return c
}
