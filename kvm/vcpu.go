// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var (
	reqCreateVCPU    = io("KVM_CREATE_VCPU", 0x41)
	reqRun           = io("KVM_RUN", 0x80)
	reqSetSignalMask = iow("KVM_SET_SIGNAL_MASK", 0x8b, 4)
	reqGetMPState    = ior("KVM_GET_MP_STATE", 0x98, 4)
	reqSetMPState    = iow("KVM_SET_MP_STATE", 0x99, 4)
	reqGetOneReg     = iow("KVM_GET_ONE_REG", 0xab, sizeof[oneReg]())
	reqSetOneReg     = iow("KVM_SET_ONE_REG", 0xac, sizeof[oneReg]())
)

// VCPU is a virtual processor. All methods but Kick belong to the goroutine that
// is locked to the vCPU's OS thread; see the package documentation.
type VCPU struct {
	fd  int
	id  int
	run []byte // shared with the kernel: struct kvm_run, then pages of data

	// inputs is the first word of run: request_interrupt_window in byte 0 and
	// immediate_exit in byte 1, on little-endian hosts.
	inputs *atomic.Uint32

	xsaveSize int // bytes of the XSAVE state; x86 only

	mu     sync.Mutex // orders Kick and Close; never taken by Run
	closed bool
	tid    int // the OS thread that calls Run
}

// immediateExitBit is kvm_run.immediate_exit = 1 in VCPU.inputs.
const immediateExitBit = 1 << 8

// CreateVCPU makes the virtual processor with the given id (KVM_CREATE_VCPU; on
// x86 the id is the initial APIC id) and maps its run page. The caller has locked
// its goroutine to the OS thread that will call Run; see BindThread otherwise.
func (vm *VM) CreateVCPU(id int) (*VCPU, error) {
	fd, err := ioctl(vm.fd, reqCreateVCPU, uintptr(id))
	if err != nil {
		return nil, fmt.Errorf("kvm: vCPU %d: %w", id, err)
	}
	run, err := unix.Mmap(fd, 0, vm.mmapSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("kvm: vCPU %d: mmap of the run page: %w", id, err)
	}
	v := &VCPU{fd: fd, id: id, run: run, inputs: wordAt(run, 0), tid: unix.Gettid()}
	v.initArch(vm)
	return v, nil
}

// Close unmaps the run page and closes the vCPU. Exit values and views of their
// data end here. It must not run at the same time as Run.
func (v *VCPU) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil
	}
	v.closed = true
	run := v.run
	v.run, v.inputs = nil, nil
	return errors.Join(unix.Munmap(run), unix.Close(v.fd))
}

// ID returns the id given to CreateVCPU.
func (v *VCPU) ID() int { return v.id }

// FD returns the file descriptor.
func (v *VCPU) FD() int { return v.fd }

// BindThread declares the calling OS thread, which the goroutine is locked to, to
// be the one that calls Run from now on. Only needed where CreateVCPU ran on
// another thread.
func (v *VCPU) BindThread() {
	v.mu.Lock()
	v.tid = unix.Gettid()
	v.mu.Unlock()
}

// Run enters the guest until it exits to user space (KVM_RUN). A signal or Kick
// gives ExitIntr without an error; so does KVM's EAGAIN, which means "nothing
// happened, run again". The call blocks as any system call: the Go scheduler goes
// on with the other goroutines.
//
// KVM completes port reads, MMIO reads and MSR accesses with what the handler
// stored in the exit's Data when Run is called next.
func (v *VCPU) Run() (Exit, error) {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(v.fd), reqRun.nr, 0)
	switch errno {
	case 0:
		e := Exit{Reason: v.exitReason(), vcpu: v}
		if e.Reason == ExitIO && !v.ioInRange() {
			return e, fmt.Errorf("kvm: vCPU %d: KVM_RUN put port data outside of its mapping", v.id)
		}
		return e, nil
	case unix.EINTR, unix.EAGAIN:
		v.inputs.And(^uint32(immediateExitBit))
		return Exit{Reason: ExitIntr, vcpu: v}, nil
	}
	return Exit{Reason: v.exitReason(), vcpu: v}, fmt.Errorf("kvm: vCPU %d: %w", v.id, os.NewSyscallError(reqRun.name, errno))
}

