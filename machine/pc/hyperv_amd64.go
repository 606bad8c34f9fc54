// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/kvm"
)

// The Hyper-V personality: what a guest finds in CPUID instead of KVM (TLFS,
// "Feature and Interface Discovery"). A KVM signature at any base would win over
// Hyper-V's in Linux, which takes the highest, so there is none.
const (
	leafHyperVFirst        = 0x4000_0000
	leafHyperVInterface    = 0x4000_0001
	leafHyperVFeatures     = 0x4000_0003
	leafHyperVRecommends   = 0x4000_0004
	leafHyperVLimits       = 0x4000_0005
	leafHypervisorsLast    = 0x4fff_ffff // hypervisors' leaves end here
	hypervSignatureEBX     = 0x7263694d  // "Micr"
	hypervSignatureECX     = 0x666f736f  // "osof"
	hypervSignatureEDX     = 0x76482074  // "t Hv"
	hypervSpinRetriesNever = 0xffff_ffff // leaf 4, EBX: long spins are not reported

	// Leaf 3, EAX: partition privileges.
	privRefCount   = 1 << 1  // HV_X64_MSR_TIME_REF_COUNT
	privSynIC      = 1 << 2  // SynIC MSRs
	privAPICAccess = 1 << 4  // VP assist page, which Linux 6.1 sets up without a look
	privHypercall  = 1 << 5  // hypercall MSRs
	privVPIndex    = 1 << 6  // HV_X64_MSR_VP_INDEX
	privRefTSC     = 1 << 9  // reference TSC page
	privFrequency  = 1 << 11 // TSC and APIC frequency MSRs
	// There are no synthetic timers: without direct mode they would share the
	// VMBus's message slot. Linux uses the LAPIC's timer.

	// Leaf 3, EBX: further privileges.
	privPostMessages = 1 << 4
	privSignalEvents = 1 << 5

	// Leaf 3, EDX.
	featureFrequency = 1 << 8 // the frequency MSRs are there

	// Leaf 4, EAX: recommendations.
	adviseRelaxedTiming = 1 << 5
	adviseNoAutoEOI     = 1 << 9 // auto-EOI is deprecated; it would disable APICv and AVIC
)

// What the guest is shown, as far as KVM has it.
const (
	hypervPrivileges     = privRefCount | privSynIC | privAPICAccess | privHypercall | privVPIndex | privRefTSC | privFrequency
	hypervMorePrivileges = privPostMessages | privSignalEvents
)

// hypervLeaves makes the leaves of the personality from those that KVM supports.
func hypervLeaves(supported kvm.CPUID) kvm.CPUID {
	var out kvm.CPUID
	for _, e := range supported {
		switch e.Function {
		case leafHyperVFirst:
			e.EAX = leafHyperVLimits
			e.EBX, e.ECX, e.EDX = hypervSignatureEBX, hypervSignatureECX, hypervSignatureEDX
		case leafHyperVFeatures:
			e.EAX &= hypervPrivileges
			e.EBX &= hypervMorePrivileges
			e.ECX = 0
			e.EDX &= featureFrequency
		case leafHyperVRecommends:
			e.EAX = adviseRelaxedTiming | adviseNoAutoEOI
			e.EBX, e.ECX, e.EDX = hypervSpinRetriesNever, 0, 0
		}
		if e.Function <= leafHyperVLimits {
			out = append(out, e)
		}
	}
	return out
}

// hyperv is the VMBus and what connects it with KVM: a synthetic interrupt of
// each vCPU as a GSI with an eventfd, and eventfds for connections.
type hyperv struct {
	vm      *kvm.VM
	log     *slog.Logger
	bus     *vmbus.Bus
	sint    []int // eventfds by vCPU
	ack     int   // eventfd: vCPU 0 has acknowledged
	enforce bool  // KVM can hold the guest to its privileges
}

var _ vmbus.Host = (*hyperv)(nil)

// newHyperV makes the VMBus with its devices.
func (b *Board) newHyperV(cfg Config) error {
	h := &hyperv{vm: b.vm, log: b.log, ack: -1}
	b.dev.hyperv = h
	enforce, err := cfg.System.CheckExtension(kvm.CapHyperVEnforceCPUID)
	if err != nil {
		return err
	}
	h.enforce = enforce > 0
	if h.ack, err = newEventFD(); err != nil {
		return err
	}
	for range cfg.CPUs {
		fd, err := newEventFD()
		if err != nil {
			return err
		}
		h.sint = append(h.sint, fd)
	}
	h.bus = vmbus.New(vmbus.Config{Memory: b.mem, VPs: cfg.CPUs, Host: h, Log: b.log})
	for _, d := range cfg.VMBus {
		if err := h.bus.Add(d); err != nil {
			return err
		}
	}
	return nil
}

