// SPDX-License-Identifier: Apache-2.0

package vmbus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/devices/vmbus/vmbustest"
	"golang.org/x/sys/unix"
)

// echo is a device that sends each packet back as a completion. Its thread
// sleeps on the channel's eventfd, as a packet pump does.
type echo struct {
	instance byte

	mu       sync.Mutex
	channels map[*vmbus.Channel]*echoThread
	revoked  []uint32
	refuse   error
}

type echoThread struct {
	ch   *vmbus.Channel
	quit chan struct{}
	done chan struct{}
	err  error // valid once done is closed
}

func newEcho(instance byte) *echo {
	return &echo{instance: instance, channels: map[*vmbus.Channel]*echoThread{}}
}

func (e *echo) Offer() vmbus.Offer {
	return vmbus.Offer{Class: vmbus.GUID{0: 0x63, 15: 0xe}, Instance: vmbus.GUID{0: e.instance}}
}

func (e *echo) Open(ch *vmbus.Channel) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refuse != nil {
		return e.refuse
	}
	t := &echoThread{ch: ch, quit: make(chan struct{}), done: make(chan struct{})}
	e.channels[ch] = t
	go t.run()
	return nil
}

func (e *echo) Close(ch *vmbus.Channel) {
	e.mu.Lock()
	t := e.channels[ch]
	delete(e.channels, ch)
	e.mu.Unlock()
	close(t.quit)
	ch.Kick()
	<-t.done
}

func (e *echo) Revoke(_ *vmbus.Channel, gpadl uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.revoked = append(e.revoked, gpadl)
}

func (e *echo) open() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.channels)
}

// only returns the one open channel's thread.
func (e *echo) only(t *testing.T) *echoThread {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.channels) != 1 {
		t.Fatalf("%d channels are open", len(e.channels))
	}
	for _, c := range e.channels {
		return c
	}
	return nil
}

func (t *echoThread) run() {
	defer close(t.done)
	in, out := t.ch.In(), t.ch.Out()
	for {
		in.Disarm()
		t.err = t.drain()
		select {
		case <-t.quit:
			return
		default:
		}
		if t.err != nil {
			<-t.quit // the channel is broken: only its end is left
			return
		}
		stalled := out.Err() == nil && !out.Fits(0, 256) && !out.Await(0, 256)
		if !stalled && in.Arm() {
			continue
		}
		t.wait()
	}
}

func (t *echoThread) wait() {
	fds := []unix.PollFd{{Fd: int32(t.ch.KickFD()), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	var b [8]byte
	_, _ = unix.Read(t.ch.KickFD(), b[:])
}

// drain answers what there is, in one batch.
func (t *echoThread) drain() error {
	in, out := t.ch.In(), t.ch.Out()
	defer func() {
		in.Publish()
		out.Publish()
		in.Signal()
		out.Signal()
	}()
	for out.Fits(0, 256) {
		p, err := in.Next()
		if err != nil || p == nil {
			return err
		}
		if len(p.Payload) > 256 {
			return in.Faultf("payload of %d bytes", len(p.Payload))
		}
		if !out.Append(vmbus.PacketCompletion, 0, p.Transaction, nil, p.Payload) {
			return fmt.Errorf("no room after Fits: %w", out.Err())
		}
	}
	return out.Err()
}

// newGuest makes a guest with echo devices, connected at a version and with the
// offers requested.
func newGuest(t *testing.T, version uint32, devices ...*echo) (*vmbustest.Guest, []vmbustest.Offer) {
	t.Helper()
	g := startGuest(t, devices...)
	check(t, g.Connect(version))
	offers, err := g.RequestOffers()
	check(t, err)
	if len(offers) != len(devices) {
		t.Fatalf("%d offers of %d devices", len(offers), len(devices))
	}
	return g, offers
}

// startGuest makes a guest without contact, whose bus runs.
func startGuest(t *testing.T, devices ...*echo) *vmbustest.Guest {
	t.Helper()
	var list []vmbus.Device
	for _, d := range devices {
		list = append(list, d)
	}
	g, err := vmbustest.NewGuest(64<<20, 4, list...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { g.Bus.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await waits for what another goroutine is about to make true.
func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so within 10 s: %s", what)
		}
	}
}