// Kick makes the vCPU's current or next Run return ExitIntr. Any goroutine may
// call it at any time, after it published what the vCPU shall look at. The
// protocol is in the package documentation. After Close it does nothing.
func (v *VCPU) Kick() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil
	}
	v.inputs.Or(immediateExitBit)
	err := unix.Tgkill(os.Getpid(), v.tid, unix.SIGURG)
	if err == nil || errors.Is(err, unix.ESRCH) { // the thread ended: nothing runs
		return nil
	}
	return fmt.Errorf("kvm: kick of vCPU %d: %w", v.id, os.NewSyscallError("tgkill", err))
}

// SetImmediateExit makes the next Run return ExitIntr before it enters the guest,
// but after it completed the last exit's port, MMIO or MSR access: the way to get
// consistent registers before reading them. Run clears it. Needs CapImmediateExit.
func (v *VCPU) SetImmediateExit(on bool) {
	if on {
		v.inputs.Or(immediateExitBit)
	} else {
		v.inputs.And(^uint32(immediateExitBit))
	}
}

// signalMask is struct kvm_signal_mask with a kernel sigset_t of 64 signals.
type signalMask struct {
	Len    uint32
	Sigset [8]byte
}

// SetSignalMask sets the signals that are blocked while KVM_RUN runs; bit n-1 is
// signal n (KVM_SET_SIGNAL_MASK). It must not block SIGURG if Kick is used.
func (v *VCPU) SetSignalMask(blocked uint64) error {
	m := signalMask{Len: 8}
	for i := range m.Sigset {
		m.Sigset[i] = byte(blocked >> (8 * i))
	}
	return v.check(ioctlPtr(v.fd, reqSetSignalMask, &m))
}

// ClearSignalMask undoes SetSignalMask: KVM_RUN uses the thread's own mask.
func (v *VCPU) ClearSignalMask() error { return v.check(ioctl(v.fd, reqSetSignalMask, 0)) }

// MPState is the run state of a vCPU.
type MPState uint32

// Run states that x86-64 and POWER have.
const (
	MPRunnable      MPState = 0 // KVM_MP_STATE_RUNNABLE
	MPUninitialized MPState = 1 // KVM_MP_STATE_UNINITIALIZED: waits for INIT
	MPInitReceived  MPState = 2 // KVM_MP_STATE_INIT_RECEIVED: waits for SIPI
	MPHalted        MPState = 3 // KVM_MP_STATE_HALTED
	MPSIPIReceived  MPState = 4 // KVM_MP_STATE_SIPI_RECEIVED
	MPStopped       MPState = 5 // KVM_MP_STATE_STOPPED
)

// MPState returns the run state (KVM_GET_MP_STATE).
func (v *VCPU) MPState() (s MPState, err error) {
	err = v.check(ioctlPtr(v.fd, reqGetMPState, &s))
	return s, err
}

// SetMPState sets the run state (KVM_SET_MP_STATE).
func (v *VCPU) SetMPState(s MPState) error { return v.check(ioctlPtr(v.fd, reqSetMPState, &s)) }

// EnableCap switches a capability on for this vCPU, the SynIC for instance
// (KVM_ENABLE_CAP).
func (v *VCPU) EnableCap(c Cap, args ...uint64) error { return doEnableCap(v.fd, c, args) }

// oneRegSize returns the size in bytes that a register id carries: 1 << bits 52 to
// 55 (KVM_REG_SIZE_MASK).
func oneRegSize(id uint64) int { return 1 << (id >> 52 & 0xf) }

// OneReg reads the register with a KVM_REG_* id into value, whose length is the
// size the id carries (KVM_GET_ONE_REG).
func (v *VCPU) OneReg(id uint64, value []byte) error { return v.oneReg(reqGetOneReg, id, value) }

// SetOneReg writes a register (KVM_SET_ONE_REG).
func (v *VCPU) SetOneReg(id uint64, value []byte) error { return v.oneReg(reqSetOneReg, id, value) }

func (v *VCPU) oneReg(req request, id uint64, value []byte) error {
	if want := oneRegSize(id); len(value) != want {
		return fmt.Errorf("kvm: register %#x has %d bytes, not %d", id, want, len(value))
	}
	if _, err := ioctlPtr(v.fd, req, newOneReg(id, value)); err != nil {
		return fmt.Errorf("kvm: vCPU %d: register %#x: %w", v.id, id, err)
	}
	return nil
}

// check gives the error of a vCPU ioctl the vCPU's number.
func (v *VCPU) check(_ int, err error) error {
	if err != nil {
		return fmt.Errorf("kvm: vCPU %d: %w", v.id, err)
	}
	return nil
}
