// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/pcap"
	"github.com/govmm/govmm/devices/netio/tap"
	virtionet "github.com/govmm/govmm/devices/virtio/net"
	"github.com/govmm/govmm/internal/result"
)

// nic is one NIC over all boots: its backend, which stays open, and the device
// of the current boot.
type nic struct {
	name    string
	cfg     Net
	mac     virtionet.MAC
	backend netio.Backend
	// counters are those of the current boot's device; nil before the first boot.
	counters func() any
}

// openNets opens the backend of every NIC.
func (m *Machine) openNets() error {
	for i, cfg := range m.cfg.Nets {
		n := &nic{name: fmt.Sprintf("net%d", i), cfg: cfg}
		if err := n.open(m.log); err != nil {
			return result.Errorf(result.Host, "%s: %w", n.name, err)
		}
		m.nics = append(m.nics, n)
		// Each boot makes a device; this one only tells what is wrong with it now.
		if _, err := n.newVirtio(m.log); err != nil {
			return err
		}
	}
	return nil
}

func (n *nic) open(log *slog.Logger) error {
	mac, err := net.ParseMAC(n.cfg.MAC)
	if err != nil {
		return err // Validate has checked it
	}
	copy(n.mac[:], mac)
	o := tap.Options{Name: n.cfg.Tap, Create: n.cfg.Create, MTU: n.cfg.MTU, Queues: n.cfg.Queues, Log: log}
	if n.cfg.FD != 0 {
		o.FDs = []int{n.cfg.FD}
	}
	if n.cfg.IP != "" {
		addr, err := netip.ParsePrefix(n.cfg.IP)
		if err != nil {
			return err // Validate has checked it
		}
		o.Addrs = []netip.Prefix{addr}
	}
	t, err := tap.Open(o)
	if err != nil {
		return err
	}
	n.backend = t
	if n.cfg.Pcap == "" {
		return nil
	}
	captured, err := pcap.Open(t, n.cfg.Pcap, log)
	if err != nil {
		return errors.Join(err, t.Close())
	}
	n.backend = captured
	return nil
}

// newVirtio makes the device of a virtio NIC for one boot.
func (n *nic) newVirtio(log *slog.Logger) (*virtionet.Device, error) {
	mtu := n.cfg.MTU
	if mtu == 0 {
		mtu = n.backend.MTU()
	}
	d, err := virtionet.New(virtionet.Config{
		Name:      n.name,
		MAC:       n.mac,
		Backend:   n.backend,
		Queues:    n.cfg.Queues,
		RingSize:  n.cfg.Ring,
		MTU:       mtu,
		Mergeable: n.cfg.Mergeable == "on",
		Offload:   n.cfg.Offload == "on",
		Batch:     n.cfg.Batch,
		BusyPoll:  n.cfg.BusyPoll,
		Log:       log,
	})
	if err != nil {
		return nil, result.Errorf(result.Usage, "%s: %w", n.name, err)
	}
	n.counters = func() any { return d.Counters() }
	return d, nil
}

func (n *nic) close() error {
	if n.backend == nil {
		return nil
	}
	if err := n.backend.Close(); err != nil {
		return result.Errorf(result.Host, "%s: %w", n.name, err)
	}
	return nil
}

// logCounters tells what the NICs of the boot that has ended have done.
func (m *Machine) logCounters() {
	for _, n := range m.nics {
		if n.counters != nil {
			m.log.Info("counters", "nic", n.name, "backend", n.backend.Name(), "counters", n.counters())
		}
	}
}
