// SPDX-License-Identifier: Apache-2.0

package virtio_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/devices/virtio/virtiotest"
	"github.com/govmm/govmm/internal/fault"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

const (
	lowSize  = 16 << 20 // RAM from 0
	highBase = 64 << 20 // and from here, after a hole
	highSize = 1 << 20  // bytes
	ringBase = 1 << 20  // of the ring under test
	data     = 12 << 20 // buffers
	allEvent = virtio.FeatureVersion1 | virtio.FeatureIndirectDesc | virtio.FeatureEventIdx
	allFlags = virtio.FeatureVersion1 | virtio.FeatureIndirectDesc
)

func newMemory(t testing.TB) *guestmem.Memory {
	t.Helper()
	mem, err := guestmem.New(guestmem.Range{GPA: 0, Size: lowSize}, guestmem.Range{GPA: highBase, Size: highSize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mem.Close(); err != nil {
			t.Error(err)
		}
	})
	return mem
}

// fixture is a ring with both of its sides.
type fixture struct {
	mem    *guestmem.Memory
	driver *virtiotest.Ring
	device *virtio.Queue
	irq    *virtiotest.Interrupt
}

func newFixture(t testing.TB, mem *guestmem.Memory, size int, features uint64) *fixture {
	t.Helper()
	ring, err := virtiotest.NewRing(mem, ringBase, size, features)
	if err != nil {
		t.Fatal(err)
	}
	irq := virtiotest.NewInterrupt()
	q, err := virtio.NewQueue(mem, ring.Config(irq, -1), features, "test queue")
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{mem, ring, q, irq}
}

func wantFault(t *testing.T, err error, want string) {
	t.Helper()
	var guest *fault.Guest
	if !errors.As(err, &guest) {
		t.Fatalf("error %v (%T) is not a guest fault", err, err)
	}
	if guest.Device != "test queue" || !strings.Contains(guest.Reason, want) {
		t.Fatalf("fault %q, want one of the test queue that says %q", guest, want)
	}
}

func TestNewQueueChecksSizeAndAreas(t *testing.T) {
	mem := newMemory(t)
	const lowEnd, highEnd = lowSize, highBase + highSize
	good := virtio.QueueConfig{Size: 64, Desc: 0x10000, Avail: 0x20000, Used: 0x30000}
	tests := []struct {
		name   string
		change func(*virtio.QueueConfig)
		fault  string // empty: accepted
	}{
		{"good", func(*virtio.QueueConfig) {}, ""},
		{"size 1", func(c *virtio.QueueConfig) { c.Size = 1 }, ""},
		{"largest size", func(c *virtio.QueueConfig) { c.Size, c.Desc, c.Avail, c.Used = 32768, 0x100000, 0x200000, 0x300000 }, ""},
		{"size 0", func(c *virtio.QueueConfig) { c.Size = 0 }, "queue size 0"},
		{"size 3", func(c *virtio.QueueConfig) { c.Size = 3 }, "queue size 3"},
		{"size 65535", func(c *virtio.QueueConfig) { c.Size = 65535 }, "queue size 65535"},
		{"descriptors misaligned", func(c *virtio.QueueConfig) { c.Desc += 8 }, "descriptor table"},
		{"available misaligned", func(c *virtio.QueueConfig) { c.Avail++ }, "available ring"},
		{"used misaligned", func(c *virtio.QueueConfig) { c.Used += 2 }, "used ring"},
		{"available aligned to 2 only", func(c *virtio.QueueConfig) { c.Avail += 2 }, ""},
		{"used aligned to 4 only", func(c *virtio.QueueConfig) { c.Used += 4 }, ""},
		// 64 entries: 1024, 134 and 518 bytes (2.7).
		{"descriptors end with RAM", func(c *virtio.QueueConfig) { c.Desc = lowEnd - 1024 }, ""},
		{"descriptors end past RAM", func(c *virtio.QueueConfig) { c.Desc = lowEnd - 1008 }, "descriptor table"},
		{"available ends with RAM", func(c *virtio.QueueConfig) { c.Avail = highEnd - 134 }, ""},
		{"available ends past RAM", func(c *virtio.QueueConfig) { c.Avail = highEnd - 132 }, "available ring"},
		{"used ends with RAM", func(c *virtio.QueueConfig) { c.Used = lowEnd - 520 }, ""},
		{"used ends past RAM", func(c *virtio.QueueConfig) { c.Used = lowEnd - 516 }, "used ring"},
		{"in the hole", func(c *virtio.QueueConfig) { c.Desc = 32 << 20 }, "descriptor table"},
		{"wraps", func(c *virtio.QueueConfig) { c.Desc = ^uint64(15) }, "descriptor table"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := good
			tt.change(&cfg)
			_, err := virtio.NewQueue(mem, cfg, allEvent, "test queue")
			if tt.fault == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantFault(t, err, tt.fault)
		})
	}
}

