// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// collect reads the data of one stream's frames until the pipe is closed.
func collect(t *testing.T, r io.Reader, onFrame func(Frame)) []byte {
	t.Helper()
	var data []byte
	frames := NewReader(r)
	for {
		f, err := frames.Read()
		if errors.Is(err, io.EOF) {
			return data
		}
		if err != nil {
			t.Error(err)
			return data
		}
		data = append(data, f.Payload...)
		onFrame(f)
	}
}

func TestSenderKeepsWithinItsWindow(t *testing.T) {
	r, w := io.Pipe()
	s := NewSender(NewWriter(w), 3, Stdout)
	sent := bytes.Repeat([]byte("0123456789"), Window/4) // two and a half windows
	go func() {
		defer w.Close()
		if n, err := s.Write(sent); n != len(sent) || err != nil {
			t.Errorf("Write returned %d, %v", n, err)
		}
	}()
	granted, received := Window, 0
	got := collect(t, r, func(f Frame) {
		if f.ID != 3 || f.Type != Stdout || len(f.Payload) > MaxData {
			t.Errorf("frame of type %d, id %d, %d bytes", f.Type, f.ID, len(f.Payload))
		}
		received += len(f.Payload)
		if received > granted {
			t.Errorf("%d bytes came, %d were granted", received, granted)
		}
		if received == granted && granted < len(sent) {
			granted += 1000
			s.Grant(1000)
		}
	})
	if !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came, %d were sent, or they differ", len(got), len(sent))
	}
}

func TestSenderCloseEndsAWaitingWrite(t *testing.T) {
	s := NewSender(NewWriter(io.Discard), 1, Stdin)
	result := make(chan error)
	go func() {
		_, err := s.Write(make([]byte, Window+1))
		result <- err
	}()
	s.Close()
	if err := <-result; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write returned %v, want %v", err, io.ErrClosedPipe)
	}
}

func TestQueue(t *testing.T) {
	q := NewQueue()
	q.Put([]byte("ab"))
	q.Put([]byte("cd"))
	if got, err := q.Take(); string(got) != "abcd" || err != nil {
		t.Errorf("Take returned %q, %v", got, err)
	}
	q.Put([]byte("ef"))
	q.Close()
	q.Put([]byte("late"))
	if got, err := q.Take(); string(got) != "ef" || err != nil {
		t.Errorf("Take after Close returned %q, %v: what came before must not be lost", got, err)
	}
	if got, err := q.Take(); !errors.Is(err, io.EOF) {
		t.Errorf("Take at the end returned %q, %v", got, err)
	}
}

func TestQueueTakeWaits(t *testing.T) {
	q := NewQueue()
	taken := make(chan string)
	go func() {
		data, _ := q.Take()
		taken <- string(data)
	}()
	q.Put([]byte("x"))
	if got := <-taken; got != "x" {
		t.Errorf("Take returned %q", got)
	}
}
