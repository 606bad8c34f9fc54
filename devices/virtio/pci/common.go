// SPDX-License-Identifier: Apache-2.0

package virtiopci

import (
	"encoding/binary"
	"math/bits"
)

// commonSize is the size in bytes of the common configuration as far as it
// exists without VIRTIO_F_NOTIF_CONFIG_DATA and VIRTIO_F_RING_RESET.
const commonSize = 0x38

// register is a field of the common configuration structure.
type register struct {
	off, size uint64
	read      func(*Transport) uint32
	write     func(*Transport, uint32) // nil: read-only
}

// commonRegisters is struct virtio_pci_common_cfg (virtio 1.2, 4.1.4.3). 64-bit
// fields are in two halves, as a driver may access them (4.1.3.1).
var commonRegisters = []register{
	{0x00, 4, func(t *Transport) uint32 { return t.deviceFeatures }, func(t *Transport, v uint32) { t.deviceFeatures = v }},
	{0x04, 4, func(t *Transport) uint32 { return t.offeredWord(t.deviceFeatures) }, nil},
	{0x08, 4, func(t *Transport) uint32 { return t.driverFeatures }, func(t *Transport, v uint32) { t.driverFeatures = v }},
	{0x0c, 4, (*Transport).readDriverFeature, (*Transport).writeDriverFeature},
	{0x10, 2, func(t *Transport) uint32 { return t.config.vector.Load() }, (*Transport).writeConfigVector},
	{0x12, 2, func(t *Transport) uint32 { return uint32(len(t.queues)) }, nil},
	{0x14, 1, func(t *Transport) uint32 { return uint32(t.signals.getStatus()) }, func(t *Transport, v uint32) { t.writeStatus(uint8(v)) }},
	{0x15, 1, func(t *Transport) uint32 { return t.generation.Load() & 0xff }, nil},
	{0x16, 2, func(t *Transport) uint32 { return uint32(t.queueSelect) }, func(t *Transport, v uint32) { t.queueSelect = uint16(v) }},
	{0x18, 2, (*Transport).readQueueSize, (*Transport).writeQueueSize},
	{0x1a, 2, (*Transport).readQueueVector, (*Transport).writeQueueVector},
	{0x1c, 2, (*Transport).readQueueEnable, (*Transport).writeQueueEnable},
	{0x1e, 2, (*Transport).readQueueNotifyOff, nil},
	queueAddress(0x20, 0, 0), queueAddress(0x24, 0, 32),
	queueAddress(0x28, 1, 0), queueAddress(0x2c, 1, 32),
	queueAddress(0x30, 2, 0), queueAddress(0x34, 2, 32),
}

// queueAddress is 32 bits of an area's address: bits shift and up of address i.
func queueAddress(off uint64, i, shift int) register {
	return register{off, 4,
		func(t *Transport) uint32 {
			if q := t.selected(); q != nil {
				return uint32(q.addr[i] >> shift)
			}
			return 0
		},
		func(t *Transport, v uint32) {
			if q := t.settable(); q != nil {
				q.addr[i] = q.addr[i]&^(0xffffffff<<shift) | uint64(v)<<shift
			}
		},
	}
}

// readCommon reads any bytes of the structure: no register changes by reading.
// Past its end all is zero.
func (t *Transport) readCommon(off uint64, p []byte) {
	clear(p)
	end := off + uint64(len(p))
	for i := range commonRegisters {
		r := &commonRegisters[i]
		if r.off >= end || r.off+r.size <= off {
			continue
		}
		v := r.read(t)
		for b := range r.size {
			if at := r.off + b; at >= off && at < end {
				p[at-off] = byte(v >> (8 * b))
			}
		}
	}
}

// writeCommon writes one register by an access of its own width; both halves
// of a 64-bit register may be written at once.
func (t *Transport) writeCommon(off uint64, p []byte) {
	if len(p) == 8 && off >= 0x20 && off%8 == 0 {
		t.writeCommon(off, p[:4])
		t.writeCommon(off+4, p[4:])
		return
	}
	for i := range commonRegisters {
		r := &commonRegisters[i]
		if r.off == off && r.size == uint64(len(p)) && r.write != nil {
			r.write(t, little(p))
			return
		}
	}
	t.faults.add(faultAccess)
}

// little decodes 1, 2 or 4 bytes.
func little(p []byte) uint32 {
	var b [4]byte
	copy(b[:], p)
	return binary.LittleEndian.Uint32(b[:])
}

// selected is the queue of queue_select, nil if there is none.
func (t *Transport) selected() *queue {
	if int(t.queueSelect) < len(t.queues) {
		return &t.queues[t.queueSelect]
	}
	return nil
}

// settable is the selected queue if its ring may be set up now: features are
// agreed on, and neither the queue nor the device is live. A ring that moves
// later would move under the device.
func (t *Transport) settable() *queue {
	q := t.selected()
	if q == nil {
		t.faults.add(faultValue)
		return nil
	}
	if t.signals.getStatus()&(statusFeaturesOK|statusDriverOK) != statusFeaturesOK || q.enabled {
		t.faults.add(faultOrder)
		return nil
	}
	return q
}

func (t *Transport) readDriverFeature() uint32 {
	if t.driverFeatures < featureWords {
		return t.accepted[t.driverFeatures]
	}
	return 0
}

func (t *Transport) writeDriverFeature(v uint32) {
	switch {
	case t.signals.getStatus()&statusFeaturesOK != 0:
		t.faults.add(faultOrder)
	case t.driverFeatures < featureWords:
		t.accepted[t.driverFeatures] = v
	case v != 0:
		t.faults.add(faultValue)
	}
}

func (t *Transport) writeConfigVector(v uint32) {
	if !t.config.setVector(uint16(v)) {
		t.faults.add(faultValue)
	}
}

func (t *Transport) readQueueSize() uint32 {
	if q := t.selected(); q != nil {
		return uint32(q.size)
	}
	return 0
}

func (t *Transport) writeQueueSize(v uint32) {
	q := t.settable()
	if q == nil {
		return
	}
	if bits.OnesCount32(v) != 1 || v > uint32(q.max) {
		t.faults.add(faultValue)
		return
	}
	q.size = uint16(v)
}

func (t *Transport) readQueueVector() uint32 {
	if q := t.selected(); q != nil {
		return q.interrupt.vector.Load()
	}
	return noVector
}

// writeQueueVector may come at any time once features are agreed on: drivers
// unmap a vector even after a reset, and may move it while the queue is live.
func (t *Transport) writeQueueVector(v uint32) {
	q := t.selected()
	switch {
	case q == nil:
		t.faults.add(faultValue)
	case v != noVector && t.signals.getStatus()&statusFeaturesOK == 0:
		t.faults.add(faultOrder)
	case !q.interrupt.setVector(uint16(v)):
		t.faults.add(faultValue)
	}
}

func (t *Transport) readQueueEnable() uint32 {
	if q := t.selected(); q != nil && q.enabled {
		return 1
	}
	return 0
}

// writeQueueEnable takes only 1: a queue is disabled by a reset (virtio 1.2,
// 4.1.4.3.2).
func (t *Transport) writeQueueEnable(v uint32) {
	q := t.settable()
	if q == nil {
		return
	}
	if v != 1 {
		t.faults.add(faultValue)
		return
	}
	q.enabled = true
}

// readQueueNotifyOff is the queue's doorbell in units of notifyMultiplier.
func (t *Transport) readQueueNotifyOff() uint32 {
	if t.selected() == nil {
		return 0
	}
	return uint32(t.queueSelect)
}
