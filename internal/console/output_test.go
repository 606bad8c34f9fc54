// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// start runs an Output until the test ends.
func start(t *testing.T, cfg Config) *Output {
	o := NewOutput(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { o.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return o
}

// gate is a writer whose Writes wait until it is opened.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	buf  bytes.Buffer
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buf.Write(p)
}

func (g *gate) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buf.String()
}

func TestOutputIsWrittenInOrder(t *testing.T) {
	var out bytes.Buffer
	o := start(t, Config{Out: &out})
	var want bytes.Buffer
	for i := range 1000 {
		line := fmt.Sprintf("line %d\r\n", i)
		want.WriteString(line)
		for _, c := range []byte(line) {
			if n, err := o.Write([]byte{c}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	if err := o.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out.String() != want.String() {
		t.Error("the output is not what was written")
	}
	if got := o.Stats(); got != (Stats{Written: uint64(want.Len())}) {
		t.Errorf("stats %+v", got)
	}
}

func TestAPromptWithoutNewlineAppears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		o := start(t, Config{Out: w})
		o.Write([]byte("login: "))
		got := make([]byte, 7)
		if _, err := io.ReadFull(r, got); err != nil || string(got) != "login: " {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// TestBlockedReader: a reader that stops never blocks the guest; what does not
// fit is counted, and the count stands where the bytes are missing.
func TestBlockedReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		o := start(t, Config{Out: g, Buffer: 100, Tail: 8})
		o.Write([]byte("A"))
		synctest.Wait()
		time.Sleep(2 * coalesce) // now the writer is stuck with the A
		o.Write(bytes.Repeat([]byte("b"), 90))
		o.Write(bytes.Repeat([]byte("c"), 30))
		o.Write(bytes.Repeat([]byte("d"), 1000))
		if got := string(o.Tail()); got != "dddddddd" {
			t.Errorf("tail %q", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := o.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "100 bytes") {
			t.Errorf("flush to a stuck reader: %v", err)
		}
		close(g.open)
		if err := o.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		o.Write([]byte("E"))
		if err := o.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := "A" + strings.Repeat("b", 90) + strings.Repeat("c", 10) +
			"\r\n[govmm: 1020 bytes of console output lost]\r\nE"
		if got := g.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := o.Stats().Lost; got != 1020 {
			t.Errorf("lost %d", got)
		}
	})
}

func TestRunEndsWhileAWriteIsStuck(t *testing.T) {
	g := newGate()
	o := NewOutput(Config{Out: g})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { o.Run(ctx); close(ended) }()
	o.Write([]byte("x\n"))
	cancel()
	<-ended
	close(g.open)
}

func TestWriteErrorsStopTheOutputOnce(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, c := range []struct {
		name string
		out  io.Writer
		want error
	}{
		{"reader has gone", w, syscall.EPIPE},
		{"disk is full", full, syscall.ENOSPC},
		{"short write without an error", shortWriter{}, io.ErrShortWrite},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := start(t, Config{Out: c.out})
			for range 3 {
				o.Write([]byte("hello\n"))
				if err := o.Flush(t.Context()); !errors.Is(err, c.want) {
					t.Errorf("flush: %v, want %v", err, c.want)
				}
			}
			if got := len(o.Tail()); got != 18 {
				t.Errorf("the tail has %d bytes, want 18: it goes on", got)
			}
		})
	}
}

type shortWriter struct{}

func (shortWriter) Write([]byte) (int, error) { return 0, nil }

func TestErrorIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports int
		o := start(t, Config{Out: shortWriter{}, OnError: func(error) { reports++ }})
		for range 3 {
			o.Write([]byte("x"))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if reports != 1 {
			t.Errorf("%d reports", reports)
		}
	})
}

// busyWriter is a non-blocking file description that is full at first and takes
// part of the data.
type busyWriter struct {
	bytes.Buffer
	refuse int
}

func (w *busyWriter) Write(p []byte) (int, error) {
	if w.refuse > 0 {
		w.refuse--
		n, _ := w.Buffer.Write(p[:1])
		return n, &os.PathError{Op: "write", Path: "stdout", Err: syscall.EAGAIN}
	}
	return w.Buffer.Write(p)
}

func TestNonBlockingOutputIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &busyWriter{refuse: 3}
		o := start(t, Config{Out: w})
		o.Write([]byte("hello\n"))
		if err := o.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if w.String() != "hello\n" {
			t.Errorf("%q", w.String())
		}
	})
}

func TestWithoutWriter(t *testing.T) {
	o := start(t, Config{})
	o.Write([]byte("a\nb"))
	if err := o.Flush(t.Context()); err != nil || string(o.Tail()) != "a\nb" {
		t.Error(err, o.Tail())
	}
}

func TestOnLine(t *testing.T) {
	var got []string
	o := NewOutput(Config{OnLine: func(l []byte) { got = append(got, string(l)) }})
	for _, s := range []string{"one\n", "t", "wo\r", "\n\n", strings.Repeat("x", 5000), "\r\r\nend"} {
		o.Write([]byte(s))
	}
	want := []string{"one", "two", "", strings.Repeat("x", MaxLine)}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q", got)
	}
}

// TestTailProperty: the tail is the suffix of all that was written, from a line
// start if one is in it.
func TestTailProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 40).Draw(t, "size")
		o := NewOutput(Config{Tail: size})
		var all []byte
		for range rapid.IntRange(0, 10).Draw(t, "writes") {
			p := []byte(rapid.StringOfN(rapid.SampledFrom([]rune("ab\n")), 0, 60, -1).Draw(t, "p"))
			o.Write(p)
			all = append(all, p...)
		}
		want := all
		if len(all) >= size {
			want = all[len(all)-size:]
			if i := bytes.IndexByte(want, '\n'); i >= 0 {
				want = want[i+1:]
			}
		}
		if got := o.Tail(); !bytes.Equal(got, want) {
			t.Fatalf("size %d, wrote %q: tail %q, want %q", size, all, got, want)
		}
	})
}

// TestNothingIsLostUnaccounted: whatever the reader's pace, what arrives plus
// what the markers count is what was written.
func TestNothingIsLostUnaccounted(t *testing.T) {
	marker := regexp.MustCompile(`\r\n\[govmm: (\d+) bytes of console output lost\]\r\n`)
	rapid.Check(t, func(t *rapid.T) {
		r, w := io.Pipe()
		o := NewOutput(Config{Out: w, Buffer: 64})
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { o.Run(ctx) })
		var got bytes.Buffer
		wg.Go(func() { io.Copy(&got, r) })
		total := 0
		for range rapid.IntRange(0, 30).Draw(t, "writes") {
			n := rapid.IntRange(1, 100).Draw(t, "n")
			o.Write(bytes.Repeat([]byte("."), n))
			total += n
		}
		if err := o.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		w.Close()
		wg.Wait()
		lost := 0
		for _, m := range marker.FindAllSubmatch(got.Bytes(), -1) {
			var n int
			fmt.Sscan(string(m[1]), &n)
			lost += n
		}
		arrived := len(marker.ReplaceAll(got.Bytes(), nil))
		if arrived+lost != total || uint64(lost) != o.Stats().Lost {
			t.Fatalf("wrote %d, arrived %d, lost %d, stats %+v", total, arrived, lost, o.Stats())
		}
	})
}

func TestWriteDoesNotAllocate(t *testing.T) {
	o := NewOutput(Config{OnLine: func([]byte) {}})
	p := []byte("x\n")
	o.Write(p)
	if n := testing.AllocsPerRun(1000, func() { o.Write(p) }); n != 0 {
		t.Errorf("%v allocations for each Write", n)
	}
}
