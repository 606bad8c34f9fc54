// SPDX-License-Identifier: Apache-2.0

package virtio_test

import (
	"errors"
	"testing"

	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/devices/virtio/virtiotest"
	"golang.org/x/sys/unix"
)

const (
	next     = virtiotest.Next
	write    = virtiotest.Write
	indirect = virtiotest.Indirect
)

// drain fetches and translates all that the ring has, as a device would, and
// returns the number of chains and the error that ended it.
func drain(t testing.TB, f *fixture) (chains int, err error) {
	t.Helper()
	for chains <= f.device.Size() {
		c, err := f.device.Next()
		if c == nil {
			return chains, err
		}
		for _, runs := range [][]virtio.Run{c.Read, c.Write} {
			vec, err := f.device.Vec(make([]unix.Iovec, 0, 1024), runs)
			if err != nil {
				return chains, err
			}
			segments(t, f.mem, vec)
		}
		chains++
	}
	t.Fatal("the ring gives more chains than it has entries")
	return 0, nil
}

// TestHostileRing has the mistakes that devices of other VMMs let pass.
func TestHostileRing(t *testing.T) {
	const size = 64
	type ring = virtiotest.Ring
	// table writes an indirect table at data: each entry is addr, len, flags, next.
	table := func(f *fixture, entries ...[4]uint64) {
		for i, e := range entries {
			view, err := f.mem.View(data+16*uint64(i), 16, 16)
			if err != nil {
				t.Fatal(err)
			}
			view.Store64(0, e[0])
			view.Store64(8, e[1]|e[2]<<32|e[3]<<48)
		}
	}
	tests := []struct {
		name     string
		features uint64 // 0: all
		setUp    func(f *fixture, r *ring)
		chains   int    // that are good
		fault    string // empty: none
	}{
		// Addresses and lengths (CVE-2019-18960).
		{"buffer past the end of RAM", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, lowSize-4, 8, 0, 0) }, 0, "not guest RAM"},
		{"buffer in the hole", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, 32<<20, 8, 0, 0) }, 0, "not guest RAM"},
		{"buffer over the hole", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, lowSize-8, highBase-lowSize+16, 0, 0) }, 0, "not guest RAM"},
		{"address and length wrap", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, ^uint64(3), 8, 0, 0) }, 0, "not guest RAM"},
		{"address and length wrap to zero", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, ^uint64(3), 4, 0, 0) }, 0, "not guest RAM"},
		{"largest length", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, 0, 0xffffffff, write, 0) }, 0, "not guest RAM"},
		{"joined buffers wrap", 0, func(f *fixture, r *ring) {
			r.SetDescriptor(0, ^uint64(7), 8, next, 1)
			r.SetDescriptor(1, 0, 8, 0, 0)
		}, 0, "not guest RAM"},

		// Total length: what is asked for, not what is there.
		{"64 buffers of 4 GiB", 0, func(f *fixture, r *ring) {
			for i := range uint16(size) {
				r.SetDescriptor(i, data, 0xffffffff, next, i+1)
			}
		}, 0, "longer than 4 GiB"},
		{"overlapping buffers of 960 MiB together", 0, func(f *fixture, r *ring) {
			for i := range uint16(size) {
				r.SetDescriptor(i, 0, 15<<20, next, i+1)
			}
			r.SetDescriptor(size-1, 0, 15<<20, 0, 0)
		}, 1, ""},

		// The available ring.
		{"index jumps by 0x8000", 0, func(f *fixture, r *ring) { r.SetAvailIdx(0x8000) }, 0, "available index 32768"},
		{"index one too far", 0, func(f *fixture, r *ring) { r.SetAvailIdx(size + 1) }, 0, "available index 65"},
		{"index goes back", 0, func(f *fixture, r *ring) { r.SetAvailIdx(0xffff) }, 0, "available index 65535"},
		{"the ring is full", 0, func(f *fixture, r *ring) {
			r.SetDescriptor(0, data, 1, 0, 0)
			r.SetAvailIdx(size)
		}, size, ""},
		{"head out of the table", 0, func(f *fixture, r *ring) { r.SetAvail(0, size) }, 0, "descriptor 64"},
		{"largest head", 0, func(f *fixture, r *ring) { r.SetAvail(0, 0xffff) }, 0, "descriptor 65535"},

		// Chains.
		{"0 bytes", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, data, 0, 0, 0) }, 1, ""},
		{"1 byte", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, data, 1, 0, 0) }, 1, ""},
		{"next out of the table", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, data, 1, next, size) }, 0, "descriptor 64"},
		{"next is itself", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, data, 1, next, 0) }, 0, "loops"},
		{"loop of empty descriptors", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, 0, 0, next, 0) }, 0, "loops"},
		{"loop of two", 0, func(f *fixture, r *ring) {
			r.SetDescriptor(0, data, 1, next, 1)
			r.SetDescriptor(1, data, 1, next, 0)
		}, 0, "loops"},
		{"as long as the queue", 0, func(f *fixture, r *ring) {
			for i := range uint16(size) {
				r.SetDescriptor(i, data+16*uint64(i), 8, next, i+1)
			}
			r.SetDescriptor(size-1, data, 8, 0, 0)
		}, 1, ""},
		{"readable after writable", 0, func(f *fixture, r *ring) {
			r.SetDescriptor(0, data, 8, next|write, 1)
			r.SetDescriptor(1, data, 8, 0, 0)
		}, 0, "readable buffer after a writable"},
		{"readable after an empty writable", 0, func(f *fixture, r *ring) {
			r.SetDescriptor(0, data, 0, next|write, 1)
			r.SetDescriptor(1, data, 8, 0, 0)
		}, 0, "readable buffer after a writable"},
		{"unknown flags mean nothing", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, data, 8, 0xfff8, 0xffff) }, 1, ""},
		{"one head twice", 0, func(f *fixture, r *ring) {
			r.SetDescriptor(0, data, 8, 0, 0)
			r.SetAvail(1, 0)
			r.SetAvailIdx(2)
		}, 2, ""},

		// Indirect tables.
		{"indirect was not accepted", virtio.FeatureVersion1, func(f *fixture, r *ring) {
			table(f, [4]uint64{data, 8, 0, 0})
			r.SetDescriptor(0, data, 16, indirect, 0)
		}, 0, "not accepted"},
		{"indirect with NEXT", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, data, 16, indirect|next, 1) }, 0, "with NEXT"},
		{"indirect with WRITE", 0, func(f *fixture, r *ring) {
			table(f, [4]uint64{data, 8, 0, 0})
			r.SetDescriptor(0, data, 16, indirect|write, 0)
		}, 1, ""},
		{"indirect in indirect", 0, func(f *fixture, r *ring) {
			table(f, [4]uint64{data, 16, indirect, 0})
			r.SetDescriptor(0, data, 16, indirect, 0)
		}, 0, "in an indirect table"},
		{"indirect after direct", 0, func(f *fixture, r *ring) {
			table(f, [4]uint64{data, 8, next, 1}, [4]uint64{data, 8, write, 0})
			r.SetDescriptor(0, data, 8, next, 1)
			r.SetDescriptor(1, data, 32, indirect, 0)
		}, 1, ""},
		{"empty table", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, data, 0, indirect, 0) }, 0, "indirect table of 0 bytes"},
		{"table of 15 bytes", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, data, 15, indirect, 0) }, 0, "indirect table of 15 bytes"},
		{"table of 17 bytes", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, data, 17, indirect, 0) }, 0, "indirect table of 17 bytes"},
		{"table of 4 GiB", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, 0, 0xfffffff0, indirect, 0) }, 0, "more than 1024"},
		{"table of 1025", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, 0, 16*1025, indirect, 0) }, 0, "more than 1024"},
		{"table out of RAM", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, lowSize, 16, indirect, 0) }, 0, "not guest RAM"},
		{"table over the end of RAM", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, lowSize-16, 32, indirect, 0) }, 0, "not guest RAM"},
		{"table whose address wraps", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, ^uint64(15), 32, indirect, 0) }, 0, "not guest RAM"},
		{"table at an odd address", 0, func(f *fixture, r *ring) { r.SetDescriptor(0, data+1, 16, indirect, 0) }, 1, ""},
		{"next out of the indirect table", 0, func(f *fixture, r *ring) {
			table(f, [4]uint64{data, 8, next, 1})
			r.SetDescriptor(0, data, 16, indirect, 0)
		}, 0, "descriptor 1 of a table of 1"},
		{"loop in an indirect table", 0, func(f *fixture, r *ring) {
			table(f, [4]uint64{data, 8, next, 1}, [4]uint64{data, 8, next, 0})
			r.SetDescriptor(0, data, 32, indirect, 0)
		}, 0, "loops"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			features := tt.features
			if features == 0 {
				features = allEvent
			}
			f := newFixture(t, newMemory(t), size, features)
			f.driver.SetAvailIdx(1)
			tt.setUp(f, f.driver)
			chains, err := drain(t, f)
			if chains != tt.chains {
				t.Errorf("%d good chains, want %d", chains, tt.chains)
			}
			if tt.fault == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantFault(t, err, tt.fault)
			stayBroken(t, f, err)
		})
	}
}

