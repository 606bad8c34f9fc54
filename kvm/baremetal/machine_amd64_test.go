// SPDX-License-Identifier: Apache-2.0

package baremetal

import (
	"runtime"
	"strings"
	"testing"

	"github.com/govmm/govmm/kvm"
)

func newSystem(t *testing.T) *kvm.System {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	sys, err := kvm.Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.Close() })
	return sys
}

// port runs until a port write and returns what was written.
func port(t *testing.T, m *Machine) byte {
	t.Helper()
	for {
		e, err := m.CPU.Run()
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Reason == kvm.ExitIntr:
			continue
		case e.Reason != kvm.ExitIO:
			t.Fatalf("exit %v", e)
		}
		return e.IO().Data[0]
	}
}

// TestLevels runs code that reports its own privilege level, twice by Reset.
func TestLevels(t *testing.T) {
	sys := newSystem(t)
	for _, o := range []Options{
		{Level: User}, {Level: Kernel}, {Level: User, IRQChip: true}, {Level: Kernel, SplitIRQ: true},
	} {
		m, err := New(sys, []byte("\x8c\xc8\x24\x03\xe6\x80"), o) // mov eax, cs; and al, 3; out 0x80, al
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got := port(t, m); got != byte(o.Level) {
				t.Errorf("%+v runs at CPL %d", o, got)
			}
			if err := m.Reset(o); err != nil {
				t.Error(err)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMemoryMap writes at the stack, the data area and the last byte, and pushes.
func TestMemoryMap(t *testing.T) {
	m, err := New(newSystem(t), []byte("\x6a\x55"+ // push 0x55
		"\xb0\x66"+ // mov al, 0x66
		"\xbf\x00\x00\x03\x00\x88\x07"+ // mov edi, DataAddr; mov [rdi], al
		"\xbf\xff\xff\x1f\x00\x88\x07"+ // mov edi, MemSize-1; mov [rdi], al
		"\xe6\x80"), Options{Level: User})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	port(t, m)
	if m.Mem[StackTop-8] != 0x55 || m.Mem[DataAddr] != 0x66 || m.Mem[MemSize-1] != 0x66 {
		t.Errorf("stack %#x, data %#x, end %#x", m.Mem[StackTop-8], m.Mem[DataAddr], m.Mem[MemSize-1])
	}
}

// TestAllPorts uses the first and the last port, which need every byte of the
// permission map where IOPL does not count.
func TestAllPorts(t *testing.T) {
	m, err := New(newSystem(t), []byte("\x31\xd2\xb0\x11\xee"+ // xor edx, edx; mov al, 0x11; out dx, al
		"\x66\xba\xff\xff\xb0\x22\xee"), Options{Level: User}) // mov dx, 0xffff; mov al, 0x22; out dx, al
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if a, b := port(t, m), port(t, m); a != 0x11 || b != 0x22 {
		t.Errorf("got %#x and %#x", a, b)
	}
}

func TestErrors(t *testing.T) {
	sys := newSystem(t)
	if _, err := New(sys, make([]byte, CodeSize+1), Options{}); err == nil || !strings.Contains(err.Error(), "fit") {
		t.Errorf("too much code: %v", err)
	}
	if _, err := New(sys, nil, Options{MemFlags: 1 << 10}); err == nil {
		t.Error("an unknown memory flag was accepted")
	}
	m, err := New(sys, make([]byte, CodeSize), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
