// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"fmt"
	"os"
	"sync/atomic"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

const (
	// stageMax is the largest frame that is copied together before it is sent, if
	// it is in pieces. Each further iovec of a writev costs more than the copy of
	// so many bytes; for large frames it is the other way round.
	stageMax = 2048

	// copyMax is the largest frame that is thought to be cheaper to copy than to
	// receive with a second iovec, bytes.
	copyMax = 512

	// maxIOV is UIO_MAXIOV: iovecs in one call.
	maxIOV = 1024

	// discardMax bounds how many waiting frames are thrown away: the kernel's
	// queue is 1000 by default (txqueuelen), and a host that sends without end must
	// not hold us up.
	discardMax = 1 << 14
)

// queue is one queue of a Tap.
type queue struct {
	name     string // of the tap, as errors call it
	fd       int
	attached bool

	count  netio.QueueCounters
	filter atomic.Pointer[netio.Filter] // of received frames; nil leaves none out

	stage [stageMax]byte
	iov   [maxIOV]unix.Iovec

	// largest is the largest frame that the host can send as the interface is set,
	// header included.
	largest int
	// expect is how large the next received frame is thought to be.
	expect int
	// spill takes small frames, and what a larger one has beyond expect or beyond
	// the guest's buffers. spillVec is all of it.
	spill    []byte
	spillVec unix.Iovec
}

func newQueue(name string, fd int) *queue {
	spill := make([]byte, netio.HeaderLen+netio.MaxFrame+1)
	return &queue{
		name: name, fd: fd, attached: true,
		largest: netio.HeaderLen + netio.MaxFrame,
		spill:   spill, spillVec: iovec(spill),
	}
}

// PollFD implements netio.Queue.
func (q *queue) PollFD() int { return q.fd }

// Counters implements netio.Queue.
func (q *queue) Counters() netio.QueueCounters { return q.count }

// Send implements netio.Queue. A frame that the kernel doesn't take is counted
// and dropped: EINVAL for a header or length that makes no sense, EIO when the
// interface is down, ENOMEM. Only a tap that is deleted or detached is gone.
func (q *queue) Send(b *netio.TxBatch, from int) (n int, err error) {
	c := &q.count[netio.TX]
	for i := from; i < len(b.Frames); i++ {
		gso, errno := q.sendFrame(b.Vec(i), b.Frames[i].Len)
		c.Syscalls++
		switch errno {
		case 0:
			if gso {
				c.GSO++
			}
		case unix.EAGAIN:
			return i - from, netio.ErrAgain
		case unix.EBADFD, unix.ENODEV, unix.EBADF:
			return i - from, q.gone(errno)
		default:
			c.Errors++
		}
	}
	return len(b.Frames) - from, nil
}

// sendFrame sends one frame of size bytes, and tells if it is to be segmented.
func (q *queue) sendFrame(vec []unix.Iovec, size int) (gso bool, errno unix.Errno) {
	if len(vec) == 1 {
		return gsoType(vec) != 0, write(q.fd, &vec[0])
	}
	if size <= stageMax {
		staged := q.stage[:guestmem.Gather(q.stage[:size], vec)]
		q.count[netio.TX].Copied++
		return staged[1] != 0, writeBytes(q.fd, staged)
	}
	merged := mergeAdjacent(q.iov[:0], vec)
	return gsoType(vec) != 0, writev(q.fd, merged)
}

// mergeAdjacent appends vec to dst with pieces that lie one after the other in
// host memory made one. vec has at most cap(dst) pieces.
func mergeAdjacent(dst, vec []unix.Iovec) []unix.Iovec {
	for i := range vec {
		if n := len(dst); n > 0 && endsAt(&dst[n-1], &vec[i]) {
			dst[n-1].Len += vec[i].Len
			continue
		}
		dst = append(dst, vec[i])
	}
	return dst
}