// segment is an iovec by its place in guest memory.
func segments(t testing.TB, mem *guestmem.Memory, vec []unix.Iovec) (runs []virtio.Run) {
	t.Helper()
	for _, v := range vec {
		// reflect, because package unsafe is for few.
		base := uint64(reflect.ValueOf(v.Base).Pointer())
		found := false
		for _, r := range mem.Regions() {
			if off := base - uint64(r.HostAddr()); off < r.Size && v.Len <= r.Size-off {
				runs, found = append(runs, virtio.Run{GPA: r.GPA + off, Len: v.Len}), true
			}
		}
		if !found {
			t.Fatalf("iovec %#x+%#x is not in guest RAM", base, v.Len)
		}
	}
	return runs
}

func TestNextReturnsWhatTheDriverAdded(t *testing.T) {
	type bufs = []virtiotest.Buffer
	r := func(gpa uint64, n uint32) virtiotest.Buffer { return virtiotest.Buffer{GPA: gpa, Len: n} }
	w := func(gpa uint64, n uint32) virtiotest.Buffer { return virtiotest.Buffer{GPA: gpa, Len: n, Write: true} }
	tests := []struct {
		name        string
		bufs        bufs
		read, write []virtio.Run
	}{
		{"one readable", bufs{r(data, 60)}, []virtio.Run{{GPA: data, Len: 60}}, nil},
		{"one writable", bufs{w(data, 1526)}, nil, []virtio.Run{{GPA: data, Len: 1526}}},
		{
			"apart", bufs{r(data, 12), r(data+4096, 60), w(data+8192, 1)},
			[]virtio.Run{{GPA: data, Len: 12}, {GPA: data + 4096, Len: 60}}, []virtio.Run{{GPA: data + 8192, Len: 1}},
		},
		{
			"adjacent descriptors are one run", bufs{r(data, 12), r(data+12, 60), w(data+72, 8), w(data+80, 8)},
			[]virtio.Run{{GPA: data, Len: 72}}, []virtio.Run{{GPA: data + 72, Len: 16}},
		},
		{"no bytes", bufs{r(data, 0)}, nil, nil},
		{
			"empty descriptors are passed over", bufs{r(0, 0), r(data, 5), w(^uint64(0), 0), w(data+5, 7), w(1, 0)},
			[]virtio.Run{{GPA: data, Len: 5}}, []virtio.Run{{GPA: data + 5, Len: 7}},
		},
		{"last byte of RAM", bufs{r(lowSize-1, 1)}, []virtio.Run{{GPA: lowSize - 1, Len: 1}}, nil},
	}
	for _, tt := range tests {
		for _, indirect := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/indirect=%v", tt.name, indirect), func(t *testing.T) {
				f := newFixture(t, newMemory(t), 64, allEvent)
				add := f.driver.Add
				if indirect {
					add = f.driver.AddIndirect
				}
				if !add(1, tt.bufs...) {
					t.Fatal("ring is full")
				}
				f.driver.Publish()
				c, err := f.device.Next()
				if err != nil || c == nil {
					t.Fatalf("Next = %v, %v", c, err)
				}
				read, err := f.device.Vec(make([]unix.Iovec, 0, 8), c.Read)
				if err != nil {
					t.Fatal(err)
				}
				write, err := f.device.Vec(make([]unix.Iovec, 0, 8), c.Write)
				if err != nil {
					t.Fatal(err)
				}
				if got := segments(t, f.mem, read); !reflect.DeepEqual(got, tt.read) {
					t.Errorf("readable %v, want %v", got, tt.read)
				}
				if got := segments(t, f.mem, write); !reflect.DeepEqual(got, tt.write) {
					t.Errorf("writable %v, want %v", got, tt.write)
				}
				if got, want := c.ReadLen, total(tt.read); got != want {
					t.Errorf("ReadLen %d, want %d", got, want)
				}
				if got, want := c.WriteLen, total(tt.write); got != want {
					t.Errorf("WriteLen %d, want %d", got, want)
				}
				if c, err := f.device.Next(); c != nil || err != nil {
					t.Errorf("a second Next = %v, %v, want none", c, err)
				}
			})
		}
	}
}

