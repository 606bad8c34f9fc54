// SPDX-License-Identifier: Apache-2.0

package virtiopci

import "sync/atomic"

// Faults counts what the guest's driver did against the specification, and
// what was ignored therefore.
type Faults struct {
	Access uint64 // a width or an offset that the registers don't have
	Order  uint64 // a register written at the wrong time, a feature not on offer
	Value  uint64 // a value that the register can't take, a queue that isn't there
	Device uint64 // how often the device gave up and asked for a reset
}

type faultKind int

const (
	faultAccess faultKind = iota
	faultOrder
	faultValue
	faultDevice
	faultKinds
)

type faults [faultKinds]atomic.Uint64

// add counts a fault and returns the new count.
func (f *faults) add(k faultKind) uint64 { return f[k].Add(1) }

// Faults returns the counts so far.
func (t *Transport) Faults() Faults {
	f := &t.faults
	return Faults{
		Access: f[faultAccess].Load(),
		Order:  f[faultOrder].Load(),
		Value:  f[faultValue].Load(),
		Device: f[faultDevice].Load(),
	}
}
