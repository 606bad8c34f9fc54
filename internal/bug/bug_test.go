// SPDX-License-Identifier: Apache-2.0

package bug

import (
	"strings"
	"testing"
)

func boom() { panic("boom") }

func TestCatch(t *testing.T) {
	got := make(chan Panic, 2)
	remove1 := Handle(func(p Panic) { got <- p })
	remove2 := Handle(func(p Panic) { got <- p })
	go func() {
		defer Catch()
		boom()
	}()
	for range 2 {
		if p := <-got; p.Value != "boom" || !strings.Contains(string(p.Stack), "bug.boom") {
			t.Errorf("caught %v:\n%s", p.Value, p.Stack)
		}
	}
	remove1()
	remove2()
	defer func() {
		if v := recover(); v != "boom" {
			t.Errorf("without a handler Catch lets %v through", v)
		}
	}()
	func() {
		defer Catch()
		boom()
	}()
}

func TestCatchOfNothing(t *testing.T) {
	defer Handle(func(p Panic) { t.Errorf("caught %v", p.Value) })()
	func() { defer Catch() }()
}
