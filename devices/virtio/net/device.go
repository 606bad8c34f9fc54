// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/internal/fault"
)

// Limits and defaults of a Config.
const (
	MaxQueues   = 16   // queue pairs
	MinRingSize = 64   // entries
	MaxRingSize = 4096 // entries
	// DefaultRingSize holds 24 of the largest frames in merged buffers of Linux's
	// 1.5 KiB, and several batches of the largest size. The guest pays 1.5 MiB of
	// buffers for each receive queue.
	DefaultRingSize = 1024

	minMTU = 68    // the least that IPv4 allows, and so virtio (5.1.4.1)
	maxMTU = 65535 // likewise
	// controlRingSize is that of the control queue, entries: a driver has one
	// command out at a time, in a chain of about four.
	controlRingSize = 64
)

// deviceID is a network card's (virtio 1.2, 5).
const deviceID = 1

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// valid reports whether m can be a NIC's own address: unicast, and not zero.
func (m MAC) valid() bool { return m[0]&1 == 0 && m != MAC{} }

// MarshalText makes the address readable in JSON.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// Config says what a Device is made of.
type Config struct {
	Name    string        // what messages call the device, such as net0
	MAC     MAC           // the guest's address, unicast
	Backend netio.Backend // the host's side; the caller closes it after the device's last Stop

	Queues   int // queue pairs, 1 to MaxQueues; 0 is 1
	RingSize int // largest ring size on offer, a power of two; 0 is DefaultRingSize
	MTU      int // told to the guest, 68 to 65535 bytes; 0 is the backend's

	Mergeable bool // offer mergeable receive buffers
	Offload   bool // offer the checksum and segmentation offloads that the backend has

	Batch    int           // as in netio.Options
	BusyPoll time.Duration // as in netio.Options
	Log      *slog.Logger  // nil logs nothing
}

// Device is a virtio network card. Start and Stop are for one goroutine at a
// time; SetLink, Counters and ReadConfig are for any.
type Device struct {
	cfg      Config
	features uint64 // on offer
	pairs    []*pair
	pumps    []*netio.Pump // of pairs, by index

	// run is what a driver has started; nil between Stop and Start. The control
	// queue's goroutine and the pumps use it only while it is there.
	run *run

	mu      sync.Mutex // guards what follows; never held while a pump stops
	linkUp  bool
	mode    Mode
	offload netio.Offload  // what the backend is set to
	active  int            // pairs in use
	driver  *virtio.Driver // for the interrupt of a link change; nil if there is none
	count   Counters       // without those of the pairs
}

// run is the time from one Start to the Stop after it.
type run struct {
	driver   virtio.Driver
	features uint64 // accepted, and consistent
	offload  netio.Offload
	active   int      // pairs that take part, from the first on
	control  *control // nil if the driver has no control queue
	failed   atomic.Bool
}

var _ virtio.Device = (*Device)(nil)

