// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/govmm/govmm/internal/result"
)

// Further limits of a VM.
const (
	MaxMemory   = 1 << 40 // bytes
	MemoryUnit  = 1 << 16 // bytes; memory is a multiple of it, the largest page of a supported host
	MaxQueues   = 16      // queue pairs of a NIC
	MinRing     = 64
	MaxRing     = 4096
	MaxBatch    = 256
	MinMTU      = 1280  // bytes; what IPv6 needs of a link (RFC 8200, section 5), and what VIRTIO 1.2, 5.1.4.1 recommends as least
	MaxMTU      = 65535 // bytes (VIRTIO 1.2, 5.1.4.1)
	MaxBusyPoll = 100 * time.Millisecond
	MaxName     = 64 // characters
	maxTapName  = 15 // IFNAMSIZ less its NUL (linux/if.h)
)

// Further defaults of a Config.
const (
	DefaultName   = "govmm"
	DefaultQueues = 1
	DefaultRing   = 1024
	DefaultBatch  = 64
)

// WithDefaults returns c with each field that has its zero value set to its
// default. It shares no slice with c.
func (c Config) WithDefaults() Config {
	c.Name = cmp.Or(c.Name, DefaultName)
	c.Cmdline = cmp.Or(c.Cmdline, DefaultCmdline)
	c.Entry = cmp.Or(c.Entry, "auto")
	c.CPUs = cmp.Or(c.CPUs, 1)
	c.Memory = cmp.Or(c.Memory, DefaultMemory)
	c.Serial.Mode = cmp.Or(c.Serial.Mode, "stdio")
	c.OnPanic = cmp.Or(c.OnPanic, "exit")
	c.OnReboot = cmp.Or(c.OnReboot, "reboot")
	c.Initrds = slices.Clone(c.Initrds)
	c.Append = slices.Clone(c.Append)
	c.Nets = slices.Clone(c.Nets)
	for i := range c.Nets {
		c.Nets[i] = c.Nets[i].withDefaults(c.Name, i)
	}
	if c.HyperV == "" {
		c.HyperV = "off"
		if c.hasNetVSC() {
			c.HyperV = "on"
		}
	}
	return c
}

// NIC models.
const (
	modelVirtio = "virtio"
	modelNetVSC = "netvsc"
)

// hasNetVSC tells whether a NIC is on the VMBus.
func (c Config) hasNetVSC() bool {
	return slices.ContainsFunc(c.Nets, func(n Net) bool { return n.Model == modelNetVSC })
}

func (n Net) withDefaults(vm string, index int) Net {
	n.Model = cmp.Or(n.Model, modelVirtio)
	n.MAC = cmp.Or(n.MAC, DeriveMAC(vm, index, n.Tap).String())
	n.Queues = cmp.Or(n.Queues, DefaultQueues)
	n.Offload = cmp.Or(n.Offload, "on")
	n.Batch = cmp.Or(n.Batch, DefaultBatch)
	if n.Model == modelVirtio {
		n.Ring = cmp.Or(n.Ring, DefaultRing)
		n.Mergeable = cmp.Or(n.Mergeable, "on")
	}
	return n
}

// DeriveMAC returns the MAC address of a VM's NIC that was given none: the same
// for the same VM name, index of the NIC and tap name, so that a guest finds its
// NIC again, and another one for VMs of the same name on different taps, which a
// bridge may join. It is unicast and locally administered (IEEE 802, section 8.2).
func DeriveMAC(vm string, index int, tap string) net.HardwareAddr {
	sum := sha256.Sum256(fmt.Appendf(nil, "govmm\x00%s\x00%d\x00%s", vm, index, tap))
	const group, local = 1, 2
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^group | local
	return mac
}

