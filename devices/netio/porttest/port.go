// SPDX-License-Identifier: Apache-2.0

package porttest

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/internal/fault"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// fatal is what tests and rapid's checks have in common.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// testTxOrder: frames come out in the guest's order, unchanged, and no more than
// asked for.
func testTxOrder(t *testing.T, mk Make, c Config) {
	h := mk(t, c)
	const frames = 20
	for i := range frames {
		if !h.Guest.Send(numbered(uint64(i), minFrame+i)) {
			t.Fatalf("the ring is full after %d frames", i)
		}
	}
	next := 0
	fetch := func(b *netio.TxBatch, max int) int {
		t.Helper()
		b.Reset()
		if err := h.Port.TxFetch(b, max); err != nil {
			t.Fatal(err)
		}
		for i := range b.Frames {
			checkFetched(t, b, i, uint64(next))
			next++
		}
		h.Port.TxComplete(b, len(b.Frames))
		return len(b.Frames)
	}
	if n := fetch(netio.NewTxBatch(netio.MaxBatch), 3); n != 3 {
		t.Errorf("TxFetch of up to 3 gave %d", n)
	}
	if n := fetch(netio.NewTxBatch(5), 100); n != 5 {
		t.Errorf("TxFetch into a batch of 5 gave %d", n)
	}
	limited := netio.NewTxBatch(netio.MaxBatch)
	limited.Limit = 2 * minFrame
	if n := fetch(limited, 100); n != 2 {
		t.Errorf("TxFetch of %d bytes gave %d frames", limited.Limit, n)
	}
	if n := fetch(netio.NewTxBatch(netio.MaxBatch), 100); n != frames-next+n {
		t.Errorf("TxFetch of the rest gave %d", n)
	}
	if n := fetch(netio.NewTxBatch(netio.MaxBatch), 100); n != 0 {
		t.Errorf("TxFetch of an empty ring gave %d", n)
	}
	if n := h.Guest.Reap(); n != frames {
		t.Errorf("%d of %d frames were completed", n, frames)
	}
}

// checkFetched verifies that frame i of b is frame n.
func checkFetched(t fatal, b *netio.TxBatch, i int, n uint64) {
	t.Helper()
	got := make([]byte, b.Frames[i].Len+1)
	got = got[:guestmem.Gather(got, b.Vec(i))]
	if len(got) != b.Frames[i].Len {
		t.Fatalf("frame %d: %d bytes in its iovecs, Len is %d", n, len(got), b.Frames[i].Len)
	}
	if err := check(got, n); err != nil {
		t.Fatalf("%v", err)
	}
}

// testTxComplete: what TxComplete leaves comes again, whatever is sent, fetched
// and completed when.
func testTxComplete(t *testing.T, mk Make, c Config) {
	rapid.Check(t, func(rt *rapid.T) {
		h := mk(t, c)
		b := netio.NewTxBatch(netio.MaxBatch)
		sent, done, reaped := 0, 0, 0
		rt.Repeat(map[string]func(*rapid.T){
			"send": func(rt *rapid.T) {
				for range rapid.IntRange(1, c.Size).Draw(rt, "n") {
					if !h.Guest.Send(numbered(uint64(sent), minFrame+sent%64)) {
						return
					}
					sent++
				}
			},
			"move": func(rt *rapid.T) {
				b.Reset()
				if err := h.Port.TxFetch(b, rapid.IntRange(1, netio.MaxBatch).Draw(rt, "max")); err != nil {
					rt.Fatalf("%v", err)
				}
				if len(b.Frames) == 0 && done != sent {
					rt.Fatalf("TxFetch gave nothing, %d frames wait", sent-done)
				}
				for i := range b.Frames {
					checkFetched(rt, b, i, uint64(done+i))
				}
				n := rapid.IntRange(0, len(b.Frames)).Draw(rt, "complete")
				h.Port.TxComplete(b, n)
				done += n
			},
			"reap": func(rt *rapid.T) {
				if reaped += h.Guest.Reap(); reaped != done {
					rt.Fatalf("the guest got %d of %d frames back", reaped, done)
				}
			},
		})
	})
}

