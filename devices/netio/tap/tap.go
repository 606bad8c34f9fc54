// SPDX-License-Identifier: Apache-2.0

// Package tap is the netio.Backend over a Linux tap interface, with the frames
// moved between it and guest memory by readv and writev.
//
// The interface may exist already, which needs no privilege beyond owning it;
// it may be made here, and then vanishes when the process ends in whatever way;
// or its descriptors come from elsewhere. In all cases each frame has the
// virtio header of 12 bytes before it, little-endian (IFF_VNET_HDR).
package tap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/govmm/govmm/devices/netio"
	"golang.org/x/sys/unix"
)

// etherOverhead is what a frame has beyond the MTU: the Ethernet header and one
// VLAN tag, bytes.
const etherOverhead = 14 + 4

// Tap is the backend.
type Tap struct {
	name    string
	queues  []*queue
	control int // a socket in the interface's network namespace, for ioctls
	log     *slog.Logger
	offer   netio.Offload

	mu  sync.Mutex
	set netio.Offload
	mtu int // as last seen
}

var (
	_ netio.Backend  = (*Tap)(nil)
	_ netio.Filterer = (*Tap)(nil)
)

// attach makes a Tap of the descriptors of an interface's queues, and brings
// these into the state that the engine needs. The Tap owns the descriptors,
// also if there is an error.
func attach(name string, fds []int, control int, log *slog.Logger) (*Tap, error) {
	t := &Tap{name: name, control: control, log: log}
	for i, fd := range fds {
		t.queues = append(t.queues, newQueue(fmt.Sprintf("tap %s", name), fd))
		if err := setUpQueue(fd); err != nil {
			return nil, errors.Join(fmt.Errorf("tap %s: queue %d: %w", name, i, err), t.Close())
		}
	}
	t.offer = probeOffloads(fds[0])
	t.mtu = defaultMTU
	t.noteLimits()
	return t, nil
}

// setUpQueue sets what belongs to an open descriptor, or to its interface.
func setUpQueue(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return os.NewSyscallError("fcntl(O_NONBLOCK)", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, netio.HeaderLen); err != nil {
		return os.NewSyscallError("ioctl(TUNSETVNETHDRSZ)", err)
	}
	if bigEndian := binary.NativeEndian.Uint16([]byte{0, 1}) == 1; bigEndian {
		// The default is the host's byte order.
		if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETLE, 1); err != nil {
			return os.NewSyscallError("ioctl(TUNSETVNETLE)", err)
		}
	}
	return nil
}

// probeOffloads finds what this kernel takes, and leaves all of it off. The
// kernel has no question for that: it refuses a set with one unknown bit.
func probeOffloads(fd int) (o netio.Offload) {
	const tso = netio.OffloadCsum | netio.OffloadTSO4 | netio.OffloadTSO6
	for _, try := range []netio.Offload{
		netio.OffloadCsum,
		tso,
		tso | netio.OffloadTSOECN,
		netio.OffloadCsum | netio.OffloadUSO4 | netio.OffloadUSO6, // since Linux 6.2
	} {
		if unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, int(try)) == nil {
			o |= try
		}
	}
	// 0 is always taken; if it isn't, the first SetOffloads says so.
	_ = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0)
	return o
}

// Name implements netio.Backend: it is the interface's name.
func (t *Tap) Name() string { return t.name }

// Queues implements netio.Backend.
func (t *Tap) Queues() []netio.Queue {
	qs := make([]netio.Queue, len(t.queues))
	for i, q := range t.queues {
		qs[i] = q
	}
	return qs
}

// Offloads implements netio.Backend.
func (t *Tap) Offloads() netio.Offload { return t.offer }

// SetOffloads implements netio.Backend. Frames that wait are discarded only if
// the new setting has less than the old: the guest then can't take them.
func (t *Tap) SetOffloads(o netio.Offload) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := unix.IoctlSetInt(t.queues[0].fd, unix.TUNSETOFFLOAD, int(o)); err != nil {
		return fmt.Errorf("tap %s: set offloads %#x, %#x are possible: %w", t.name, o, t.offer, os.NewSyscallError("ioctl(TUNSETOFFLOAD)", err))
	}
	stale := t.set&^o != 0
	t.set = o
	t.noteLimits()
	if stale {
		for _, q := range t.queues {
			q.discard()
		}
	}
	return nil
}

// noteLimits tells the queues the largest frame that the host can send now.
func (t *Tap) noteLimits() {
	t.readMTU()
	largest := netio.HeaderLen + t.mtu + etherOverhead
	if t.set&^(netio.OffloadCsum|netio.OffloadTSOECN) != 0 {
		largest = netio.HeaderLen + netio.MaxFrame
	}
	for _, q := range t.queues {
		q.largest = largest
	}
}

// defaultMTU stands in where the interface's can't be read: the tap lives in
// another network namespace.
const defaultMTU = 1500

// MTU implements netio.Backend.
func (t *Tap) MTU() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readMTU()
	return t.mtu
}

// readMTU updates t.mtu. It stays as it was if the interface is gone.
func (t *Tap) readMTU() {
	if t.control < 0 {
		return
	}
	ifr, err := unix.NewIfreq(t.name)
	if err != nil {
		return
	}
	if unix.IoctlIfreq(t.control, unix.SIOCGIFMTU, ifr) == nil {
		t.mtu = int(ifr.Uint32())
	}
}

// SetActive implements netio.Backend: the first n queues are attached to the
// interface, the others are not. A tap with one queue needs no call.
func (t *Tap) SetActive(n int) error {
	if n < 1 || n > len(t.queues) {
		return fmt.Errorf("tap %s: %d active queues: it has 1 to %d", t.name, n, len(t.queues))
	}
	for i, q := range t.queues {
		if err := q.setAttached(i < n); err != nil {
			return fmt.Errorf("tap %s: queue %d: %w", t.name, i, err)
		}
	}
	return nil
}

// SetFilter implements netio.Filterer.
func (t *Tap) SetFilter(f *netio.Filter) {
	for _, q := range t.queues {
		q.filter.Store(f)
	}
}

// Close implements netio.Backend. An interface that was made here is gone when
// its last descriptor is closed.
func (t *Tap) Close() error {
	var errs []error
	for _, q := range slices.Backward(t.queues) {
		errs = append(errs, os.NewSyscallError("close", unix.Close(q.fd)))
	}
	t.queues = nil
	if t.control >= 0 {
		errs = append(errs, os.NewSyscallError("close", unix.Close(t.control)))
		t.control = -1
	}
	return errors.Join(errs...)
}