func total(runs []virtio.Run) (n uint64) {
	for _, r := range runs {
		n += r.Len
	}
	return n
}

// TestExactlyOnce lets a driver and a device do anything that they may, in any
// order: every chain comes to the device in order, and back to the driver once,
// with the length that the device gave.
func TestExactlyOnce(t *testing.T) {
	mem := newMemory(t)
	rapid.Check(t, func(rt *rapid.T) {
		size := 1 << rapid.IntRange(6, 12).Draw(rt, "log2 size")
		features := rapid.SampledFrom([]uint64{allEvent, allFlags}).Draw(rt, "features")
		ring, err := virtiotest.NewRing(mem, ringBase, size, features)
		if err != nil {
			rt.Fatal(err)
		}
		q, err := virtio.NewQueue(mem, ring.Config(virtiotest.NewInterrupt(), -1), features, "test queue")
		if err != nil {
			rt.Fatal(err)
		}
		m := &onceModel{ring: ring, device: q, length: map[uint64]uint32{}}
		rt.Repeat(map[string]func(*rapid.T){
			"add": m.add, "publish": func(*rapid.T) { ring.Publish(); m.visible = m.added },
			"fetch": m.fetch, "unfetch": m.unfetch, "push": m.push,
			"show": func(*rapid.T) { q.Publish(); m.shown += m.pushed; m.pushed = 0 },
			"take": m.take, "notify": func(*rapid.T) { q.Notify(); q.ArmKick(); q.DisarmKick() },
		})
	})
}

type onceModel struct {
	ring   *virtiotest.Ring
	device *virtio.Queue

	added, visible uint64            // chains, which are also their tokens, from 1
	fetched        uint64            // chains that the device has fetched
	held           []uint16          // heads that it has not pushed, in order of fetching
	firstHeld      uint64            // token of held[0]
	length         map[uint64]uint32 // pushed with, by token
	pushed, shown  int
	taken          int
}

func (m *onceModel) add(rt *rapid.T) {
	n := rapid.IntRange(1, 20).Draw(rt, "descriptors")
	add := m.ring.Add
	if rapid.Bool().Draw(rt, "indirect") {
		add = m.ring.AddIndirect
	}
	bufs := make([]virtiotest.Buffer, n)
	token := m.added + 1
	for i := range bufs {
		bufs[i] = virtiotest.Buffer{GPA: data + 4096*uint64(i), Len: uint32(token%1000) + 1}
	}
	if add(token, bufs...) {
		m.added++
	}
}

func (m *onceModel) fetch(rt *rapid.T) {
	for range rapid.IntRange(1, 70).Draw(rt, "chains") {
		c, err := m.device.Next()
		if err != nil {
			rt.Fatal(err)
		}
		if c == nil {
			if m.fetched != m.visible {
				rt.Fatalf("%d chains fetched of %d", m.fetched, m.visible)
			}
			return
		}
		m.fetched++
		if want := m.fetched%1000 + 1; c.ReadLen%want != 0 || c.Read[0].Len != want {
			rt.Fatalf("chain %d has %d bytes in pieces of %d, want %d", m.fetched, c.ReadLen, c.Read[0].Len, want)
		}
		if len(m.held) == 0 {
			m.firstHeld = m.fetched
		}
		m.held = append(m.held, c.Head)
	}
}

