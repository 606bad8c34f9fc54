// SPDX-License-Identifier: Apache-2.0

// Package kvm is the Linux KVM interface (/dev/kvm) in Go types.
//
// It holds no policy: every method is one ioctl, named after it, and its
// comment gives the kernel's constant. Documentation/virt/kvm/api.rst of the
// Linux kernel is the specification. Numbers, layouts and state that exist on
// x86-64 only are in files named *_amd64.go; the rest also builds for ppc64le.
//
// # Threads
//
// A vCPU belongs to one OS thread: the kernel expects KVM_CREATE_VCPU, KVM_RUN
// and the register calls on the same thread, and Kick needs to know which
// thread to signal. So a vCPU's goroutine calls runtime.LockOSThread first, then
// CreateVCPU, then runs its loop, and Close last. A caller that must create all
// vCPUs in one place calls BindThread at the start of each vCPU's goroutine.
// Only Kick may be called from other goroutines at any time.
//
// # Interrupted system calls
//
// The Go runtime sends SIGURG to its threads to preempt goroutines, so every
// ioctl may return EINTR. Set-up calls are repeated here, in one place. KVM_RUN
// is not: EINTR and EAGAIN make Run return Exit{Reason: ExitIntr}, a normal
// return.
//
// # Kicking a vCPU out of the guest
//
// Kick makes the vCPU's Run return soon. The protocol:
//
//  1. The caller publishes what it wants in memory that the vCPU goroutine
//     reads (an atomic flag, a queue under a mutex).
//  2. The caller calls Kick. It stores immediate_exit = 1 with an atomic
//     operation, then sends SIGURG to the vCPU's thread.
//  3. If the thread is in KVM_RUN, the signal makes KVM_RUN return EINTR. If it
//     is between two KVM_RUN calls, immediate_exit makes the next one return
//     EINTR at once. No kick is lost between "check the flag" and "enter".
//  4. Run, and nobody else, clears immediate_exit, each time KVM_RUN returned
//     EINTR or EAGAIN; then it returns ExitIntr, and the caller reads its flag.
//
// Thus each Kick is followed by at least one return of Run with ExitIntr that
// happens after what the caller published; several kicks may share one. The
// signal is SIGURG because the Go runtime already has a handler for it that
// tolerates signals it did not send: no signal.Notify is needed.
package kvm
