// SPDX-License-Identifier: Apache-2.0

// Package bug gives a run an orderly end when govmm itself is wrong: a Go panic
// in one of its goroutines becomes the run's result, so that the terminal and
// the taps are put in order as after any other end.
//
// Each goroutine of a VM begins with
//
//	defer bug.Catch()
//
// and whoever can end the run registers with Handle. Without a handler a panic
// is what it always is.
package bug

import (
	"runtime/debug"
	"sync"
)

// Panic is a recovered panic.
type Panic struct {
	Value any
	Stack []byte // of the goroutine, as debug.Stack formats it
}

var (
	mu       sync.Mutex
	handlers = map[*func(Panic)]bool{}
)

// Handle calls f for each panic that Catch catches until remove is called. f may
// be called from several goroutines at once, on the goroutine that panicked,
// which ends afterwards. Several VMs in one process each have a handler; a bug
// ends them all, for nobody knows whose it was.
func Handle(f func(Panic)) (remove func()) {
	mu.Lock()
	defer mu.Unlock()
	handlers[&f] = true
	return func() {
		mu.Lock()
		defer mu.Unlock()
		delete(handlers, &f)
	}
}

// Catch is deferred at the start of a goroutine.
func Catch() {
	value := recover()
	if value == nil {
		return
	}
	mu.Lock()
	var call []func(Panic)
	for f := range handlers {
		call = append(call, *f)
	}
	mu.Unlock()
	if len(call) == 0 {
		panic(value)
	}
	p := Panic{value, debug.Stack()}
	for _, f := range call {
		f(p)
	}
}
