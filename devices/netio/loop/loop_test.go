// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"bytes"
	"errors"
	"testing"

	"github.com/govmm/govmm/devices/netio"
	"golang.org/x/sys/unix"
)

var _ netio.Backend = (*Loop)(nil)

// txBatch makes a batch of the given frames, each in two pieces.
func txBatch(frames ...[]byte) *netio.TxBatch {
	b := netio.NewTxBatch(netio.MaxBatch)
	for _, f := range frames {
		b.Frames = append(b.Frames, netio.TxFrame{Seg: len(b.Segs), NSeg: 2, Len: len(f)})
		b.Segs = append(b.Segs, iov(f[:netio.HeaderLen]), iov(f[netio.HeaderLen:]))
	}
	return b
}

func iov(p []byte) (v unix.Iovec) {
	v.Base = &p[0]
	v.SetLen(len(p))
	return v
}

// rxBatch makes a batch of the given buffers.
func rxBatch(window int, merge bool, bufs ...[]byte) *netio.RxBatch {
	b := netio.NewRxBatch(netio.MaxBatch)
	b.Window, b.Merge = window, merge
	for _, p := range bufs {
		b.Bufs = append(b.Bufs, netio.RxBuf{Seg: len(b.Segs), NSeg: 1, Cap: len(p)})
		b.Segs = append(b.Segs, iov(p))
	}
	return b
}

func frame(n int, fill byte) []byte {
	f := bytes.Repeat([]byte{fill}, netio.HeaderLen+n)
	clear(f[:netio.HeaderLen])
	return f
}

func mustNew(t *testing.T, queues int) *Loop {
	t.Helper()
	l, err := New(queues)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestFramesComeBackOnTheirQueue(t *testing.T) {
	l := mustNew(t, 2)
	if n, err := l.queues[1].Send(txBatch(frame(60, 1), frame(65000, 2)), 0); n != 2 || err != nil {
		t.Fatalf("Send = %d, %v", n, err)
	}
	buf, big := make([]byte, 72), make([]byte, 65012)
	if n, err := l.queues[0].Recv(rxBatch(72, false, buf), 1); n != 0 || err != netio.ErrAgain {
		t.Errorf("queue 0: Recv = %d, %v", n, err)
	}
	b := rxBatch(72, false, buf, big)
	if n, err := l.queues[1].Recv(b, 64); n != 2 || err != nil {
		t.Fatalf("queue 1: Recv = %d, %v", n, err)
	}
	if !bytes.Equal(buf, frame(60, 1)) || !bytes.Equal(big, frame(65000, 2)) {
		t.Error("the frames changed")
	}
	if n, err := l.queues[1].Recv(rxBatch(72, false, buf), 1); n != 0 || err != netio.ErrAgain {
		t.Errorf("empty queue: Recv = %d, %v", n, err)
	}
}

func TestPairIsCrossed(t *testing.T) {
	a, b, err := Pair(1)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	if n, err := a.queues[0].Send(txBatch(frame(100, 7)), 0); n != 1 || err != nil {
		t.Fatalf("Send = %d, %v", n, err)
	}
	buf := make([]byte, 200)
	if n := a.queues[0].ReadFrame(buf); n != 0 {
		t.Errorf("%d bytes came back", n)
	}
	if n := b.queues[0].ReadFrame(buf); !bytes.Equal(buf[:n], frame(100, 7)) {
		t.Errorf("%d bytes came out of the other half", n)
	}
}

// A full loop refuses without loss, and its descriptor tells when it goes on.
func TestBounded(t *testing.T) {
	l := mustNew(t, 1)
	q := l.queues[0]
	sent := 0
	for {
		n, err := q.Send(txBatch(frame(1500, byte(sent))), 0)
		if err == netio.ErrAgain {
			break
		}
		if err != nil || n != 1 || sent > 10000 {
			t.Fatalf("Send %d = %d, %v", sent, n, err)
		}
		sent++
	}
	if ready(t, q, unix.POLLOUT) {
		t.Error("a full loop says that it is writable")
	}
	buf := make([]byte, 2000)
	for i := range sent {
		n := q.ReadFrame(buf)
		if !bytes.Equal(buf[:n], frame(1500, byte(i))) {
			t.Fatalf("frame %d of %d was lost", i, sent)
		}
	}
	if !ready(t, q, unix.POLLOUT) || ready(t, q, unix.POLLIN) {
		t.Error("an empty loop must be writable, and not readable")
	}
}

func ready(t *testing.T, q *Queue, events int16) bool {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(q.PollFD()), Events: events}}
	if _, err := unix.Poll(p, 0); err != nil {
		t.Fatal(err)
	}
	return p[0].Revents&events != 0
}

