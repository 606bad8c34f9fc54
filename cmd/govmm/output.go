// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"sync"
)

// outputWatch passes the guest's output on, and knows whether it ended in the
// middle of a line. A nil outputWatch has had no output.
type outputWatch struct {
	w      io.Writer
	failed func(error) // called with the first error

	mu   sync.Mutex
	last byte // the last byte that was written; 0 for none
	err  error
}

// Write implements io.Writer.
func (o *outputWatch) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	o.mu.Lock()
	defer o.mu.Unlock()
	if n > 0 {
		o.last = p[n-1]
	}
	if err != nil && o.err == nil {
		o.err = err
		o.failed(err)
	}
	return n, err
}

func (o *outputWatch) midLine() bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last != 0 && o.last != '\n'
}
