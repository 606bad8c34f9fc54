// SPDX-License-Identifier: Apache-2.0

package power

import "sync"

// The reset control register: its I/O port, and the value that resets (a hard
// reset: SYS_RST and RST_CPU), which the FADT names as RESET_VALUE.
const (
	ResetPort  = 0xcf9
	ResetValue = 0x06
)

const (
	sysRST  = 1 << 1 // reset all, not only the CPU
	rstCPU  = 1 << 2 // going from 0 to 1: do it
	fullRST = 1 << 3 // with a power cycle
)

// ResetControl is the reset control register of Intel's chip sets, one port.
// It lies inside the PCI configuration address port, which is four bytes wide
// and takes no byte accesses: the board passes byte accesses at 0xcf9 here.
type ResetControl struct {
	onReset func()
	mu      sync.Mutex
	value   byte
}

// NewResetControl makes the register. onReset runs on the guest's CPU thread.
func NewResetControl(onReset func()) *ResetControl { return &ResetControl{onReset: onReset} }

// BusRead reads the register.
func (r *ResetControl) BusRead(off uint64, p []byte) {
	clear(p)
	if off != 0 || len(p) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p[0] = r.value
}

// BusWrite writes the register. A write that finds RST_CPU set already resets
// too: hardware would not have lived to see it.
func (r *ResetControl) BusWrite(off uint64, p []byte) {
	if off != 0 || len(p) == 0 {
		return
	}
	r.mu.Lock()
	r.value = p[0] & (sysRST | fullRST)
	r.mu.Unlock()
	if p[0]&rstCPU != 0 {
		r.onReset()
	}
}

// Reset is a reset of the machine.
func (r *ResetControl) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.value = 0
}
