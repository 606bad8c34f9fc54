// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/govmm/govmm/internal/emuhost/wire"
)

// Host is a running emulated host.
type Host struct {
	client   *client
	exchange string
	process  *process // nil if another process owns the host (see Attach)
	options  Options

	temporary string // a folder to remove at the end, or ""
	stopping  chan struct{}
	stopOnce  sync.Once
	watchdog  sync.WaitGroup
	close     func() error // ends the connection
}

// Start starts an emulated host and waits until it takes commands. A first
// attempt that fails is reported and followed by a second.
func Start(ctx context.Context, options Options) (*Host, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	initrd, err := makeInitrd(o)
	if err != nil {
		return nil, err
	}
	h, err := startOnce(ctx, o, initrd)
	if err == nil || ctx.Err() != nil {
		return h, err
	}
	o.Logf("first attempt failed, trying again: %v", err)
	return startOnce(ctx, o, initrd)
}

func startOnce(ctx context.Context, o Options, initrd string) (*Host, error) {
	h := &Host{options: o, exchange: o.Exchange, stopping: make(chan struct{})}
	if h.exchange == "" {
		dir, err := newTemporary()
		if err != nil {
			return nil, err
		}
		h.temporary, h.exchange = dir, dir
	}
	p, err := startQEMU(o, initrd, h.exchange)
	if err != nil {
		h.removeTemporary()
		return nil, err
	}
	frames := wire.NewReader(p.conn)
	if err := p.awaitAgent(ctx, o.BootTimeout, frames); err != nil {
		p.kill()
		h.removeTemporary()
		return nil, p.explain(err)
	}
	h.process = p
	h.close = p.conn.Close
	h.client = newClient(p.conn, frames)
	go h.client.receive()
	h.watchdog.Go(h.watch)
	go h.nudge()
	return h, nil
}

// Exchange returns the exchange folder's path on the machine. If it was not
// given in Options, Stop removes it.
func (h *Host) Exchange() string { return h.exchange }

// Console returns the path of the file with the host's console output, or "" if
// another process owns the host.
func (h *Host) Console() string {
	if h.process == nil {
		return ""
	}
	return h.process.console
}

// Done is closed when the host has ended, whatever the reason.
func (h *Host) Done() <-chan struct{} { return h.client.done }

// Stop powers the host off and removes what Start made. Commands that still run
// end with an error. A Host from Attach is left running.
func (h *Host) Stop() error {
	var err error
	h.stopOnce.Do(func() {
		close(h.stopping)
		h.client.fail(errHostGone) // before the commands are killed: that is not how they end
		if h.process != nil {
			h.powerOff()
		} else {
			err = h.close()
		}
		h.watchdog.Wait()
		err = errors.Join(err, h.removeTemporary())
	})
	return err
}

// powerOff asks the agent, and insists after a while.
func (h *Host) powerOff() {
	const patience = 5 * time.Second
	_ = h.client.out.Write(wire.Frame{Type: wire.Shutdown})
	select {
	case <-h.process.exited:
	case <-time.After(patience):
	}
	h.process.kill()
}

// watch asks the host for signs of life and gives it up when none come.
func (h *Host) watch() {
	ticks := time.NewTicker(h.options.FreezeTimeout / 8)
	defer ticks.Stop()
	for {
		select {
		case <-h.stopping:
			return
		case <-h.client.done:
			return
		case <-h.process.exited:
			h.client.fail(fmt.Errorf("QEMU ended (%v)", h.process.cmd.ProcessState))
			return
		case <-ticks.C:
		}
		if silence := h.client.silence(); silence > h.options.FreezeTimeout {
			h.client.fail(fmt.Errorf("frozen: no sign of life for %v", silence.Round(time.Second)))
			h.process.kill()
			return
		}
		// In a goroutine: the write may block for as long as the host is frozen.
		go func() { _ = h.client.out.Write(wire.Frame{Type: wire.Ping}) }()
	}
}

// nudge gives the host an interrupt from outside, many times a second. QEMU's
// emulation of #VMEXIT and VMRUN changes the CPU's word of pending interrupts
// without a lock (cpu_vmexit and helper_vmrun up to QEMU 10.1), while the local
// APIC's timer sets its bit there from another thread: the bit may be lost. The
// interrupt then waits in the APIC until another one comes, and with it every
// timer of the host: a guest there seems to hang.
//
// It ends with the connection.
func (h *Host) nudge() {
	ticks := time.NewTicker(nudgeInterval)
	defer ticks.Stop()
	for range ticks.C {
		if h.client.out.Write(wire.Frame{Type: wire.Nudge}) != nil {
			return
		}
	}
}

// nudgeInterval is how long a lost interrupt may stay lost. A nudge costs the
// host some hundred microseconds.
const nudgeInterval = 50 * time.Millisecond

// explainEnd is the error of a command that the host's end cut off.
func (h *Host) explainEnd() error {
	err := h.client.failure()
	if !errors.Is(err, errHostGone) {
		err = fmt.Errorf("%w: %w", errHostGone, err)
	}
	select {
	case <-h.stopping:
		return err
	default:
	}
	if h.process == nil {
		return err
	}
	return h.process.explain(err)
}

func (h *Host) removeTemporary() error {
	if h.temporary == "" {
		return nil
	}
	return os.RemoveAll(h.temporary)
}

// temporaryPrefix begins the names of temporary folders; the process id of the
// owner follows.
const temporaryPrefix = "govmm-emuhost-"

// newTemporary makes a temporary folder, and removes those of processes that
// ended without doing so.
func newTemporary() (string, error) {
	stale, _ := filepath.Glob(filepath.Join(os.TempDir(), temporaryPrefix+"*"))
	for _, dir := range stale {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), temporaryPrefix), "-")
		pid, err := strconv.Atoi(owner)
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
	return os.MkdirTemp("", fmt.Sprintf("%s%d-", temporaryPrefix, os.Getpid()))
}