func (m *onceModel) unfetch(rt *rapid.T) {
	n := rapid.IntRange(0, len(m.held)).Draw(rt, "chains")
	m.device.Unfetch(n)
	m.fetched -= uint64(n)
	m.held = m.held[:len(m.held)-n]
}

func (m *onceModel) push(rt *rapid.T) {
	n := rapid.IntRange(0, len(m.held)).Draw(rt, "chains")
	for _, head := range m.held[:n] {
		written := uint32(m.firstHeld * 7)
		m.length[m.firstHeld] = written
		m.device.Push(head, written)
		m.firstHeld++
		m.pushed++
	}
	m.held = m.held[n:]
}

func (m *onceModel) take(rt *rapid.T) {
	for {
		token, n, ok, err := m.ring.Take()
		if err != nil {
			rt.Fatal(err)
		}
		if !ok {
			break
		}
		want, pushed := m.length[token]
		if !pushed {
			rt.Fatalf("chain %d came back before it was pushed, or twice", token)
		}
		if n != want {
			rt.Fatalf("chain %d came back with %d bytes, want %d", token, n, want)
		}
		delete(m.length, token)
		m.taken++
	}
	if m.taken != m.shown {
		rt.Fatalf("the driver has %d chains of the %d that were published", m.taken, m.shown)
	}
}

// TestIndicesWrap passes the end of the 16-bit indices, at every size.
func TestIndicesWrap(t *testing.T) {
	mem := newMemory(t)
	for size := 64; size <= 4096; size *= 2 {
		for _, features := range []uint64{allEvent, allFlags} {
			f := newFixture(t, mem, size, features)
			for sent, got := uint64(0), uint64(0); got < 70_000; {
				for f.driver.Add(sent, virtiotest.Buffer{GPA: data, Len: 1}) {
					sent++
				}
				f.driver.Publish()
				for {
					c, err := f.device.Next()
					if err != nil {
						t.Fatal(err)
					}
					if c == nil {
						break
					}
					f.device.Push(c.Head, 0)
				}
				f.device.Publish()
				if !f.device.Notify() {
					// The used event stands where the driver left it.
					f.driver.EnableInterrupts()
				}
				for {
					token, _, ok, err := f.driver.Take()
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						break
					}
					if token != got {
						t.Fatalf("size %d: chain %d came back, want %d", size, token, got)
					}
					got++
				}
			}
		}
	}
}

// TestNeedEvent compares the specification's formula with what it is for: the
// index moved past event, one by one, modulo 65536.
func TestNeedEvent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		old := rapid.Uint16().Draw(rt, "old")
		moved := rapid.Uint16Range(0, 1000).Draw(rt, "moved")
		event := old + rapid.Uint16Range(0, 1100).Draw(rt, "distance") - 50
		want := false
		for i := range moved {
			want = want || old+i == event
		}
		if got := virtio.NeedEvent(event, old+moved, old); got != want {
			rt.Fatalf("event %d, index from %d by %d: %v, want %v", event, old, moved, got, want)
		}
	})
}

