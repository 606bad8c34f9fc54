// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"fmt"
	"io"
	"math/bits"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteText writes the report for people: the verdict first, then each problem
// with its cure, then what was found.
func (r *Report) WriteText(w io.Writer) error {
	b := &strings.Builder{}
	r.writeVerdict(b)
	r.writeFacts(b)
	r.writeCapabilities(b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) writeVerdict(b *strings.Builder) {
	switch r.Code() {
	case CodeOK:
		b.WriteString("This host runs Linux guests.\n")
	case CodeDegraded:
		b.WriteString("This host runs Linux guests, with something missing:\n")
	default:
		b.WriteString("This host can't run Linux guests:\n")
	}
	for _, p := range r.Problems {
		fmt.Fprintf(b, "  %s: %s\n    cure: %s\n", p.Severity, p.What, p.Cure)
	}
}

// writeFacts writes one line per fact.
func (r *Report) writeFacts(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	line := func(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }
	fmt.Fprintln(t)
	line("kernel", r.Kernel)
	line("cpu", r.CPU.text())
	line("kvm", r.KVM.Device.text())
	line("kvm modules", orNone(strings.Join(r.KVM.Modules, " ")))
	line("nested kvm", yesNo(r.KVM.Nested))
	for _, d := range r.KVM.Verdict.Detail {
		line("test guest", d)
	}
	if v := r.KVM.HyperV; v != nil {
		line("hyperv guests", v.text())
	}
	line("tun", r.Net.Tun.text())
	line("tun features", orNone(strings.Join(r.Net.Features, " ")))
	line("make a tap", r.Net.CanMake)
	line("tap uso", r.Net.USO)
	line("vhost-net", r.Net.VHostNet.text())
	line("memory", fmt.Sprintf("%s, %s available", bytesText(r.Memory.Total), bytesText(r.Memory.Available)))
	line("page size", bytesText(uint64(r.Memory.PageSize)))
	line("thp", orNone(r.Memory.THP))
	for _, h := range r.Memory.HugePages {
		line("huge pages", fmt.Sprintf("%s: %d, %d free", bytesText(h.Size), h.Total, h.Free))
	}
	line("open files", limitText(r.Limits.OpenFiles, func(n uint64) string { return strconv.FormatUint(n, 10) }))
	line("locked memory", limitText(r.Limits.LockedMemory, bytesText))
	t.Flush()
}

func (r *Report) writeCapabilities(b *strings.Builder) {
	if len(r.KVM.Capabilities) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t)
	for _, c := range r.KVM.Capabilities {
		fmt.Fprintf(t, "%s\t%s\t%s\n", c.Name, c.valueText(), c.Need)
	}
	t.Flush()
}

func (c *Capability) valueText() string {
	switch c.Value {
	case 0:
		return no
	case 1:
		return yes
	}
	return strconv.Itoa(c.Value)
}

func (v *Verdict) text() string {
	if v.OK {
		return yes
	}
	return no + ": " + v.Reason
}

func (c *CPU) text() string {
	s := fmt.Sprintf("%s, %d online, %d usable, %s", orNone(c.Model), c.Online, c.Usable, cmp.Or(c.Extension, "no vmx or svm"))
	if c.Hypervisor {
		s += ", in a virtual machine"
	}
	return s
}

func (d *Device) text() string {
	switch {
	case !d.Present:
		return d.Path + " does not exist"
	case d.Accessible:
		return fmt.Sprintf("%s, mode %s, group %s", d.Path, d.Mode, d.Group)
	}
	return fmt.Sprintf("%s, mode %s, group %s, not accessible: %s", d.Path, d.Mode, d.Group, orNone(d.Error))
}

func yesNo(b bool) string {
	if b {
		return yes
	}
	return no
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func limitText(n uint64, text func(uint64) string) string {
	if n == Unlimited {
		return "unlimited"
	}
	return text(n)
}

// bytesText writes a size in the largest binary unit that leaves a number below
// 1024, with one decimal unless it is whole.
func bytesText(n uint64) string {
	const units = "BKMGTPE"
	i := max(bits.Len64(n)-1, 0) / 10
	if i == 0 {
		return strconv.FormatUint(n, 10) + " B"
	}
	x := float64(n) / float64(uint64(1)<<(10*i))
	s := strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0")
	return s + " " + units[i:i+1] + "iB"
}
