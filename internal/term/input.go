// SPDX-License-Identifier: Apache-2.0

package term

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// backgroundPoll is how often a process in the background looks whether it has
// got the terminal back, in milliseconds. Nothing else tells: a shell sends
// SIGCONT only to jobs that were stopped.
const backgroundPoll = 500

// Input reads a file such as the standard input, for one reader. Other than with
// an *os.File, Close ends a Read that waits for data, and the file is not made
// non-blocking, which would be seen by all the processes that share it.
//
// From a terminal, Read waits while the process is in the background, which needs
// SIGTTIN to be ignored: by default it stops the whole process, VM and all.
type Input struct {
	fd       int
	tty      *Terminal // nil if it is none
	wake     [2]int    // a pipe; its read end is readable after Close
	away     bool      // the process was in the background when Read last looked
	returned func()    // called when it is not any more; may be nil

	mu      sync.Mutex
	closed  bool
	readers int // Reads on their way; the last of them closes wake[0] after Close
}

// NewInput returns an Input that reads from the file descriptor fd, which it does
// not close.
func NewInput(fd int) (*Input, error) {
	in := &Input{fd: fd, tty: OpenTerminal(fd)}
	if err := unix.Pipe2(in.wake[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("pipe to end reading: %w", err)
	}
	return in, nil
}

// Read implements io.Reader. The end of the file, a terminal that is gone and
// Close all give io.EOF.
func (in *Input) Read(p []byte) (int, error) {
	if !in.enter() {
		return 0, io.EOF
	}
	defer in.leave()
	if len(p) == 0 {
		return 0, nil
	}
	for {
		ready, err := in.wait()
		if err != nil {
			return 0, err
		}
		if !ready {
			continue
		}
		n, err := unix.Read(in.fd, p)
		switch {
		case n > 0:
			return n, nil
		case err == nil:
			return 0, io.EOF
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case errors.Is(err, unix.EIO) && in.background():
			// The terminal was lost between wait and here.
		case errors.Is(err, unix.EIO) && in.tty != nil:
			return 0, io.EOF // hung up
		default:
			return 0, fmt.Errorf("reading input: %w", err)
		}
	}
}

func (in *Input) background() bool { return in.tty != nil && !in.tty.Foreground() }

// look notes whether the process is in the background.
func (in *Input) look() {
	was := in.away
	in.away = in.background()
	if was && !in.away && in.returned != nil {
		in.returned()
	}
}

// wait waits until the file can be read. It returns false if that has to be
// asked again, and io.EOF after Close.
func (in *Input) wait() (ready bool, err error) {
	fds := []unix.PollFd{{Fd: int32(in.wake[0]), Events: unix.POLLIN}, {Fd: int32(in.fd), Events: unix.POLLIN}}
	timeout := -1
	in.look()
	if in.away {
		// A terminal is readable for all; to read it from here would give EIO.
		fds, timeout = fds[:1], backgroundPoll
	}
	if _, err := unix.Poll(fds, timeout); err != nil && !errors.Is(err, unix.EINTR) {
		return false, fmt.Errorf("waiting for input: %w", err)
	}
	if fds[0].Revents != 0 {
		return false, io.EOF
	}
	return len(fds) > 1 && fds[1].Revents != 0, nil
}

// enter begins a Read, unless Close was called.
func (in *Input) enter() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return false
	}
	in.readers++
	return true
}

func (in *Input) leave() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.readers--
	if in.closed && in.readers == 0 {
		_ = unix.Close(in.wake[0]) // a pipe's close does not fail
	}
}

// Close ends all Reads, now and later. It does not wait for them: if another
// process reads the same file, it may take the data that a Read was just told of,
// and that Read waits for the next.
func (in *Input) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return nil
	}
	in.closed = true
	err := unix.Close(in.wake[1]) // hangs up wake[0]
	if in.readers == 0 {
		err = errors.Join(err, unix.Close(in.wake[0]))
	}
	return err
}
