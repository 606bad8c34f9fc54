// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/govmm/govmm/internal/emuhost/wire"
)

// WindowSize is a terminal's size in characters.
type WindowSize = wire.WindowSize

// Cmd is a command to run in the host. Paths are those of the machine.
type Cmd struct {
	Path string   // program, looked up in the PATH of Env if it has no slash
	Args []string // arguments after the program's name; any byte but NUL
	Dir  string   // working directory; "": /
	Env  []string // "NAME=value"; nil: a small default

	Stdin          io.Reader // nil: /dev/null
	Stdout, Stderr io.Writer // nil: dropped

	// TTY gives the command a pseudo terminal for all three streams; what it
	// writes then comes to Stdout.
	TTY  bool
	Size WindowSize // the terminal's first size

	Signals <-chan syscall.Signal // sent to the command's process group; may be nil
	Resize  <-chan WindowSize     // the terminal's new sizes; may be nil

	// Grace is how long a command may go on after the SIGTERM that it gets when
	// the context ends, before its process group is killed; 0: 5 seconds.
	Grace time.Duration
}

// killNow is a Grace without any time.
const killNow = time.Nanosecond

// killPatience bounds the wait for a killed command's exit status.
const killPatience = 10 * time.Second

// Run runs a command and waits until it has ended and all its output has been
// written. The exit code is its own, or 128 plus the number of the signal that
// ended it. An error means that the command did not run to its end: it could
// not be started (then the code is 126 or 127, as in a shell), ctx ended, an
// output could not be written, or the host has ended; the code is -1 if there
// is no better one. Run may be called concurrently.
func (h *Host) Run(ctx context.Context, cmd Cmd) (exitCode int, err error) {
	if err := ctx.Err(); err != nil {
		return -1, err
	}
	id, r, err := h.client.start(cmd.spec())
	if err != nil {
		return -1, err
	}
	s := &session{host: h, cmd: cmd, id: id, remote: r, finished: make(chan struct{})}
	return s.run(ctx)
}

func (cmd Cmd) spec() wire.Spec {
	return wire.Spec{
		Path: []byte(cmd.Path), Args: bytesOf(cmd.Args), Dir: []byte(cmd.Dir), Env: bytesOf(cmd.Env),
		HasStdin: cmd.Stdin != nil, TTY: cmd.TTY, Size: cmd.Size,
	}
}

// session is one call of Run.
type session struct {
	host   *Host
	cmd    Cmd
	id     uint32
	remote *remote

	output   sync.WaitGroup
	finished chan struct{} // closed when Run returns

	mu       sync.Mutex
	writeErr error // the first failure to write output
}

func (s *session) run(ctx context.Context) (int, error) {
	defer close(s.finished)
	writeFailed := make(chan struct{})
	var once sync.Once
	onFailure := func() { once.Do(func() { close(writeFailed) }) }
	s.output.Go(func() { s.drain(s.remote.stdout, wire.Stdout, s.cmd.Stdout, onFailure) })
	s.output.Go(func() { s.drain(s.remote.stderr, wire.Stderr, s.cmd.Stderr, onFailure) })
	if s.cmd.Stdin != nil {
		go s.feed()
	}
	for {
		select {
		case status := <-s.remote.status:
			s.output.Wait()
			return s.result(status, nil)
		case <-s.host.client.done:
			return -1, s.host.explainEnd()
		case sig := <-s.cmd.Signals:
			s.signal(sig)
		case size := <-s.cmd.Resize:
			_ = s.host.client.out.WriteJSON(wire.Resize, s.id, size)
		case <-writeFailed:
			// As a process that writes to a closed pipe would, it gets SIGPIPE.
			writeFailed = nil
			s.signal(syscall.SIGPIPE)
		case <-ctx.Done():
			return s.cancel(context.Cause(ctx))
		}
	}
}

// cancel ends the command: SIGTERM, some time, SIGKILL.
func (s *session) cancel(cause error) (int, error) {
	s.signal(syscall.SIGTERM)
	grace := s.cmd.Grace
	if grace == 0 {
		grace = 5 * time.Second
	}
	if status, ok := s.await(grace); ok {
		return s.result(status, cause)
	}
	_ = s.host.client.out.Write(wire.Frame{Type: wire.Kill, ID: s.id})
	if status, ok := s.await(killPatience); ok {
		return s.result(status, cause)
	}
	s.host.client.forget(s.id)
	s.remote.close()
	return -1, cause
}

// await waits for the command's status.
func (s *session) await(patience time.Duration) (wire.Status, bool) {
	select {
	case status := <-s.remote.status:
		s.output.Wait()
		return status, true
	case <-s.host.client.done:
	case <-time.After(patience):
	}
	return wire.Status{}, false
}

func (s *session) result(status wire.Status, cause error) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case status.Ended:
		return status.Code, &hostError{text: status.Error, cause: errHostGone}
	case status.Error != "":
		return status.Code, errors.New(status.Error)
	case cause != nil:
		return status.Code, cause
	}
	return status.Code, s.writeErr
}

func (s *session) signal(sig syscall.Signal) {
	// A failure to send means that the host is gone, which ends the session.
	_ = s.host.client.out.Write(wire.Frame{Type: wire.Signal, ID: s.id, Payload: []byte{byte(sig)}})
}

// drain writes one output stream of the command to w. After a failure it drops
// the rest, so that the command's end can be told from its silence.
func (s *session) drain(q *wire.Queue, stream wire.Type, w io.Writer, onFailure func()) {
	for {
		data, err := q.Take()
		if err != nil {
			return
		}
		if w != nil {
			if _, err := w.Write(data); err != nil {
				s.mu.Lock()
				s.writeErr = errors.Join(s.writeErr, fmt.Errorf("cannot write the command's output: %w", err))
				s.mu.Unlock()
				w = nil
				onFailure()
			}
		}
		_ = s.host.client.out.WriteCredit(s.id, stream, len(data))
	}
}

// feed sends the standard input. A read that waits for ever (a terminal) does
// not hold up Run: feed then ends at the next byte.
func (s *session) feed() {
	buf := make([]byte, wire.MaxData)
	for {
		n, err := s.cmd.Stdin.Read(buf)
		select {
		case <-s.finished:
			return
		default:
		}
		if n > 0 {
			if _, err := s.remote.stdin.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			_ = s.host.client.out.Write(wire.Frame{Type: wire.Stdin, ID: s.id})
			return
		}
	}
}

func bytesOf(strings []string) [][]byte {
	if strings == nil {
		return nil
	}
	out := make([][]byte, len(strings))
	for i, s := range strings {
		out[i] = []byte(s)
	}
	return out
}
