// SPDX-License-Identifier: Apache-2.0

package baremetal

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/kvm"
)

// Guest physical addresses. Linear addresses are the same: page tables map the
// first and the fourth GiB one to one, writable and for user mode too.
const (
	MemSize  = 2 << 20   // bytes of memory from address 0
	CodeAddr = 0x10000   // where the snippet starts
	CodeSize = 0x8000    // bytes a snippet may have
	StackTop = 0x20000   // initial RSP
	DataAddr = 0x30000   // free for the snippet, up to MemSize
	MMIOAddr = 0x8000000 // mapped in the page tables, but not memory

	pml4Addr = 0x1000
	pdptAddr = 0x2000
	pd0Addr  = 0x3000 // 0 to 1 GiB
	pd3Addr  = 0x4000 // 3 to 4 GiB: local APIC and IOAPIC
	gdtAddr  = 0x5000
	idtAddr  = 0x6000
	tssAddr  = 0x8000

	// tssLimit covers the 104 bytes of the TSS, a permission bit for each of 65536
	// ports and the byte of ones that ends them (Intel SDM volume 1, section
	// 19.5.2). All bits are 0, so every port is allowed.
	tssLimit    = ioMapOffset + 1<<16/8
	ioMapField  = 0x66
	ioMapOffset = 0x68
)

// Level is the privilege level the snippet starts at.
type Level uint8

const (
	// Kernel is CPL 0.
	Kernel Level = 0
	// User is CPL 3 with all ports allowed, by IOPL 3 and by the TSS: kvm_pvm, a KVM
	// without hardware virtualization, loses IOPL. It runs User natively and Kernel
	// by emulation.
	User Level = 3
)

// Options are what a machine has besides memory and a vCPU.
type Options struct {
	Level    Level
	IRQChip  bool         // PICs, IOAPIC and local APIC in the kernel
	SplitIRQ bool         // local APIC alone in the kernel
	MemFlags kvm.MemFlags // of the memory slot, which is slot 0
	// XSave sets CR4.OSXSAVE and enables x87 and SSE state in XCR0; the CPU must
	// have XSAVE.
	XSave bool
	// Handlers are the entry points of exceptions and interrupts by vector, called
	// at CPL 0 on the interrupted stack if Level is Kernel.
	Handlers map[uint8]uint64
}

// Machine is a virtual machine ready to run its snippet.
type Machine struct {
	VM  *kvm.VM
	CPU *kvm.VCPU
	Mem []byte // guest memory from address 0, MemSize bytes
}

// New makes a machine with the snippet at CodeAddr. The caller has locked its
// goroutine to its OS thread (see package kvm) and closes the machine.
func New(sys *kvm.System, code []byte, o Options) (*Machine, error) {
	if len(code) > CodeSize {
		return nil, fmt.Errorf("baremetal: %d bytes of code, at most %d fit", len(code), CodeSize)
	}
	m := &Machine{}
	if err := m.build(sys, code, o); err != nil {
		m.Close()
		return nil, fmt.Errorf("baremetal: %w", err)
	}
	return m, nil
}

func (m *Machine) build(sys *kvm.System, code []byte, o Options) (err error) {
	if m.VM, err = sys.CreateVM(); err != nil {
		return err
	}
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if m.Mem, err = unix.Mmap(-1, 0, MemSize, prot, flags); err != nil {
		return fmt.Errorf("guest memory: %w", err)
	}
	if err := m.VM.SetUserMemory(0, o.MemFlags, 0, m.Mem); err != nil {
		return err
	}
	if err := m.createIRQChip(o); err != nil {
		return err
	}
	if m.CPU, err = m.VM.CreateVCPU(0); err != nil {
		return err
	}
	cpuid, err := sys.SupportedCPUID()
	if err != nil {
		return err
	}
	if err := m.CPU.SetCPUID(cpuid); err != nil {
		return err
	}
	m.writeTables(o)
	copy(m.Mem[CodeAddr:], code)
	return m.Reset(o)
}

func (m *Machine) createIRQChip(o Options) error {
	switch {
	case o.IRQChip:
		return m.VM.CreateIRQChip()
	case o.SplitIRQ:
		return m.VM.EnableSplitIRQChip(kvm.IOAPICPins)
	}
	return nil
}

// Close frees the machine.
func (m *Machine) Close() error {
	var errs []error
	if m.CPU != nil {
		errs = append(errs, m.CPU.Close())
	}
	if m.VM != nil {
		errs = append(errs, m.VM.Close())
	}
	if m.Mem != nil {
		errs = append(errs, unix.Munmap(m.Mem))
	}
	*m = Machine{}
	return errors.Join(errs...)
}

