// SPDX-License-Identifier: Apache-2.0

package virtiopci

import (
	"errors"

	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/internal/fault"
)

// Bits of device_status (virtio 1.2, 2.1).
const (
	statusAcknowledge = 1
	statusDriver      = 2
	statusDriverOK    = 4
	statusFeaturesOK  = 8
	statusNeedsReset  = 64 // DEVICE_NEEDS_RESET, set by the device only
	statusFailed      = 128
)

// writeStatus is the driver's write to device_status. Zero is a reset; any
// other value sets bits, which stay until the reset (virtio 1.2, 2.1.1).
func (t *Transport) writeStatus(v uint8) {
	if v == 0 {
		t.reset()
		return
	}
	now := t.signals.getStatus()
	v &^= statusNeedsReset
	if now&^statusNeedsReset&^v != 0 {
		t.faults.add(faultOrder)
	}
	added := v &^ now
	if added&statusFeaturesOK != 0 && !t.featuresOK(now|v) {
		added &^= statusFeaturesOK
		t.faults.add(faultOrder)
	}
	if added&statusDriverOK != 0 && !driverOK(now|added) {
		added &^= statusDriverOK
		t.faults.add(faultOrder)
	}
	t.signals.addStatus(added)
	if added&statusDriverOK != 0 {
		t.start()
	}
}

// featuresOK tells whether the device can live with what the driver accepted
// (virtio 1.2, 2.2.2 and 6.1).
func (t *Transport) featuresOK(status uint8) bool {
	const before = statusAcknowledge | statusDriver
	for i, word := range t.accepted {
		if word&^t.offeredWord(uint32(i)) != 0 {
			return false
		}
	}
	return status&before == before && t.features()&virtio.FeatureVersion1 != 0
}

// driverOK tells whether a driver with this status may go live.
func driverOK(status uint8) bool {
	return status&(statusFeaturesOK|statusFailed) == statusFeaturesOK
}

func (t *Transport) features() uint64 {
	return uint64(t.accepted[1])<<32 | uint64(t.accepted[0])
}

// offeredWord is a word of the device's feature bits; there are none past the
// second.
func (t *Transport) offeredWord(i uint32) uint32 {
	if i > 1 {
		return 0
	}
	return uint32(t.offered >> (32 * i))
}

// start gives the device its driver. t.mu is held.
func (t *Transport) start() {
	s := &session{t}
	d := virtio.Driver{
		Features:      t.features(),
		Memory:        t.opt.Memory,
		Queues:        make([]virtio.QueueConfig, len(t.queues)),
		ConfigChanged: &t.config,
		Fail:          s.fail,
	}
	for i := range t.queues {
		d.Queues[i] = t.queues[i].setup()
	}
	t.signals.open(s)
	t.started = true
	if err := t.dev.Start(d); err != nil {
		s.fail(err)
	}
}

// fail tells the driver that the device has given up on it (virtio 1.2, 2.1.2).
func (s *session) fail(err error) {
	t := s.t
	if !t.signals.fail(s) {
		return
	}
	if t.faults.add(faultDevice) <= maxLogged {
		t.logFailure(err)
	}
	t.config.Raise()
}

// maxLogged bounds what a guest can write to the log by failing over and over;
// the count goes on.
const maxLogged = 16

func (t *Transport) logFailure(err error) {
	var guest *fault.Guest
	if errors.As(err, &guest) {
		t.opt.Log.Warn("guest fault: the device waits for a reset by its driver", "device", t.opt.Name, "reason", guest.Reason)
		return
	}
	t.opt.Log.Error("the device failed and waits for a reset by its driver", "device", t.opt.Name, "err", err)
}
