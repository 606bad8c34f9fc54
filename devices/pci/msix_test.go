// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/govmm/govmm/internal/irq"
)

const msixBase = 0xc000_0000

// msixRig has one function with MSI-X of n vectors at msixBase, decoded, bus
// master, MSI-X enabled.
func msixRig(t rapid.TB, n int) (*rig, *Function, *sink) {
	r := newRig(t)
	s := &sink{}
	f := r.add(1, Config{MSIX: MSIX{Vectors: n}, MSI: s})
	r.write(1, 4, 2, commandMemory|commandMaster)
	r.control(f, msixEnable)
	return r, f, s
}

func (r *rig) control(f *Function, v uint64) { r.write(1, f.msixCap+2, 2, v) }

func (r *rig) memWrite(addr uint64, n int, v uint64) {
	r.mem.Write(addr, binary.LittleEndian.AppendUint64(nil, v)[:n])
}

func (r *rig) memRead(addr uint64, n int) uint64 {
	p := make([]byte, 8)
	r.mem.Read(addr, p[:n])
	return binary.LittleEndian.Uint64(p)
}

func (s *sink) expect(t rapid.TB, what string, want ...irq.Message) {
	t.Helper()
	if got := s.take(); !slices.Equal(got, want) {
		t.Errorf("%s: sent %x, want %x", what, got, want)
	}
}

func TestMSIXAfterReset(t *testing.T) {
	r, _, _ := msixRig(t, 3)
	for i := range uint64(3) {
		r.expect("address", r.memRead(msixBase+16*i, 8), 0)
		r.expect("data and control", r.memRead(msixBase+16*i+8, 8), 1<<32)
	}
	r.expect("past the table", r.memRead(msixBase+48, 8), 0)
	r.expect("pending", r.memRead(msixBase+0x1000, 8), 0)
	r.expect("end", r.memRead(msixBase+0x1ff8, 8), 0)
}

func TestMSIXDelivery(t *testing.T) {
	r, f, s := msixRig(t, 70)
	last := msixBase + 16*uint64(69)
	r.memWrite(last, 8, 0x12_fee0_1007)
	r.memWrite(last+8, 4, 0x4055)
	m := irq.Message{Addr: 0x12_fee0_1004, Data: 0x4055}
	v := f.Vector(69)
	pending := func(want uint64) {
		t.Helper()
		r.expect("pending bits", r.memRead(msixBase+0x1008, 8), want)
	}

	v.Raise()
	s.expect(t, "masked after reset")
	pending(1 << 5)
	r.memWrite(last+12, 4, 0)
	s.expect(t, "unmasked with one pending", m)
	pending(0)
	v.Raise()
	s.expect(t, "unmasked", m)
	r.memWrite(last+12, 4, 0xffffffff)
	r.expect("control", r.memRead(last+12, 4), 1)
	v.Raise()
	v.Raise()
	s.expect(t, "masked")
	r.memWrite(last+8, 8, 0x66)
	m.Data = 0x66
	s.expect(t, "changed and unmasked at once", m)

	r.control(f, msixEnable|msixFunctionMask)
	v.Raise()
	s.expect(t, "function masked")
	pending(1 << 5)
	r.memWrite(last, 4, 0xfee0_0000)
	s.expect(t, "changed while the function is masked")
	r.control(f, msixEnable)
	m.Addr = 0x12_fee0_0000
	s.expect(t, "function unmasked", m)

	r.write(1, 4, 2, commandMemory)
	v.Raise()
	s.expect(t, "not a bus master")
	r.write(1, 4, 2, commandMemory|commandMaster)
	s.expect(t, "bus master again", m)

	r.control(f, 0)
	if v.TryRaise() {
		t.Error("TryRaise with MSI-X disabled")
	}
	s.expect(t, "disabled")
	pending(0)
	r.control(f, msixEnable)
	s.expect(t, "enabled again")
	if !v.TryRaise() {
		t.Error("TryRaise fails")
	}
	s.expect(t, "enabled again", m)
}

// Every offset of the BAR with every width: reads never fail, writes change
// only whole, aligned words of the table.
func TestMSIXAllAccesses(t *testing.T) {
	r, f, _ := msixRig(t, 3)
	f.Vector(1).Raise()
	image := make([]byte, 0x2000)
	for i := range 3 {
		image[16*i+12] = 1
	}
	image[0x1000] = 2
	value := []byte{0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0xfa, 0xf9, 0xf8}
	for off := uint64(0); off < 0x2000; off++ {
		for _, n := range []int{1, 2, 3, 4, 8} {
			if off+uint64(n) > 0x2000 {
				continue
			}
			if (n == 4 || n == 8) && off%uint64(n) == 0 && off < 48 {
				for w := off; w < off+uint64(n); w += 4 {
					word := binary.LittleEndian.Uint32(value[w-off:])
					switch w % 16 {
					case 0:
						word &^= 3
					case 12:
						word &= 1
					}
					binary.LittleEndian.PutUint32(image[w:], word)
				}
			}
			r.mem.Write(msixBase+off, value[:n])
			p := make([]byte, n)
			r.mem.Read(msixBase+off, p)
			if !slices.Equal(p, image[off:off+uint64(n)]) {
				t.Fatalf("%d bytes at %#x read as %x, want %x", n, off, p, image[off:off+uint64(n)])
			}
		}
	}
}

