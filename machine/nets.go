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
	"github.com/govmm/govmm/devices/vmbus/netvsc"
	"github.com/govmm/govmm/internal/result"
)

// nic is one NIC over all boots: its backend, which stays open, and the device
// of the current boot.
type nic struct {
	name    string
	cfg     Net
	mac     [6]byte
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
		if err := n.tryDevice(m.log); err != nil {
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

// tryDevice makes the device that each boot makes anew, for the error only.
func (n *nic) tryDevice(log *slog.Logger) error {
	if n.cfg.Model == modelNetVSC {
		_, err := n.newNetVSC(log)
		return err
	}
	_, err := n.newVirtio(log)
	return err
}

// mtu is the largest that the guest may use, bytes.
func (n *nic) mtu() int {
	if n.cfg.MTU != 0 {
		return n.cfg.MTU
	}
	return n.backend.MTU()
}

// newNetVSC makes the device of a NIC on the VMBus for one boot.
func (n *nic) newNetVSC(log *slog.Logger) (*netvsc.Device, error) {
	d, err := netvsc.New(netvsc.Config{
		Name:     n.name,
		MAC:      n.mac,
		Backend:  n.backend,
		Queues:   n.cfg.Queues,
		MTU:      n.mtu(),
		Offload:  n.cfg.Offload == "on",
		Batch:    n.cfg.Batch,
		BusyPoll: n.cfg.BusyPoll,
		Log:      log,
	})
	if err != nil {
		return nil, result.Errorf(result.Usage, "%s: %w", n.name, err)
	}
	n.counters = func() any { return d.Counters() }
	return d, nil
}

// newVirtio makes the device of a virtio NIC for one boot.
func (n *nic) newVirtio(log *slog.Logger) (*virtionet.Device, error) {
	d, err := virtionet.New(virtionet.Config{
		Name:      n.name,
		MAC:       n.mac,
		Backend:   n.backend,
		Queues:    n.cfg.Queues,
		RingSize:  n.cfg.Ring,
		MTU:       n.mtu(),
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