// testTxTiny: chains that hold no frame are given back and don't hold others up.
func testTxTiny(t *testing.T, mk Make, c Config) {
	h := mk(t, c)
	byteFrame := make([]byte, netio.HeaderLen+1)
	sent := 0
	send := func(ok bool) {
		if !ok {
			t.Fatal("the ring is full")
		}
		sent++
	}
	send(h.Guest.SendEmpty())
	for n := range uint64(3) {
		send(h.Guest.Send(numbered(n, minFrame)))
		send(h.Guest.SendEmpty())
		send(h.Guest.Send(byteFrame))
		send(h.Guest.SendEmpty())
	}
	next := uint64(0)
	b := netio.NewTxBatch(netio.MaxBatch)
	for range sent {
		b.Reset()
		if err := h.Port.TxFetch(b, 64); err != nil {
			t.Fatal(err)
		}
		for i := range b.Frames {
			switch {
			case b.Frames[i].Len <= netio.HeaderLen:
				t.Errorf("an empty chain was fetched as a frame of %d bytes", b.Frames[i].Len)
			case b.Frames[i].Len > len(byteFrame):
				checkFetched(t, b, i, next)
				next++
			}
		}
		h.Port.TxComplete(b, len(b.Frames))
	}
	if next != 3 {
		t.Errorf("%d of 3 frames came", next)
	}
	if n := h.Guest.Reap(); n != sent {
		t.Errorf("the guest got %d of %d chains back", n, sent)
	}
}

// receive puts up to max frames, numbered from *n on, into b, as a Queue does.
func receive(b *netio.RxBatch, n *uint64, max int, size func() int) {
	for range max {
		vec, room, ok := b.Space()
		if !ok {
			return
		}
		f := numbered(*n, min(size(), room))
		guestmem.Scatter(vec, f)
		b.Accept(len(f))
		*n++
	}
}

// testRxModel: buffers are used in the guest's order, each once, released ones
// first again; frames arrive complete and in order.
func testRxModel(t *testing.T, mk Make, c Config) {
	rapid.Check(t, func(rt *rapid.T) {
		h := mk(t, c)
		b := netio.NewRxBatch(netio.MaxBatch)
		posted, consumed := 0, 0
		var sent, received uint64
		rt.Repeat(map[string]func(*rapid.T){
			"post": func(rt *rapid.T) {
				posted += h.Guest.Post(rapid.IntRange(1, c.Size).Draw(rt, "n"))
			},
			"reserve": func(rt *rapid.T) {
				want := rapid.IntRange(1, 4*c.Window).Draw(rt, "bytes")
				if err := h.Port.RxReserve(b, want); err != nil {
					rt.Fatalf("%v", err)
				}
				if b.Merge != c.Merge || b.Window > c.Window {
					rt.Fatalf("Merge %v, Window %d; want %v and up to %d", b.Merge, b.Window, c.Merge, c.Window)
				}
				if left := posted - consumed - len(b.Unused()); b.Free() < want && !b.Full() && left > 0 {
					rt.Fatalf("RxReserve(%d) stopped at %d bytes, %d buffers are left", want, b.Free(), left)
				}
			},
			"receive": func(rt *rapid.T) {
				before := len(b.Unused())
				size := rapid.IntRange(minFrame, c.Window)
				receive(b, &sent, rapid.IntRange(1, 64).Draw(rt, "max"), func() int { return size.Draw(rt, "size") })
				consumed += before - len(b.Unused())
				if len(b.Frames) > 0 {
					h.Port.RxCommit(b)
				}
				if len(b.Frames) != 0 {
					rt.Fatalf("RxCommit left %d frames in the batch", len(b.Frames))
				}
			},
			"release": func(*rapid.T) { h.Port.RxRelease(b) },
			"take": func(rt *rapid.T) {
				for ; received < sent; received++ {
					f, ok := h.Guest.Recv()
					if !ok {
						rt.Fatalf("frame %d of %d didn't arrive", received, sent)
					}
					if err := check(f, received); err != nil {
						rt.Fatalf("%v", err)
					}
				}
				if f, ok := h.Guest.Recv(); ok {
					rt.Fatalf("a frame of %d bytes that nobody sent", len(f))
				}
			},
		})
	})
}

