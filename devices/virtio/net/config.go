// SPDX-License-Identifier: Apache-2.0

package virtionet

import "encoding/binary"

// configSize is the size of struct virtio_net_config (virtio 1.2, 5.1.4) as far
// as the features on offer go: u8 mac[6], le16 status, le16
// max_virtqueue_pairs, le16 mtu.
const configSize = 12

// statusLinkUp is VIRTIO_NET_S_LINK_UP.
const statusLinkUp = 1

// ReadConfig implements virtio.Device.
func (d *Device) ReadConfig(off uint64, p []byte) {
	clear(p)
	c := d.config()
	if off < configSize {
		copy(p, c[off:])
	}
}

// WriteConfig implements virtio.Device. Nothing is writable: a modern driver
// sets its address by the control queue (5.1.4.2).
func (d *Device) WriteConfig(uint64, []byte) {}

func (d *Device) config() (c [configSize]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(c[:6], d.mode.MAC[:])
	if d.linkUp {
		binary.LittleEndian.PutUint16(c[6:], statusLinkUp)
	}
	binary.LittleEndian.PutUint16(c[8:], uint16(d.cfg.Queues))
	binary.LittleEndian.PutUint16(c[10:], uint16(d.cfg.MTU))
	return c
}
