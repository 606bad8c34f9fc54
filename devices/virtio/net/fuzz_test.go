// SPDX-License-Identifier: Apache-2.0

package virtionet

import (
	"errors"
	"reflect"
	"testing"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/devices/virtio/virtiotest"
	"github.com/govmm/govmm/internal/fault"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// FuzzRings fills both rings of a pair with what the fuzzer likes and moves
// frames as a pump does. Nothing may leave RAM, and only what was fetched comes
// back.
func FuzzRings(f *testing.F) {
	f.Add(uint64(base), uint16(1), uint16(1), []byte{0, 0, 0, 2, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0})
	f.Add(uint64(base|FeatureMrgRxbuf), uint16(60), uint16(3), []byte{0, 0, 0, 2, 0, 0, 0, 0, 0, 6, 0, 0, 2, 0, 0, 0})
	f.Add(uint64(base|FeatureMrgRxbuf|FeatureGuestCsum|FeatureGuestTSO4|virtio.FeatureEventIdx|virtio.FeatureIndirectDesc),
		uint16(64), uint16(64), []byte{0, 0, 0, 2, 0, 0, 0, 0, 32, 0, 0, 0, 4, 0, 0, 0})
	const size = 64
	mem := newMemory(f, 4<<20, 3<<20)
	f.Fuzz(func(t *testing.T, features uint64, rxIdx, txIdx uint16, image []byte) {
		features = consistent(features&(FeatureMrgRxbuf|guestOffloadBits|virtio.FeatureEventIdx|virtio.FeatureIndirectDesc)) | base
		var rings [2]*virtiotest.Ring
		var queues [2]*virtio.Queue
		for d := range rings {
			var err1, err2 error
			rings[d], err1 = virtiotest.NewRing(mem, uint64(d)*virtiotest.RingBytes(size), size, features)
			queues[d], err2 = virtio.NewQueue(mem, rings[d].Config(virtiotest.NewInterrupt(), -1), features, "virtio-net fuzz")
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			repeat(t, mem, rings[d].Desc, 16*size, image)
			repeat(t, mem, rings[d].Avail+4, 2*size, image)
		}
		repeat(t, mem, 2<<20, 64<<10, image)
		rings[netio.RX].SetAvailIdx(rxIdx)
		rings[netio.TX].SetAvailIdx(txIdx)
		p := &pair{}
		p.attach(queues[netio.RX], queues[netio.TX], -1, -1)
		p.setReceive(features, receiveWindow(features, offloadsOf(features), 1500))

		sent := fuzzSend(t, p, mem)
		if refused := p.refusedShort.Load() + p.refusedLong.Load(); uint64(rings[netio.TX].UsedIdx()) != uint64(sent)+refused {
			t.Fatalf("%d chains came back, %d were sent and %d refused", rings[netio.TX].UsedIdx(), sent, refused)
		}
		buffers := fuzzReceive(t, p, mem)
		if got := int(rings[netio.RX].UsedIdx()); got != buffers {
			t.Fatalf("%d buffers came back, %d were filled", got, buffers)
		}
	})
}

// fuzzSend fetches and completes until there is no more, and returns how many
// frames came.
func fuzzSend(t *testing.T, p *pair, mem *guestmem.Memory) (sent int) {
	b := netio.NewTxBatch(16)
	for range 1000 {
		b.Reset()
		err := p.TxFetch(b, 16)
		checkSegs(t, mem, b.Segs)
		for i := range b.Frames {
			if n := b.Frames[i].Len; n < minSend || n > maxSend || n != total(b.Vec(i)) {
				t.Fatalf("frame of %d bytes, %d in its iovecs", n, total(b.Vec(i)))
			}
		}
		// Half of them at first, as when the host has no room.
		n := (len(b.Frames) + 1) / 2
		p.TxComplete(b, n)
		p.Notify(netio.TX)
		sent += n
		var guest *fault.Guest
		if err != nil && !errors.As(err, &guest) {
			t.Fatalf("error %v is no guest fault", err)
		}
		if err != nil || len(b.Frames) == 0 && !p.ArmKick(netio.TX) {
			return sent
		}
	}
	t.Fatal("frames without end")
	return 0
}

// fuzzReceive fills buffers until there are no more, and returns how many.
func fuzzReceive(t *testing.T, p *pair, mem *guestmem.Memory) (used int) {
	b := netio.NewRxBatch(netio.MaxBatch)
	for range 1000 {
		err := p.RxReserve(b, b.Window+1)
		checkSegs(t, mem, b.Segs)
		_, room, ok := b.Space()
		if !ok || err != nil {
			p.RxRelease(b)
			return used
		}
		before := len(b.Unused())
		b.Accept(min(room, b.Window))
		used += before - len(b.Unused())
		p.RxCommit(b)
		p.Notify(netio.RX)
		p.ArmKick(netio.RX)
		p.DisarmKick(netio.RX)
		if used%3 == 0 {
			p.RxRelease(b)
		}
	}
	t.Fatal("buffers without end")
	return 0
}

func total(vec []unix.Iovec) (n int) {
	for _, v := range vec {
		n += int(v.Len)
	}
	return n
}

func checkSegs(t *testing.T, mem *guestmem.Memory, vec []unix.Iovec) {
	t.Helper()
	for _, v := range vec {
		at := uint64(reflect.ValueOf(v.Base).Pointer())
		ok := false
		for _, r := range mem.Regions() {
			off := at - uint64(r.HostAddr())
			ok = ok || off < r.Size && v.Len > 0 && v.Len <= r.Size-off
		}
		if !ok {
			t.Fatalf("iovec %#x+%#x is not in guest RAM", at, v.Len)
		}
	}
}

func repeat(t *testing.T, mem *guestmem.Memory, gpa uint64, n int, image []byte) {
	if len(image) == 0 {
		return
	}
	p := make([]byte, n)
	for i := range p {
		p[i] = image[i%len(image)]
	}
	if err := mem.WriteAt(gpa, p); err != nil {
		t.Fatal(err)
	}
}
