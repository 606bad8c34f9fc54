// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/boot"
	"github.com/govmm/govmm/devices/virtio"
	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/internal/bus"
	"github.com/govmm/govmm/internal/guestmem"
	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/kvm"
)

// Config is what a board is made of.
type Config struct {
	System *kvm.System
	Log    *slog.Logger
	CPUs   int
	Memory uint64 // bytes
	Nested bool

	Kernel  *boot.Kernel
	Entry   string // as boot.Params.Entry
	Cmdline string
	Initrds []boot.Source

	Console Console
	Virtio  []VirtioDevice
	// HyperV shows the guest Hyper-V instead of KVM, with the devices of VMBus. The
	// host's KVM has what probe.HyperV asks for.
	HyperV bool
	VMBus  []vmbus.Device
	// OnPanic is called, on a vCPU's thread, when the guest reports a panic
	// through the pvpanic device.
	OnPanic func()
}

// VirtioDevice is a virtio device and the name that messages call it by.
type VirtioDevice struct {
	Name   string
	Device virtio.Device
}

// Board is one VM from power-on to its first reset or power-off.
type Board struct {
	log   *slog.Logger
	vm    *kvm.VM
	mem   *guestmem.Memory
	mmio  *bus.Bus
	pio   *bus.Bus
	model cpuModel
	lay   layout
	entry boot.Entry
	cpus  []*cpu
	dev   devices

	stopping atomic.Bool
	once     sync.Once
	ended    chan struct{}
	result   result.Result // valid once ended is closed
}

// New builds the board and loads the kernel. Nothing runs yet.
func New(cfg Config) (*Board, error) {
	b := &Board{log: cfg.Log, ended: make(chan struct{}), pio: bus.New(nil)}
	if err := b.build(cfg); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Board) build(cfg Config) error {
	if err := b.makeModel(cfg); err != nil {
		return err
	}
	lay, err := newLayout(cfg.Memory, b.model.physBits())
	if err != nil {
		return result.Errorf(result.Host, "%w: use less memory", err)
	}
	b.lay = lay
	if err := b.makeVM(cfg.System); err != nil {
		return result.Errorf(result.Host, "make the VM: %w", err)
	}
	if err := b.makeMemory(); err != nil {
		return result.Errorf(result.Host, "%w", err)
	}
	b.mmio = bus.New(doorbells{b.vm, b.log})
	if err := b.addDevices(cfg); err != nil {
		return err
	}
	rsdp, err := b.writeACPI()
	if err != nil {
		return err
	}
	b.entry, err = cfg.Kernel.Load(b.mem, boot.Params{
		Entry:   cfg.Entry,
		Cmdline: cfg.Cmdline,
		Initrds: cfg.Initrds,
		E820:    b.memoryMap(),
		RSDP:    rsdp,
	})
	return err
}

func (b *Board) makeModel(cfg Config) error {
	base, err := cfg.System.SupportedCPUID()
	if err != nil {
		return result.Errorf(result.Host, "ask KVM for its CPU features: %w", err)
	}
	deadline, err := cfg.System.CheckExtension(kvm.CapTSCDeadlineTimer)
	if err != nil {
		return result.Errorf(result.Host, "ask KVM for its timer: %w", err)
	}
	limit, err := cfg.System.CheckExtension(kvm.CapMaxVCPUs)
	if err != nil {
		return result.Errorf(result.Host, "ask KVM for its limits: %w", err)
	}
	if cfg.CPUs > limit {
		return result.Errorf(result.Host, "%d vCPUs: this host's KVM has at most %d; use fewer", cfg.CPUs, limit)
	}
	b.model = cpuModel{base: base, cpus: cfg.CPUs, nested: cfg.Nested, tscDeadline: deadline > 0}
	if cfg.HyperV {
		leaves, err := cfg.System.SupportedHyperVCPUID()
		if err != nil {
			return result.Errorf(result.Host, "ask KVM for its Hyper-V features: %w", err)
		}
		b.model.hyperv = hypervLeaves(leaves)
	}
	return nil
}

func (b *Board) makeVM(sys *kvm.System) error {
	vm, err := sys.CreateVM()
	if err != nil {
		return err
	}
	b.vm = vm
	if err := vm.SetIdentityMapAddr(identityMapAddr); err != nil {
		return err
	}
	if err := vm.SetTSSAddr(tssAddr); err != nil {
		return err
	}
	if err := vm.CreateIRQChip(); err != nil {
		return err
	}
	return vm.CreatePIT2(kvm.PITSpeakerDummy)
}

func (b *Board) makeMemory() error {
	mem, err := guestmem.New(b.lay.ram...)
	if err != nil {
		return err
	}
	b.mem = mem
	// Huge pages save the host's and the guest's page walks; a host without them
	// runs the guest all the same.
	if err := mem.Advise(unix.MADV_HUGEPAGE); err != nil {
		b.log.Debug("no huge pages for guest memory", "err", err)
	}
	for i, r := range mem.Regions() {
		if err := b.vm.SetUserMemoryRegion(uint32(i), 0, r.GPA, r.Size, r.HostAddr()); err != nil {
			return err
		}
	}
	return nil
}

// memoryMap is the E820 map: RAM without what the firmware of a PC keeps, and
// PCI's configuration space, which Linux uses only if it is reserved.
func (b *Board) memoryMap() []boot.E820Entry {
	reserved := append(boot.LowReserved(), boot.E820Entry{
		Range: guestmem.Range{GPA: ecamBase, Size: ecamSize}, Type: boot.E820Reserved,
	})
	return boot.E820(b.lay.ram, reserved...)
}

// Run runs the guest until it ends, ctx is done or End is called, and returns
// why. When it returns no vCPU and no device runs any more.
func (b *Board) Run(ctx context.Context) result.Result {
	threads, start, quit, err := b.startCPUs()
	if err != nil {
		close(quit)
		threads.Wait()
		return result.OfError(result.Errorf(result.Host, "%w", err))
	}
	devices := b.dev.start(ctx)
	close(start)
	select {
	case <-b.ended:
	case <-ctx.Done():
		b.End(result.OfContext(ctx))
		<-b.ended
	}
	b.stopping.Store(true)
	for _, c := range b.cpus {
		if err := c.vcpu.Kick(); err != nil {
			b.log.Error("kick", "vcpu", c.id, "err", err)
		}
	}
	threads.Wait()
	devices()
	return b.result
}

// startCPUs makes every vCPU on its own thread. They run once start is closed.
func (b *Board) startCPUs() (threads *sync.WaitGroup, start, quit chan struct{}, err error) {
	threads = new(sync.WaitGroup)
	start, quit = make(chan struct{}), make(chan struct{})
	for id := range b.model.cpus {
		c := &cpu{id: id, board: b}
		b.cpus = append(b.cpus, c)
		ready := make(chan error, 1)
		threads.Go(func() { c.thread(b.entry, ready, start, quit) })
		if err := <-ready; err != nil {
			return threads, start, quit, err
		}
	}
	if b.dev.hyperv != nil {
		err = b.dev.hyperv.connect()
	}
	return threads, start, quit, err
}

// End ends the run with r, if it is the first reason to end.
func (b *Board) End(r result.Result) { b.end(r) }

func (b *Board) end(r result.Result) {
	b.once.Do(func() {
		b.result = r
		close(b.ended)
	})
}

// Close frees what the board holds. It must not run.
func (b *Board) Close() error {
	errs := []error{b.dev.close()}
	if b.vm != nil {
		errs = append(errs, b.vm.Close())
	}
	if b.mem != nil {
		errs = append(errs, b.mem.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the board: %w", err)
	}
	return nil
}
