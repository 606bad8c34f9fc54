// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Paths of the devices for guest networking.
const (
	tunPath      = "/dev/net/tun"
	vhostNetPath = "/dev/vhost-net"
)

// Answers of questions that may stay open.
const (
	yes     = "yes"
	no      = "no"
	unknown = "unknown"
)

// tunFeatures are the bits of TUNGETFEATURES (linux/if_tun.h) that have to do with
// taps.
var tunFeatures = []struct {
	bit  uint32
	name string
}{
	{unix.IFF_TAP, "tap"},
	{unix.IFF_NO_PI, "no_pi"},
	{unix.IFF_VNET_HDR, "vnet_hdr"},
	{unix.IFF_MULTI_QUEUE, "multi_queue"},
	{unix.IFF_NAPI, "napi"},
	{unix.IFF_NAPI_FRAGS, "napi_frags"},
	{unix.IFF_NO_CARRIER, "no_carrier"},
}

// probeNet looks at tap and vhost-net.
func probeNet(root fs.FS) Net {
	n := Net{Tun: probeDevice(root, tunPath), VHostNet: probeDevice(root, vhostNetPath), CanMake: unknown, USO: unknown}
	if fd, err := open(&n.VHostNet); err == nil {
		unix.Close(fd)
	}
	fd, err := open(&n.Tun)
	if err != nil {
		return n
	}
	defer unix.Close(fd)
	if bits, err := unix.IoctlGetUint32(fd, unix.TUNGETFEATURES); err == nil {
		for _, f := range tunFeatures {
			if bits&f.bit != 0 {
				n.Features = append(n.Features, f.name)
			}
		}
	}
	n.tryTap(fd)
	return n
}

// open opens a device that is present and notes the outcome.
func open(d *Device) (int, error) {
	if !d.Present {
		return -1, fs.ErrNotExist
	}
	fd, err := unix.Open(d.Path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		d.Error = err.Error()
		return -1, err
	}
	d.Accessible = true
	return fd, nil
}

// Offloads that TUNSETOFFLOAD may refuse (linux/if_tun.h).
const (
	tunFCSUM = 0x01 // TUN_F_CSUM
	tunFUSO4 = 0x20 // TUN_F_USO4
	tunFUSO6 = 0x40 // TUN_F_USO6
)

// tryTap makes a tap, which vanishes when fd is closed, and asks it for UDP
// segmentation offload, which no feature bit tells.
func (n *Net) tryTap(fd int) {
	ifr, err := unix.NewIfreq("gvprobe%d")
	if err != nil {
		return
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	switch err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); {
	case errors.Is(err, unix.EPERM):
		n.CanMake = no
		return
	case err != nil:
		return
	}
	n.CanMake = yes
	switch err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tunFCSUM|tunFUSO4|tunFUSO6); {
	case err == nil:
		n.USO = yes
	case errors.Is(err, unix.EINVAL):
		n.USO = no
	}
}
