// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/govmm/govmm/internal/result"
)

// panicWatch recognises a guest kernel's panic: by its message on the console,
// or by the pvpanic device where the guest has a driver for it.
type panicWatch struct {
	log *slog.Logger

	mu     sync.Mutex
	detail string              // of the first panic of this boot
	end    func(result.Result) // ends the boot; nil: a panic is no reason to
	timer  *time.Timer
}

// The messages of kernel/panic.c: the first line of a panic and, behind the
// registers and the call trace, its last.
var (
	panicBegins = []byte("Kernel panic - not syncing")
	panicEnds   = []byte("---[ end Kernel panic")
)

// printkPrefix is what printk and the console put before a message: a level, a
// time stamp, the caller (CONFIG_PRINTK_CALLER). A panic message is told by
// standing right behind it, so that a line that merely quotes one is not taken
// for a panic.
var printkPrefix = regexp.MustCompile(`^(<\d+>)?(\[ *\d+\.\d+\])?(\[ *[CT]\d+\])? ?`)

// panicGrace is how long the call trace of a panic may take to be printed.
const panicGrace = 10 * time.Second

// arm prepares for a boot. end is called at most once, and must not block.
func (w *panicWatch) arm(end func(result.Result)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.detail, w.end = "", end
}

// disarm ends the watch of a boot and returns the panic it saw, "" for none.
func (w *panicWatch) disarm() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	w.end, w.timer = nil, nil
	return w.detail
}

// line looks at a line of the console.
func (w *panicWatch) line(line []byte) {
	if !bytes.Contains(line, []byte("Kernel panic")) {
		return
	}
	text := line[len(printkPrefix.Find(line)):]
	switch {
	case bytes.HasPrefix(text, panicBegins):
		w.panicked(string(text))
	case bytes.HasPrefix(text, panicEnds):
		w.finish()
	}
}

// panicked notes a panic, and ends the boot once the guest had time to print
// the rest.
func (w *panicWatch) panicked(detail string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.detail != "" {
		return
	}
	w.detail = detail
	w.log.Debug("guest panic", "message", detail)
	if w.end != nil {
		w.timer = time.AfterFunc(panicGrace, w.finish)
	}
}

func (w *panicWatch) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end != nil && w.detail != "" {
		w.end(result.Of(result.Panic, "%s", w.detail))
	}
}
