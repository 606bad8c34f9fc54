// SPDX-License-Identifier: Apache-2.0

// Package executor runs commands for the other side of a byte stream (package
// wire). It is what the emulated host's agent does once the system is up.
package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/govmm/govmm/internal/emuhost/wire"
)

// Serve greets the machine and handles its frames until Shutdown or the end of
// the stream. Commands that still run then are killed. It calls prepare before
// each command.
func Serve(stream io.ReadWriter, prepare func()) error {
	e := &executor{prepare: prepare, out: wire.NewWriter(stream), commands: map[uint32]*command{}}
	defer e.killAll()
	return e.serve(stream)
}

// executor runs the machine's commands.
type executor struct {
	out     *wire.Writer
	prepare func()

	mu       sync.Mutex
	commands map[uint32]*command
	running  sync.WaitGroup
}

func (e *executor) serve(in io.Reader) error {
	if err := e.out.WriteJSON(wire.Hello, 0, wire.Greeting{Version: wire.Version}); err != nil {
		return fmt.Errorf("cannot greet the machine: %w", err)
	}
	frames := wire.NewReader(in)
	for {
		f, err := frames.Read()
		if errors.Is(err, io.EOF) || err == nil && f.Type == wire.Shutdown {
			return nil
		}
		if err != nil {
			return err
		}
		if err := e.handle(f); err != nil {
			return err
		}
	}
}

// handle acts on one frame. It never waits for a command: that would hold up
// all others.
func (e *executor) handle(f wire.Frame) error {
	switch f.Type {
	case wire.Ping:
		return e.out.Write(wire.Frame{Type: wire.Pong})
	case wire.Nudge:
		return nil
	case wire.Start:
		return e.start(f)
	}
	c := e.find(f.ID)
	if c == nil {
		return nil // it has ended in the meantime
	}
	switch f.Type {
	case wire.Stdin:
		c.input(f.Payload)
	case wire.Signal:
		if len(f.Payload) == 1 {
			c.signal(syscall.Signal(f.Payload[0]))
		}
	case wire.Resize:
		var size wire.WindowSize
		if json.Unmarshal(f.Payload, &size) == nil {
			c.resize(size)
		}
	case wire.Kill:
		c.kill()
	case wire.Credit:
		stream, n, err := wire.ParseCredit(f.Payload)
		if err != nil {
			return err
		}
		c.grant(stream, n)
	}
	return nil
}

func (e *executor) start(f wire.Frame) error {
	var spec wire.Spec
	if err := json.Unmarshal(f.Payload, &spec); err != nil {
		return e.out.WriteJSON(wire.Exit, f.ID, wire.Status{Code: 127, Error: err.Error()})
	}
	c := newCommand(e.out, f.ID, spec)
	e.mu.Lock()
	e.commands[f.ID] = c
	e.mu.Unlock()
	e.running.Go(func() {
		e.prepare()
		status := c.run()
		e.mu.Lock()
		delete(e.commands, f.ID)
		e.mu.Unlock()
		// A failure here means that the machine is gone, which serve notices.
		_ = e.out.WriteJSON(wire.Exit, f.ID, status)
	})
	return nil
}

// killAll ends all commands and waits until they have ended.
func (e *executor) killAll() {
	e.mu.Lock()
	for _, c := range e.commands {
		c.kill()
	}
	e.mu.Unlock()
	e.running.Wait()
}

func (e *executor) find(id uint32) *command {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.commands[id]
}
