// SPDX-License-Identifier: Apache-2.0

// Package console takes what a guest prints to where the user wants it, without
// ever making the guest wait: a bounded buffer with one writer, the last bytes
// for the report of a run's end, and a look at each line.
package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/govmm/govmm/internal/bug"
)

// Defaults of a Config.
const (
	DefaultBuffer = 1 << 20  // bytes
	DefaultTail   = 16 << 10 // bytes
)

const (
	// coalesce is how long the writer waits after the first byte, so that a guest
	// that prints byte by byte does not cost a system call each. It is below
	// what a typist notices.
	coalesce = 2 * time.Millisecond
	// retry is the pause after EAGAIN: somebody else has made the file
	// description non-blocking, and it is full.
	retry = 5 * time.Millisecond
)

// Config says where the output goes. All fields but Out may be zero.
type Config struct {
	// Out gets the output. nil: only the tail is kept. Writes come from one
	// goroutine and may block. For standard output the program must ignore
	// SIGPIPE, or the Go runtime ends it when the reader goes away.
	Out io.Writer
	// Buffer is how many bytes may wait for Out before output is lost.
	Buffer int
	// Tail is how many of the last bytes are kept for Tail.
	Tail int
	// OnLine sees each line without its end, up to MaxLine bytes of it. It is
	// called on the guest's CPU thread, before the line is on its way to Out: it
	// must be quick, must not call the Output, and must not keep the slice.
	OnLine func(line []byte)
	// OnError is told once that Out has failed; later output is not written.
	OnError func(error)
}

// Output is a guest console's output side. Write never blocks on Out: when
// Buffer bytes wait, further ones are lost to Out (not to the tail or OnLine),
// and a line with their number is printed in their place.
type Output struct {
	cfg Config

	mu       sync.Mutex
	pending  []byte // waits for the writer
	lost     uint64 // bytes not taken since the writer last took pending
	lostAll  uint64
	written  uint64
	flushing int   // callers of Flush
	busy     bool  // the writer has taken bytes that are not yet written
	err      error // why Out is not written any more
	changed  chan struct{}

	wake  chan struct{} // capacity 1: pending or flushing has changed
	tail  tail
	lines lines
}

// NewOutput makes an Output. Nothing is written until Run runs.
func NewOutput(cfg Config) *Output {
	if cfg.Buffer <= 0 {
		cfg.Buffer = DefaultBuffer
	}
	if cfg.Tail <= 0 {
		cfg.Tail = DefaultTail
	}
	return &Output{
		cfg:     cfg,
		changed: make(chan struct{}),
		wake:    make(chan struct{}, 1),
		tail:    tail{buf: make([]byte, cfg.Tail)},
		lines:   lines{on: cfg.OnLine},
	}
}

// Write takes the guest's bytes. It always takes all of them and never fails.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tail.write(p)
	o.lines.write(p)
	if o.cfg.Out == nil || o.err != nil {
		return len(p), nil
	}
	n := min(len(p), o.cfg.Buffer-len(o.pending))
	if o.lost > 0 {
		n = 0 // the marker's place is behind what is pending
	}
	o.pending = append(o.pending, p[:n]...)
	o.lost += uint64(len(p) - n)
	o.lostAll += uint64(len(p) - n)
	o.kick()
	return len(p), nil
}

func (o *Output) kick() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Run writes to Out until ctx is done. Call Flush first to have everything
// written. A Write that the host blocks can't be taken back: Run does not wait
// for it, and its goroutine ends with the Write.
func (o *Output) Run(ctx context.Context) {
	if o.cfg.Out == nil {
		<-ctx.Done()
		return
	}
	done := make(chan struct{})
	go func() {
		defer bug.Catch()
		defer close(done)
		o.pump(ctx)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		if o.idle() {
			<-done
		}
	}
}

// idle tells that no Write to Out is going on.
func (o *Output) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.busy
}

func (o *Output) pump(ctx context.Context) {
	var batch []byte
	for o.wait(ctx) {
		batch = o.take(ctx, batch)
		if len(batch) == 0 {
			continue
		}
		o.finish(len(batch), o.writeAll(ctx, batch))
	}
}

// wait returns true when there may be something to write, false at the end.
func (o *Output) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-o.wake:
	}
	if !o.hurried() {
		pause(ctx, coalesce)
	}
	return ctx.Err() == nil
}

// hurried tells that a Flush waits or that the buffer is half full.
func (o *Output) hurried() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.flushing > 0 || len(o.pending) > o.cfg.Buffer/2
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// take swaps what is pending for the empty batch.
func (o *Output) take(ctx context.Context, batch []byte) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ctx.Err() != nil {
		return nil // Run has looked at busy, or is about to
	}
	batch, o.pending = o.pending, batch[:0]
	if o.lost > 0 {
		batch = fmt.Appendf(batch, "\r\n[govmm: %d bytes of console output lost]\r\n", o.lost)
		o.lost = 0
	}
	o.busy = len(batch) > 0
	return batch
}

func (o *Output) writeAll(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		n, err := o.cfg.Out.Write(p)
		p = p[min(max(n, 0), len(p)):]
		switch {
		case errors.Is(err, syscall.EAGAIN):
			pause(ctx, retry)
			if ctx.Err() != nil {
				return nil
			}
		case err != nil:
			return err
		case n <= 0:
			return io.ErrShortWrite
		}
	}
	return nil
}

func (o *Output) finish(n int, err error) {
	o.mu.Lock()
	o.busy = false
	if err == nil {
		o.written += uint64(n)
	} else {
		o.err, o.pending = err, nil
	}
	close(o.changed)
	o.changed = make(chan struct{})
	o.mu.Unlock()
	if err != nil && o.cfg.OnError != nil {
		o.cfg.OnError(fmt.Errorf("console output stops: %w", err))
	}
}

// Flush waits until everything that was written before is at Out, Out has
// failed, or ctx is done. Run must be running.
func (o *Output) Flush(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cfg.Out == nil {
		return nil
	}
	o.flushing++
	defer func() { o.flushing-- }()
	for o.err == nil && (o.busy || o.lost > 0 || len(o.pending) > 0) {
		changed := o.changed
		o.kick()
		o.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-changed:
		}
		o.mu.Lock()
		if ctx.Err() != nil {
			return fmt.Errorf("%d bytes of console output are not written, because the reader is slow or stopped: %w", len(o.pending), ctx.Err())
		}
	}
	return o.err
}

// Tail returns a copy of the last bytes, from the start of a line if there is
// one among them.
func (o *Output) Tail() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.tail.bytes()
	if i := bytes.IndexByte(b, '\n'); o.tail.full && i >= 0 {
		b = b[i+1:]
	}
	return b
}

// Stats counts output.
type Stats struct {
	Written uint64 // bytes that Out has taken
	Lost    uint64 // bytes that found the buffer full
}

// Stats returns the counters.
func (o *Output) Stats() Stats {
	o.mu.Lock()
	defer o.mu.Unlock()
	return Stats{o.written, o.lostAll}
}
