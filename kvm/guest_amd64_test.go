// SPDX-License-Identifier: Apache-2.0

package kvm_test

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/kvm"
	"github.com/govmm/govmm/kvm/baremetal"
)

// Ports of the snippets. Each ends with "out donePort, al".
const (
	donePort  = 0x80
	valuePort = 0x81
)

// Pieces of machine code.
const (
	toMMIO = "\xbf\x00\x00\x00\x08" // mov edi, MMIOAddr
	toData = "\xbf\x00\x00\x03\x00" // mov edi, DataAddr
	done   = "\xe6\x80"             // out donePort, al
	value  = "\xe7\x81"             // out valuePort, eax
	spin   = "\xeb\xfe"             // jmp to itself
)

// levels are the two ways to run a snippet: natively, or on a KVM without
// hardware virtualization by its emulator.
var levels = map[string]baremetal.Level{"user": baremetal.User, "kernel": baremetal.Kernel}

func openSystem(t testing.TB) *kvm.System {
	t.Helper()
	sys, err := kvm.Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.Close() })
	return sys
}

// newMachine makes a machine that lives as long as the test; the test's goroutine
// is locked to its thread for as long.
func newMachine(t testing.TB, o baremetal.Options, code ...string) *baremetal.Machine {
	t.Helper()
	sys := openSystem(t)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	m, err := baremetal.New(sys, []byte(strings.Join(code, "")), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// hangLimit is when a guest that should have exited is given up.
const hangLimit = 30 * time.Second

// runOnce runs to the next exit other than an interruption.
func runOnce(t testing.TB, m *baremetal.Machine) kvm.Exit {
	t.Helper()
	var hang atomic.Bool
	cpu := m.CPU
	timer := time.AfterFunc(hangLimit, func() { hang.Store(true); cpu.Kick() })
	defer timer.Stop()
	for {
		e, err := m.CPU.Run()
		if err != nil {
			t.Fatal(err)
		}
		if e.Reason != kvm.ExitIntr {
			return e
		}
		if hang.Load() {
			t.Fatal("the guest does not exit")
		}
	}
}

// runToDone handles exits until the snippet says that it is done.
func runToDone(t testing.TB, m *baremetal.Machine, handle func(kvm.Exit)) {
	t.Helper()
	for {
		e := runOnce(t, m)
		if e.Reason == kvm.ExitIO && e.IO().Port == donePort && !e.IO().In {
			return
		}
		switch e.Reason {
		case kvm.ExitIO, kvm.ExitMMIO, kvm.ExitRDMSR, kvm.ExitWRMSR:
			handle(e)
		default:
			t.Fatalf("unexpected exit: %v", e)
		}
	}
}

// unexpected fails on any exit.
func unexpected(t testing.TB) func(kvm.Exit) {
	return func(e kvm.Exit) { t.Helper(); t.Fatalf("unexpected exit: %v", e) }
}

func newEventFD(t testing.TB) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// signal adds 1 to an eventfd.
func signal(t testing.TB, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
}

// count reads an eventfd's counter, 0 if nobody wrote it.
func count(t testing.TB, fd int) uint64 {
	t.Helper()
	var b [8]byte
	switch _, err := unix.Read(fd, b[:]); err {
	case nil:
		return uint64(b[0]) | uint64(b[1])<<8
	case unix.EAGAIN:
		return 0
	default:
		t.Fatal(err)
		return 0
	}
}

// eventually waits for something that another thread of the kernel does.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(hangLimit); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: did not happen", what)
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