func TestNotify(t *testing.T) {
	mem := newMemory(t)
	push := func(f *fixture, n int) {
		for range n {
			f.driver.Add(0, virtiotest.Buffer{GPA: data, Len: 1})
		}
		f.driver.Publish()
		for range n {
			c, err := f.device.Next()
			if c == nil {
				t.Fatal("no chain", err)
			}
			f.device.Push(c.Head, 0)
		}
		f.device.Publish()
	}
	t.Run("flags", func(t *testing.T) {
		f := newFixture(t, mem, 64, allFlags)
		push(f, 1)
		if !f.device.Notify() {
			t.Error("no interrupt although the driver wants it")
		}
		if f.device.Notify() {
			t.Error("a second interrupt for the same element")
		}
		f.driver.DisableInterrupts()
		push(f, 1)
		if f.device.Notify() {
			t.Error("interrupt although VIRTQ_AVAIL_F_NO_INTERRUPT is set")
		}
		if !f.driver.EnableInterrupts() {
			t.Error("the element is not seen")
		}
		if got := f.irq.Count(); got != 1 {
			t.Errorf("%d interrupts, want 1", got)
		}
	})
	t.Run("event index", func(t *testing.T) {
		f := newFixture(t, mem, 64, allEvent)
		push(f, 1) // used_event is 0: the first element counts
		if !f.device.Notify() {
			t.Error("no interrupt for the first element")
		}
		f.driver.SetUsedEvent(5)
		push(f, 4) // index 5: element 4 was the last
		if f.device.Notify() {
			t.Error("interrupt before the event")
		}
		push(f, 3)
		if !f.device.Notify() {
			t.Error("no interrupt although the index passed the event")
		}
		push(f, 3)
		if f.device.Notify() {
			t.Error("interrupt after the event")
		}
	})
}

func TestArmKick(t *testing.T) {
	mem := newMemory(t)
	for name, features := range map[string]uint64{"flags": allFlags, "event index": allEvent} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, mem, 64, features)
			post := func() {
				if !f.driver.Add(0, virtiotest.Buffer{GPA: data, Len: 1}) {
					t.Fatal("full")
				}
				f.driver.Publish()
			}
			next := func() {
				c, err := f.device.Next()
				if c == nil {
					t.Fatal("no chain", err)
				}
				f.device.Push(c.Head, 0)
				f.device.Publish()
				if _, _, ok, err := f.driver.Take(); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			post()
			if !f.driver.KickNeeded() {
				t.Error("no kick for the first chain of a fresh ring")
			}
			if !f.device.ArmKick() {
				t.Error("ArmKick does not see the chain")
			}
			next()
			f.device.DisarmKick()
			post()
			f.driver.KickNeeded()
			next()
			post()
			if f.driver.KickNeeded() {
				t.Error("kick although none was asked for")
			}
			next()
			if f.device.ArmKick() {
				t.Error("ArmKick sees a chain in an empty ring")
			}
			post()
			if !f.driver.KickNeeded() {
				t.Error("no kick after ArmKick")
			}
			if !f.device.Pending() {
				t.Error("not pending")
			}
			next()
			f.device.DisarmKick()
			post()
			if f.driver.KickNeeded() {
				t.Error("kick although none is asked for any more")
			}
		})
	}
}

