// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/govmm/govmm/internal/bug"
	"github.com/govmm/govmm/internal/console"
	"github.com/govmm/govmm/internal/result"
)

// flushTime is how long the end of a run waits for a slow reader of the console.
const flushTime = 2 * time.Second

// feeder gives input to the guest of one boot: serial.UART.Feed.
type feeder func(ctx context.Context, p []byte) (int, error)

// serialConsole is the VM's console over all its boots: where output goes and
// input comes from, and what the output tells of a panic.
type serialConsole struct {
	*console.Output
	in    io.Reader
	file  *os.File // with --serial file
	panic panicWatch

	mu      sync.Mutex
	feed    feeder // of the current boot; nil between boots
	boot    context.Context
	changed chan struct{} // closed and replaced when feed changes
}

// openConsole connects the console as the configuration says.
func (m *Machine) openConsole(s Streams) error {
	c := &serialConsole{changed: make(chan struct{}), panic: panicWatch{log: m.log}}
	cfg := console.Config{
		OnLine:  c.panic.line,
		OnError: func(err error) { m.log.Warn("the console's output is lost from here on", "err", err) },
	}
	switch m.cfg.Serial.Mode {
	case "stdio":
		cfg.Out, c.in = s.Out, s.In
	case "file":
		f, err := os.Create(m.cfg.Serial.Path)
		if err != nil {
			return result.Errorf(result.Host, "serial console: %w: name a file that can be written", err)
		}
		cfg.Out, c.file = f, f
	}
	c.Output = console.NewOutput(cfg)
	m.console = c
	return nil
}

// start lets output and input flow. stop waits for the output that is on its
// way, for a moment.
func (c *serialConsole) start(ctx context.Context) (stop func()) {
	writing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var writer sync.WaitGroup
	writer.Go(func() {
		defer bug.Catch()
		c.Run(writing)
	})
	if c.in != nil {
		go c.read(ctx)
	}
	return func() {
		flush, done := context.WithTimeout(writing, flushTime)
		defer done()
		_ = c.Flush(flush) // a reader that does not read misses the rest
		cancel()
		writer.Wait()
	}
}

func (c *serialConsole) close() error {
	if c.file == nil {
		return nil
	}
	if err := c.file.Close(); err != nil {
		return result.Errorf(result.Host, "serial console: %w", err)
	}
	return nil
}

// read passes input on to the guest until there is no more or ctx is done. A
// Read can't be interrupted: one that waits for a user who types nothing ends
// with the process.
func (c *serialConsole) read(ctx context.Context) {
	defer bug.Catch()
	buf := make([]byte, 256)
	for ctx.Err() == nil {
		n, err := c.in.Read(buf)
		if c.give(ctx, buf[:n]) != nil || err != nil {
			return
		}
	}
}

// give hands p to the guest, the rest of it to the next boot's if the guest
// resets meanwhile.
func (c *serialConsole) give(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		c.mu.Lock()
		feed, boot, changed := c.feed, c.boot, c.changed
		c.mu.Unlock()
		if feed == nil || boot.Err() != nil {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		n, err := feed(boot, p)
		if err != nil && boot.Err() == nil {
			return fmt.Errorf("console input: %w", err)
		}
		p = p[n:]
	}
	return nil
}

// attach connects the input with a boot's UART, until the boot ends.
func (c *serialConsole) attach(boot context.Context, feed feeder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boot, c.feed = boot, feed
	close(c.changed)
	c.changed = make(chan struct{})
}

// tailText is the last output, for the result.
func (c *serialConsole) tailText() string { return string(c.Tail()) }
