// SPDX-License-Identifier: Apache-2.0

package kvm_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/kvm"
	"github.com/govmm/govmm/kvm/baremetal"
)

const pages = baremetal.MemSize / 4096

// dirtyPages lists the set bits.
func dirtyPages(bitmap []uint64) (dirty []int) {
	for i, w := range bitmap {
		for b := range 64 {
			if w>>b&1 != 0 {
				dirty = append(dirty, i*64+b)
			}
		}
	}
	return dirty
}

// touch writes one byte each to pages 0x30, 0x3f, 0x40 and 0x1ff.
const touch = toData + "\x88\x07" + // mov [rdi], al
	"\x88\x87\x00\xf0\x00\x00" + // mov [rdi+0xf000], al
	"\x88\x87\x00\x00\x01\x00" + // mov [rdi+0x10000], al
	"\x88\x87\x00\xf0\x1c\x00" // mov [rdi+0x1cf000], al

func TestDirtyLog(t *testing.T) {
	forLevels(t, func(t *testing.T, o baremetal.Options) {
		o.MemFlags = kvm.MemLogDirtyPages
		m := newMachine(t, o, touch, done)
		bitmap := make([]uint64, pages/64)
		for round := range 2 { // the log is cleared when it is read
			check(t, m.Reset(o))
			check(t, m.VM.DirtyLog(0, bitmap))
			runToDone(t, m, unexpected(t))
			check(t, m.VM.DirtyLog(0, bitmap))
			got := dirtyPages(bitmap)
			for _, page := range []int{0x30, 0x3f, 0x40, 0x1ff} {
				if !contains(got, page) {
					t.Errorf("round %d: page %#x is not in %#x", round, page, got)
				}
			}
			for _, page := range got { // page tables may be dirty too: accessed bits
				if page > 0x10 && !contains([]int{0x30, 0x3f, 0x40, 0x1ff}, page) {
					t.Errorf("round %d: page %#x was not written", round, page)
				}
			}
		}
		check(t, m.VM.DirtyLog(0, bitmap))
		if got := dirtyPages(bitmap); len(got) != 0 {
			t.Errorf("pages %#x are dirty while nothing ran", got)
		}
	})
}

func contains(list []int, x int) bool {
	for _, y := range list {
		if x == y {
			return true
		}
	}
	return false
}

// TestManualDirtyLog checks that with manual protection the log stays until
// ClearDirtyLog.
func TestManualDirtyLog(t *testing.T) {
	o := baremetal.Options{Level: baremetal.User}
	m := newMachine(t, o, touch, done)
	check(t, m.VM.EnableCap(kvm.CapManualDirtyLogProtect2, kvm.DirtyLogManualProtectEnable))
	check(t, m.VM.SetUserMemory(0, kvm.MemLogDirtyPages, 0, m.Mem))
	runToDone(t, m, unexpected(t))
	bitmap := make([]uint64, pages/64)
	for range 2 {
		check(t, m.VM.DirtyLog(0, bitmap))
		if got := dirtyPages(bitmap); !contains(got, 0x30) || !contains(got, 0x1ff) {
			t.Errorf("dirty pages %#x", got)
		}
	}
	check(t, m.VM.ClearDirtyLog(0, 0, pages, bitmap))
	check(t, m.VM.DirtyLog(0, bitmap))
	if got := dirtyPages(bitmap); len(got) != 0 {
		t.Errorf("pages %#x are dirty after clearing", got)
	}
	check(t, m.Reset(o))
	runToDone(t, m, unexpected(t))
	check(t, m.VM.ClearDirtyLog(0, 0x40, 64, []uint64{1})) // page 0x40 alone
	check(t, m.VM.DirtyLog(0, bitmap))
	if got := dirtyPages(bitmap); !contains(got, 0x30) || contains(got, 0x40) {
		t.Errorf("dirty pages %#x after clearing page 0x40", got)
	}
}

func TestDirtyLogErrors(t *testing.T) {
	m := newMachine(t, baremetal.Options{MemFlags: kvm.MemLogDirtyPages}, "\xf4")
	if err := m.VM.DirtyLog(0, make([]uint64, pages/64-1)); err == nil {
		t.Error("a short bitmap was accepted")
	}
	if err := m.VM.DirtyLog(5, make([]uint64, pages/64)); err == nil {
		t.Error("a slot that does not exist was accepted")
	}
	if err := m.VM.ClearDirtyLog(0, 0, pages, make([]uint64, 1)); err == nil {
		t.Error("ClearDirtyLog: a short bitmap was accepted")
	}
	check(t, m.VM.SetUserMemoryRegion(0, 0, 0, 0, 0))
	if err := m.VM.DirtyLog(0, make([]uint64, pages/64)); err == nil {
		t.Error("a removed slot was accepted")
	}
}

func TestMemorySlots(t *testing.T) {
	const slotAddr = 0x8000000 // MMIOAddr
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	check(t, err)
	defer unix.Munmap(mem)
	o := baremetal.Options{Level: baremetal.User}
	m := newMachine(t, o, toMMIO, "\xb8\x2a\x00\x00\x00\x89\x07\x8b\x47\x04", value, done) // mov eax, 42; mov [rdi], eax; mov eax, [rdi+4]
	run := func() (exits []string) {
		t.Helper()
		check(t, m.Reset(o))
		runToDone(t, m, func(e kvm.Exit) { exits = append(exits, e.Reason.String()) })
		return exits
	}
	want := func(got []string, want ...string) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("exits %v, want %v", got, want)
		}
	}
	want(run(), "KVM_EXIT_MMIO", "KVM_EXIT_MMIO", "KVM_EXIT_IO")
	check(t, m.VM.SetUserMemory(1, kvm.MemReadOnly, slotAddr, mem))
	want(run(), "KVM_EXIT_MMIO", "KVM_EXIT_IO")
	if mem[0] != 0 {
		t.Error("read-only memory was written")
	}
	check(t, m.VM.SetUserMemoryRegion(1, 0, slotAddr, 0, 0))
	check(t, m.VM.SetUserMemory(1, 0, slotAddr, mem))
	want(run(), "KVM_EXIT_IO")
	if mem[0] != 42 {
		t.Errorf("memory holds %d, want 42", mem[0])
	}
	check(t, m.VM.SetUserMemoryRegion(1, 0, slotAddr, 0, 0))
	want(run(), "KVM_EXIT_MMIO", "KVM_EXIT_MMIO", "KVM_EXIT_IO")

	for name, err := range map[string]error{
		"an overlap":       m.VM.SetUserMemory(2, 0, 0x1000, mem),
		"an odd address":   m.VM.SetUserMemory(2, 0, 0x10000001, mem),
		"an odd size":      m.VM.SetUserMemory(2, 0, 0x10000000, mem[:100]),
		"no memory":        m.VM.SetUserMemory(2, 0, 0x10000000, nil),
		"a slot too many":  m.VM.SetUserMemory(1<<16-1, 0, 0x10000000, mem),
		"an unknown flag":  m.VM.SetUserMemory(2, 1<<10, 0x10000000, mem),
		"address overflow": m.VM.SetUserMemory(2, 0, 1<<64-4096, mem),
	} {
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
