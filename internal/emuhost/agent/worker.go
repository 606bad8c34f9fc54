// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/govmm/govmm/internal/emuhost/wire"
)

// work connects to the machine and serves it until it asks for the end.
func work() error {
	port, err := openPort(wire.PortName, 30*time.Second)
	if err != nil {
		return err
	}
	defer port.Close()
	w := &worker{out: wire.NewWriter(port), commands: map[uint32]*command{}}
	return w.serve(port)
}

// openPort opens the virtio-serial port of the given name. Ports appear a
// moment after their driver was loaded.
func openPort(name string, patience time.Duration) (*os.File, error) {
	deadline := time.Now().Add(patience)
	for {
		entries, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			data, err := os.ReadFile(entry)
			if err == nil && strings.TrimSpace(string(data)) == name {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(entry)), os.O_RDWR, 0)
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no virtio-serial port named %s", name)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// worker runs the machine's commands.
type worker struct {
	out *wire.Writer

	mu       sync.Mutex
	commands map[uint32]*command
}

// serve handles the machine's frames until Shutdown or the end of the stream.
func (w *worker) serve(in io.Reader) error {
	if err := w.out.WriteJSON(wire.Hello, 0, wire.Greeting{Version: wire.Version}); err != nil {
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
		if err := w.handle(f); err != nil {
			return err
		}
	}
}

// handle acts on one frame. It never waits for a command: that would hold up
// all others.
func (w *worker) handle(f wire.Frame) error {
	switch f.Type {
	case wire.Ping:
		return w.out.Write(wire.Frame{Type: wire.Pong})
	case wire.Start:
		return w.start(f)
	}
	c := w.find(f.ID)
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

func (w *worker) start(f wire.Frame) error {
	var spec wire.Spec
	if err := json.Unmarshal(f.Payload, &spec); err != nil {
		return w.out.WriteJSON(wire.Exit, f.ID, wire.Status{Code: 127, Error: err.Error()})
	}
	c := newCommand(w.out, f.ID, spec)
	w.mu.Lock()
	w.commands[f.ID] = c
	w.mu.Unlock()
	go func() {
		status := c.run()
		w.mu.Lock()
		delete(w.commands, f.ID)
		w.mu.Unlock()
		// A failure here means that the machine is gone, which serve notices.
		_ = w.out.WriteJSON(wire.Exit, f.ID, status)
	}()
	return nil
}

func (w *worker) find(id uint32) *command {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.commands[id]
}
