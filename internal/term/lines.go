// SPDX-License-Identifier: Apache-2.0

package term

import (
	"bytes"
	"io"
)

// Lines writes messages to a terminal that may be in raw mode, where a newline
// alone does not return to the beginning of the line.
type Lines struct {
	W   io.Writer
	Raw func() bool // tells whether the terminal is in raw mode
}

// Write implements io.Writer.
func (l Lines) Write(p []byte) (int, error) {
	if !l.Raw() {
		return l.W.Write(p)
	}
	if _, err := l.W.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}