// Recv implements netio.Queue.
//
// A tap doesn't tell how long the next frame is, so a read needs room for the
// largest. With mergeable buffers that is some forty iovecs, which cost a small
// frame a third of its time. So the size of the next frame is guessed from those
// before: small ones are read into a buffer of our own and copied, for larger
// ones the kernel gets as many of the guest's buffers as are probably needed,
// and behind them our own, from which the rest is copied if there is one. Our
// buffer also tells a frame that fills the guest's exactly from one that doesn't
// fit, which is counted and dropped.
func (q *queue) Recv(b *netio.RxBatch, max int) (n int, err error) {
	c := &q.count[netio.RX]
	for range max {
		vec, room, ok := b.Space()
		if !ok {
			return n, nil
		}
		size, errno := q.recvFrame(vec, room)
		c.Syscalls++
		switch errno {
		case 0:
		case unix.EAGAIN:
			return n, netio.ErrAgain
		case unix.EBADFD, unix.ENODEV, unix.EBADF:
			return n, q.gone(errno)
		default: // EFAULT, ENOMEM: the frame is lost, the next may do better
			c.Errors++
			continue
		}
		if size > room || size < netio.HeaderLen {
			c.Errors++
			continue
		}
		if !q.filter.Load().WantsFrame(vec) {
			c.Filtered++ // the next frame takes its place
			continue
		}
		if gsoType(vec) != 0 {
			c.GSO++
		}
		b.Accept(size)
		n++
	}
	return n, nil
}

// recvFrame reads one frame into vec, which has room bytes, and returns its
// size, which is larger than room if it didn't fit.
func (q *queue) recvFrame(vec []unix.Iovec, room int) (size int, errno unix.Errno) {
	lead, leadLen := 0, 0
	switch {
	case room > q.largest && len(vec) == 1:
		return q.recvWhole(&vec[0])
	case q.expect <= copyMax:
		size, errno = readBytes(q.fd, q.spill)
	default:
		lead, leadLen = q.lead(vec)
		size, errno = readv(q.fd, append(append(q.iov[:0], vec[:lead]...), q.spillVec))
	}
	if errno != 0 {
		return 0, errno
	}
	q.predict(size)
	if size > leadLen {
		guestmem.Scatter(vec[lead:], q.spill[:size-leadLen])
		q.count[netio.RX].Copied++
	}
	return size, 0
}

// recvWhole reads a frame into the one buffer v, which is larger than any frame
// that the host can send as it is set up.
func (q *queue) recvWhole(v *unix.Iovec) (size int, errno unix.Errno) {
	size, errno = read(q.fd, v)
	if uint64(size) == uint64(v.Len) {
		size++ // it was set up anew, and the frame was cut off
	}
	return size, errno
}

// lead returns how many iovecs of vec, and how many bytes, the expected frame
// needs: at least one, and no more than leave place for the spill buffer.
func (q *queue) lead(vec []unix.Iovec) (n, size int) {
	size = int(vec[0].Len)
	for n = 1; n < len(vec) && n < maxIOV-1 && size < q.expect; n++ {
		size += int(vec[n].Len)
	}
	return n, size
}

// predict takes note of a frame's size. The expectation rises at once and falls
// slowly: too many iovecs cost a small frame less than the copy of a large one.
func (q *queue) predict(size int) {
	q.expect = max(size, q.expect-q.expect/8)
}

// discard throws away the frames that wait.
func (q *queue) discard() {
	for range discardMax {
		if _, errno := readBytes(q.fd, q.spill); errno != 0 {
			return
		}
	}
}

// setAttached attaches the queue to the interface or detaches it.
func (q *queue) setAttached(on bool) error {
	if on == q.attached {
		return nil
	}
	flag, what := uint16(unix.IFF_DETACH_QUEUE), "ioctl(TUNSETQUEUE, IFF_DETACH_QUEUE)"
	if on {
		flag, what = unix.IFF_ATTACH_QUEUE, "ioctl(TUNSETQUEUE, IFF_ATTACH_QUEUE)"
	}
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	ifr.SetUint16(flag)
	if err := unix.IoctlIfreq(q.fd, unix.TUNSETQUEUE, ifr); err != nil {
		return os.NewSyscallError(what, err)
	}
	q.attached = on
	return nil
}

func (q *queue) gone(errno unix.Errno) error {
	return fmt.Errorf("%s is gone: its interface was deleted: %w", q.name, errno)
}