// signalled reads an eventfd.
func signalled(t *testing.T, fd int) bool {
	t.Helper()
	var p [8]byte
	switch _, err := unix.Read(fd, p[:]); err {
	case nil:
		return binary.NativeEndian.Uint64(p[:]) > 0
	case unix.EAGAIN:
		return false
	default:
		t.Fatalf("read an eventfd: %v (it must be non-blocking)", err)
		return false
	}
}

// testKicks: after ArmKick, whatever the guest adds either is reported by
// ArmKick or makes the guest kick.
func testKicks(t *testing.T, mk Make, c Config) {
	h := mk(t, c)
	rx, tx := h.Port.Kicks()
	for _, dir := range []struct {
		d   netio.Dir
		fd  int
		add func()
	}{
		{netio.RX, rx, func() { h.Guest.Post(1) }},
		{netio.TX, tx, func() { h.Guest.Send(numbered(0, minFrame)) }},
	} {
		for range 3 {
			signalled(t, dir.fd) // forget what is past
			if h.Port.ArmKick(dir.d) {
				t.Errorf("%v: ArmKick says that an empty ring has something", dir.d)
			}
			dir.add()
			h.Guest.Kick(dir.d)
			if !signalled(t, dir.fd) {
				t.Errorf("%v: armed, but the guest's kick didn't come", dir.d)
			}
			h.Port.DisarmKick(dir.d)
			dir.add()
			if !h.Port.ArmKick(dir.d) {
				t.Errorf("%v: ArmKick missed what came before", dir.d)
			}
			h.Port.DisarmKick(dir.d)
			takeAll(t, h.Port)
		}
	}
}

// takeAll empties both rings.
func takeAll(t *testing.T, p netio.Port) {
	t.Helper()
	tb, rb := netio.NewTxBatch(netio.MaxBatch), netio.NewRxBatch(netio.MaxBatch)
	if err := errors.Join(p.TxFetch(tb, netio.MaxBatch), p.RxReserve(rb, 1<<30)); err != nil {
		t.Fatal(err)
	}
	p.TxComplete(tb, len(tb.Frames))
	var n uint64
	receive(rb, &n, netio.MaxBatch, func() int { return rb.Window })
	if n > 0 {
		p.RxCommit(rb)
	}
	if rest := len(rb.Unused()); rest > 0 && !rb.Merge {
		t.Fatalf("%d buffers are left", rest)
	}
	// Merged buffers below a window are left; take them one by one.
	for len(rb.Unused()) > 0 {
		rb.Window = 1
		receive(rb, &n, 1, func() int { return minFrame })
		p.RxCommit(rb)
	}
}

// testInterrupts: one at most for each publication, none when the guest wants
// none or nothing was published.
func testInterrupts(t *testing.T, mk Make, c Config) {
	h := mk(t, c)
	b := netio.NewTxBatch(netio.MaxBatch)
	publish := func(frames int) {
		for i := range frames {
			h.Guest.Send(numbered(uint64(i), minFrame))
		}
		b.Reset()
		if err := h.Port.TxFetch(b, frames); err != nil || len(b.Frames) != frames {
			t.Fatalf("TxFetch = %d frames, %v", len(b.Frames), err)
		}
		h.Port.TxComplete(b, frames)
		h.Guest.Reap()
	}
	for _, step := range []struct {
		frames int
		on     bool
		want   bool
	}{
		{1, true, true},
		{0, true, false}, // nothing new
		{10, true, true},
		{1, false, false},
		{10, false, false},
		{1, true, true},
	} {
		h.Guest.SetInterrupts(netio.TX, step.on)
		before := h.Guest.Interrupts(netio.TX)
		if step.frames > 0 {
			publish(step.frames)
		}
		sent := h.Port.Notify(netio.TX)
		got := h.Guest.Interrupts(netio.TX) - before
		if sent != step.want || got != map[bool]int{true: 1}[step.want] {
			t.Errorf("%+v: Notify = %v, %d interrupts", step, sent, got)
		}
	}
	if n := h.Guest.Interrupts(netio.RX); n != 0 {
		t.Errorf("%d RX interrupts", n)
	}
}

