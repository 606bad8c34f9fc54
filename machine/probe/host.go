// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/kvm"
)

// Host looks at this host. It makes short-lived VMs and, where it may, a
// short-lived tap. What it can't find out it leaves empty; a context that ends
// shortens the report.
func Host(ctx context.Context) Report {
	root := os.DirFS("/")
	r := Report{Kernel: kernelRelease(), Problems: []Problem{}}
	r.CPU = probeCPU(root)
	r.Memory = probeMemory(root)
	r.Limits = probeLimits()
	steps := []func(){
		func() { r.probeKVM(root, kvm.DefaultPath) },
		func() { r.Net = probeNet(root) },
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			r.add(Fatal, "the probe was interrupted: "+err.Error(), "run it again")
			break
		}
		step()
	}
	r.judge()
	r.finish()
	return r
}

// probeKVM opens the device and asks KVM everything.
func (r *Report) probeKVM(root fs.FS, name string) {
	k := &r.KVM
	k.Device = probeDevice(root, name)
	k.Modules = kvmModules(root)
	k.Nested = nested(root)
	sys, err := kvm.Open(name)
	if err != nil {
		k.Device.Error = kvmReason(err)
		k.Verdict = Verdict{Reason: "KVM can't be used: " + kvmReason(err), Cure: kvmCure(err)}
		r.add(Fatal, k.Verdict.Reason, k.Verdict.Cure)
		return
	}
	defer sys.Close()
	k.Device.Accessible = true
	k.APIVersion = kvm.APIVersion
	if k.Capabilities, err = capabilities(sys.CheckExtension); err != nil {
		r.add(Fatal, err.Error(), "report this with the kernel's version")
		return
	}
	if k.Verdict, err = Linux(sys); err != nil {
		k.Verdict = Verdict{Reason: err.Error(), Cure: "see dmesg for what KVM says"}
	}
	if v, err := HyperV(sys.CheckExtension); err == nil && runtime.GOARCH == "amd64" {
		k.HyperV = &v
	}
	if !k.Verdict.OK {
		r.add(Fatal, k.Verdict.Reason, k.Verdict.Cure)
	}
}

// kvmReason and kvmCure are the two halves of an error of kvm.Open, which has the
// form "reason; cure".
func kvmReason(err error) string {
	reason, _, _ := strings.Cut(err.Error(), "; ")
	return strings.TrimPrefix(reason, "kvm: ")
}

func kvmCure(err error) string {
	if _, cure, ok := strings.Cut(err.Error(), "; "); ok {
		return cure
	}
	return "see dmesg for what KVM says"
}

// Least values below which a guest or a feature gets in trouble.
const (
	minOpenFiles = 256       // eventfds of a VM with eight NICs of sixteen queue pairs
	minMemory    = 512 << 20 // bytes: the default guest
)

// judge adds the problems that follow from what was found.
func (r *Report) judge() {
	for _, c := range r.KVM.Capabilities {
		switch {
		case c.Value > 0:
		case c.Need == Required:
			r.add(Fatal, fmt.Sprintf("KVM lacks %s (%s)", c.Name, c.Cap), "use a newer kernel")
		case c.Need == Wanted:
			r.add(Degrading, fmt.Sprintf("KVM lacks %s (%s)", c.Name, c.Cap), "use a newer kernel")
		}
	}
	r.judgeNet()
	if n := r.Limits.OpenFiles; n < minOpenFiles {
		r.add(Degrading, fmt.Sprintf("only %d files may be open", n), "ulimit -n 1024")
	}
	if n := r.Memory.Available; n > 0 && n < minMemory {
		r.add(Degrading, fmt.Sprintf("only %s of memory are available", bytesText(n)), "run guests with less memory (-m), or free some")
	}
}

// judgeNet adds the problems of guest networking.
func (r *Report) judgeNet() {
	tun := r.Net.Tun
	switch {
	case tun.Path == "": // not looked at
	case !tun.Present:
		r.add(Degrading, "no "+tun.Path+": no tap networking", "modprobe tun")
	case !tun.Accessible:
		r.add(Degrading, tun.Path+" can't be opened: "+tun.Error, "chmod 666 "+tun.Path+" (the kernel checks each tap's owner anyway)")
	case !slices.Contains(r.Net.Features, "vnet_hdr"):
		r.add(Degrading, "tap has no vnet headers: no offloads", "use a newer kernel")
	case !slices.Contains(r.Net.Features, "multi_queue"):
		r.add(Degrading, "tap has no multiple queues", "use a newer kernel")
	}
}

