// SPDX-License-Identifier: Apache-2.0

package netio

// Round moves one burst in each direction on the caller's goroutine, of a Pump
// that is not started.
func (p *Pump) Round() bool { return p.round() }
