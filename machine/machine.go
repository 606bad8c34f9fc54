// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/govmm/govmm/boot"
	"github.com/govmm/govmm/internal/bug"
	"github.com/govmm/govmm/internal/result"
)

// Machine is one VM: its configuration and what it holds of the host. It lives
// over the guest's reboots.
type Machine struct {
	cfg     Config
	log     *slog.Logger
	host    host
	kernel  *boot.Kernel
	initrds []boot.Source
	cmdline string
	nics    []*nic
	console *serialConsole
	quit    chan struct{}
}

// New checks everything that can be checked before a guest runs, and opens what
// the VM needs of the host: KVM, the kernel, taps. Errors are of package result
// and name the thing, the reason and the cure. Close frees what New made.
func New(cfg Config, s Streams, log *slog.Logger) (*Machine, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Machine{cfg: cfg, log: log, quit: make(chan struct{}, 1)}
	for _, step := range []func() error{
		m.openKernel,
		m.openNets,
		m.openInitrds,
		m.openHost,
		func() error { return m.openConsole(s) },
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	return m, nil
}

// Close frees what the VM holds of the host and removes what it made there. It
// must not run.
func (m *Machine) Close() error {
	var errs []error
	for _, n := range m.nics {
		errs = append(errs, n.close())
	}
	m.nics = nil
	errs = append(errs, m.host.close())
	if m.kernel != nil {
		errs = append(errs, m.kernel.Close())
		m.kernel = nil
	}
	if m.console != nil {
		errs = append(errs, m.console.close())
	}
	return errors.Join(errs...)
}

// Quit ends the run as the user's wish, at any time; the result's reason is
// "stopped".
func (m *Machine) Quit() {
	select {
	case m.quit <- struct{}{}:
	default:
	}
}

// Run runs the VM to its end and says why it ended. If ctx ends first, the
// result is that of its cause (result.OfError). Run may be called once.
func (m *Machine) Run(ctx context.Context) result.Result {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if m.cfg.Timeout > 0 {
		end := result.End{Result: result.Of(result.Timeout, "--timeout %v ran out", m.cfg.Timeout)}
		timer := time.AfterFunc(m.cfg.Timeout, func() { cancel(end) })
		defer timer.Stop()
	}
	defer bug.Handle(func(p bug.Panic) {
		m.log.Error("this is a bug in govmm: please report it", "panic", p.Value, "stack", string(p.Stack))
		cancel(result.End{Result: result.Of(result.Bug, "%v", p.Value)})
	})()
	go func() {
		defer bug.Catch()
		select {
		case <-m.quit:
			cancel(result.End{Result: result.Of(result.Stopped, "by the user")})
		case <-ctx.Done():
		}
	}()
	stop := m.console.start(ctx)
	r := m.runBoots(ctx)
	cancel(nil)
	stop()
	r.Console = m.console.tailText()
	return r
}

// runBoots boots the guest, again after each reset if that is wanted.
func (m *Machine) runBoots(ctx context.Context) result.Result {
	for boots := 1; ; boots++ {
		r := m.boot(ctx)
		if r.Reason != result.Reset || m.cfg.OnReboot != "reboot" || ctx.Err() != nil {
			return r
		}
		m.log.Info("the guest reboots", "boots", boots)
	}
}
