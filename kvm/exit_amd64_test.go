// SPDX-License-Identifier: Apache-2.0

package kvm_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/govmm/govmm/kvm"
	"github.com/govmm/govmm/kvm/baremetal"
)

// forLevels runs a test at each privilege level.
func forLevels(t *testing.T, f func(t *testing.T, o baremetal.Options)) {
	for name, level := range levels {
		t.Run(name, func(t *testing.T) { f(t, baremetal.Options{Level: level}) })
	}
}

func TestPortWrites(t *testing.T) {
	forLevels(t, func(t *testing.T, o baremetal.Options) {
		m := newMachine(t, o,
			"\xb8\x44\x33\x22\x11", // mov eax, 0x11223344
			"\x66\xba\xf8\x03",     // mov dx, 0x3f8
			"\xee\x66\xef\xef",     // out dx, al; out dx, ax; out dx, eax
			done)
		var got []string
		runToDone(t, m, func(e kvm.Exit) {
			x := e.IO()
			got = append(got, fmt.Sprintf("%#x %d %d %t %x", x.Port, x.Size, x.Count, x.In, x.Data))
		})
		want := []string{"0x3f8 1 1 false 44", "0x3f8 2 1 false 4433", "0x3f8 4 1 false 44332211"}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestPortReads(t *testing.T) {
	forLevels(t, func(t *testing.T, o baremetal.Options) {
		m := newMachine(t, o,
			"\x66\xba\xf8\x03",                    // mov dx, 0x3f8
			"\xb8\xff\xff\xff\xff", "\xec", value, // mov eax, -1; in al, dx; report
			"\xb8\xff\xff\xff\xff", "\x66\xed", value, // in ax, dx
			"\xb8\xff\xff\xff\xff", "\xed", value, // in eax, dx
			done)
		var got []uint32
		var sizes []int
		runToDone(t, m, func(e kvm.Exit) {
			x := e.IO()
			if !x.In {
				got = append(got, binary.LittleEndian.Uint32(x.Data))
				return
			}
			sizes = append(sizes, x.Size)
			copy(x.Data, "\x78\x56\x34\x12")
		})
		if want := "[4294967160 4294923896 305419896]"; fmt.Sprint(got) != want { // 0xffffff78 0xffff5678 0x12345678
			t.Errorf("the guest read %#x", got)
		}
		if fmt.Sprint(sizes) != "[1 2 4]" {
			t.Errorf("sizes %v", sizes)
		}
	})
}

func TestStringOutput(t *testing.T) {
	forLevels(t, func(t *testing.T, o baremetal.Options) {
		m := newMachine(t, o,
			"\xbe\x00\x00\x03\x00", // mov esi, DataAddr
			"\xb9\x0d\x00\x00\x00", // mov ecx, 13
			"\x66\xba\x02\x04",     // mov dx, 0x402
			"\xf3\x6e",             // rep outsb
			"\xb9\x03\x00\x00\x00", // mov ecx, 3
			"\xf3\x6f",             // rep outsd
			done)
		copy(m.Mem[baremetal.DataAddr:], "Hello, world!abcdefghijkl")
		var text, words bytes.Buffer
		runToDone(t, m, func(e kvm.Exit) {
			x := e.IO()
			if x.In || x.Port != 0x402 || len(x.Data) != x.Size*x.Count {
				t.Fatalf("exit %v with %d bytes", e, len(x.Data))
			}
			if x.Size == 1 {
				text.Write(x.Data)
			} else {
				words.Write(x.Data)
			}
		})
		if text.String() != "Hello, world!" || words.String() != "abcdefghijkl" {
			t.Errorf("got %q and %q", &text, &words)
		}
	})
}

func TestStringInput(t *testing.T) {
	const items = 1500 // more than the kernel's page of data holds at once
	forLevels(t, func(t *testing.T, o baremetal.Options) {
		m := newMachine(t, o,
			toData,
			"\xb9\xdc\x05\x00\x00", // mov ecx, 1500
			"\x66\xba\x00\x05",     // mov dx, 0x500
			"\xf3\x6d",             // rep insd
			done)
		next := uint32(0)
		runToDone(t, m, func(e kvm.Exit) {
			x := e.IO()
			if !x.In || x.Size != 4 {
				t.Fatalf("unexpected exit %v", e)
			}
			for d := x.Data; len(d) > 0; d = d[4:] {
				binary.LittleEndian.PutUint32(d, next)
				next++
			}
		})
		for i := range uint32(items) {
			if got := binary.LittleEndian.Uint32(m.Mem[baremetal.DataAddr+4*i:]); got != i {
				t.Fatalf("item %d is %d", i, got)
			}
		}
	})
}

func TestMMIO(t *testing.T) {
	forLevels(t, func(t *testing.T, o baremetal.Options) {
		m := newMachine(t, o,
			toMMIO,
			"\x48\xb8\x88\x77\x66\x55\x44\x33\x22\x11", // mov rax, 0x1122334455667788
			"\x88\x07", "\x66\x89\x47\x02", // mov [rdi], al; mov [rdi+2], ax
			"\x89\x47\x04", "\x48\x89\x47\x08", // mov [rdi+4], eax; mov [rdi+8], rax
			"\xbe\x00\x00\x03\x00",         // mov esi, DataAddr
			"\x48\x8b\x07", "\x48\x89\x06", // mov rax, [rdi]; mov [rsi], rax
			"\x8b\x07", "\x48\x89\x46\x08", // mov eax, [rdi]; mov [rsi+8], rax
			"\x66\x8b\x07", "\x48\x89\x46\x10", // mov ax, [rdi]; mov [rsi+16], rax
			"\x8a\x07", "\x48\x89\x46\x18", // mov al, [rdi]; mov [rsi+24], rax
			done)
		var writes []string
		answer := uint64(0x0102030405060708)
		runToDone(t, m, func(e kvm.Exit) {
			if e.Reason != kvm.ExitMMIO {
				t.Fatalf("unexpected exit %v", e)
			}
			x := e.MMIO()
			if x.Write {
				writes = append(writes, fmt.Sprintf("%#x %x", x.Addr-baremetal.MMIOAddr, x.Data))
				return
			}
			copy(x.Data, binary.LittleEndian.AppendUint64(nil, answer))
			answer += 0x1010101010101010
		})
		if want := "[0x0 88 0x2 8877 0x4 88776655 0x8 8877665544332211]"; fmt.Sprint(writes) != want {
			t.Errorf("writes %v, want %v", writes, want)
		}
		for i, want := range []uint64{0x0102030405060708, 0x15161718, 0x15162728, 0x15162738} {
			if got := binary.LittleEndian.Uint64(m.Mem[baremetal.DataAddr+8*i:]); got != want {
				t.Errorf("read %d gave %#x, want %#x", i, got, want)
			}
		}
	})
}

// TestMMIOIsCompletedByImmediateExit checks that SetImmediateExit finishes a read
// without going on in the guest, so that the registers can be saved.
func TestMMIOIsCompletedByImmediateExit(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.User}, toMMIO, "\x8b\x07", spin) // mov eax, [rdi]
	e := runOnce(t, m)
	if e.Reason != kvm.ExitMMIO || e.MMIO().Write {
		t.Fatalf("unexpected exit %v", e)
	}
	copy(e.MMIO().Data, "\xef\xbe\xad\xde")
	m.CPU.SetImmediateExit(true)
	e, err := m.CPU.Run()
	check(t, err)
	regs, err := m.CPU.Regs()
	check(t, err)
	if e.Reason != kvm.ExitIntr || regs.RAX != 0xdeadbeef || regs.RIP != baremetal.CodeAddr+7 {
		t.Errorf("%v, RAX %#x, RIP %#x", e, regs.RAX, regs.RIP)
	}
}

func TestHLTExitsWithoutIRQChip(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.Kernel}, "\xf4")
	if e := runOnce(t, m); e.Reason != kvm.ExitHLT {
		t.Errorf("exit %v", e)
	}
	regs, err := m.CPU.Regs()
	check(t, err)
	if regs.RIP != baremetal.CodeAddr+1 {
		t.Errorf("RIP %#x is not behind hlt", regs.RIP)
	}
}

