// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"io"
	"sync"
)

// Sender sends one stream of one command within its window.
type Sender struct {
	out    *Writer
	id     uint32
	stream Type

	mu     sync.Mutex
	cond   sync.Cond
	credit int
	closed bool
}

// NewSender returns a Sender with a full window.
func NewSender(out *Writer, id uint32, stream Type) *Sender {
	s := &Sender{out: out, id: id, stream: stream, credit: Window}
	s.cond.L = &s.mu
	return s
}

// Grant adds credit that the receiver gave.
func (s *Sender) Grant(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.credit += n
	s.cond.Broadcast()
}

// Close makes Write fail from now on, also one that waits for credit.
func (s *Sender) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.cond.Broadcast()
}

// take waits for credit and returns how many of n bytes may be sent, at least
// one; or 0 once the Sender is closed.
func (s *Sender) take(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.credit <= 0 && !s.closed {
		s.cond.Wait()
	}
	if s.closed {
		return 0
	}
	n = min(n, s.credit, MaxData)
	s.credit -= n
	return n
}

// Write sends all of p, and waits for credit as needed.
func (s *Sender) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		n := s.take(len(p) - sent)
		if n == 0 {
			return sent, io.ErrClosedPipe
		}
		if err := s.out.Write(Frame{Type: s.stream, ID: s.id, Payload: p[sent : sent+n]}); err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

// Queue holds what has arrived of one stream until its reader takes it. Its
// size is bounded by the sender's window.
type Queue struct {
	mu     sync.Mutex
	cond   sync.Cond
	data   []byte
	closed bool
}

// NewQueue returns an empty Queue.
func NewQueue() *Queue {
	q := &Queue{}
	q.cond.L = &q.mu
	return q
}

// Put appends data. What comes after Close is dropped.
func (q *Queue) Put(data []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.data = append(q.data, data...)
	q.cond.Broadcast()
}

// Close marks the end: Take returns what is left, and then io.EOF.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.cond.Broadcast()
}

// Take waits for data and returns all that is there.
func (q *Queue) Take() ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.data) == 0 && !q.closed {
		q.cond.Wait()
	}
	if len(q.data) == 0 {
		return nil, io.EOF
	}
	data := q.data
	q.data = nil
	return data, nil
}
