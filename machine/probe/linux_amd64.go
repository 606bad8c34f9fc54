// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/govmm/govmm/kvm"
	"github.com/govmm/govmm/kvm/baremetal"
)

// experiment is a snippet of kernel-mode code that writes passed to donePort if
// the processor did what its manual says.
type experiment struct {
	name     string
	code     string
	handlers map[uint8]uint64 // vector to address
	xsave    bool             // needs XSAVE
}

const (
	donePort = 0x80
	passed   = 1

	// breakpointHandler is the address of the handler at the end of a snippet.
	breakpointHandler = baremetal.CodeAddr + 0x10
	breakpointVector  = 3

	cpuidFeatures = 1
	ecxXSave      = 1 << 26 // CPUID.1:ECX
)

// experiments are instructions that every x86-64 Linux kernel runs on its way to
// user space.
var experiments = []experiment{
	{
		// The slab allocator's fast path.
		name: "lock cmpxchg16b",
		code: "\xbf\x00\x00\x03\x00" + // mov  edi, DataAddr
			"\x31\xc0\x31\xd2" + // xor  eax, eax; xor edx, edx
			"\xbb\x01\x00\x00\x00" + // mov  ebx, 1
			"\xb9\x02\x00\x00\x00" + // mov  ecx, 2
			"\xf0\x48\x0f\xc7\x0f" + // lock cmpxchg16b [rdi]
			"\x0f\x94\xc0" + // setz al
			"\xe6\x80" + // out  donePort, al
			"\xf4", // hlt
	},
	{
		// Context switches of the FPU state.
		name:  "xsave and xrstor",
		xsave: true,
		code: "\xbf\x00\x00\x03\x00" + // mov edi, DataAddr
			"\xb8\x03\x00\x00\x00\x31\xd2" + // mov eax, 3; xor edx, edx (x87 and SSE)
			"\x0f\xae\x27" + // xsave  [rdi]
			"\x0f\xae\x2f" + // xrstor [rdi]
			"\xb0\x01\xe6\x80" + // mov al, 1; out donePort, al
			"\xf4", // hlt
	},
	{
		// The self-test of code patching.
		name:     "int3 and iretq",
		handlers: map[uint8]uint64{breakpointVector: breakpointHandler},
		code: "\x31\xc0" + // xor eax, eax
			"\xcc" + // int3
			"\xe6\x80\xf4" + // out donePort, al; hlt
			"\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90" + // up to breakpointHandler
			"\xb0\x01" + // mov al, 1
			"\x48\xcf", // iretq
	},
}

// timeLimit bounds one experiment. It takes well under a second even where both
// the host and its KVM are emulated.
const timeLimit = 10 * time.Second

// Linux runs each experiment in a VM of its own. An error means that the question
// could not be answered because KVM refused to make or run a VM.
func Linux(sys *kvm.System) (Verdict, error) {
	cpuid, err := sys.SupportedCPUID()
	if err != nil {
		return Verdict{}, fmt.Errorf("probe: %w", err)
	}
	v := Verdict{OK: true}
	for _, e := range experiments {
		if leaf := cpuid.Find(cpuidFeatures, 0); e.xsave && (leaf == nil || leaf.ECX&ecxXSave == 0) {
			v.Detail = append(v.Detail, e.name+": KVM does not offer it")
			continue
		}
		out, err := e.run(sys, timeLimit)
		if err != nil {
			return Verdict{}, fmt.Errorf("probe: test guest for %s: %w", e.name, err)
		}
		v.OK = v.OK && out == ""
		if out == "" {
			out = "works"
		}
		v.Detail = append(v.Detail, e.name+": "+out)
	}
	v.explain(os.DirFS("/"))
	return v, nil
}

// explain fills in reason and cure.
func (v *Verdict) explain(root fs.FS) {
	if v.OK {
		v.Reason = "kernel-mode code runs"
		return
	}
	module := "an unknown KVM module"
	if m := kvmModules(root); len(m) > 0 {
		module = strings.Join(m, ", ")
	}
	v.Reason = fmt.Sprintf("the KVM of this host (%s) emulates kernel-mode instructions and cannot run Linux", module)
	v.Cure = "use a host with kvm_intel or kvm_amd; in a virtual machine, have its owner switch on nested virtualization"
}

// run carries out the experiment within limit and returns "", or what went wrong in
// the guest.
func (e experiment) run(sys *kvm.System, limit time.Duration) (string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m, err := baremetal.New(sys, []byte(e.code), baremetal.Options{
		Level: baremetal.Kernel, XSave: e.xsave, Handlers: e.handlers,
	})
	if err != nil {
		return "", err
	}
	defer m.Close()
	var late atomic.Bool
	cpu := m.CPU
	timer := time.AfterFunc(limit, func() {
		late.Store(true)
		cpu.Kick()
	})
	defer timer.Stop()
	return watch(cpu, &late)
}

// watch runs the vCPU until the experiment is decided; late says that it took too
// long.
func watch(cpu *kvm.VCPU, late *atomic.Bool) (string, error) {
	for {
		exit, err := cpu.Run()
		switch {
		case err != nil:
			return "", err
		case exit.Reason == kvm.ExitIntr && late.Load():
			return "no result in time", nil
		case exit.Reason == kvm.ExitIntr:
			continue
		case exit.Reason == kvm.ExitIO:
			if out := exit.IO(); !out.In && out.Port == donePort && out.Data[0] == passed {
				return "", nil
			}
		}
		return exit.String(), nil
	}
}
