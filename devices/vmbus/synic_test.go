// SPDX-License-Identifier: Apache-2.0

package vmbus

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// TestPostLosesNoAcknowledgement posts messages while a guest takes them on
// another thread, and waits for acknowledgements alone: if the pending flag could
// be missed, it would wait for ever.
func TestPostLosesNoAcknowledgement(t *testing.T) {
	const messages = 3000
	s := newSynIC(newRAM(t), &hostless{}, 2)
	s.write(1, 1, 0x1001, 0x2001)
	page := s.vps[1].messages
	acks := make(chan struct{}, 1)
	done := make(chan struct{})
	var stop atomic.Bool
	defer func() {
		stop.Store(true)
		<-done
	}()
	go func() {
		defer close(done)
		for next := uint32(0); next < messages && !stop.Load(); {
			if page.Load32(sintSlot+messageType) == 0 {
				runtime.Gosched()
				continue
			}
			var payload [4]byte
			page.CopyIn(sintSlot+messageData, payload[:])
			if got := le.Uint32(payload[:]); got != next {
				t.Errorf("message %d came after %d", got, next)
				return
			}
			next++
			page.Store32(sintSlot+messageType, 0)
			if page.Load32(sintSlot+messageSize)&flagPending != 0 {
				select {
				case acks <- struct{}{}:
				default:
				}
			}
		}
	}()
	timeout := time.After(time.Minute)
	for i := range uint32(messages) {
		for s.post(1, le.AppendUint32(nil, i)) == busy {
			select {
			case <-acks:
			case <-timeout:
				t.Fatalf("message %d waits for an acknowledgement that does not come", i)
			}
		}
	}
	select {
	case <-done:
	case <-timeout:
		t.Fatal("the guest still waits for messages")
	}
}

// TestSynICRegisters checks what a virtual processor must have enabled, that
// nothing is written to a page that it has disabled, and that pages which appear
// come with an interrupt, for flags that are set in them.
func TestSynICRegisters(t *testing.T) {
	host := &hostless{}
	s := newSynIC(newRAM(t), host, 1)
	for _, c := range []struct {
		name                 string
		control, simp, siefp uint64
		messages, events     bool
	}{
		{"reset", 0, 0, 0, false, false},
		{"pages without control", 0, 0x1001, 0x2001, false, false},
		{"control without pages", 1, 0x1000, 0x2000, false, false},
		{"messages", 1, 0x1001, 0x2000, true, false},
		{"events", 1, 0x1000, 0x2001, false, true},
		{"all", 1, 0x1001, 0x2001, true, true},
		{"reserved bits", ^uint64(0), 0x1fff, 0x2fff, true, true},
	} {
		s.write(0, c.control, c.simp, c.siefp)
		if err := s.mem.Zero(0x1000, 2*PageSize); err != nil {
			t.Fatal(err)
		}
		host.injected = 0
		result := s.post(0, []byte{1, 2, 3})
		if (result == posted) != c.messages || (host.injected == 1) != c.messages {
			t.Errorf("%s: post gives %d and %d interrupts", c.name, result, host.injected)
		}
		host.injected = 0
		s.signalEvent(0, 40)
		s.signalEvent(0, 40)
		if (host.injected == 1) != c.events {
			t.Errorf("%s: two signals give %d interrupts", c.name, host.injected)
		}
		var got [2 * PageSize]byte
		if err := s.mem.ReadAt(0x1000, got[:]); err != nil {
			t.Fatal(err)
		}
		// Slot 2 of each page: type, size and payload; flag 40 is bit 0 of byte 5.
		message := got[0x200] == 1 && got[0x204] == 3 && got[0x212] == 3
		event := got[PageSize+0x205] == 1
		if message != c.messages || event != c.events {
			t.Errorf("%s: message written %v, flag set %v", c.name, message, event)
		}
	}
	host.injected = 0
	s.write(0, 1, 0, 0x2001)
	if host.injected != 1 {
		t.Error("flags that were set before the page was there are lost")
	}
}
