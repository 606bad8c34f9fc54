// SPDX-License-Identifier: Apache-2.0

package console

// tail keeps the last len(buf) bytes.
type tail struct {
	buf  []byte
	next int  // where the next byte goes
	full bool // bytes have been overwritten or the ring is exactly full
}

func (t *tail) write(p []byte) {
	if len(p) > len(t.buf) {
		p = p[len(p)-len(t.buf):]
		t.full = true
	}
	n := copy(t.buf[t.next:], p)
	t.next += n
	if t.next == len(t.buf) {
		t.next = copy(t.buf, p[n:])
		t.full = true
	}
}

// bytes returns a copy, oldest byte first.
func (t *tail) bytes() []byte {
	var b []byte
	if t.full {
		b = append(b, t.buf[t.next:]...)
	}
	return append(b, t.buf[:t.next]...)
}

// MaxLine is how much of a line is kept for OnLine, in bytes. Longer lines are
// cut: what is looked for stands at their start.
const MaxLine = 1024

// lines cuts a stream into lines.
type lines struct {
	on   func([]byte)
	line []byte
}

func (l *lines) write(p []byte) {
	if l.on == nil {
		return
	}
	for _, c := range p {
		switch {
		case c == '\n':
			l.on(trimCR(l.line))
			l.line = l.line[:0]
		case len(l.line) < MaxLine:
			l.line = append(l.line, c)
		}
	}
}

// trimCR takes the carriage returns off: a terminal's line ends in \r\n, or in
// \r\r\n if it was translated twice.
func trimCR(b []byte) []byte {
	for len(b) > 0 && b[len(b)-1] == '\r' {
		b = b[:len(b)-1]
	}
	return b
}
