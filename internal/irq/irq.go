// SPDX-License-Identifier: Apache-2.0

// Package irq is how a device raises an interrupt, whatever the controller.
package irq

// Line is a level-triggered interrupt line. Set is idempotent and may be called
// from any goroutine.
type Line interface {
	Set(level bool)
}

// Vector is an edge-like interrupt: MSI, MSI-X, a SynIC interrupt source.
// Raise takes no lock that a guest can hold up and does not allocate: it is on
// the data path.
type Vector interface {
	Raise()
}

// Message is what an MSI carries: a write of Data to Addr.
type Message struct {
	Addr uint64
	Data uint32
}

// MSI delivers messages to the interrupt controller. Send does not allocate.
type MSI interface {
	Send(Message)
}

// LineFunc makes a function a Line.
type LineFunc func(level bool)

// Set calls the function.
func (f LineFunc) Set(level bool) { f(level) }