// put64 stores a quadword in guest memory.
func (m *Machine) put64(addr, x uint64) { binary.LittleEndian.PutUint64(m.Mem[addr:], x) }

// writeTables fills in page tables, descriptor tables and interrupt gates (Intel
// SDM volume 3, sections 4.5, 3.4.5 and 6.14.1).
func (m *Machine) writeTables(o Options) {
	const (
		present, write, user, large = 1 << 0, 1 << 1, 1 << 2, 1 << 7
		table                       = present | write | user
	)
	m.put64(pml4Addr, pdptAddr|table)
	m.put64(pdptAddr+0*8, pd0Addr|table)
	m.put64(pdptAddr+3*8, pd3Addr|table)
	for i := range uint64(512) {
		m.put64(pd0Addr+i*8, i<<21|table|large)
		m.put64(pd3Addr+i*8, 3<<30|i<<21|table|large)
	}
	for sel, desc := range map[uint64]uint64{
		kernelCS: 0x00af9b000000ffff, kernelSS: 0x00cf93000000ffff,
		userSS &^ 3: 0x00cff3000000ffff, userCS &^ 3: 0x00affb000000ffff,
	} {
		m.put64(gdtAddr+sel, desc)
	}
	binary.LittleEndian.PutUint16(m.Mem[tssAddr+ioMapField:], ioMapOffset)
	m.Mem[tssAddr+tssLimit] = 0xff
	for vector, addr := range o.Handlers {
		const gate = 0x8e << 40 // present, DPL 0, interrupt gate
		m.put64(idtAddr+uint64(vector)*16, addr>>16&0xffff<<48|gate|kernelCS<<16|addr&0xffff)
		m.put64(idtAddr+uint64(vector)*16+8, addr>>32)
	}
}

// Selectors in the descriptor table, in the order that syscall and sysret want.
const (
	kernelCS = 0x08
	kernelSS = 0x10
	userSS   = 0x18 | 3
	userCS   = 0x20 | 3
	tssSel   = 0x28
)

// Reset puts the registers back to where the snippet starts.
func (m *Machine) Reset(o Options) error {
	if err := m.resetSRegs(o); err != nil {
		return err
	}
	if o.XSave {
		const x87, sse = 1 << 0, 1 << 1
		if err := m.CPU.SetXCRs([]kvm.XCR{{XCR: 0, Value: x87 | sse}}); err != nil {
			return err
		}
	}
	regs := kvm.Regs{RIP: CodeAddr, RSP: StackTop, RFLAGS: 1 << 1}
	if o.Level == User {
		regs.RFLAGS |= 3 << 12 // IOPL
	}
	return m.CPU.SetRegs(regs)
}

// resetSRegs enters 64-bit mode at the wanted level.
func (m *Machine) resetSRegs(o Options) error {
	const (
		cr0PE, cr0MP, cr0ET, cr0NE, cr0WP, cr0PG = 1 << 0, 1 << 1, 1 << 4, 1 << 5, 1 << 16, 1 << 31
		cr4PAE, cr4OSFXSR, cr4OSXMM, cr4OSXSAVE  = 1 << 5, 1 << 9, 1 << 10, 1 << 18
		eferSCE, eferLME, eferLMA                = 1 << 0, 1 << 8, 1 << 10
	)
	s, err := m.CPU.SRegs()
	if err != nil {
		return err
	}
	code := kvm.Segment{Limit: 0xffffffff, Selector: kernelCS, Type: 11, Present: 1, S: 1, L: 1, G: 1}
	data := kvm.Segment{Limit: 0xffffffff, Selector: kernelSS, Type: 3, Present: 1, S: 1, DB: 1, G: 1}
	if o.Level == User {
		code.Selector, code.DPL = userCS, 3
		data.Selector, data.DPL = userSS, 3
	}
	s.CS, s.DS, s.ES, s.FS, s.GS, s.SS = code, data, data, data, data, data
	s.TR = kvm.Segment{Base: tssAddr, Limit: tssLimit, Selector: tssSel, Type: 11, Present: 1}
	s.LDT = kvm.Segment{Type: 2, Present: 1}
	s.GDT = kvm.DTable{Base: gdtAddr, Limit: 0x37}
	s.IDT = kvm.DTable{Base: idtAddr}
	if len(o.Handlers) > 0 {
		s.IDT.Limit = 256*16 - 1
	}
	s.CR0, s.CR3 = cr0PE|cr0MP|cr0ET|cr0NE|cr0WP|cr0PG, pml4Addr
	s.CR4 = cr4PAE | cr4OSFXSR | cr4OSXMM
	if o.XSave {
		s.CR4 |= cr4OSXSAVE
	}
	s.EFER = eferSCE | eferLME | eferLMA
	return m.CPU.SetSRegs(s)
}