// New makes a Device. The error says which part of cfg is out of range.
func New(cfg Config) (*Device, error) {
	if err := complete(&cfg); err != nil {
		return nil, fmt.Errorf("virtio-net %s: %w", cfg.Name, err)
	}
	d := &Device{cfg: cfg, features: offer(&cfg), linkUp: true}
	d.resetMode()
	queues := cfg.Backend.Queues()
	for i := range cfg.Queues {
		p := &pair{}
		d.pairs = append(d.pairs, p)
		d.pumps = append(d.pumps, netio.NewPump(p, queues[i], netio.Options{
			Name:      fmt.Sprintf("%s queue %d", cfg.Name, i),
			Batch:     cfg.Batch,
			BusyPoll:  cfg.BusyPoll,
			OnFault:   d.guestFault,
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
	if cfg.RingSize == 0 {
		cfg.RingSize = DefaultRingSize
	}
	if cfg.MTU == 0 {
		cfg.MTU = cfg.Backend.MTU()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	have := len(cfg.Backend.Queues())
	switch {
	case cfg.Queues < 1 || cfg.Queues > MaxQueues:
		return fmt.Errorf("%d queue pairs: use 1 to %d", cfg.Queues, MaxQueues)
	case cfg.Queues > have:
		return fmt.Errorf("%d queue pairs, but the backend %s has %d: open it with as many", cfg.Queues, cfg.Backend.Name(), have)
	case cfg.RingSize < MinRingSize || cfg.RingSize > MaxRingSize || cfg.RingSize&(cfg.RingSize-1) != 0:
		return fmt.Errorf("ring size %d: use a power of two from %d to %d", cfg.RingSize, MinRingSize, MaxRingSize)
	case cfg.Mergeable && !ringHolds(cfg.RingSize, netio.HeaderLen+ethernetLen+vlanLen+cfg.MTU):
		return fmt.Errorf("ring size %d is too small for frames of MTU %d: use %d", cfg.RingSize, cfg.MTU, 2*MinRingSize)
	case cfg.MTU != 0 && (cfg.MTU < minMTU || cfg.MTU > maxMTU):
		return fmt.Errorf("MTU %d: use %d to %d bytes", cfg.MTU, minMTU, maxMTU)
	case !cfg.MAC.valid():
		return fmt.Errorf("MAC address %v: use a unicast address that is not zero", cfg.MAC)
	}
	return nil
}

// ID implements virtio.Device.
func (d *Device) ID() uint16 { return deviceID }

// Features implements virtio.Device.
func (d *Device) Features() uint64 { return d.features }

// QueueSizes implements virtio.Device: receive and transmit queue of each pair,
// then the control queue (5.1.2).
func (d *Device) QueueSizes() []uint16 {
	var sizes []uint16
	for range d.cfg.Queues {
		sizes = append(sizes, uint16(d.cfg.RingSize), uint16(d.cfg.RingSize))
	}
	return append(sizes, controlRingSize)
}

// Start implements virtio.Device. A backend that is gone is no error, or a
// guest could not reboot without its network: the link is down instead.
func (d *Device) Start(driver virtio.Driver) error {
	d.Stop()
	r := &run{driver: driver, features: consistent(driver.Features & d.features)}
	err := d.attach(r)
	if err == nil && r.control != nil {
		err = r.control.open()
	}
	if err != nil {
		d.detach()
		return err
	}
	d.mu.Lock()
	d.count.Starts++
	d.driver = &r.driver
	d.mu.Unlock()
	d.run = r
	if d.setOffloads(r, offloadsOf(r.features)) == nil && d.setActive(r, 1) == nil {
		d.startPumps(r)
	}
	if r.control != nil {
		r.control.start()
	}
	return nil
}

// attach makes the queues that the driver has set up. With an unfinished pair
// nothing is done; only the driver knows what it needs.
func (d *Device) attach(r *run) error {
	drv := &r.driver
	if r.features&virtio.FeatureVersion1 == 0 {
		return fault.Guestf(d.faultName("device"), "VIRTIO_F_VERSION_1 was not accepted")
	}
	sizes := d.QueueSizes()
	if len(drv.Queues) != len(sizes) {
		return fmt.Errorf("virtio-net %s: started with %d queues instead of %d", d.cfg.Name, len(drv.Queues), len(sizes))
	}
	for i, p := range d.pairs[:r.pairs(d)] {
		rx, tx := drv.Queues[2*i], drv.Queues[2*i+1]
		if !rx.Enabled || !tx.Enabled {
			continue
		}
		rxq, err := d.newQueue(r, 2*i, fmt.Sprintf("rx%d", i))
		if err != nil {
			return err
		}
		txq, err := d.newQueue(r, 2*i+1, fmt.Sprintf("tx%d", i))
		if err != nil {
			return err
		}
		p.attach(rxq, txq, rx.KickFD, tx.KickFD)
	}
	if i := r.controlIndex(d); r.features&FeatureCtrlVQ != 0 && drv.Queues[i].Enabled {
		q, err := d.newQueue(r, i, "control")
		if err != nil {
			return err
		}
		r.control = newControl(d, r, q, drv.Queues[i].KickFD)
	}
	return nil
}

// pairs is how many queue pairs the driver can use.
func (r *run) pairs(d *Device) int {
	if r.features&FeatureMQ != 0 {
		return d.cfg.Queues
	}
	return 1
}

// controlIndex is the control queue's index: it follows the pairs that the
// driver knows of (5.1.2).
func (r *run) controlIndex(d *Device) int { return 2 * r.pairs(d) }

func (d *Device) newQueue(r *run, index int, name string) (*virtio.Queue, error) {
	name = d.faultName(name)
	cfg := r.driver.Queues[index]
	if limit := d.QueueSizes()[index]; cfg.Size > limit {
		return nil, fault.Guestf(name, "queue size %d is more than the %d on offer", cfg.Size, limit)
	}
	return virtio.NewQueue(r.driver.Memory, cfg, r.features, name)
}

func (d *Device) faultName(part string) string {
	return fmt.Sprintf("virtio-net %s %s", d.cfg.Name, part)
}

func (d *Device) detach() {
	for _, p := range d.pairs {
		p.detach()
	}
}

// setOffloads sets what the guest receives unfinished. No pump runs. An error is
// the backend's, and was reported.
func (d *Device) setOffloads(r *run, o netio.Offload) error {
	if err := d.cfg.Backend.SetOffloads(o); err != nil {
		d.backendLost(err)
		return err
	}
	r.offload = o
	window := receiveWindow(r.features, o, d.cfg.MTU)
	for _, p := range d.pairs {
		p.setReceive(r.features, window)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.offload = o
	return nil
}

// setActive sets how many pairs take part. No pump runs. An error is the
// backend's, and was reported.
func (d *Device) setActive(r *run, n int) error {
	if err := d.cfg.Backend.SetActive(n); err != nil {
		d.backendLost(err)
		return err
	}
	r.active = n
	d.mu.Lock()
	defer d.mu.Unlock()
	d.active = n
	return nil
}

// startPumps starts the pumps of all active pairs that the driver has set up.
func (d *Device) startPumps(r *run) {
	for i, p := range d.pairs[:r.active] {
		if !p.ready() {
			continue
		}
		if err := d.pumps[i].Start(); err != nil {
			d.backendLost(err)
		}
	}
}

func (d *Device) stopPumps() {
	for _, p := range d.pumps {
		p.Stop()
	}
}

// Stop implements virtio.Device: first all that works stops, and only then is
// anything forgotten.
func (d *Device) Stop() {
	r := d.run
	if r == nil {
		return
	}
	if r.control != nil {
		r.control.close()
	}
	d.stopPumps()
	d.mu.Lock()
	d.driver, d.active, d.offload = nil, 0, 0
	d.mu.Unlock()
	d.resetMode()
	d.detach()
	d.run = nil
}

// SetLink tells the guest that its link is up or down.
func (d *Device) SetLink(up bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.linkUp == up {
		return
	}
	d.linkUp = up
	if d.driver != nil && d.driver.Features&FeatureStatus != 0 {
		d.driver.ConfigChanged.Raise()
	}
}

// backendLost is told that the backend is gone, by a pump or by who sets the
// backend up.
func (d *Device) backendLost(err error) {
	d.cfg.Log.Error("network backend lost; the guest's link is down", "device", d.cfg.Name, "backend", d.cfg.Backend.Name(), "err", err)
	d.mu.Lock()
	d.count.BackendErrors++
	d.mu.Unlock()
	d.SetLink(false)
}

// guestFault is told of a fault, by a pump or the control queue. The driver
// gets it once; what goes wrong after that is its consequence.
func (d *Device) guestFault(err error) {
	d.mu.Lock()
	d.count.GuestFaults++
	d.mu.Unlock()
	if !d.run.failed.Swap(true) {
		d.run.driver.Fail(err)
	}
}
