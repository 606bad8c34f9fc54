// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"net"
	"testing"

	"github.com/govmm/govmm/internal/emuhost/executor"
	"github.com/govmm/govmm/internal/emuhost/wire"
)

// newLocalHost returns a Host whose commands run on this machine: all of both
// sides but the emulation.
func newLocalHost(t *testing.T) *Host {
	t.Helper()
	ours, theirs := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer theirs.Close()
		// Its error is how the connection ended, which each test sees itself.
		_ = executor.Serve(theirs, func() {})
	}()
	frames := wire.NewReader(ours)
	if err := readGreeting(frames); err != nil {
		t.Fatal(err)
	}
	h := &Host{
		client:   newClient(ours, frames),
		exchange: t.TempDir(),
		stopping: make(chan struct{}),
		close:    ours.Close,
	}
	go h.client.receive()
	t.Cleanup(func() {
		if err := h.Stop(); err != nil {
			t.Error(err)
		}
		<-served // it has ended all commands then
	})
	return h
}
