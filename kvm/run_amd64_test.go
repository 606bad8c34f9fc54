// SPDX-License-Identifier: Apache-2.0

package kvm_test

import (
	"encoding/binary"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/kvm"
	"github.com/govmm/govmm/kvm/baremetal"
)

// countUp increments the quadword at DataAddr for ever.
const countUp = toData + "\x48\xff\x07" + "\xeb\xfb" // inc qword [rdi]; jmp to inc

// counter reads what countUp counts.
func counter(m *baremetal.Machine) uint64 {
	return binary.LittleEndian.Uint64(m.Mem[baremetal.DataAddr:])
}

// TestKickSpinningGuest kicks a guest that never exits by itself, from another
// goroutine, once it is seen to run.
func TestKickSpinningGuest(t *testing.T) {
	forLevels(t, func(t *testing.T, o baremetal.Options) {
		m := newMachine(t, o, countUp)
		for range 20 {
			start := counter(m)
			var wg sync.WaitGroup
			wg.Go(func() {
				eventually(t, "the guest runs", func() bool { return counter(m) > start+10 })
				if err := m.CPU.Kick(); err != nil {
					t.Error(err)
				}
			})
			e, err := m.CPU.Run()
			wg.Wait()
			check(t, err)
			if e.Reason != kvm.ExitIntr {
				t.Fatalf("exit %v", e)
			}
		}
	})
}

// TestKickBeforeRun checks that a kick is not lost when the vCPU is not in the
// guest, and that it is used up by one Run.
func TestKickBeforeRun(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.User}, toData, "\x48\xff\x07", done, spin)
	check(t, m.CPU.Kick())
	e, err := m.CPU.Run()
	check(t, err)
	if e.Reason != kvm.ExitIntr || counter(m) != 0 {
		t.Errorf("%v, the guest counted to %d", e, counter(m))
	}
	runToDone(t, m, unexpected(t))
	if counter(m) != 1 {
		t.Errorf("the guest counted to %d", counter(m))
	}
}

// TestKickHaltedGuest kicks a vCPU that sleeps in the kernel: hlt with an
// in-kernel APIC does not exit.
func TestKickHaltedGuest(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.Kernel, IRQChip: true}, toData, "\x48\xff\x07", "\xf4", spin)
	cpu := m.CPU
	var wg sync.WaitGroup
	wg.Go(func() {
		eventually(t, "the guest runs", func() bool { return counter(m) == 1 })
		if err := cpu.Kick(); err != nil {
			t.Error(err)
		}
	})
	e, err := cpu.Run()
	wg.Wait()
	check(t, err)
	if e.Reason != kvm.ExitIntr {
		t.Errorf("exit %v", e)
	}
}

// TestNoKickIsLost has several goroutines kick a vCPU that exits all the time. Each
// waits until the vCPU's loop has seen its request, which would hang if any kick
// fell between the check and the entry.
func TestNoKickIsLost(t *testing.T) {
	const kickers, kicks = 3, 300
	for name, code := range map[string]string{"exiting": done + "\xeb\xfc", "spinning": spin} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, baremetal.Options{Level: baremetal.User}, code)
			cpu := m.CPU
			var want, seen [kickers]atomic.Int64
			var wg sync.WaitGroup
			var stop atomic.Bool
			for k := range kickers {
				wg.Go(func() {
					for i := range int64(kicks) {
						want[k].Store(i + 1)
						if err := cpu.Kick(); err != nil {
							t.Error(err)
						}
						for seen[k].Load() <= i {
							runtime.Gosched()
						}
					}
				})
			}
			go func() {
				wg.Wait()
				stop.Store(true)
				cpu.Kick()
			}()
			for !stop.Load() {
				e, err := cpu.Run()
				check(t, err)
				if e.Reason != kvm.ExitIntr {
					continue // only kicks may make the requests seen
				}
				for k := range kickers {
					seen[k].Store(want[k].Load())
				}
			}
		})
	}
}

