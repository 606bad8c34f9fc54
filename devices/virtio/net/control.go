// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/internal/bug"
	"golang.org/x/sys/unix"
)

// Answers to a command (virtio 1.2, 5.1.6.5).
const (
	ctrlOK  = 0 // VIRTIO_NET_OK
	ctrlErr = 1 // VIRTIO_NET_ERR
)

// Classes and commands of the control queue (5.1.6.5.1 to 5.1.6.5.8), the class
// in the upper byte.
const (
	ctrlRxPromisc        = 0x0000 // VIRTIO_NET_CTRL_RX, _PROMISC
	ctrlRxAllMulti       = 0x0001 // VIRTIO_NET_CTRL_RX, _ALLMULTI
	ctrlMACTableSet      = 0x0100 // VIRTIO_NET_CTRL_MAC, _TABLE_SET
	ctrlMACAddrSet       = 0x0101 // VIRTIO_NET_CTRL_MAC, _ADDR_SET
	ctrlMQPairsSet       = 0x0400 // VIRTIO_NET_CTRL_MQ, _VQ_PAIRS_SET
	ctrlGuestOffloadsSet = 0x0500 // VIRTIO_NET_CTRL_GUEST_OFFLOADS, _SET
)

// control serves the control queue on a goroutine of its own, which sleeps
// until the guest kicks. Device.Stop ends it and waits for that.
type control struct {
	d     *Device
	run   *run
	queue *virtio.Queue

	kickfd   int // the transport's
	stopfd   int // -1 unless open
	stopping atomic.Bool
	done     chan struct{} // closed when the goroutine ended
	broken   bool          // a fault was reported
}

func newControl(d *Device, r *run, q *virtio.Queue, kickfd int) *control {
	return &control{d: d, run: r, queue: q, kickfd: kickfd, stopfd: -1, done: make(chan struct{})}
}

// open takes what start needs from the host.
func (c *control) open() (err error) {
	c.stopfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("virtio-net %s: control queue: %w", c.d.cfg.Name, os.NewSyscallError("eventfd", err))
	}
	return nil
}

func (c *control) start() { go c.serve() }

