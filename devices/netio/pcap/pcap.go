// SPDX-License-Identifier: Apache-2.0

// Package pcap is a netio.Backend around another that writes the frames which
// pass to a capture file, for tcpdump and Wireshark.
//
// The file has the classic pcap format with nanosecond time stamps and link type
// Ethernet, little-endian. It holds whole frames in the order of the capture,
// from the guest and to it, without the virtio header: as the guest's driver
// sees them. So a segment that is yet to be cut up is one frame of up to 64 KiB,
// and a checksum that is yet to be filled in looks wrong. A frame from the guest
// that the host then refuses is in the file as well.
//
// It is for looking at traffic, not for speed: each frame is copied, under a
// lock, to a buffer that a goroutine writes out. Traffic never waits for the
// file. When the buffer is full the frame is missing in the file, and counted;
// when the file can't be written, the capture ends. Both are logged.
package pcap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/internal/bug"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// Header of the file and of each frame in it (draft-ietf-opsawg-pcap).
const (
	fileHeaderLen  = 24
	frameHeaderLen = 16

	magicNanoseconds = 0xa1b23c4d
	versionMajor     = 2
	versionMinor     = 4
	snapLen          = 262144 // more than any frame
	linkTypeEthernet = 1
)

// bufferSize bounds how much of the capture is in memory, bytes: one buffer is
// filled while another is written.
const bufferSize = 8 << 20

// Capture is the backend with the file.
type Capture struct {
	netio.Backend
	queues []netio.Queue
	path   string
	file   io.WriteCloser
	log    *slog.Logger

	wake chan struct{} // there is something to write, or the end
	done chan struct{} // closed when the writer ended

	mu      sync.Mutex
	buf     []byte // to be written
	missed  uint64 // frames that found the buffer full
	closing bool
	failed  bool // the file can't be written
}

// Open creates the file at path, or empties it, and captures all that passes
// from b on until Close. Only the caller's user can read the file. log takes the
// warnings; nil drops them.
func Open(b netio.Backend, path string, log *slog.Logger) (*Capture, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("capture file: %w", err)
	}
	return newCapture(b, path, f, log), nil
}

func newCapture(b netio.Backend, path string, file io.WriteCloser, log *slog.Logger) *Capture {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Capture{
		Backend: b, path: path, file: file, log: log,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
		buf: fileHeader(make([]byte, 0, bufferSize)),
	}
	for _, q := range b.Queues() {
		c.queues = append(c.queues, &queue{Queue: q, c: c, frame: make([]byte, netio.HeaderLen+netio.MaxFrame)})
	}
	c.signal()
	go c.write()
	return c
}

func fileHeader(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, magicNanoseconds)
	b = le.AppendUint16(b, versionMajor)
	b = le.AppendUint16(b, versionMinor)
	b = le.AppendUint64(b, 0) // UTC, unknown accuracy
	b = le.AppendUint32(b, snapLen)
	return le.AppendUint32(b, linkTypeEthernet)
}

// Queues implements netio.Backend.
func (c *Capture) Queues() []netio.Queue { return c.queues }

// SetFilter implements netio.Filterer, if the other backend does. Frames that it
// leaves out are not in the file.
func (c *Capture) SetFilter(f *netio.Filter) {
	if b, ok := c.Backend.(netio.Filterer); ok {
		b.SetFilter(f)
	}
}

// Close implements netio.Backend: it writes out what was captured and closes the
// file and the backend.
func (c *Capture) Close() error {
	c.mu.Lock()
	c.closing = true
	missed, failed := c.missed, c.failed
	c.mu.Unlock()
	c.signal()
	<-c.done
	if missed > 0 && !failed {
		c.log.Warn("the capture lacks frames, because the file was too slow", "file", c.path, "frames", missed)
	}
	return errors.Join(c.file.Close(), c.Backend.Close())
}

// signal wakes the writer.
func (c *Capture) signal() {
	select {
	case c.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// write is the writer: it takes what is in the buffer and writes it.
func (c *Capture) write() {
	defer bug.Catch()
	defer close(c.done)
	spare := make([]byte, 0, bufferSize)
	for range c.wake {
		c.mu.Lock()
		full, closing := c.buf, c.closing
		c.buf = spare
		c.mu.Unlock()
		if _, err := c.file.Write(full); err != nil {
			c.fail(err)
			return
		}
		if closing {
			return
		}
		spare = full[:0]
	}
}

// fail ends the capture.
func (c *Capture) fail(err error) {
	c.mu.Lock()
	c.failed, c.buf = true, nil
	c.mu.Unlock()
	c.log.Warn("the capture ends here, the network goes on", "file", c.path, "error", err)
}

// add appends one frame, without its virtio header, to the buffer.
func (c *Capture) add(now time.Time, frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failed || c.closing:
	case len(c.buf)+frameHeaderLen+len(frame) > cap(c.buf):
		c.missed++
	default:
		le := binary.LittleEndian
		b := le.AppendUint32(c.buf, uint32(now.Unix()))
		b = le.AppendUint32(b, uint32(now.Nanosecond()))
		b = le.AppendUint32(b, uint32(len(frame))) // captured
		b = le.AppendUint32(b, uint32(len(frame))) // on the wire
		c.buf = append(b, frame...)
	}
}

// queue is one queue of the backend.
type queue struct {
	netio.Queue
	c     *Capture
	frame []byte // one frame on its way to the buffer
}

// Send implements netio.Queue.
func (q *queue) Send(b *netio.TxBatch, from int) (n int, err error) {
	n, err = q.Queue.Send(b, from)
	now := time.Now()
	for i := range n {
		q.capture(now, b.Vec(from+i), b.Frames[from+i].Len)
	}
	if n > 0 {
		q.c.signal()
	}
	return n, err
}

// Recv implements netio.Queue.
func (q *queue) Recv(b *netio.RxBatch, max int) (n int, err error) {
	before := len(b.Frames)
	n, err = q.Queue.Recv(b, max)
	now := time.Now()
	for i := range b.Frames[before:] {
		f := &b.Frames[before+i]
		q.capture(now, b.Vec(f), f.Len)
	}
	if n > 0 {
		q.c.signal()
	}
	return n, err
}

// capture takes a frame of size bytes, header included.
func (q *queue) capture(now time.Time, vec []unix.Iovec, size int) {
	n := guestmem.Gather(q.frame[:min(size, len(q.frame))], vec)
	if n >= netio.HeaderLen {
		q.c.add(now, q.frame[netio.HeaderLen:n])
	}
}
