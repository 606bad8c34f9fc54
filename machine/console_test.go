// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"github.com/govmm/govmm/internal/result"
)

func newConsole(t *testing.T, serial Serial, s Streams) *serialConsole {
	t.Helper()
	m := &Machine{cfg: Config{Serial: serial}, log: slog.New(slog.DiscardHandler)}
	if err := m.openConsole(s); err != nil {
		t.Fatal(err)
	}
	return m.console
}

// TestInputGoesOnAfterAReboot feeds two boots, of which the first takes only a
// part: no byte is lost and none comes twice.
func TestInputGoesOnAfterAReboot(t *testing.T) {
	in, typed := io.Pipe()
	c := newConsole(t, Serial{Mode: "stdio"}, Streams{In: in, Out: io.Discard})
	ctx, cancel := context.WithCancel(context.Background())
	stop := c.start(ctx)
	var got bytes.Buffer
	boot, end := context.WithCancel(ctx)
	c.attach(boot, func(_ context.Context, p []byte) (int, error) {
		got.Write(p[:3]) // the guest resets with the FIFO full
		end()
		return 3, context.Canceled
	})
	var done sync.WaitGroup
	done.Add(1)
	go func() { _, _ = typed.Write([]byte("reboot\nls\n")) }()
	<-boot.Done()
	c.attach(ctx, func(_ context.Context, p []byte) (int, error) {
		got.Write(p)
		done.Done()
		return len(p), nil
	})
	done.Wait()
	cancel()
	stop()
	typed.Close()
	if got.String() != "reboot\nls\n" {
		t.Errorf("the guests got %q", got.String())
	}
}

func TestOutputReachesItsReader(t *testing.T) {
	var out bytes.Buffer
	c := newConsole(t, Serial{Mode: "stdio"}, Streams{Out: &out})
	stop := c.start(context.Background())
	if _, err := c.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	stop()
	if out.String() != "hello\n" || c.tailText() != "hello\n" {
		t.Errorf("the reader got %q, the tail is %q", out.String(), c.tailText())
	}
}

func TestSerialFileThatCantBeMade(t *testing.T) {
	m := &Machine{cfg: Config{Serial: Serial{Mode: "file", Path: filepath.Join(t.TempDir(), "no", "such")}}, log: slog.New(slog.DiscardHandler)}
	if r := result.OfError(m.openConsole(Streams{})); r.Reason != result.Host {
		t.Errorf("gives %+v", r)
	}
}
