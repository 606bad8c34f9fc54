// SPDX-License-Identifier: Apache-2.0

package netio

import (
	"bytes"
	"testing"

	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// iov makes an iovec of p.
func iov(p []byte) (v unix.Iovec) {
	v.Base = &p[0]
	v.SetLen(len(p))
	return v
}

func TestOffloadNormalise(t *testing.T) {
	const tso = OffloadTSO4 | OffloadTSO6
	const uso = OffloadUSO4 | OffloadUSO6
	for in, want := range map[Offload]Offload{
		0:                                     0,
		OffloadCsum:                           OffloadCsum,
		tso | uso:                             0, // nothing without checksums
		OffloadCsum | OffloadTSO4:             OffloadCsum | OffloadTSO4,
		OffloadCsum | OffloadTSOECN:           OffloadCsum,
		OffloadCsum | tso | OffloadTSOECN:     OffloadCsum | tso | OffloadTSOECN,
		OffloadCsum | OffloadUSO4:             OffloadCsum,
		OffloadCsum | OffloadUSO6 | tso:       OffloadCsum | tso,
		OffloadCsum | uso:                     OffloadCsum | uso,
		OffloadCsum | uso | OffloadTSOECN | 2: OffloadCsum | uso | OffloadTSOECN | 2,
	} {
		if got := in.Normalise(); got != want {
			t.Errorf("Normalise(%#x) = %#x, want %#x", in, got, want)
		}
	}
}

func TestTxBatch(t *testing.T) {
	b := NewTxBatch(4)
	b.Limit = 100
	p := make([]byte, 100)
	add := func(size int) {
		first := len(b.Segs)
		b.Segs = append(b.Segs, iov(p[:size/2]), iov(p[size/2:size]))
		b.Add(first, size, uint32(size))
	}
	add(10)
	add(20)
	if b.Full() || b.Bytes() != 30 || b.prefix(1) != 10 || b.prefix(2) != 30 {
		t.Errorf("two frames: full %v, %d bytes", b.Full(), b.Bytes())
	}
	if v := b.Vec(1); len(v) != 2 || v[1].Len != 10 || b.Frames[1].Cookie != 20 {
		t.Errorf("iovecs of frame 1: %v", v)
	}
	add(70)
	if !b.Full() {
		t.Error("100 bytes are not the limit")
	}
	b.Reset()
	if b.Full() || b.Bytes() != 0 {
		t.Error("an empty batch is full")
	}
	for range 4 {
		add(2)
	}
	if !b.Full() {
		t.Error("4 frames don't fill a batch of 4")
	}
	b.Reset()
	b.Segs = b.Segs[:maxSegs-maxIOV+1]
	if !b.Full() {
		t.Error("a frame of the most iovecs would not fit, yet the batch isn't full")
	}
}

// rxModel is what an RxBatch should hold.
type rxModel struct {
	bufs [][]byte // unused
	next uint32   // cookie of the next buffer
}

// TestRxBatch drives a batch as Ports, Queues and Pumps do, against a model that
// knows only a list of buffers.
func TestRxBatch(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := NewRxBatch(rapid.IntRange(1, 16).Draw(rt, "max"))
		b.Merge = rapid.Bool().Draw(rt, "merge")
		b.Window = rapid.IntRange(1, 50).Draw(rt, "window")
		b.Limit = rapid.IntRange(0, 60).Draw(rt, "limit")
		var m rxModel
		var frames []int // lengths
		var heads []uint32
		sum := func() (n int) {
			for _, p := range m.bufs {
				n += len(p)
			}
			return n
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if b.Free() != sum() || len(b.Unused()) != len(m.bufs) {
					rt.Fatalf("%d bytes in %d buffers, want %d in %d", b.Free(), len(b.Unused()), sum(), len(m.bufs))
				}
				for i, u := range b.Unused() {
					var got []byte
					for _, v := range b.Segs[u.Seg : u.Seg+u.NSeg] {
						got = append(got, make([]byte, v.Len)...)
					}
					guestmem.Gather(got, b.Segs[u.Seg:u.Seg+u.NSeg])
					if !bytes.Equal(got, m.bufs[i]) || u.Cap != len(got) {
						rt.Fatalf("unused buffer %d is %q, want %q", i, got, m.bufs[i])
					}
				}
			},
			"add": func(rt *rapid.T) {
				if b.Full() {
					rt.Skip()
				}
				first, size := len(b.Segs), 0
				var all []byte
				for range rapid.IntRange(1, 3).Draw(rt, "pieces") {
					p := bytes.Repeat([]byte{byte(m.next)}, rapid.IntRange(1, 20).Draw(rt, "size"))
					b.Segs = append(b.Segs, iov(p))
					all, size = append(all, p...), size+len(p)
				}
				b.Add(first, size, m.next)
				m.bufs = append(m.bufs, all)
				m.next++
			},
			"accept": func(rt *rapid.T) {
				vec, room, ok := b.Space()
				want, n := 0, 0
				for ; n < len(m.bufs) && want < b.Window && (b.Merge || n == 0); n++ {
					want += len(m.bufs[n])
				}
				held := 0
				for _, f := range frames {
					held += f
				}
				limited := len(frames) == cap(b.Frames) || b.Limit > 0 && held >= b.Limit
				if fits := want >= b.Window && !limited; ok != fits || ok && room != want {
					rt.Fatalf("Space = %d bytes, %v; want %d, %v", room, ok, want, fits)
				}
				if !ok {
					return
				}
				total := 0
				for _, v := range vec {
					total += int(v.Len)
				}
				if total != room {
					rt.Fatalf("%d bytes in the iovecs, room is %d", total, room)
				}
				size := rapid.IntRange(1, room).Draw(rt, "frame")
				b.Accept(size)
				frames = append(frames, size)
				heads = append(heads, b.Bufs[b.Frames[len(b.Frames)-1].Buf].Cookie)
				for left := size; left > 0; m.bufs = m.bufs[1:] {
					left -= len(m.bufs[0])
				}
			},
			"consume": func(rt *rapid.T) {
				if len(b.Frames) != len(frames) {
					rt.Fatalf("%d frames, want %d", len(b.Frames), len(frames))
				}
				next := 0
				for i, f := range b.Frames {
					if f.Len != frames[i] || b.Bufs[f.Buf].Cookie != heads[i] || i > 0 && f.Buf != next {
						rt.Fatalf("frame %d is %+v, want %d bytes at buffer %d", i, f, frames[i], heads[i])
					}
					next = f.Buf + f.NBuf
				}
				b.Consume()
				frames, heads = nil, nil
			},
			"compact": func(*rapid.T) { b.Compact() },
			"release": func(*rapid.T) {
				b.Reset()
				m.bufs, frames, heads = nil, nil, nil
			},
		})
	})
}

