// SPDX-License-Identifier: Apache-2.0

package netbench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/tap"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rig is a tap in a network namespace of its own, and a packet socket that sends
// into it.
type rig struct {
	tap    *tap.Tap
	fd     tap.Raw
	source int
	frame  []byte // scratch of fill
}

// newRig makes a rig on the calling thread, which must be locked, and end with
// its goroutine: its network namespace changes.
func newRig() (*rig, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("a network namespace for the benchmark: %w (run as root)", os.NewSyscallError("unshare", err))
	}
	// Neighbour discovery would send frames of its own.
	for _, conf := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	t, err := tap.Open(tap.Options{Create: true, MTU: tap.MaxMTU})
	if err != nil {
		return nil, err
	}
	r := &rig{tap: t, fd: tap.Raw(t.Queues()[0].PollFD()), source: -1}
	if err := r.openSource(); err != nil {
		return nil, errors.Join(fmt.Errorf("packet source for %s: %w", t.Name(), err), r.close())
	}
	return r, nil
}

// openSource opens a packet socket whose frames begin with a virtio header of 10
// bytes, and go straight into the tap's queue.
func (r *rig) openSource() (err error) {
	link, err := netlink.LinkByName(r.tap.Name())
	if err != nil {
		return err
	}
	if r.source, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	for _, opt := range []int{unix.PACKET_VNET_HDR, unix.PACKET_QDISC_BYPASS} {
		if err := unix.SetsockoptInt(r.source, unix.SOL_PACKET, opt, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return os.NewSyscallError("bind", unix.Bind(r.source, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index}))
}

// queueLen is how many frames the source puts into the tap's queue at a time:
// less than the txqueuelen of 1000, and no more than a few MiB.
func queueLen(frame []byte) int { return min(900, max(64, (8<<20)/len(frame))) }

// fill puts n frames into the tap's queue. frame has the header of 12 bytes; the
// packet socket takes the first 10.
func (r *rig) fill(frame []byte, n int) error {
	const sourceHeader = 10
	f := append(append(r.frame[:0], frame[:sourceHeader]...), frame[netio.HeaderLen:]...)
	r.frame = f
	for range n {
		if _, err := unix.Write(r.source, f); err != nil {
			return fmt.Errorf("send into %s: %w", r.tap.Name(), err)
		}
	}
	return nil
}

// drain empties the tap's queue.
func (r *rig) drain() {
	var spill [1]byte
	for {
		if _, err := unix.Read(int(r.fd), spill[:]); errors.Is(err, unix.EAGAIN) {
			return
		}
	}
}

func (r *rig) close() error {
	if r.source >= 0 {
		_ = unix.Close(r.source)
	}
	return r.tap.Close()
}

// smallFrame is a frame of size bytes for a station that the host is not: the
// host's stack drops it as early as it can.
func smallFrame(size int) []byte {
	f := make([]byte, netio.HeaderLen+size)
	copy(f[netio.HeaderLen:], "\x02\x00\x00\x00\xbe\xef\x02\x00\x00\x00\x00\x01\x88\xb5") // local experimental EtherType
	return f
}

// largeFrame is a TCP segment of 65226 bytes, 45 times 1448 and the headers, for
// a station that the host is not, to be cut up by whoever sends it out.
func largeFrame() []byte {
	const (
		mss     = 1448
		headers = 14 + 20 + 32 // Ethernet, IPv4, TCP with the timestamp option
		size    = headers + 45*mss
	)
	f := smallFrame(size)
	f[0], f[1] = 1, 1 // NEEDS_CSUM, GSO_TCPV4
	binary.LittleEndian.PutUint16(f[2:], headers)
	binary.LittleEndian.PutUint16(f[4:], mss)
	binary.LittleEndian.PutUint16(f[6:], 14+20) // csum_start
	binary.LittleEndian.PutUint16(f[8:], 16)    // csum_offset
	ip := f[netio.HeaderLen+14:]
	copy(f[netio.HeaderLen+12:], "\x08\x00")
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	ip[8], ip[9] = 64, 6
	copy(ip[12:], "\x0a\x00\x00\x02\x0a\x00\x00\x01")
	ip[20+12], ip[20+13] = 8<<4, 0x10
	return f
}