// stayBroken checks that a broken queue stays so, and that the rest of its
// methods can be called.
func stayBroken(t *testing.T, f *fixture, want error) {
	t.Helper()
	if c, err := f.device.Next(); c != nil || err != want {
		t.Errorf("after the fault Next = %v, %v, want the same error", c, err)
	}
	if f.device.Err() != want {
		t.Errorf("Err = %v, want %v", f.device.Err(), want)
	}
	if f.device.ArmKick() {
		t.Error("ArmKick asks for a look at a broken queue")
	}
	f.device.DisarmKick()
	f.device.Unfetch(0)
	f.device.Push(0, 0)
	f.device.Publish()
	if f.driver.UsedIdx() != 1 {
		t.Errorf("used index %d, want 1", f.driver.UsedIdx())
	}
	f.device.Notify()
}

// TestInFlightIsBounded posts without end to a device that completes nothing
// (CVE-2016-5403).
func TestInFlightIsBounded(t *testing.T) {
	f := newFixture(t, newMemory(t), 64, allEvent)
	f.driver.SetDescriptor(0, data, 8, 0, 0)
	fetched := 0
	for posted := uint16(1); ; posted++ {
		f.driver.SetAvailIdx(posted)
		c, err := f.device.Next()
		if err != nil {
			wantFault(t, err, "available index 65")
			break
		}
		if c == nil {
			t.Fatal("nothing there")
		}
		fetched++
	}
	if fetched != 64 {
		t.Errorf("%d chains in flight, want 64", fetched)
	}
}