// testPortFaults: a broken ring is a *fault.Guest, after what came before it,
// and leaves the other ring alone.
func testPortFaults(t *testing.T, mk Make, c Config) {
	for _, d := range []netio.Dir{netio.RX, netio.TX} {
		t.Run(d.String(), func(t *testing.T) {
			h := mk(t, c)
			h.Guest.Send(numbered(0, minFrame))
			h.Guest.Post(1)
			h.Guest.Break(d)
			tb, rb := netio.NewTxBatch(netio.MaxBatch), netio.NewRxBatch(netio.MaxBatch)
			errs := map[netio.Dir]error{}
			for range 2 { // the fault may come with what was before it, or after
				errs[netio.TX] = h.Port.TxFetch(tb, netio.MaxBatch)
				errs[netio.RX] = h.Port.RxReserve(rb, 1<<30)
			}
			var g *fault.Guest
			for dir, err := range errs {
				if dir == d && !errors.As(err, &g) {
					t.Errorf("%v is broken: error = %v, want a *fault.Guest", dir, err)
				}
				if dir != d && err != nil {
					t.Errorf("%v is not broken: %v", dir, err)
				}
			}
			if len(tb.Frames) != 1 || len(rb.Bufs) != 1 {
				t.Errorf("%d frames, %d buffers; want one of each", len(tb.Frames), len(rb.Bufs))
			}
			// Nothing of this may break on a broken ring.
			h.Port.TxComplete(tb, len(tb.Frames))
			h.Port.RxRelease(rb)
			for _, dir := range []netio.Dir{netio.RX, netio.TX} {
				h.Port.Notify(dir)
				h.Port.ArmKick(dir)
				h.Port.DisarmKick(dir)
			}
		})
	}
}

// testAllocs: the data path allocates nothing.
func testAllocs(t *testing.T, mk Make, c Config) {
	h := mk(t, c)
	const rounds, batch = 4, 4
	for i := range (rounds + 1) * batch {
		if !h.Guest.Send(numbered(uint64(i), 64)) {
			t.Fatal("the ring is full")
		}
	}
	h.Guest.Post(c.Size)
	tb, rb := netio.NewTxBatch(netio.MaxBatch), netio.NewRxBatch(netio.MaxBatch)
	n := testing.AllocsPerRun(rounds, func() {
		tb.Reset()
		if err := h.Port.TxFetch(tb, batch); err != nil || len(tb.Frames) != batch {
			t.Errorf("TxFetch = %d frames, %v", len(tb.Frames), err)
		}
		h.Port.TxComplete(tb, batch-1)
		tb.Reset()
		if err := h.Port.TxFetch(tb, 1); err != nil {
			t.Error(err)
		}
		h.Port.TxComplete(tb, 1)
		h.Port.Notify(netio.TX)
	})
	if n != 0 {
		t.Errorf("TX: %v allocations for %d frames", n, batch)
	}
	n = testing.AllocsPerRun(rounds, func() {
		if err := h.Port.RxReserve(rb, c.Window+4*c.BufSize); err != nil {
			t.Error(err)
		}
		if _, _, ok := rb.Space(); !ok {
			t.Error("no space")
			return
		}
		rb.Accept(64)
		h.Port.RxCommit(rb)
		h.Port.Notify(netio.RX)
		h.Port.RxRelease(rb)
		h.Port.ArmKick(netio.RX)
		h.Port.DisarmKick(netio.RX)
	})
	if n != 0 {
		t.Errorf("RX: %v allocations for a frame", n)
	}
}
