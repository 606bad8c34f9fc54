// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/govmm/govmm/internal/emuhost/wire"
)

// errHostGone is the cause of a command's failure when the host has ended.
var errHostGone = errors.New("the emulated host has ended")

// client is the machine's side of the protocol: it starts commands and deals
// out what comes back.
type client struct {
	out    *wire.Writer
	frames *wire.Reader

	mu       sync.Mutex
	lastID   uint32
	running  map[uint32]*remote
	lastSeen time.Time // when the last frame came
	err      error     // why it failed; set before done is closed
	done     chan struct{}
}

// remote is a command that runs in the host.
type remote struct {
	stdin          *wire.Sender
	stdout, stderr *wire.Queue
	status         chan wire.Status // gets one value, unless the host ends
}

func newClient(stream io.Writer, frames *wire.Reader) *client {
	return &client{
		out:      wire.NewWriter(stream),
		frames:   frames,
		running:  map[uint32]*remote{},
		lastSeen: time.Now(),
		done:     make(chan struct{}),
	}
}

// readGreeting reads the first frame, which must be a Hello of our version.
func readGreeting(frames *wire.Reader) error {
	f, err := frames.Read()
	if err != nil {
		return err
	}
	var greeting wire.Greeting
	if f.Type != wire.Hello || json.Unmarshal(f.Payload, &greeting) != nil {
		return errors.New("the agent's first frame is no greeting")
	}
	if greeting.Version != wire.Version {
		return fmt.Errorf("the host's agent speaks protocol version %d, this program %d: stop the host and start it again", greeting.Version, wire.Version)
	}
	return nil
}

// receive handles frames until the stream ends, and then fails all commands.
func (c *client) receive() {
	for {
		f, err := c.frames.Read()
		if err == nil {
			err = c.handle(f)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// fail ends the client. The first error stays.
func (c *client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	close(c.done)
	for _, r := range c.running {
		r.close()
	}
}

// failure returns why the client failed; only after done is closed.
func (c *client) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *client) handle(f wire.Frame) error {
	c.mu.Lock()
	c.lastSeen = time.Now()
	r := c.running[f.ID]
	c.mu.Unlock()
	if r == nil {
		return nil // a Pong, or of a command that was given up
	}
	switch f.Type {
	case wire.Stdout:
		r.stdout.Put(f.Payload)
	case wire.Stderr:
		r.stderr.Put(f.Payload)
	case wire.Credit:
		_, n, err := wire.ParseCredit(f.Payload)
		if err != nil {
			return err
		}
		r.stdin.Grant(n)
	case wire.Exit:
		var status wire.Status
		if err := json.Unmarshal(f.Payload, &status); err != nil {
			return fmt.Errorf("emulated host protocol: exit status: %w", err)
		}
		c.forget(f.ID)
		r.status <- status
		r.close()
	}
	return nil
}

// start sends a command to the host.
func (c *client) start(spec wire.Spec) (uint32, *remote, error) {
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return 0, nil, fmt.Errorf("%w: %w", errHostGone, c.err)
	}
	c.lastID++
	id := c.lastID
	r := &remote{
		stdin:  wire.NewSender(c.out, id, wire.Stdin),
		stdout: wire.NewQueue(),
		stderr: wire.NewQueue(),
		status: make(chan wire.Status, 1),
	}
	c.running[id] = r
	c.mu.Unlock()
	if err := c.out.WriteJSON(wire.Start, id, spec); err != nil {
		c.forget(id)
		return 0, nil, err
	}
	return id, r, nil
}

// forget removes a command: what still comes for it is dropped.
func (c *client) forget(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, id)
}

// silence is the time since the last frame.
func (c *client) silence() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.lastSeen)
}

// close lets everything that waits for the command's streams return.
func (r *remote) close() {
	r.stdin.Close()
	r.stdout.Close()
	r.stderr.Close()
}
