// SPDX-License-Identifier: Apache-2.0

package pcap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/loop"
	"github.com/govmm/govmm/devices/netio/porttest"
)

var _ netio.Backend = (*Capture)(nil)

// record is one frame in a file.
type record struct {
	at    time.Time
	frame []byte
}

// parse reads a capture by its specification.
func parse(t *testing.T, file []byte) (records []record) {
	t.Helper()
	le := binary.LittleEndian
	if len(file) < 24 || le.Uint32(file) != 0xa1b23c4d || le.Uint16(file[4:]) != 2 || le.Uint16(file[6:]) != 4 || le.Uint32(file[20:]) != 1 {
		t.Fatalf("header % x", file[:min(24, len(file))])
	}
	snap := le.Uint32(file[16:])
	for p := file[24:]; len(p) > 0; {
		if len(p) < 16 {
			t.Fatalf("%d bytes are left", len(p))
		}
		captured, wire := le.Uint32(p[8:]), le.Uint32(p[12:])
		if captured != wire || captured > snap || len(p) < 16+int(captured) || le.Uint32(p[4:]) >= 1e9 {
			t.Fatalf("frame header % x, %d bytes are left", p[:16], len(p))
		}
		records = append(records, record{time.Unix(int64(le.Uint32(p)), int64(le.Uint32(p[4:]))), p[16 : 16+captured]})
		p = p[16+captured:]
	}
	return records
}

// wire is a pump between a guest and a captured loop.
type wire struct {
	t     *testing.T
	c     *Capture
	far   *loop.Queue
	guest *porttest.Ref
	pump  *netio.Pump
}

func newWire(t *testing.T, open func(netio.Backend) *Capture, config porttest.Config) *wire {
	t.Helper()
	a, b, err := loop.Pair(1)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := porttest.NewRef(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, c: open(a), far: b.Queue(0), guest: ref}
	w.pump = netio.NewPump(ref, w.c.Queues()[0], netio.Options{})
	ref.Post(1 << 20)
	if err := w.pump.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.pump.Stop()
		ref.Close()
		b.Close()
	})
	return w
}

// exchange sends a frame each way and waits for both.
func (w *wire) exchange(out, in []byte) {
	w.t.Helper()
	w.guest.Reap()
	if !w.guest.Send(out) || !w.far.WriteFrame(in) {
		w.t.Fatal("no room for a frame")
	}
	w.guest.Kick(netio.TX)
	p := make([]byte, 1<<17)
	w.await(func() bool { return w.far.ReadFrame(p) == len(out) })
	w.await(func() bool { f, ok := w.guest.Recv(); return ok && len(f) == len(in) })
	w.guest.Post(1 << 20)
	w.guest.Kick(netio.RX)
}

func (w *wire) await(cond func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			w.t.Fatal("a frame didn't arrive")
		}
		time.Sleep(50 * time.Microsecond)
	}
}

func frame(n int, fill byte) []byte {
	f := bytes.Repeat([]byte{fill}, netio.HeaderLen+n)
	clear(f[:netio.HeaderLen])
	return f
}

var merged = porttest.Config{Size: 256, BufSize: 1536, Window: netio.MaxFrame + netio.HeaderLen, Merge: true}

// The file holds all frames of both directions, whole, without virtio headers.
func TestCapture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.pcap")
	if err := os.WriteFile(path, []byte("what was there before"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWire(t, func(b netio.Backend) *Capture {
		c, err := Open(b, path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}, merged)
	begin := time.Now().Truncate(0)
	sizes := []int{14, 60, 1514, 65535 + 18}
	for i, size := range sizes {
		w.exchange(frame(size, byte(2*i)), frame(size, byte(2*i+1)))
	}
	w.pump.Stop()
	if err := w.c.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	records := parse(t, file)
	if len(records) != 2*len(sizes) {
		t.Fatalf("%d frames of %d", len(records), 2*len(sizes))
	}
	seen := map[byte]bool{}
	last := begin
	for _, r := range records {
		fill := r.frame[0]
		if want := frame(sizes[fill/2], fill)[netio.HeaderLen:]; !bytes.Equal(r.frame, want) || seen[fill] {
			t.Errorf("frame %d: %d bytes of %d", fill, len(r.frame), len(want))
		}
		seen[fill] = true
		if r.at.Before(last) || r.at.After(time.Now()) {
			t.Errorf("frame %d was captured at %v, the one before at %v", fill, r.at, last)
		}
		last = r.at
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestOpenError(t *testing.T) {
	l, err := loop.New(1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	path := filepath.Join(t.TempDir(), "no", "such.pcap")
	if _, err := Open(l, path, nil); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("error = %v", err)
	}
}

// log collects warnings.
type log struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A full disk ends the capture with one warning; the traffic goes on.
func TestFullDisk(t *testing.T) {
	var warnings log
	w := newWire(t, func(b netio.Backend) *Capture {
		c, err := Open(b, "/dev/full", slog.New(slog.NewTextHandler(&warnings, nil)))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}, merged)
	for i := range 20 {
		w.exchange(frame(100, byte(i)), frame(100, byte(i)))
	}
	w.pump.Stop()
	if err := w.c.Close(); err != nil {
		t.Error(err)
	}
	if got := warnings.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "no space left") || !strings.Contains(got, "/dev/full") {
		t.Errorf("warnings: %s", got)
	}
}

// slow is a file that takes nothing until it is told to.
type slow struct {
	bytes.Buffer
	release chan struct{}
}

func (s *slow) Write(p []byte) (int, error) {
	<-s.release
	return s.Buffer.Write(p)
}

func (s *slow) Close() error { return nil }

// A slow file costs frames of the capture, never of the traffic, and a bounded
// amount of memory.
func TestSlowFile(t *testing.T) {
	var warnings log
	file := &slow{release: make(chan struct{})}
	w := newWire(t, func(b netio.Backend) *Capture {
		return newCapture(b, "slow", file, slog.New(slog.NewTextHandler(&warnings, nil)))
	}, merged)
	const size = 60000
	rounds := bufferSize/size/2 + 10 // two frames each: more than the buffer holds
	for i := range rounds {
		w.exchange(frame(size, byte(i)), frame(size, byte(i)))
	}
	close(file.release)
	w.pump.Stop()
	if err := w.c.Close(); err != nil {
		t.Error(err)
	}
	records := parse(t, file.Bytes())
	if len(records) == 0 || len(records) >= 2*rounds || file.Len() > 2*bufferSize {
		t.Errorf("%d frames of %d in %d bytes", len(records), 2*rounds, file.Len())
	}
	if got := warnings.String(); !strings.Contains(got, "lacks frames") {
		t.Errorf("warnings: %s", got)
	}
}

// What Backend does passes through, and Close closes both.
func TestBackend(t *testing.T) {
	l, err := loop.New(2)
	if err != nil {
		t.Fatal(err)
	}
	c := newCapture(l, "file", &slow{release: closed()}, nil)
	if err := c.SetActive(1); err != nil {
		t.Error(err)
	}
	if _, active := l.State(); active != 1 || len(c.Queues()) != 2 || c.Name() != l.Name() {
		t.Errorf("%d active, %d queues, name %s", active, len(c.Queues()), c.Name())
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if len(l.Queues()) != 0 {
		t.Error("the backend is open")
	}
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
