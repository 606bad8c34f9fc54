// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"sync"

	"github.com/govmm/govmm/internal/irq"
)

// intx drives the function's interrupt pin. Its lock is held only to change
// the line's level.
type intx struct {
	line irq.Line // nil: no pin

	mu      sync.Mutex
	pending bool // the device asks for service
	blocked bool // the guest disabled INTx, or uses MSI-X instead
	level   bool // of the line
}

// set is the device's request.
func (x *intx) set(pending bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.pending = pending
	x.drive()
}

// block is the guest's choice.
func (x *intx) block(blocked bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.blocked = blocked
	x.drive()
}

func (x *intx) asserted() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.pending
}

// reset lowers the line whatever its level is thought to be: the interrupt
// controller may have been reset too.
func (x *intx) reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.pending, x.blocked, x.level = false, false, false
	if x.line != nil {
		x.line.Set(false)
	}
}

// drive sets the line if its level changes. x.mu is held.
func (x *intx) drive() {
	level := x.pending && !x.blocked
	if x.line == nil || level == x.level {
		return
	}
	x.level = level
	x.line.Set(level)
}
