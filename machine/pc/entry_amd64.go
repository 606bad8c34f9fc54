// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"github.com/govmm/govmm/boot"
	"github.com/govmm/govmm/kvm"
)

// enter puts the state that the boot protocol asks for into the first vCPU.
// The rest stays as KVM resets it.
func enter(v *kvm.VCPU, e boot.Entry) error {
	s, err := v.SRegs()
	if err != nil {
		return err
	}
	s.CS, s.TR = segment(e.Code), segment(e.Task)
	data := segment(e.Data)
	s.DS, s.ES, s.FS, s.GS, s.SS = data, data, data, data, data
	s.GDT = kvm.DTable{Base: e.GDT.Base, Limit: e.GDT.Limit}
	s.IDT = kvm.DTable{}
	s.CR0, s.CR3, s.CR4, s.EFER = e.CR0, e.CR3, e.CR4, e.EFER
	if err := v.SetSRegs(s); err != nil {
		return err
	}
	return v.SetRegs(kvm.Regs{RIP: e.RIP, RSP: e.RSP, RSI: e.RSI, RBX: e.RBX, RFLAGS: e.RFLAGS})
}

func segment(s boot.Segment) kvm.Segment {
	return kvm.Segment{
		Base: s.Base, Limit: s.Limit, Selector: s.Selector, Type: s.Type, DPL: s.DPL,
		Present: flag(s.P), S: flag(s.S), L: flag(s.L), DB: flag(s.DB), G: flag(s.G),
	}
}

func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