// An iovec that points at a buffer's Header still does after Compact.
func TestCompactHeaders(t *testing.T) {
	b := NewRxBatch(8)
	data := make([]byte, 80)
	for i := range 8 {
		b.Segs = append(b.Segs, unix.Iovec{}, iov(data[10*i:10*i+10]))
		buf := b.Add(2*i, HeaderLen+10, uint32(i))
		b.Segs[2*i] = iov(buf.Header[:])
	}
	b.Window = 1
	for range 5 {
		b.Space()
		b.Accept(20)
	}
	b.Compact() // does nothing: there are frames
	if len(b.Bufs) != 8 {
		t.Fatalf("%d buffers while frames are there", len(b.Bufs))
	}
	b.Consume()
	b.Compact()
	if len(b.Bufs) != 3 || len(b.Segs) != 6 {
		t.Fatalf("%d buffers with %d iovecs, want 3 with 6", len(b.Bufs), len(b.Segs))
	}
	for i := range b.Bufs {
		buf := &b.Bufs[i]
		if b.Segs[buf.Seg].Base != &buf.Header[0] || b.Segs[buf.Seg+1].Base != &data[10*(i+5)] || buf.Cookie != uint32(i+5) {
			t.Errorf("buffer %d: %+v", i, buf)
		}
	}
}

func TestSetHeader(t *testing.T) {
	b := NewRxBatch(8)
	b.Merge, b.Window = true, 24
	p := make([]byte, 24)
	for i := range 2 { // the header is over three iovecs, one of them alone
		first := len(b.Segs)
		b.Segs = append(b.Segs, iov(p[12*i:12*i+5]), iov(p[12*i+5:12*i+12]))
		b.Add(first, 12, 0)
	}
	if _, _, ok := b.Space(); !ok {
		t.Fatal("no space")
	}
	b.Accept(24)
	b.SetHeader(&b.Frames[0], 4, []byte{1, 2})
	b.SetHeader(&b.Frames[0], 10, []byte{3, 4})
	if want := []byte{4: 1, 5: 2, 10: 3, 11: 4, 23: 0}; !bytes.Equal(p, want) {
		t.Errorf("% x, want % x", p, want)
	}
}
