// SPDX-License-Identifier: Apache-2.0

package result

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestCodesAreDistinctFromGuestStatus(t *testing.T) {
	seen := map[Reason]bool{}
	last := 0
	for _, c := range Codes {
		if seen[c.Reason] {
			t.Errorf("%s stands twice", c.Reason)
		}
		seen[c.Reason] = true
		if c.Code < last {
			t.Errorf("%s (%d) is out of order", c.Reason, c.Code)
		}
		last = c.Code
		if c.Code != 0 && c.Reason != Usage && c.Code <= maxGuestStatus {
			t.Errorf("%s has code %d, which a guest's own status may have", c.Reason, c.Code)
		}
	}
}

func TestOfError(t *testing.T) {
	plain := errors.New("surprise")
	if r := OfError(plain); r.Reason != Bug || r.Code != 123 {
		t.Errorf("a plain error gives %+v", r)
	}
	err := fmt.Errorf("net 0: %w", Errorf(Host, "tap0: %w", plain))
	if r := OfError(err); r.Reason != Host || r.Code != 122 || r.Detail != "net 0: tap0: surprise" {
		t.Errorf("a wrapped host error gives %+v", r)
	}
	if r := OfError(fmt.Errorf("ctx: %w", End{OfSignal(2, "SIGINT")})); r.Code != 130 {
		t.Errorf("an end by SIGINT gives %+v", r)
	}
	if !errors.Is(err, plain) {
		t.Error("the cause is lost")
	}
}

func TestStatusAndSignal(t *testing.T) {
	for status, code := range map[int]int{0: 0, 1: 1, 113: 113, 114: 113, 255: 113} {
		if r := OfStatus(status); r.Code != code || r.Reason != DebugExit {
			t.Errorf("status %d gives %+v", status, r)
		}
	}
	if r := OfSignal(15, "SIGTERM"); r.Code != 143 || r.Reason != Signal {
		t.Errorf("SIGTERM gives %+v", r)
	}
}

func TestOfContext(t *testing.T) {
	for cause, want := range map[error]Result{
		errors.New("bye"):            {Reason: Stopped, Detail: "bye"},
		End{Of(Timeout, "1s")}:       {Reason: Timeout, Code: 124, Detail: "1s"},
		Errorf(Host, "tap0 is gone"): {Reason: Host, Code: 122, Detail: "tap0 is gone"},
	} {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		if got := OfContext(ctx); got != want {
			t.Errorf("%v gives %+v, want %+v", cause, got, want)
		}
	}
}