// TestTripleFault runs an undefined instruction without an interrupt table.
func TestTripleFault(t *testing.T) {
	forLevels(t, func(t *testing.T, o baremetal.Options) {
		m := newMachine(t, o, "\x0f\x0b") // ud2
		if e := runOnce(t, m); e.Reason != kvm.ExitShutdown {
			t.Errorf("exit %v", e)
		}
	})
}

// TestHostileGuestEntry checks that registers no processor accepts end in an
// error or an exit, not in a hang: long mode without paging.
func TestHostileGuestEntry(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.User}, spin)
	s, err := m.CPU.SRegs()
	check(t, err)
	s.CR0 &^= 1 << 0 // PE, while PG stays
	if err := m.CPU.SetSRegs(s); err == nil {
		e := runOnce(t, m)
		if e.Reason != kvm.ExitFailEntry && e.Reason != kvm.ExitInternalError && e.Reason != kvm.ExitShutdown {
			t.Errorf("exit %v", e)
		}
	}
}

// TestSingleStep steps over two instructions.
func TestSingleStep(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.Kernel}, "\x31\xc0\x31\xdb", done) // xor eax, eax; xor ebx, ebx
	check(t, m.CPU.SetGuestDebug(kvm.GuestDebug{Control: kvm.GuestDebugEnable | kvm.GuestDebugSingleStep}))
	for i := range uint64(2) {
		e := runOnce(t, m)
		if e.Reason != kvm.ExitDebug {
			t.Fatalf("exit %v", e)
		}
		const debugException, singleStep = 1, 1 << 14 // #DB, DR6.BS
		want := kvm.Debug{Exception: debugException, PC: baremetal.CodeAddr + 2*(i+1)}
		if d := e.Debug(); d.Exception != want.Exception || d.PC != want.PC || d.DR6&singleStep == 0 {
			t.Errorf("step %d: %+v, want %+v", i, d, want)
		}
	}
	check(t, m.CPU.SetGuestDebug(kvm.GuestDebug{}))
	runToDone(t, m, unexpected(t))
}