// TestNoLostWakeups lets a driver and a device sleep as often as they can. If a
// kick or an interrupt is lost, both sleep for ever.
func TestNoLostWakeups(t *testing.T) {
	mem := newMemory(t)
	for name, features := range map[string]uint64{"flags": allFlags, "event index": allEvent} {
		t.Run(name, func(t *testing.T) {
			const chains = 30_000
			f := newFixture(t, mem, 64, features)
			kick := make(chan struct{}, 1)
			failed := make(chan error, 1)
			go func() { failed <- echo(f.device, kick, chains) }()
			for sent, got := 0, 0; got < chains; {
				for sent < chains && f.driver.Add(uint64(sent), virtiotest.Buffer{GPA: data, Len: 1}) {
					sent++
				}
				f.driver.Publish()
				if f.driver.KickNeeded() {
					select {
					case kick <- struct{}{}:
					default:
					}
				}
				took := false
				for {
					_, _, ok, err := f.driver.Take()
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						break
					}
					got, took = got+1, true
				}
				if !took && !f.driver.EnableInterrupts() {
					<-f.irq.C
				}
			}
			if err := <-failed; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// echo gives n chains back as they come.
func echo(q *virtio.Queue, kick <-chan struct{}, n int) error {
	for done := 0; done < n; {
		c, err := q.Next()
		if err != nil {
			return err
		}
		if c == nil {
			if !q.ArmKick() {
				<-kick
			}
			q.DisarmKick()
			continue
		}
		done++
		q.Push(c.Head, 0)
		q.Publish()
		q.Notify()
	}
	return nil
}

func TestChainCopies(t *testing.T) {
	f := newFixture(t, newMemory(t), 64, allEvent)
	f.driver.Add(0,
		virtiotest.Buffer{GPA: data, Len: 3}, virtiotest.Buffer{GPA: data + 100, Len: 4},
		virtiotest.Buffer{GPA: data + 200, Len: 2, Write: true}, virtiotest.Buffer{GPA: data + 300, Len: 2, Write: true})
	f.driver.Publish()
	if err := errors.Join(f.mem.WriteAt(data, []byte("abc")), f.mem.WriteAt(data+100, []byte("defg"))); err != nil {
		t.Fatal(err)
	}
	c, err := f.device.Next()
	if c == nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		off  uint64
		len  int
		want string
	}{{0, 7, "abcdefg"}, {2, 3, "cde"}, {3, 4, "defg"}, {5, 9, "fg"}, {7, 1, ""}, {99, 1, ""}} {
		p := make([]byte, tt.len)
		n, err := f.device.ReadChain(c, tt.off, p)
		if err != nil || string(p[:n]) != tt.want {
			t.Errorf("ReadChain(%d, %d bytes) = %q, %v, want %q", tt.off, tt.len, p[:n], err, tt.want)
		}
	}
	if n, err := f.device.WriteChain(c, 1, []byte("wxyz")); n != 3 || err != nil {
		t.Errorf("WriteChain = %d, %v, want 3", n, err)
	}
	var got [4]byte
	if err := errors.Join(f.mem.ReadAt(data+200, got[:2]), f.mem.ReadAt(data+300, got[2:])); err != nil {
		t.Fatal(err)
	}
	if string(got[:]) != "\x00wxy" {
		t.Errorf("written %q", got)
	}
}

func TestNoAllocations(t *testing.T) {
	for _, features := range []uint64{allEvent, allFlags} {
		f := newFixture(t, newMemory(t), 256, features)
		vec := make([]unix.Iovec, 0, 64)
		var p [16]byte
		allocs := testing.AllocsPerRun(1000, func() {
			f.driver.Add(1, virtiotest.Buffer{GPA: data, Len: 12}, virtiotest.Buffer{GPA: data + 4096, Len: 1500})
			f.driver.AddIndirect(2, virtiotest.Buffer{GPA: data, Len: 12}, virtiotest.Buffer{GPA: data + 4096, Len: 1500})
			f.driver.Publish()
			for range 2 {
				c, err := f.device.Next()
				if c == nil || err != nil {
					t.Fatal(err)
				}
				if _, err := f.device.Vec(vec[:0], c.Read); err != nil {
					t.Fatal(err)
				}
				f.device.ReadChain(c, 8, p[:])
				f.device.Push(c.Head, 0)
			}
			f.device.Publish()
			f.device.Notify()
			f.device.ArmKick()
			f.device.DisarmKick()
			for range 2 {
				if _, _, ok, err := f.driver.Take(); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
		})
		if allocs != 0 {
			t.Errorf("%v allocations", allocs)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	f := newFixture(b, newMemory(b), 256, allEvent)
	vec := make([]unix.Iovec, 0, 256)
	for b.Loop() {
		for range 64 {
			f.driver.Add(1, virtiotest.Buffer{GPA: data, Len: 12}, virtiotest.Buffer{GPA: data + 4096, Len: 1500})
		}
		f.driver.Publish()
		vec = vec[:0]
		for range 64 {
			c, err := f.device.Next()
			if c == nil {
				b.Fatal(err)
			}
			if vec, err = f.device.Vec(vec, c.Read); err != nil {
				b.Fatal(err)
			}
			f.device.Push(c.Head, 0)
		}
		f.device.Publish()
		f.device.Notify()
		for range 64 {
			if _, _, ok, err := f.driver.Take(); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	}
}
