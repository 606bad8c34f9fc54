// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// create makes an interface. It is not persistent: the kernel removes it when
// its last descriptor is closed, by Close or by the end of the process, even by
// SIGKILL.
func create(o Options) (*Tap, error) {
	flags := uint16(baseFlags | unix.IFF_TUN_EXCL)
	if o.Queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	name, fds, err := openQueues(o.Name, flags, o.Queues)
	if err != nil {
		return nil, explainCreate(err, o.Name)
	}
	t, err := finish(name, fds, o)
	if err != nil {
		return nil, err
	}
	if err := configure(name, o.MTU, o.Addrs); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.noteLimits()
	return t, nil
}

// explainCreate tells why an interface can't be made.
func explainCreate(err error, name string) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("make tap %s: %w: it takes CAP_NET_ADMIN: run as root, or use a tap that root made once with `ip tuntap add dev NAME mode tap user $USER`", name, err)
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("make tap %s: %w: it exists already: use it without creating it, or take another name", name, err)
	}
	return fmt.Errorf("make tap %s: %w", name, err)
}

// configure sets an interface's MTU and addresses, and brings it up.
func configure(name string, mtu int, addrs []netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("tap %s: look it up: %w", name, err)
	}
	if mtu != 0 {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("tap %s: set MTU %d: %w", name, mtu, err)
		}
	}
	for _, a := range addrs {
		if err := netlink.AddrAdd(link, linkAddr(a)); err != nil {
			return fmt.Errorf("tap %s: set address %s: %w", name, a, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("tap %s: bring it up: %w", name, err)
	}
	return nil
}

// linkAddr is a in netlink's terms. An IPv6 address is usable at once: nobody
// else can have it on an interface that did not exist before.
func linkAddr(a netip.Prefix) *netlink.Addr {
	n := &netlink.Addr{IPNet: &net.IPNet{
		IP:   a.Addr().AsSlice(),
		Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen()),
	}}
	if a.Addr().Is6() {
		n.Flags = unix.IFA_F_NODAD
	}
	return n
}
