// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"bytes"
	"encoding/binary"
	"testing"
)

const testPage = 4096

// fakeExit is an exit whose run mapping, three pages, was filled in by hand: the
// reason at 8, the union from 32 on.
func fakeExit(reason ExitReason, fill func(union []byte)) Exit {
	v := &VCPU{run: make([]byte, 3*testPage)}
	binary.NativeEndian.PutUint32(v.run[8:], uint32(reason))
	fill(v.run[32:])
	return Exit{Reason: v.exitReason(), vcpu: v}
}

func put(union []byte, off int, values ...any) {
	for _, x := range values {
		n, err := binary.Encode(union[off:], binary.NativeEndian, x)
		if err != nil {
			panic(err)
		}
		off += n
	}
}

func TestDecodeIO(t *testing.T) {
	e := fakeExit(ExitIO, func(u []byte) {
		put(u, 0, uint8(1), uint8(2), uint16(0xcfc), uint32(3), uint64(testPage))
		copy(u[testPage-32:], "abcdef")
	})
	got := e.IO()
	if got.In || got.Size != 2 || got.Port != 0xcfc || got.Count != 3 || string(got.Data) != "abcdef" {
		t.Errorf("got %+v", got)
	}
	if cap(got.Data) != 6 {
		t.Errorf("Data can grow to %d bytes of the run page", cap(got.Data))
	}
	if want := "KVM_EXIT_IO port 0xcfc size 2 count 3 in false"; e.String() != want {
		t.Errorf("String is %q, want %q", e.String(), want)
	}
	in := fakeExit(ExitIO, func(u []byte) { put(u, 0, uint8(0), uint8(1), uint16(0x60), uint32(1), uint64(testPage)) }).IO()
	in.Data[0] = 0x5a
	if !in.In {
		t.Error("a read is not In")
	}
}

func TestIOOutsideOfMapping(t *testing.T) {
	for _, c := range []struct {
		size   uint8
		count  uint32
		offset uint64
		want   bool
	}{
		{4, 1, testPage, true},
		{4, 1024, 2 * testPage, true},
		{1, 0, 3 * testPage, true},
		{4, 1025, 2 * testPage, false},
		{1, 1, 3 * testPage, false},
		{1, 1, 1<<64 - 1, false},
		{255, 1<<32 - 1, 0, false},
	} {
		e := fakeExit(ExitIO, func(u []byte) { put(u, 0, uint8(1), c.size, uint16(0), c.count, c.offset) })
		if got := e.vcpu.ioInRange(); got != c.want {
			t.Errorf("%d x %d at %#x: in range %t, want %t", c.count, c.size, c.offset, got, c.want)
		}
	}
}

func TestDecodeMMIO(t *testing.T) {
	e := fakeExit(ExitMMIO, func(u []byte) {
		put(u, 0, uint64(0xfec00010), [8]byte{1, 2, 3, 4, 5}, uint32(4), uint8(1))
	})
	got := e.MMIO()
	if got.Addr != 0xfec00010 || !got.Write || !bytes.Equal(got.Data, []byte{1, 2, 3, 4}) {
		t.Errorf("got %+v", got)
	}
	long := fakeExit(ExitMMIO, func(u []byte) { put(u, 16, uint32(1<<32-1)) }).MMIO()
	if len(long.Data) != 8 || cap(long.Data) != 8 {
		t.Errorf("data of an impossible length has %d bytes, want 8", len(long.Data))
	}
}