func TestMSRFilterExits(t *testing.T) {
	const msr = 0xc0000102 // IA32_KERNEL_GS_BASE, which KVM would handle itself
	m := newMachine(t, baremetal.Options{Level: baremetal.Kernel},
		"\xb9\x02\x01\x00\xc0", // mov ecx, msr
		"\x0f\x32",             // rdmsr
		value,
		"\xb8\x0d\xf0\x00\x00\xba\x01\x00\x00\x00", // mov eax, 0xf00d; mov edx, 1
		"\x0f\x30", // wrmsr
		done)
	check(t, m.VM.EnableCap(kvm.CapX86UserSpaceMSR, uint64(kvm.MSRExitFilter)))
	check(t, m.VM.SetMSRFilter(kvm.MSRFilter{Ranges: []kvm.MSRFilterRange{
		{Read: true, Write: true, Base: msr, Count: 1, Allow: []uint64{0}},
	}}))
	var read uint32
	var written kvm.MSRExit
	runToDone(t, m, func(e kvm.Exit) {
		switch e.Reason {
		case kvm.ExitRDMSR:
			if x := e.MSR(); x.Index != msr || x.Why != kvm.MSRExitFilter {
				t.Errorf("%+v", x)
			}
			e.SetMSRData(0xabcd)
		case kvm.ExitWRMSR:
			written = e.MSR()
		case kvm.ExitIO:
			read = binary.LittleEndian.Uint32(e.IO().Data)
		default:
			t.Fatalf("unexpected exit %v", e)
		}
	})
	if read != 0xabcd {
		t.Errorf("the guest read %#x", read)
	}
	if want := (kvm.MSRExit{Why: kvm.MSRExitFilter, Index: msr, Data: 0x1_0000_f00d}); written != want {
		t.Errorf("the guest wrote %+v, want %+v", written, want)
	}
}

// TestFailedMSRIsGeneralProtection lets a read fail: without an interrupt table
// the #GP is a triple fault.
func TestFailedMSRIsGeneralProtection(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.Kernel}, "\xb9\x99\x99\x00\x40\x0f\x32", done) // mov ecx, 0x40009999; rdmsr
	check(t, m.VM.EnableCap(kvm.CapX86UserSpaceMSR, uint64(kvm.MSRExitUnknown)))
	e := runOnce(t, m)
	if e.Reason != kvm.ExitRDMSR || e.MSR().Why != kvm.MSRExitUnknown {
		t.Fatalf("exit %v", e)
	}
	e.FailMSR()
	if e := runOnce(t, m); e.Reason != kvm.ExitShutdown {
		t.Errorf("exit %v", e)
	}
}

func TestMSRFilterArguments(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, "\xf4")
	if err := m.VM.SetMSRFilter(kvm.MSRFilter{Ranges: make([]kvm.MSRFilterRange, 17)}); err == nil {
		t.Error("17 ranges were accepted")
	}
	short := kvm.MSRFilterRange{Read: true, Count: 65, Allow: []uint64{0}}
	if err := m.VM.SetMSRFilter(kvm.MSRFilter{Ranges: []kvm.MSRFilterRange{short}}); err == nil {
		t.Error("a bitmap that is too short was accepted")
	}
	if err := m.VM.EnableCap(kvm.CapX86UserSpaceMSR, 1, 2, 3, 4, 5); err == nil {
		t.Error("five arguments were accepted")
	}
}

// TestEmulationFailureShowsTheInstruction runs an instruction that KVM must emulate,
// because of the MMIO operand, and can't on any host: a BCD store of the x87.
func TestEmulationFailureShowsTheInstruction(t *testing.T) {
	const code = "\xdf\x37" // fbstp [rdi]
	m := newMachine(t, baremetal.Options{Level: baremetal.Kernel}, toMMIO, code, done)
	e := runOnce(t, m)
	if e.Reason != kvm.ExitInternalError {
		t.Fatalf("exit %v", e)
	}
	x := e.InternalError()
	if x.Suberror != kvm.SuberrorEmulation || !bytes.HasPrefix(x.Instruction, []byte(code)) {
		t.Errorf("%+v", x)
	}
}
