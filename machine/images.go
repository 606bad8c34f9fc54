// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"net/netip"
	"strings"

	"github.com/govmm/govmm/boot"
	"github.com/govmm/govmm/internal/initramfs"
	"github.com/govmm/govmm/internal/result"
)

// DefaultInitrd among Config.Initrds stands for govmm's own image with the
// modules that the kernel needs, so that it can be combined with others. A file
// of that name is written ./default.
const DefaultInitrd = "default"

func (m *Machine) openKernel() error {
	k, err := boot.Open(m.cfg.Kernel)
	if err != nil {
		return err
	}
	m.kernel = k
	return nil
}

// openInitrds settles the initrds and, because the default one takes its
// network configuration from there, the kernel command line.
func (m *Machine) openInitrds() error {
	names := m.cfg.Initrds
	if len(names) == 0 {
		names = []string{DefaultInitrd}
	}
	m.cmdline = strings.Join(append([]string{m.cfg.Cmdline}, m.cfg.Append...), " ")
	for _, name := range names {
		if name != DefaultInitrd {
			m.initrds = append(m.initrds, boot.Source{Path: name})
			continue
		}
		segments, err := initramfs.Default(m.kernel.Path(), m.kernel.Version())
		if err != nil {
			return result.Errorf(result.BadImage, "govmm's own guest image: %w", err)
		}
		for _, s := range segments {
			m.initrds = append(m.initrds, boot.Source{Path: "govmm's own guest image", Data: s})
		}
		m.cmdline = withGuestAddress(m.cmdline, m.cfg.Nets)
	}
	return nil
}

// addressKey is the kernel command line's key from which govmm's guest image
// takes the address of its first NIC.
const addressKey = "govmm.ip="

// withGuestAddress adds an address for the guest's first NIC if govmm gave the
// host's end of it one and the user has not said otherwise: the next address of
// the same network.
func withGuestAddress(cmdline string, nets []Net) string {
	if len(nets) == 0 || nets[0].IP == "" || strings.Contains(" "+cmdline, " ip=") || strings.Contains(cmdline, addressKey) {
		return cmdline
	}
	host, err := netip.ParsePrefix(nets[0].IP)
	if err != nil {
		return cmdline
	}
	guest := host.Addr().Next()
	if !host.Contains(guest) {
		return cmdline
	}
	// What follows "--" is for init, so the key goes before it.
	kernel, init, _ := strings.Cut(cmdline+" ", " -- ")
	out := strings.TrimSpace(kernel) + " " + addressKey + netip.PrefixFrom(guest, host.Bits()).String()
	if init = strings.TrimSpace(init); init != "" {
		out += " -- " + init
	}
	return out
}