// kernelRelease is uname -r.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// probeCPU reads /proc/cpuinfo.
func probeCPU(root fs.FS) CPU {
	c := CPU{Usable: runtime.NumCPU()}
	data, _ := fs.ReadFile(root, "proc/cpuinfo")
	for sc := bufio.NewScanner(bytes.NewReader(data)); sc.Scan(); {
		key, value, _ := strings.Cut(sc.Text(), ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "processor":
			c.Online++
		case "model name", "cpu": // x86, POWER
			c.Model = value
		case "flags":
			c.setFlags(strings.Fields(value))
		}
	}
	return c
}

func (c *CPU) setFlags(flags []string) {
	c.Hypervisor = slices.Contains(flags, "hypervisor")
	for _, ext := range []string{"vmx", "svm"} {
		if slices.Contains(flags, ext) {
			c.Extension = ext
		}
	}
}

// kvmModules lists kvm's modules but for the common part, if there is another.
func kvmModules(root fs.FS) []string {
	dirs, _ := fs.Glob(root, "sys/module/kvm*")
	var names []string
	for _, d := range dirs {
		if name := path.Base(d); name != "kvm" {
			names = append(names, name)
		}
	}
	if len(names) == 0 && len(dirs) > 0 {
		return []string{"kvm"}
	}
	return names
}

// nested reports whether any KVM module lets guests use KVM.
func nested(root fs.FS) bool {
	files, _ := fs.Glob(root, "sys/module/kvm*/parameters/nested")
	return slices.ContainsFunc(files, func(f string) bool {
		s := readWord(root, f)
		return s == "Y" || s == "1"
	})
}

// readWord reads a small file without its newline; "" if that fails.
func readWord(root fs.FS, name string) string {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// probeDevice looks at a device node without opening it.
func probeDevice(root fs.FS, name string) Device {
	d := Device{Path: name}
	info, err := fs.Stat(root, strings.TrimPrefix(name, "/"))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.Error = err.Error()
		}
		return d
	}
	d.Present = true
	d.Mode = fmt.Sprintf("%#o", uint32(info.Mode().Perm()))
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		d.Group = groupName(st.Gid)
	}
	return d
}

// groupName is the group's name, or its number if it has none.
func groupName(gid uint32) string {
	id := strconv.FormatUint(uint64(gid), 10)
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}

// probeMemory reads /proc/meminfo and /sys/kernel/mm.
func probeMemory(root fs.FS) Memory {
	m := Memory{PageSize: os.Getpagesize()}
	info, _ := fs.ReadFile(root, "proc/meminfo")
	m.Total = meminfoField(info, "MemTotal")
	m.Available = meminfoField(info, "MemAvailable")
	if _, rest, ok := strings.Cut(readWord(root, "sys/kernel/mm/transparent_hugepage/enabled"), "["); ok {
		m.THP, _, _ = strings.Cut(rest, "]")
	}
	dirs, _ := fs.Glob(root, "sys/kernel/mm/hugepages/hugepages-*kB")
	for _, dir := range dirs {
		m.HugePages = append(m.HugePages, HugePage{
			Size:  1024 * number(strings.TrimSuffix(strings.TrimPrefix(path.Base(dir), "hugepages-"), "kB")),
			Total: number(readWord(root, dir+"/nr_hugepages")),
			Free:  number(readWord(root, dir+"/free_hugepages")),
		})
	}
	slices.SortFunc(m.HugePages, func(a, b HugePage) int {
		if a.Size < b.Size {
			return -1
		}
		return 1
	})
	return m
}

// meminfoField returns a line of /proc/meminfo in bytes, 0 if it is not there.
func meminfoField(info []byte, key string) uint64 {
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == key {
			return 1024 * number(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		}
	}
	return 0
}

// number parses a decimal number; 0 if it is none.
func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// probeLimits asks for this process's limits.
func probeLimits() Limits {
	return Limits{OpenFiles: limit(unix.RLIMIT_NOFILE), LockedMemory: limit(unix.RLIMIT_MEMLOCK)}
}

// limit returns a resource's soft limit; RLIM_INFINITY is Unlimited.
func limit(resource int) uint64 {
	var r unix.Rlimit
	if unix.Getrlimit(resource, &r) != nil {
		return 0
	}
	return r.Cur
}
