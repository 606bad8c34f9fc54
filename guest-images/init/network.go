// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/govmm/govmm/internal/initramfs/layout"
	"github.com/vishvananda/netlink"
)

// address is one interface's configuration.
type address struct {
	device  string     // "": the first Ethernet interface
	dhcp    bool       // if set, the rest is unused
	network *net.IPNet // address and mask
	gateway net.IP     // nil: no default route
}

// configureNetwork brings lo up, and configures what the command line says.
func configureNetwork(c commandLine) error {
	errs := []error{bringUp("lo")}
	addresses, err := parseAddresses(c)
	errs = append(errs, err)
	for _, a := range addresses {
		errs = append(errs, a.apply())
	}
	return errors.Join(errs...)
}

func parseAddresses(c commandLine) (addresses []address, err error) {
	var errs []error
	for _, value := range c.values[layout.AddressParameter] {
		a, err := parseAddress(value)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s=%s: %w", layout.AddressParameter, value, err))
			continue
		}
		addresses = append(addresses, a)
	}
	for _, value := range c.values[layout.KernelAddressParameter] {
		a, wanted, err := parseKernelAddress(value)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s=%s: %w", layout.KernelAddressParameter, value, err))
			continue
		}
		if wanted {
			addresses = append(addresses, a)
		}
	}
	return addresses, errors.Join(errs...)
}

// parseAddress parses the value of layout.AddressParameter.
func parseAddress(value string) (address, error) {
	first, rest, _ := strings.Cut(value, ",")
	var a address
	if first == "dhcp" {
		a.dhcp = true
	} else {
		ip, network, err := net.ParseCIDR(first)
		if err != nil {
			return a, fmt.Errorf("%w: expected ADDRESS/PREFIX or dhcp", err)
		}
		a.network = &net.IPNet{IP: ip, Mask: network.Mask}
	}
	if rest == "" {
		return a, nil
	}
	for option := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "dev":
			a.device = value
		case "gw":
			if a.gateway = net.ParseIP(value); a.gateway == nil {
				return a, fmt.Errorf("gw=%s is no address", value)
			}
		default:
			return a, fmt.Errorf("unknown option %q: there are gw= and dev=", name)
		}
	}
	return a, nil
}

// parseKernelAddress parses the value of the kernel's ip parameter, and tells
// whether it asks for anything.
func parseKernelAddress(value string) (a address, wanted bool, err error) {
	const (
		client = iota
		server
		gateway
		netmask
		hostname
		device
		autoconf
		fields
	)
	switch value {
	case "off", "none", "":
		return a, false, nil
	case "on", "any", "dhcp":
		return address{dhcp: true}, true, nil
	}
	parts := slices.Grow(strings.Split(value, ":"), fields)
	for len(parts) < fields {
		parts = append(parts, "")
	}
	a.device = parts[device]
	if parts[client] == "" {
		a.dhcp = parts[autoconf] != "off" && parts[autoconf] != "none"
		return a, a.dhcp, nil
	}
	ip := net.ParseIP(parts[client]).To4()
	if ip == nil {
		return a, false, fmt.Errorf("%q is no IPv4 address", parts[client])
	}
	mask := ip.DefaultMask()
	if parts[netmask] != "" {
		mask = net.IPMask(net.ParseIP(parts[netmask]).To4())
		if ones, bits := mask.Size(); bits == 0 || ones == 0 {
			return a, false, fmt.Errorf("%q is no network mask", parts[netmask])
		}
	}
	a.network = &net.IPNet{IP: ip, Mask: mask}
	if parts[gateway] != "" {
		if a.gateway = net.ParseIP(parts[gateway]); a.gateway == nil {
			return a, false, fmt.Errorf("gateway %q is no address", parts[gateway])
		}
	}
	return a, true, nil
}

func (a address) apply() error {
	link, err := a.link()
	if err != nil {
		return err
	}
	name := link.Attrs().Name
	if a.dhcp {
		return dhcp(name)
	}
	// Duplicate detection would keep an IPv6 address from use for a second.
	const noDuplicateDetection = 0x02 // IFA_F_NODAD
	err = netlink.AddrAdd(link, &netlink.Addr{IPNet: a.network, Flags: noDuplicateDetection})
	if err != nil {
		return fmt.Errorf("%s: address %v: %w", name, a.network, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s: cannot bring it up: %w", name, err)
	}
	if a.gateway == nil {
		return nil
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: a.gateway}); err != nil {
		return fmt.Errorf("%s: default route by %v: %w", name, a.gateway, err)
	}
	return nil
}

// linkPatience is how long a device may take from its driver's load to its
// network interface.
const linkPatience = 5 * time.Second

// link waits for the interface.
func (a address) link() (netlink.Link, error) {
	for deadline := time.Now().Add(linkPatience); ; time.Sleep(20 * time.Millisecond) {
		link, err := findLink(a.device)
		if err == nil || time.Now().After(deadline) {
			return link, err
		}
	}
}

// findLink returns the named interface, or the Ethernet interface of the lowest
// index that is a device's.
func findLink(name string) (netlink.Link, error) {
	if name != "" {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		return link, nil
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		_, err := os.Stat("/sys/class/net/" + link.Attrs().Name + "/device")
		if err == nil && link.Attrs().EncapType == "ether" {
			return link, nil
		}
	}
	return nil, errors.New("there is no Ethernet interface")
}

func bringUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	return netlink.LinkSetUp(link)
}

// dhcp asks for an address. The client ends once it has one.
func dhcp(name string) error {
	client, err := lookPath("dhclient")
	if err != nil {
		return err
	}
	cmd := exec.Command(client, "-ipv6=false", "-timeout", "5", "-retry", "3", name)
	cmd.Env = environment
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: dhclient: %w: %s", name, err, output)
	}
	return nil
}