// Validate checks all that can be told from c alone, with its defaults filled
// in: ranges, names, what excludes what. Files and taps are opened, and so
// checked, when the VM is made. The error is a *result.Error of reason usage
// that names the thing, what is wrong with it, and the cure.
func (c Config) Validate() error {
	c = c.WithDefaults()
	checks := []func() error{
		c.checkName, c.checkKernel, c.checkSize, c.checkHyperV, c.checkNets, c.checkSerial, c.checkPolicy,
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func usagef(format string, args ...any) error {
	return result.Errorf(result.Usage, format, args...)
}

// oneOf checks a value that is a word of a list.
func oneOf(thing, value string, words ...string) error {
	if slices.Contains(words, value) {
		return nil
	}
	return usagef("%s %q is unknown: use %s", thing, value, orList(words))
}

func orList(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// inRange checks a number; the unit follows the limits in the message.
func inRange[T int | uint64](thing string, value, low, high T, unit string) error {
	if low <= value && value <= high {
		return nil
	}
	return usagef("%s %d is out of range: use %d to %d%s", thing, value, low, high, unit)
}

// checkName admits names that are safe in file names and in a tap's name.
func (c Config) checkName() error {
	if len(c.Name) > MaxName {
		return usagef("name %.20q... has %d characters: use at most %d", c.Name, len(c.Name), MaxName)
	}
	for i, r := range c.Name {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_':
		case r == '-' || r == '.':
			if i == 0 {
				return usagef("name %q begins with %q: begin with a letter, a digit or '_'", c.Name, r)
			}
		default:
			return usagef("name %q has the character %q: use letters, digits, '_', '-' and '.'", c.Name, r)
		}
	}
	return nil
}

func (c Config) checkKernel() error {
	if c.Kernel == "" {
		return usagef("no kernel: name a bzImage, a vmlinux or a kernel build folder, as in govmm run -k bzImage")
	}
	if slices.Contains(c.Initrds, "") {
		return usagef("an initrd has an empty name: name a file, or leave the initrd out for govmm's own image")
	}
	if strings.ContainsRune(c.Cmdline+strings.Join(c.Append, ""), 0) {
		return usagef("the kernel command line has a NUL byte, at which the kernel would end it: remove it")
	}
	return oneOf("entry", c.Entry, "auto", "linux64", "pvh")
}

func (c Config) checkHyperV() error {
	if err := oneOf("hyperv", c.HyperV, "on", "off"); err != nil {
		return err
	}
	if c.HyperV == "off" && c.hasNetVSC() {
		return usagef("hyperv is off, but a NIC of model netvsc needs it: leave hyperv out, or use model=virtio")
	}
	return nil
}

func (c Config) checkSize() error {
	if err := inRange("the number of vCPUs", c.CPUs, 1, MaxCPUs, ""); err != nil {
		return err
	}
	if c.Memory < MinMemory || c.Memory > MaxMemory {
		return usagef("memory of %d bytes is out of range: use %dM to %dG", c.Memory, MinMemory>>20, uint64(MaxMemory)>>30)
	}
	if c.Memory%MemoryUnit != 0 {
		return usagef("memory of %d bytes is not whole pages: use a multiple of %dK, such as %dM", c.Memory, MemoryUnit>>10, c.Memory>>20)
	}
	return nil
}

func (c Config) checkSerial() error {
	if err := oneOf("serial", c.Serial.Mode, "stdio", "file", "none"); err != nil {
		return err
	}
	switch file := c.Serial.Mode == "file"; {
	case file && c.Serial.Path == "":
		return usagef("serial file has no path: use --serial file=PATH")
	case !file && c.Serial.Path != "":
		return usagef("serial %s has the path %q: only file has one", c.Serial.Mode, c.Serial.Path)
	}
	return nil
}

func (c Config) checkPolicy() error {
	if c.Timeout < 0 {
		return usagef("timeout %v is negative: use a duration such as 10m, or leave it out for none", c.Timeout)
	}
	if err := oneOf("on-panic", c.OnPanic, "exit", "continue"); err != nil {
		return err
	}
	return oneOf("on-reboot", c.OnReboot, "reboot", "exit")
}

func (c Config) checkNets() error {
	if len(c.Nets) > MaxNets {
		return usagef("%d NICs are too many: use at most %d", len(c.Nets), MaxNets)
	}
	for i, n := range c.Nets {
		if err := n.check(); err != nil {
			return usagef("net %d: %w", i, err)
		}
		for j, other := range c.Nets[:i] {
			if err := n.clash(other); err != nil {
				return usagef("net %d and net %d: %w", j, i, err)
			}
		}
	}
	return nil
}

// clash tells what two NICs of one VM may not share.
func (n Net) clash(other Net) error {
	switch {
	case n.Tap != "" && n.Tap == other.Tap:
		return fmt.Errorf("both use tap %q: give each NIC its own tap, or one NIC queues=2", n.Tap)
	case n.FD != 0 && n.FD == other.FD:
		return fmt.Errorf("both use file descriptor %d: give each NIC its own", n.FD)
	case sameMAC(n.MAC, other.MAC):
		return fmt.Errorf("both have the MAC address %s: change one, or leave it out", n.MAC)
	case n.Pcap != "" && n.Pcap == other.Pcap:
		return fmt.Errorf("both write to %q: give each NIC its own capture file", n.Pcap)
	}
	return nil
}

func sameMAC(a, b string) bool {
	x, errX := net.ParseMAC(a)
	y, errY := net.ParseMAC(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func (n Net) check() error {
	if err := oneOf("model", n.Model, modelVirtio, modelNetVSC); err != nil {
		return err
	}
	if err := n.checkTap(); err != nil {
		return err
	}
	if err := n.checkAddresses(); err != nil {
		return err
	}
	return n.checkTuning()
}

// checkTap checks which tap it is.
func (n Net) checkTap() error {
	given := 0
	for _, is := range []bool{n.Tap != "", n.Create, n.FD != 0} {
		if is {
			given++
		}
	}
	switch {
	case given == 0:
		return usagef("no tap: use tap=NAME for one that exists, tap,ip=10.0.0.1/24 for one that govmm makes, or fd=N for an open one")
	case given > 1:
		return usagef("more than one tap: use only one of tap=NAME, tap and fd=N")
	case n.FD < 0 || n.FD == 1 || n.FD == 2:
		return usagef("fd=%d can't be a tap: use the number of a tap's file descriptor that govmm inherits, 3 or above", n.FD)
	case n.FD != 0 && n.Queues > 1:
		return usagef("queues=%d with fd=%d: a file descriptor is one queue; use queues=1, or tap=NAME", n.Queues, n.FD)
	case n.IP != "" && !n.Create:
		return usagef("ip=%s needs a tap that govmm makes: use tap,ip=%s, or set the address of the tap yourself with ip addr add", n.IP, n.IP)
	case n.Tap != "":
		return checkTapName(n.Tap)
	}
	return nil
}

// checkTapName follows dev_valid_name of the kernel. A '%' is valid there but
// makes TUNSETIFF look for a free number, so that it names no existing tap.
func checkTapName(name string) error {
	switch {
	case len(name) > maxTapName:
		return usagef("tap name %q has %d characters: a network device's name has at most %d", name, len(name), maxTapName)
	case name == "." || name == ".." || strings.ContainsAny(name, "/:% \t\n\v\f\r\x00"):
		return usagef("tap name %q can't be a network device's name: use the name that ip link shows", name)
	}
	return nil
}

func (n Net) checkAddresses() error {
	if err := checkMAC(n.MAC); err != nil {
		return err
	}
	if n.MTU != 0 {
		if err := inRange("mtu", n.MTU, MinMTU, MaxMTU, " bytes, or leave it out for the tap's"); err != nil {
			return err
		}
	}
	if n.IP == "" {
		return nil
	}
	p, err := netip.ParsePrefix(n.IP)
	switch {
	case err != nil:
		return usagef("ip %q is not an address with a prefix length: use one such as 10.0.0.1/24", n.IP)
	case p.Addr().IsUnspecified() || p.Addr().IsMulticast() || p.Addr().IsLoopback():
		return usagef("ip %s can't be a host's address on a network: use one such as 10.0.0.1/24", n.IP)
	case p.Addr().Is4() && p.Bits() < 31 && p.Addr() == p.Masked().Addr():
		return usagef("ip %s is the network's own address: use one of its hosts', such as %s/%d", n.IP, p.Addr().Next(), p.Bits())
	}
	return nil
}

func checkMAC(text string) error {
	mac, err := net.ParseMAC(text)
	switch {
	case err != nil || len(mac) != 6:
		return usagef("mac %q is not a MAC address: use six bytes such as 02:00:00:00:00:01", text)
	case mac[0]&1 != 0:
		return usagef("mac %s is a group address: a NIC's first byte is even, such as %02x", text, mac[0]&^1)
	case bytes.Equal(mac, make([]byte, 6)):
		return usagef("mac %s is no NIC's address: use one such as 02:00:00:00:00:01, or leave it out", text)
	}
	return nil
}

func (n Net) checkTuning() error {
	if err := inRange("queues", n.Queues, 1, MaxQueues, ""); err != nil {
		return err
	}
	if err := inRange("batch", n.Batch, 1, MaxBatch, " frames"); err != nil {
		return err
	}
	if n.BusyPoll < 0 || n.BusyPoll > MaxBusyPoll {
		return usagef("busy-poll %v is out of range: use 0s to %v", n.BusyPoll, MaxBusyPoll)
	}
	if err := oneOf("offload", n.Offload, "on", "off"); err != nil {
		return err
	}
	if n.Model == modelVirtio {
		return n.checkVirtio()
	}
	if n.Ring != 0 || n.Mergeable != "" {
		return usagef("ring and mergeable are for model=virtio: leave them out, the guest's driver decides")
	}
	return nil
}

// checkVirtio checks what only a virtio NIC has.
func (n Net) checkVirtio() error {
	if n.Ring < MinRing || n.Ring > MaxRing || n.Ring&(n.Ring-1) != 0 {
		return usagef("ring %d can't be a ring size: use a power of two from %d to %d", n.Ring, MinRing, MaxRing)
	}
	return oneOf("mergeable", n.Mergeable, "on", "off")
}