// close ends the goroutine. A command that is under way is finished first.
func (c *control) close() {
	c.stopping.Store(true)
	// Fails only if the counter is full, when the event is already there.
	_, _ = unix.Write(c.stopfd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-c.done
	_ = unix.Close(c.stopfd)
}

func (c *control) serve() {
	defer bug.Catch()
	defer close(c.done)
	for !c.stopping.Load() {
		if !c.next() && !c.queue.ArmKick() && !c.wait() {
			return
		}
	}
}

// wait sleeps until the guest kicks or close is called. It returns false if the
// host can't tell.
func (c *control) wait() bool {
	fds := []unix.PollFd{{Fd: int32(c.kickfd), Events: unix.POLLIN}, {Fd: int32(c.stopfd), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
		c.d.cfg.Log.Error("control queue of the network card stopped", "device", c.d.cfg.Name, "err", os.NewSyscallError("poll", err))
		return false
	}
	if fds[0].Revents&^unix.POLLIN != 0 {
		c.d.cfg.Log.Error("control queue of the network card stopped: its notification is closed", "device", c.d.cfg.Name)
		return false
	}
	if fds[0].Revents != 0 {
		var count [8]byte
		// Only resets the counter; what there is to do is in the ring.
		_, _ = unix.Read(c.kickfd, count[:])
	}
	return true
}

// next carries out one command and reports whether there was one.
func (c *control) next() bool {
	chain, err := c.queue.Next()
	if chain == nil {
		c.check(err)
		return false
	}
	if c.check(c.command(chain)) {
		c.queue.Push(chain.Head, 1)
		c.queue.Publish()
		c.queue.Notify()
	}
	return true
}

// check reports a fault of the queue once, and whether all is well. A broken
// queue has no next command.
func (c *control) check(err error) bool {
	if err != nil && !c.broken {
		c.broken = true
		c.d.guestFault(err)
	}
	return err == nil
}

// command carries out the command in chain: u8 class, u8 command, then what
// belongs to it; the device answers with one byte.
func (c *control) command(chain *virtio.Chain) error {
	if chain.WriteLen == 0 {
		return c.queue.Faultf("command without room for its answer (5.1.6.5)")
	}
	args := arguments{queue: c.queue, chain: chain}
	var code [2]byte
	ok := args.read(code[:]) && c.execute(binary.BigEndian.Uint16(code[:]), &args)
	if args.err != nil {
		return args.err
	}
	answer := byte(ctrlOK)
	if !ok {
		answer = ctrlErr
	}
	c.d.countCommand(ok)
	_, err := c.queue.WriteChain(chain, 0, []byte{answer})
	return err
}

// arguments reads what belongs to a command, front to back.
type arguments struct {
	queue *virtio.Queue
	chain *virtio.Chain
	off   uint64
	err   error // a *fault.Guest
}

// left is how many bytes have not been read.
func (a *arguments) left() uint64 { return a.chain.ReadLen - a.off }

// skip passes over n bytes, of which there are as many.
func (a *arguments) skip(n uint64) { a.off += n }

// read fills p, or reads nothing and returns false if too little is left.
func (a *arguments) read(p []byte) bool {
	if uint64(len(p)) > a.left() || a.err != nil {
		return false
	}
	_, a.err = a.queue.ReadChain(a.chain, a.off, p)
	a.off += uint64(len(p))
	return a.err == nil
}

// last is read for the last argument: nothing may follow.
func (a *arguments) last(p []byte) bool { return a.left() == uint64(len(p)) && a.read(p) }

// execute carries out a command whose feature the driver accepted.
func (c *control) execute(code uint16, args *arguments) bool {
	switch has := c.run.features; {
	case code == ctrlRxPromisc && has&FeatureCtrlRX != 0:
		return c.setFlag(args, func(m *Mode) *bool { return &m.Promiscuous })
	case code == ctrlRxAllMulti && has&FeatureCtrlRX != 0:
		return c.setFlag(args, func(m *Mode) *bool { return &m.AllMulticast })
	case code == ctrlMACTableSet && has&FeatureCtrlRX != 0:
		return c.setTable(args)
	case code == ctrlMACAddrSet && has&FeatureCtrlMACAddr != 0:
		return c.setAddress(args)
	case code == ctrlMQPairsSet && has&FeatureMQ != 0:
		return c.setPairs(args)
	case code == ctrlGuestOffloadsSet && has&FeatureCtrlGuestOffloads != 0:
		return c.setOffloads(args)
	}
	return false
}

// setFlag handles the commands with one byte, 0 or 1 (5.1.6.5.1).
func (c *control) setFlag(args *arguments, flag func(*Mode) *bool) bool {
	var on [1]byte
	if !args.last(on[:]) {
		return false
	}
	c.d.setMode(func(m *Mode) { *flag(m) = on[0] != 0 })
	return true
}

// setAddress handles u8 mac[6] (5.1.6.5.2).
func (c *control) setAddress(args *arguments) bool {
	var mac MAC
	if !args.last(mac[:]) || !mac.valid() {
		return false
	}
	c.d.setMode(func(m *Mode) { m.MAC = mac })
	return true
}

// setTable handles two lists, of unicast and of multicast addresses, each le32
// entries, u8 macs[entries][6] (5.1.6.5.2).
func (c *control) setTable(args *arguments) bool {
	unicast, moreUni, ok := readTable(args)
	if !ok {
		return false
	}
	multicast, moreMulti, ok := readTable(args)
	if !ok || args.left() != 0 {
		return false
	}
	c.d.setMode(func(m *Mode) {
		m.Unicast, m.UnicastOverflow = unicast, moreUni
		m.Multicast, m.MulticastOverflow = multicast, moreMulti
	})
	return true
}

// readTable reads one list. overflow says that it has more than maxFilter
// entries, none of which are returned then.
func readTable(args *arguments) (table []MAC, overflow, ok bool) {
	var count [4]byte
	if !args.read(count[:]) {
		return nil, false, false
	}
	n := uint64(binary.LittleEndian.Uint32(count[:]))
	size := n * uint64(len(MAC{}))
	if size > args.left() {
		return nil, false, false
	}
	if n > maxFilter {
		args.skip(size)
		return nil, true, true
	}
	table = make([]MAC, n)
	for i := range table {
		if !args.read(table[i][:]) {
			return nil, false, false
		}
	}
	return table, false, true
}

// setPairs handles le16 virtqueue_pairs (5.1.6.5.6). The driver may only ask for
// pairs that it has set up.
func (c *control) setPairs(args *arguments) bool {
	var b [2]byte
	if !args.last(b[:]) {
		return false
	}
	n := int(binary.LittleEndian.Uint16(b[:]))
	if n < 1 || n > len(c.d.pairs) {
		return false
	}
	for _, p := range c.d.pairs[:n] {
		if !p.ready() {
			return false
		}
	}
	if n == c.run.active {
		return true
	}
	return c.change(func() error { return c.d.setActive(c.run, n) })
}

// setOffloads handles le64 offloads, bits of the features that were accepted
// (5.1.6.5.8.1).
func (c *control) setOffloads(args *arguments) bool {
	var b [8]byte
	if !args.last(b[:]) {
		return false
	}
	bits := binary.LittleEndian.Uint64(b[:])
	if bits&^(c.run.features&offloadFeatures()) != 0 {
		return false
	}
	o := offloadsOf(bits)
	if o == c.run.offload {
		return true
	}
	return c.change(func() error { return c.d.setOffloads(c.run, o) })
}

// change does what no pump may run for. If the backend fails, they stay stopped:
// it is gone, and the link is down.
func (c *control) change(do func() error) bool {
	c.d.stopPumps()
	if do() != nil {
		return false
	}
	c.d.startPumps(c.run)
	return true
}
