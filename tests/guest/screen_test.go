// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// screen collects what a terminal shows.
type screen struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{} // capacity 1
}

// Write takes the terminal's output.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// wait waits until the terminal has shown text.
func (s *screen) wait(t *testing.T, text string) {
	t.Helper()
	timeout := time.After(deadline)
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.changed:
		case <-timeout:
			t.Fatalf("the terminal does not show %q after %v:\n%s", text, deadline, tailOf(s.String()))
		}
	}
}