func newEventFD() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return fd, os.NewSyscallError("eventfd", err)
}

// setUpCPU gives a vCPU its SynIC, and the privileges that its CPUID says and no
// others.
func (h *hyperv) setUpCPU(v *kvm.VCPU) error {
	if err := v.EnableCap(kvm.CapHyperVSynIC2); err != nil {
		return err
	}
	if h.enforce {
		return v.EnableCap(kvm.CapHyperVEnforceCPUID, 1)
	}
	return nil
}

// connect routes the interrupts, once every vCPU has its SynIC.
//
// KVM reports acknowledgements of one GSI for each source, and only of one that
// was attached with a resample eventfd. Every end of interrupt on vCPU 0 signals
// it, but nobody looks unless a message waits. The other vCPUs' are plain: the
// guest takes messages on vCPU 0 as a rule, and the bus tries again by time.
func (h *hyperv) connect() error {
	if err := h.vm.SetGSIRouting(h.routes()); err != nil {
		return err
	}
	for i, fd := range h.sint {
		opts := kvm.IRQFDOptions{}
		if i == 0 {
			opts = kvm.IRQFDOptions{Resample: true, ResampleFD: h.ack}
		}
		if err := h.vm.IRQFD(fd, gsiSINTBase+uint32(i), opts); err != nil {
			return err
		}
	}
	return nil
}

// routes is KVM's own table, which a new one replaces, and the SINTs.
func (h *hyperv) routes() (routes []kvm.Route) {
	for pin := range uint32(kvm.IOAPICPins) {
		routes = append(routes, kvm.Route{GSI: pin, Target: kvm.IRQChipRoute{Chip: kvm.IRQChipIOAPIC, Pin: pin}})
		switch {
		case pin < picPins:
			routes = append(routes, kvm.Route{GSI: pin, Target: kvm.IRQChipRoute{Chip: kvm.IRQChipPICMaster, Pin: pin}})
		case pin < 2*picPins:
			routes = append(routes, kvm.Route{GSI: pin, Target: kvm.IRQChipRoute{Chip: kvm.IRQChipPICSlave, Pin: pin - picPins}})
		}
	}
	for i := range uint32(len(h.sint)) {
		routes = append(routes, kvm.Route{GSI: gsiSINTBase + i, Target: kvm.HyperVSINTRoute{VCPU: i, SINT: vmbus.SINT}})
	}
	return routes
}

// one is what is added to an eventfd. It is here because a race detector's build
// would allocate it for each interrupt.
var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// Inject implements vmbus.Host.
func (h *hyperv) Inject(vp uint32) {
	// Fails only if the counter is full, when the interrupt is on its way.
	_, _ = unix.Write(h.sint[vp], one)
}

// Connect implements vmbus.Host.
func (h *hyperv) Connect(connection uint32, fd int) error {
	return h.vm.HyperVEventFD(connection, fd)
}

// Disconnect implements vmbus.Host.
func (h *hyperv) Disconnect(connection uint32, _ int) error {
	return h.vm.HyperVEventFD(connection, -1)
}

// AckFD implements vmbus.Host.
func (h *hyperv) AckFD() int { return h.ack }

// exit answers an exit of the Hyper-V emulation; ok is false for one that the
// guest has no privilege to cause.
func (h *hyperv) exit(vcpu int, e kvm.Exit) (ok bool) {
	switch x := e.HyperV(); x.Type {
	case kvm.HyperVSynIC:
		h.bus.WriteSynIC(uint32(vcpu), x.SynIC.Control, x.SynIC.MsgPage, x.SynIC.EventPage)
	case kvm.HyperVHypercall:
		e.SetHyperVResult(h.bus.Hypercall(x.Hypercall.Input, x.Hypercall.Params))
	default:
		return false
	}
	return true
}

// stop ends the bus's work, and tells what it has done.
func (h *hyperv) stop() {
	h.bus.Stop()
	h.log.Info("counters", "bus", "vmbus", "counters", h.bus.Counters())
}

// close frees what it holds. Nothing runs.
func (h *hyperv) close() error {
	var errs []error
	if h.bus != nil {
		if err := h.bus.Close(); err != nil {
			errs = append(errs, fmt.Errorf("VMBus: %w", err))
		}
	}
	for _, fd := range append(h.sint, h.ack) {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}