// TestVecKeepsToItsCapacity asks for more iovecs than there is room for.
func TestVecKeepsToItsCapacity(t *testing.T) {
	f := newFixture(t, newMemory(t), 64, allEvent)
	var bufs []virtiotest.Buffer
	for i := range uint64(20) {
		bufs = append(bufs, virtiotest.Buffer{GPA: data + 64*i, Len: 8})
	}
	f.driver.Add(0, bufs...)
	f.driver.Publish()
	c, err := f.device.Next()
	if c == nil {
		t.Fatal(err)
	}
	dst := make([]unix.Iovec, 3, 3+20)
	vec, err := f.device.Vec(dst, c.Read)
	if !errors.Is(err, virtio.ErrSegments) || len(vec) != 3 {
		t.Errorf("with room for 20 and two regions: %d iovecs, %v", len(vec), err)
	}
	vec, err = f.device.Vec(make([]unix.Iovec, 3, 3+21), c.Read)
	if err != nil || len(vec) != 23 || cap(vec) != 24 {
		t.Errorf("with room for 21: %d of %d iovecs, %v", len(vec), cap(vec), err)
	}
	if f.device.Err() != nil {
		t.Errorf("the queue is broken: %v", f.device.Err())
	}
}

// FuzzQueue fills all that a driver can write with what the fuzzer likes. The
// device must end, stay in RAM, and give back no more than it was given.
func FuzzQueue(f *testing.F) {
	f.Add(uint8(0), true, uint16(1), []byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0})
	f.Add(uint8(6), false, uint16(64), []byte{0, 0, 4, 0, 0, 0, 0, 0, 32, 0, 0, 0, 4, 0, 0, 0})
	mem := newMemory(f)
	f.Fuzz(func(t *testing.T, order uint8, eventIdx bool, idx uint16, image []byte) {
		size := 1 << (order % 9)
		features := uint64(allFlags)
		if eventIdx {
			features = allEvent
		}
		fx := newFixture(t, mem, size, features)
		// The descriptors and the available ring, and tables further up, each
		// repeat the image.
		fill(mem, fx.driver.Desc, 16*size, image)
		fill(mem, fx.driver.Avail+4, 2*size, image)
		fill(mem, 0x40000, 0x8000, image)
		fx.driver.SetAvailIdx(idx)
		chains, err := drain(t, fx)
		if err == nil && chains != int(idx) {
			t.Fatalf("%d chains of %d and no error", chains, idx)
		}
		for i := range chains {
			fx.device.Push(uint16(i), 0)
		}
		fx.device.Publish()
		fx.device.Notify()
		if got := fx.driver.UsedIdx(); got != uint16(chains) {
			t.Fatalf("used index %d, want %d", got, chains)
		}
	})
}

func fill(mem interface {
	WriteAt(gpa uint64, p []byte) error
}, gpa uint64, n int, image []byte) {
	if len(image) == 0 {
		return
	}
	p := make([]byte, n)
	for i := range p {
		p[i] = image[i%len(image)]
	}
	if err := mem.WriteAt(gpa, p); err != nil {
		panic(err)
	}
}