// TestKickAfterClose must not touch the run page that is gone.
func TestKickAfterClose(t *testing.T) {
	m := newMachine(t, baremetal.Options{}, spin)
	cpu := m.CPU
	var wg sync.WaitGroup
	var stop atomic.Bool
	wg.Go(func() {
		for !stop.Load() {
			if err := cpu.Kick(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	time.Sleep(time.Millisecond)
	check(t, cpu.Close())
	stop.Store(true)
	wg.Wait()
	check(t, cpu.Kick())
	check(t, cpu.Close())
}

// TestBindThread runs a vCPU on another thread than the one that made it.
func TestBindThread(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.User}, countUp)
	cpu := m.CPU
	exit := make(chan kvm.ExitReason)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cpu.BindThread()
		e, err := cpu.Run()
		if err != nil {
			t.Error(err)
		}
		exit <- e.Reason
	}()
	eventually(t, "the guest runs", func() bool { return counter(m) > 10 })
	check(t, cpu.Kick())
	if r := <-exit; r != kvm.ExitIntr {
		t.Errorf("exit %v", r)
	}
}

func TestImmediateExit(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.User}, countUp)
	m.CPU.SetImmediateExit(true)
	e, err := m.CPU.Run()
	check(t, err)
	if e.Reason != kvm.ExitIntr || counter(m) != 0 {
		t.Errorf("%v, the guest counted to %d", e, counter(m))
	}
	m.CPU.SetImmediateExit(true)
	m.CPU.SetImmediateExit(false)
	var hang atomic.Bool
	cpu := m.CPU
	go func() {
		for !hang.Load() && counter(m) == 0 {
			time.Sleep(time.Millisecond)
		}
		cpu.Kick()
	}()
	timer := time.AfterFunc(hangLimit, func() { hang.Store(true) })
	defer timer.Stop()
	if e, err = m.CPU.Run(); err != nil || e.Reason != kvm.ExitIntr || counter(m) == 0 {
		t.Errorf("%v (%v), the guest counted to %d", e, err, counter(m))
	}
}

// TestSignalMask blocks SIGURG in the guest: then immediate_exit alone ends a Run,
// and the signal comes when KVM_RUN is over.
func TestSignalMask(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.User}, toData, "\x48\xff\x07", done, countUp)
	check(t, m.CPU.SetSignalMask(1<<(unix.SIGURG-1)))
	check(t, m.CPU.Kick())
	if e, err := m.CPU.Run(); err != nil || e.Reason != kvm.ExitIntr {
		t.Fatalf("exit %v (%v)", e, err)
	}
	check(t, unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGURG))
	runToDone(t, m, unexpected(t))
	check(t, m.CPU.ClearSignalMask())
	cpu := m.CPU
	var wg sync.WaitGroup
	wg.Go(func() {
		eventually(t, "the guest runs", func() bool { return counter(m) > 10 })
		cpu.Kick()
	})
	e, err := cpu.Run()
	wg.Wait()
	if err != nil || e.Reason != kvm.ExitIntr {
		t.Fatalf("exit %v (%v)", e, err)
	}
}

// TestSchedulerGoesOn checks that a vCPU in the guest does not keep the other
// goroutines from running, nor the garbage collector from stopping the world.
func TestSchedulerGoesOn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	m := newMachine(t, baremetal.Options{Level: baremetal.User}, countUp)
	cpu := m.CPU
	var wg sync.WaitGroup
	wg.Go(func() {
		eventually(t, "the guest runs", func() bool { return counter(m) > 10 })
		runtime.GC()
		cpu.Kick()
	})
	e, err := cpu.Run()
	wg.Wait()
	if err != nil || e.Reason != kvm.ExitIntr {
		t.Errorf("exit %v (%v)", e, err)
	}
}

// TestSMP runs two vCPUs at once, each on a thread of its own.
func TestSMP(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.User}, countUp)
	regs, err := m.CPU.Regs()
	check(t, err)
	sregs, err := m.CPU.SRegs()
	check(t, err)
	regs.RIP += 5 // behind mov edi
	regs.RDI = baremetal.DataAddr + 64
	var wg sync.WaitGroup
	ready := make(chan *kvm.VCPU)
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cpu, err := m.VM.CreateVCPU(1)
		if err != nil {
			t.Error(err)
			close(ready)
			return
		}
		defer cpu.Close()
		for _, err := range []error{cpu.SetSRegs(sregs), cpu.SetRegs(regs)} {
			if err != nil {
				t.Error(err)
			}
		}
		if cpu.ID() != 1 {
			t.Errorf("id %d", cpu.ID())
		}
		ready <- cpu
		if e, err := cpu.Run(); err != nil || e.Reason != kvm.ExitIntr {
			t.Errorf("exit %v (%v)", e, err)
		}
	})
	second, ok := <-ready
	if !ok {
		t.FailNow()
	}
	first := m.CPU
	wg.Go(func() {
		eventually(t, "both run", func() bool {
			return counter(m) > 1000 && binary.LittleEndian.Uint64(m.Mem[baremetal.DataAddr+64:]) > 1000
		})
		first.Kick()
		second.Kick()
	})
	if e, err := first.Run(); err != nil || e.Reason != kvm.ExitIntr {
		t.Errorf("exit %v (%v)", e, err)
	}
	wg.Wait()
	if _, err := m.VM.CreateVCPU(0); err == nil || !strings.Contains(err.Error(), "vCPU 0") {
		t.Errorf("a second vCPU 0: %v", err)
	}
}

