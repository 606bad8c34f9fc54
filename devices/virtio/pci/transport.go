// SPDX-License-Identifier: Apache-2.0

package virtiopci

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/govmm/govmm/devices/pci"
	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/internal/bus"
	"github.com/govmm/govmm/internal/guestmem"
	"github.com/govmm/govmm/internal/irq"
)

// Options are what a transport needs from its machine.
type Options struct {
	Name   string           // in messages, such as "net0"
	Memory *guestmem.Memory // handed to the device
	MSI    irq.MSI          // nil: the function has no MSI-X
	Line   irq.Line         // INTA#; nil: the function has no INTx
	// InterruptLine is the initial value of the PCI register of that name.
	InterruptLine uint8
	Log           *slog.Logger // nil: no log
}

// Transport is one virtio device on PCI.
type Transport struct {
	dev       virtio.Device
	opt       Options
	offered   uint64
	fn        *pci.Function
	doorbells []bus.Doorbell
	faults    faults
	signals   signals
	config    interrupt
	// generation is how often the device has announced new configuration; the
	// driver sees the low byte, config_generation.
	generation atomic.Uint32

	mu             sync.Mutex // guards what follows; the device is called under it
	closed         bool
	started        bool
	deviceFeatures uint32 // device_feature_select
	driverFeatures uint32 // driver_feature_select
	accepted       [featureWords]uint32
	queueSelect    uint16
	queues         []queue
}

// featureWords is how many 32-bit words of feature bits a driver can accept.
// Only the first two are ever offered.
const featureWords = 4

// maxQueues is the number of doorbells that fit into the notification area.
const maxQueues = regionSize / notifyMultiplier

// maxQueueSize is virtio's limit of a split queue (2.7).
const maxQueueSize = 32768

// New makes the PCI function of a device. Close frees its doorbells.
func New(dev virtio.Device, opt Options) (*Transport, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	t := &Transport{dev: dev, opt: opt, offered: dev.Features()}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("virtio-pci %s: %w", opt.Name, err)
	}
	t.config.init(t, isrConfig)
	if err := t.makeQueues(dev.QueueSizes()); err != nil {
		return nil, fmt.Errorf("virtio-pci %s: %w", opt.Name, errors.Join(err, t.closeQueues()))
	}
	fn, err := pci.NewFunction(t.pciConfig())
	if err != nil {
		return nil, fmt.Errorf("virtio-pci %s: %w", opt.Name, errors.Join(err, t.closeQueues()))
	}
	t.fn, t.signals.fn = fn, fn
	t.clear()
	return t, nil
}

// check refuses a device that the transport can't carry.
func (t *Transport) check() error {
	if t.offered&virtio.FeatureVersion1 == 0 {
		return errors.New("the device does not offer VIRTIO_F_VERSION_1, which a modern transport needs")
	}
	if id := t.dev.ID(); id == 0 || id > maxID {
		return fmt.Errorf("device type %d: 1 to %d have a PCI device ID", id, maxID)
	}
	sizes := t.dev.QueueSizes()
	if len(sizes) > maxQueues {
		return fmt.Errorf("the device has %d queues, more than %d", len(sizes), maxQueues)
	}
	for i, n := range sizes {
		if bits.OnesCount16(n) != 1 || n > maxQueueSize {
			return fmt.Errorf("queue %d: size %d is not a power of two up to %d", i, n, maxQueueSize)
		}
	}
	return nil
}

func (t *Transport) makeQueues(sizes []uint16) error {
	t.queues = make([]queue, len(sizes))
	for i := range t.queues {
		t.queues[i].kick = -1
	}
	for i, n := range sizes {
		if err := t.queues[i].init(t, n); err != nil {
			return err
		}
		t.doorbells = append(t.doorbells, bus.Doorbell{
			Offset: regionNotify + uint64(i)*notifyMultiplier,
			FD:     t.queues[i].kick,
		})
	}
	return nil
}

func (t *Transport) closeQueues() error {
	var errs []error
	for i := range t.queues {
		errs = append(errs, t.queues[i].close())
	}
	return errors.Join(errs...)
}

// Function is the PCI function, to be added to a bus.
func (t *Transport) Function() *pci.Function { return t.fn }

// Reset is the machine's reset: it stops the device, forgets the driver and
// resets the PCI function.
func (t *Transport) Reset() {
	t.mu.Lock()
	t.reset()
	t.mu.Unlock()
	t.fn.Reset()
}

// Close stops the device and frees the doorbells. vCPUs don't run any more.
// Further accesses by the guest have no effect; a second Close has none either.
func (t *Transport) Close() error {
	t.Reset()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return t.closeQueues()
}

// reset forgets the driver (virtio 1.2, 2.4). The device stops first: when
// anything it uses is cleared, it has ended all work. t.mu is held.
func (t *Transport) reset() {
	if t.started {
		t.dev.Stop()
		t.started = false
	}
	t.clear()
}

// clear gives all registers their reset values. t.mu is held.
func (t *Transport) clear() {
	t.signals.reset()
	t.config.vector.Store(noVector)
	t.deviceFeatures, t.driverFeatures, t.queueSelect = 0, 0, 0
	clear(t.accepted[:])
	for i := range t.queues {
		t.queues[i].reset()
	}
}
