// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/kvm"
	"github.com/govmm/govmm/machine/pc"
	"github.com/govmm/govmm/machine/probe"
)

// host is this host's KVM.
type host struct {
	system *kvm.System
}

// openHost opens KVM and makes sure that it can run Linux: on a host where it
// can't, a guest would hang or die without a word.
func (m *Machine) openHost() error {
	sys, err := kvm.Open("")
	if err != nil {
		return result.Errorf(result.Host, "%w", err)
	}
	m.host.system = sys
	v, err := probe.Linux(sys)
	if err != nil {
		return result.Errorf(result.Host, "try KVM: %w", err)
	}
	if !v.OK {
		return result.Errorf(result.Host, "%s: %s", v.Reason, v.Cure)
	}
	if m.cfg.HyperV == "on" {
		return checkHyperV(sys.CheckExtension)
	}
	return nil
}

// checkHyperV makes sure that the host can show Hyper-V to a guest.
func checkHyperV(check func(kvm.Cap) (int, error)) error {
	v, err := probe.HyperV(check)
	if err != nil {
		return result.Errorf(result.Host, "try KVM: %w", err)
	}
	if !v.OK {
		return result.Errorf(result.Host, "%s: %s", v.Reason, v.Cure)
	}
	return nil
}

func (h *host) close() error {
	if h.system == nil {
		return nil
	}
	return h.system.Close()
}

// newBoard builds the board for one boot.
func (m *Machine) newBoard() (board, error) {
	cfg := pc.Config{
		System:  m.host.system,
		Log:     m.log,
		CPUs:    m.cfg.CPUs,
		Memory:  m.cfg.Memory,
		Nested:  m.cfg.Nested,
		HyperV:  m.cfg.HyperV == "on",
		Kernel:  m.kernel,
		Entry:   m.cfg.Entry,
		Cmdline: m.cmdline,
		Initrds: m.initrds,
		Console: m.console,
		OnPanic: func() { m.console.panic.panicked("the guest reported a panic (pvpanic)") },
	}
	for _, n := range m.nics {
		if n.cfg.Model == modelNetVSC {
			dev, err := n.newNetVSC(m.log)
			if err != nil {
				return nil, err
			}
			cfg.VMBus = append(cfg.VMBus, dev)
			continue
		}
		dev, err := n.newVirtio(m.log)
		if err != nil {
			return nil, err
		}
		cfg.Virtio = append(cfg.Virtio, pc.VirtioDevice{Name: n.name, Device: virtio.Device(dev)})
	}
	return pc.New(cfg)
}