// TestStartAP starts the second processor as a guest does: INIT, then SIPI with the
// page where its real-mode code is. Its Run sleeps in the kernel until then.
func TestStartAP(t *testing.T) {
	const apCode = 0x12000 // SIPI vector 0x12
	m := newMachine(t, baremetal.Options{Level: baremetal.User, IRQChip: true},
		"\xbf\x00\x00\xe0\xfe", // mov edi, 0xfee00000
		// Enable the local APIC. Any such change makes the kernel look at all APICs
		// again; the one of a new vCPU gets no message before that.
		"\xc7\x87\xf0\x00\x00\x00\xff\x01\x00\x00", // mov dword [rdi+0xf0], 0x1ff
		"\xc7\x87\x10\x03\x00\x00\x00\x00\x00\x01", // mov dword [rdi+0x310], 1<<24: to APIC id 1
		"\xc7\x87\x00\x03\x00\x00\x00\x45\x00\x00", // mov dword [rdi+0x300], 0x4500: INIT
		done,
		"\xc7\x87\x00\x03\x00\x00\x12\x46\x00\x00", // mov dword [rdi+0x300], 0x4612: SIPI
		done)
	copy(m.Mem[apCode:], "\x8c\xc8\xe7\x81") // mov ax, cs; out valuePort, ax
	var wg sync.WaitGroup
	created := make(chan struct{})
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(created)
		ap, err := m.VM.CreateVCPU(1)
		if err != nil {
			t.Error(err)
			return
		}
		defer ap.Close()
		created <- struct{}{}
		var hang atomic.Bool
		timer := time.AfterFunc(hangLimit, func() { hang.Store(true); ap.Kick() })
		defer timer.Stop()
		for {
			e, err := ap.Run()
			switch {
			case err != nil:
				t.Error(err)
				return
			case e.Reason == kvm.ExitIntr && !hang.Load():
				continue // EAGAIN after INIT and after SIPI
			case e.Reason != kvm.ExitIO || binary.LittleEndian.Uint16(e.IO().Data) != apCode>>4:
				t.Errorf("exit %v", e)
			}
			return
		}
	})
	<-created
	runToDone(t, m, unexpected(t))
	runToDone(t, m, unexpected(t))
	wg.Wait()
}

func TestRunDoesNotAllocate(t *testing.T) {
	m := newMachine(t, baremetal.Options{Level: baremetal.User}, toMMIO, "\x89\x07", done, "\xeb\xfa") // mov [rdi], eax; out; jmp to mov
	n := testing.AllocsPerRun(200, func() {
		e, err := m.CPU.Run()
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Reason == kvm.ExitIO:
			if e.IO().Port != donePort {
				t.Fatal(e.IO().Port)
			}
		case e.Reason == kvm.ExitMMIO:
			if e.MMIO().Addr != baremetal.MMIOAddr {
				t.Fatal(e.MMIO().Addr)
			}
		}
	})
	if n != 0 {
		t.Errorf("an exit allocates %v times", n)
	}
}

// benchmarkExits measures one exit and entry per iteration.
func benchmarkExits(b *testing.B, code ...string) {
	m := newMachine(b, baremetal.Options{Level: baremetal.User}, code...)
	b.ReportAllocs()
	for b.Loop() {
		e, err := m.CPU.Run()
		if err != nil {
			b.Fatal(err)
		}
		if e.Reason != kvm.ExitIO && e.Reason != kvm.ExitMMIO && e.Reason != kvm.ExitIntr {
			b.Fatalf("exit %v", e)
		}
	}
}

func BenchmarkExitPIO(b *testing.B) { benchmarkExits(b, "\xe6\x80", "\xeb\xfc") } // out; jmp

func BenchmarkExitMMIO(b *testing.B) { benchmarkExits(b, toMMIO, "\x89\x07", "\xeb\xfc") } // mov [rdi], eax; jmp

// BenchmarkIOEventFD measures a write that signals an eventfd in the kernel: 1000
// of them an exit.
func BenchmarkIOEventFD(b *testing.B) {
	m := newMachine(b, baremetal.Options{Level: baremetal.User}, toMMIO,
		"\xb9\xe8\x03\x00\x00",         // mov ecx, 1000
		"\x89\x07", "\xff\xc9\x75\xfa", // mov [rdi], eax; dec ecx; jnz to mov
		done, "\xeb\xf1") // jmp to mov ecx
	check(b, m.VM.IOEventFD(kvm.IOEvent{Addr: baremetal.MMIOAddr, Len: 4, FD: newEventFD(b)}))
	for n := 0; b.Loop(); n++ {
		if n%1000 == 0 {
			runToDone(b, m, unexpected(b))
		}
	}
}
