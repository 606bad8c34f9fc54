// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"

	"github.com/govmm/govmm/internal/result"
)

// board is a VM from power-on to its first reset or power-off: pc.Board.
type board interface {
	// Run runs the guest to its end or ctx's, and says why it ended.
	Run(ctx context.Context) result.Result
	// End ends the run with a result, from any goroutine, without waiting.
	End(result.Result)
	// Feed passes console input to the guest; see feeder.
	Feed(ctx context.Context, p []byte) (int, error)
	// Close frees everything; the board does not run.
	Close() error
}

// boot runs the guest from power-on to its first reset or its end.
func (m *Machine) boot(ctx context.Context) result.Result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b, err := m.newBoard()
	if err != nil {
		return result.OfError(err)
	}
	var end func(result.Result)
	if m.cfg.OnPanic == "exit" {
		end = b.End
	}
	m.console.panic.arm(end)
	m.console.attach(ctx, b.Feed)
	r := b.Run(ctx)
	cancel()
	panicked := m.console.panic.disarm()
	if err := b.Close(); err != nil {
		m.log.Error("close the board", "err", err)
	}
	m.logCounters()
	return m.judge(r, panicked)
}

// judge settles the reason of a boot's end: a guest that resets or dies after a
// panic has panicked.
func (m *Machine) judge(r result.Result, panicked string) result.Result {
	if panicked == "" || m.cfg.OnPanic != "exit" {
		return r
	}
	switch r.Reason {
	case result.Reset, result.TripleFault, result.PowerOff:
		return result.Of(result.Panic, "%s", panicked)
	}
	return r
}