func TestMSIXLargest(t *testing.T) {
	r, f, s := msixRig(t, MaxVectors)
	last := msixBase + 16*uint64(MaxVectors-1)
	f.Vector(MaxVectors - 1).Raise()
	r.expect("pending", r.memRead(msixBase+0x8000+MaxVectors/8-8, 8), 1<<63)
	r.memWrite(last+8, 8, 7)
	s.expect(t, "last vector", irq.Message{Data: 7})
	if f.Vectors() != MaxVectors {
		t.Errorf("%d vectors", f.Vectors())
	}
}

// counter counts messages; sink's list would allocate.
type counter struct{ n atomic.Int64 }

func (c *counter) Send(irq.Message) { c.n.Add(1) }

func TestRaiseDoesNotAllocate(t *testing.T) {
	r := newRig(t)
	f := r.add(1, Config{MSIX: MSIX{Vectors: 2}, MSI: &counter{}})
	r.write(1, 4, 2, commandMemory|commandMaster)
	r.control(f, msixEnable)
	r.memWrite(msixBase+8, 8, 0)
	for i, what := range []string{"unmasked", "masked"} {
		v := f.Vector(i)
		if n := testing.AllocsPerRun(100, v.Raise); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

func BenchmarkRaise(b *testing.B) {
	r := newRig(b)
	f := r.add(1, Config{MSIX: MSIX{Vectors: 1}, MSI: &counter{}})
	r.write(1, 4, 2, commandMemory|commandMaster)
	r.control(f, msixEnable)
	r.memWrite(msixBase+8, 8, 0)
	b.ReportAllocs()
	for b.Loop() {
		f.Vector(0).Raise()
	}
}

// duringSend runs a function inside the first Send, when the message has been
// chosen but has not arrived.
type duringSend struct {
	sink
	do func()
}

func (d *duringSend) Send(m irq.Message) {
	if do := d.do; do != nil {
		d.do = nil
		do()
	}
	d.sink.Send(m)
}

// A guest that moves its vector while a message is under way may be deaf to the
// old message: the new one follows.
func TestRaiseWhileTheGuestChangesTheEntry(t *testing.T) {
	before, after := irq.Message{Data: 1}, irq.Message{Data: 2}
	for _, c := range []struct {
		name  string
		guest func(*rig, *Function)
		sent  []irq.Message
		ok    bool
	}{
		{"moves it", func(r *rig, _ *Function) {
			r.memWrite(msixBase+12, 4, 1)
			r.memWrite(msixBase+8, 8, 2)
		}, []irq.Message{before, after}, true},
		{"masks it", func(r *rig, _ *Function) { r.memWrite(msixBase+12, 4, 1) }, []irq.Message{before}, true},
		{"disables MSI-X", func(r *rig, f *Function) { r.control(f, 0) }, []irq.Message{before}, false},
		{"does nothing", func(*rig, *Function) {}, []irq.Message{before}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, d := newRig(t), &duringSend{}
			f := r.add(1, Config{MSIX: MSIX{Vectors: 1}, MSI: d})
			r.write(1, 4, 2, commandMemory|commandMaster)
			r.control(f, msixEnable)
			r.memWrite(msixBase+8, 8, 1)
			d.do = func() { c.guest(r, f) }
			if ok := f.Vector(0).TryRaise(); ok != c.ok {
				t.Errorf("TryRaise = %v", ok)
			}
			d.expect(t, "raised", c.sent...)
			want := uint64(0)
			if c.name == "masks it" {
				want = 1
			}
			r.expect("pending", r.memRead(msixBase+0x1000, 8), want)
		})
	}
}

// Many threads raise while the guest masks and unmasks: once all is unmasked,
// nothing is pending, and there were no more messages than raises and unmasks.
func TestConcurrentRaise(t *testing.T) {
	const raisers, raises, masks = 3, 500, 200
	r, n := newRig(t), &counter{}
	f := r.add(1, Config{MSIX: MSIX{Vectors: 1}, MSI: n})
	r.write(1, 4, 2, commandMemory|commandMaster)
	r.control(f, msixEnable)
	r.memWrite(msixBase+8, 8, 0)
	var wg sync.WaitGroup
	for range raisers {
		wg.Go(func() {
			for range raises {
				f.Vector(0).Raise()
			}
		})
	}
	for range masks {
		r.memWrite(msixBase+12, 4, 1)
		r.memWrite(msixBase+12, 4, 0)
	}
	wg.Wait()
	r.expect("pending", r.memRead(msixBase+0x1000, 8), 0)
	// A raise sends at most twice, an unmask once.
	if got := n.n.Load(); got < 1 || got > 2*raisers*raises+masks {
		t.Errorf("%d messages", got)
	}
}