func TestDecodeInternalError(t *testing.T) {
	e := fakeExit(ExitInternalError, func(u []byte) {
		put(u, 0, uint32(1), uint32(3), uint64(1), uint8(3), [15]byte{0xf0, 0x48, 0x0f, 0xff})
	})
	got := e.InternalError()
	if got.Suberror != SuberrorEmulation || got.NData != 3 || !bytes.Equal(got.Instruction, []byte{0xf0, 0x48, 0x0f}) {
		t.Errorf("got %+v", got)
	}
	if want := "KVM_EXIT_INTERNAL_ERROR instruction emulation failed: f0 48 0f"; e.String() != want {
		t.Errorf("String is %q, want %q", e.String(), want)
	}
	noBytes := fakeExit(ExitInternalError, func(u []byte) { put(u, 0, uint32(1), uint32(3), uint64(0), uint8(3)) }).InternalError()
	if noBytes.Instruction != nil {
		t.Errorf("instruction bytes % x without their flag", noBytes.Instruction)
	}
	odd := fakeExit(ExitInternalError, func(u []byte) { put(u, 0, uint32(1), uint32(1<<32-1), uint64(1), uint8(255)) }).InternalError()
	if odd.NData != 16 || len(odd.Instruction) != 15 {
		t.Errorf("impossible counts give %d words and %d bytes, want 16 and 15", odd.NData, len(odd.Instruction))
	}
	delivery := fakeExit(ExitInternalError, func(u []byte) { put(u, 0, uint32(3), uint32(2), uint64(7), uint64(8)) }).InternalError()
	if delivery.Suberror != SuberrorDeliveryEv || delivery.Data[0] != 7 || delivery.Data[1] != 8 || delivery.Instruction != nil {
		t.Errorf("got %+v", delivery)
	}
}

func TestDecodeSmallExits(t *testing.T) {
	if got := fakeExit(ExitUnknown, func(u []byte) { put(u, 0, uint64(0x55)) }).HardwareReason(); got != 0x55 {
		t.Errorf("HardwareReason is %#x", got)
	}
	fail := fakeExit(ExitFailEntry, func(u []byte) { put(u, 0, uint64(0x80000021), uint32(3)) })
	if got := fail.FailEntry(); got != (FailEntry{HardwareReason: 0x80000021, CPU: 3}) {
		t.Errorf("FailEntry is %+v", got)
	}
	if want := "KVM_EXIT_FAIL_ENTRY hardware reason 0x80000021 on CPU 3"; fail.String() != want {
		t.Errorf("String is %q, want %q", fail, want)
	}
	ev := fakeExit(ExitSystemEvent, func(u []byte) { put(u, 0, uint32(2), uint32(1), uint64(9)) }).SystemEvent()
	if ev.Type != SystemEventReset || ev.NData != 1 || ev.Data[0] != 9 {
		t.Errorf("SystemEvent is %+v", ev)
	}
	fault := fakeExit(ExitMemoryFault, func(u []byte) { put(u, 0, uint64(8), uint64(0x1000), uint64(0x2000)) }).MemoryFault()
	if fault != (MemoryFault{Flags: 8, GPA: 0x1000, Size: 0x2000}) {
		t.Errorf("MemoryFault is %+v", fault)
	}
	if got := fakeExit(ExitNotify, func(u []byte) { put(u, 0, uint32(1)) }).NotifyFlags(); got != 1 {
		t.Errorf("NotifyFlags is %d", got)
	}
	if got := ExitReason(40).String(); got != "KVM_EXIT(40)" {
		t.Errorf("unknown reason is %q", got)
	}
}

// FuzzExit decodes whatever might be in a run page: nothing may panic.
func FuzzExit(f *testing.F) {
	f.Add([]byte{2: 0, 32: 1, 33: 4, 36: 255, 41: 16})
	f.Add([]byte{8: 17, 32: 1, 36: 255, 39: 255, 40: 1, 48: 255})
	f.Fuzz(func(t *testing.T, page []byte) {
		v := &VCPU{run: make([]byte, 3*testPage)}
		copy(v.run, page)
		e := Exit{Reason: v.exitReason(), vcpu: v}
		if e.Reason == ExitIO && !v.ioInRange() {
			return // Run returns an error
		}
		_ = e.String()
		if n := len(e.MMIO().Data); n > 8 {
			t.Errorf("MMIO of %d bytes", n)
		}
		e.InternalError()
		e.SystemEvent()
		decodeArch(e)
	})
}