func TestInjection(t *testing.T) {
	l := mustNew(t, 1)
	q := l.queues[0]
	b := txBatch(frame(60, 1), frame(60, 2))

	q.InjectSendAgain(1)
	if n, err := q.Send(b, 0); n != 0 || err != netio.ErrAgain {
		t.Errorf("Send = %d, %v", n, err)
	}
	q.InjectRefusals(1)
	if n, err := q.Send(b, 0); n != 2 || err != nil {
		t.Errorf("Send with one refusal = %d, %v", n, err)
	}
	if got := q.Counters()[netio.TX]; got.Errors != 1 || got.Copied != 1 || got.Syscalls != 1 {
		t.Errorf("TX counters = %+v", got)
	}
	buf := make([]byte, 100)
	q.InjectRecvAgain(1)
	if n, err := q.Recv(rxBatch(100, false, buf), 1); n != 0 || err != netio.ErrAgain {
		t.Errorf("Recv = %d, %v", n, err)
	}
	if n, err := q.Recv(rxBatch(100, false, buf), 1); n != 1 || err != nil || buf[20] != 2 {
		t.Errorf("Recv = %d, %v, frame %d", n, err, buf[20])
	}
}

// A frame that the buffers don't hold is an error of its own, not of the next.
func TestTruncation(t *testing.T) {
	l := mustNew(t, 1)
	q := l.queues[0]
	if n, err := q.Send(txBatch(frame(200, 1), frame(60, 2)), 0); n != 2 || err != nil {
		t.Fatalf("Send = %d, %v", n, err)
	}
	buf := make([]byte, 100)
	b := rxBatch(100, false, buf)
	if n, err := q.Recv(b, 2); n != 1 || err != nil || b.Frames[0].Len != 72 || buf[20] != 2 {
		t.Errorf("Recv = %d, %v, %+v", n, err, b.Frames)
	}
	if got := q.Counters()[netio.RX].Errors; got != 1 {
		t.Errorf("%d errors", got)
	}
}

func TestVanish(t *testing.T) {
	l := mustNew(t, 1)
	q := l.queues[0]
	l.Vanish()
	if !ready(t, q, unix.POLLHUP) {
		t.Error("no hang-up")
	}
	buf := make([]byte, 100)
	_, rerr := q.Recv(rxBatch(100, false, buf), 1)
	_, serr := q.Send(txBatch(frame(60, 1)), 0)
	for _, err := range []error{rerr, serr} {
		if !errors.Is(err, unix.EPIPE) {
			t.Errorf("error = %v, want EPIPE", err)
		}
	}
}

func TestState(t *testing.T) {
	l := mustNew(t, 4)
	q := l.queues[0]
	q.WriteFrame(frame(60, 1))
	if err := l.SetOffloads(netio.OffloadCsum | netio.OffloadTSO4); err != nil {
		t.Fatal(err)
	}
	if n := q.ReadFrame(make([]byte, 100)); n != 0 {
		t.Error("a frame outlived the change of offloads")
	}
	if err := l.SetOffloads(netio.OffloadTSO4); err == nil {
		t.Error("TSO without checksum offload was accepted")
	}
	if err := l.SetActive(3); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 5} {
		if err := l.SetActive(n); err == nil {
			t.Errorf("SetActive(%d) was accepted", n)
		}
	}
	if o, active := l.State(); o != netio.OffloadCsum|netio.OffloadTSO4 || active != 3 {
		t.Errorf("State = %#x, %d", o, active)
	}
}
