// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/govmm/govmm/kvm"
)

func files(content map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, text := range content {
		fsys[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o444}
	}
	return fsys
}

func TestCPU(t *testing.T) {
	for name, c := range map[string]struct {
		cpuinfo string
		want    CPU
	}{
		"intel": {
			"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Some CPU @ 2.0GHz: fast\nflags\t\t: fpu vmx lm\n\n" +
				"processor\t: 1\nmodel name\t: Some CPU @ 2.0GHz: fast\nflags\t\t: fpu vmx lm\n",
			CPU{Model: "Some CPU @ 2.0GHz: fast", Online: 2, Extension: "vmx"},
		},
		"amd guest": {
			"processor\t: 0\nmodel name\t: EPYC\nflags\t\t: fpu svm hypervisor lm\n",
			CPU{Model: "EPYC", Online: 1, Extension: "svm", Hypervisor: true},
		},
		"no extension": { // "svm_lock" and "not_vmx" are other flags
			"processor\t: 0\nmodel name\t: X\nflags\t\t: svm_lock not_vmx\n",
			CPU{Model: "X", Online: 1},
		},
		"power": {
			"processor\t: 0\ncpu\t\t: POWER9 (architected)\nclock\t\t: 2.2GHz\n\nprocessor\t: 1\ncpu\t\t: POWER9 (architected)\n\ntimebase\t: 512000000\n",
			CPU{Model: "POWER9 (architected)", Online: 2},
		},
		"nothing": {"", CPU{}},
	} {
		got := probeCPU(files(map[string]string{"proc/cpuinfo": c.cpuinfo}))
		got.Usable = 0 // depends on this machine
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
	if got := probeCPU(fstest.MapFS{}); got.Usable < 1 {
		t.Errorf("without /proc: %+v", got)
	}
}

func TestMemory(t *testing.T) {
	got := probeMemory(files(map[string]string{
		"proc/meminfo": "MemTotal:       24732424 kB\nMemFree:        1 kB\nMemAvailable:    1024 kB\nHugepagesize: 2048 kB\n",
		"sys/kernel/mm/transparent_hugepage/enabled":                 "always [madvise] never\n",
		"sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages":   "1\n",
		"sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages": "0\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":      "64\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages":    "60\n",
	}))
	want := Memory{
		Total: 24732424 << 10, Available: 1 << 20, PageSize: os.Getpagesize(), THP: "madvise",
		HugePages: []HugePage{{Size: 2 << 20, Total: 64, Free: 60}, {Size: 1 << 30, Total: 1}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, bad := range []string{"", "MemTotal", "MemTotal: kB", "MemTotal: -5 kB", "MemTotal: 99999999999999999999999 kB"} {
		if m := probeMemory(files(map[string]string{"proc/meminfo": bad})); m.Total != 0 || m.THP != "" || m.HugePages != nil {
			t.Errorf("meminfo %q: %+v", bad, m)
		}
	}
}

func TestModules(t *testing.T) {
	for _, c := range []struct {
		files  []string
		nested string
		want   []string
		is     bool
	}{
		{nil, "", nil, false},
		{[]string{"kvm"}, "", []string{"kvm"}, false},
		{[]string{"kvm", "kvm_amd"}, "1\n", []string{"kvm_amd"}, true},
		{[]string{"kvm", "kvm_intel"}, "Y\n", []string{"kvm_intel"}, true},
		{[]string{"kvm", "kvm_intel"}, "N\n", []string{"kvm_intel"}, false},
		{[]string{"kvm", "kvm_pvm"}, "", []string{"kvm_pvm"}, false},
	} {
		content := map[string]string{}
		for _, m := range c.files {
			content["sys/module/"+m+"/refcnt"] = "0\n"
			if c.nested != "" && m != "kvm" {
				content["sys/module/"+m+"/parameters/nested"] = c.nested
			}
		}
		root := files(content)
		if got := kvmModules(root); !slices.Equal(got, c.want) {
			t.Errorf("%v: modules %v, want %v", c.files, got, c.want)
		}
		if got := nested(root); got != c.is {
			t.Errorf("%v: nested %t, want %t", c.files, got, c.is)
		}
	}
}

func TestDevice(t *testing.T) {
	root := fstest.MapFS{"dev/kvm": {Mode: fs.ModeDevice | fs.ModeCharDevice | 0o660, Sys: &syscall.Stat_t{Gid: 987654}}}
	if got, want := probeDevice(root, "/dev/kvm"), (Device{Path: "/dev/kvm", Present: true, Mode: "0660", Group: "987654"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := probeDevice(root, "/dev/vhost-net"), (Device{Path: "/dev/vhost-net"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestKVMErrorIsSplitInReasonAndCure(t *testing.T) {
	_, err := kvm.Open(filepath.Join(t.TempDir(), "kvm"))
	if err == nil {
		t.Fatal("opened")
	}
	if r := kvmReason(err); strings.Contains(r, "modprobe") || !strings.Contains(r, "no such file") {
		t.Errorf("reason %q", r)
	}
	if c := kvmCure(err); !strings.Contains(c, "modprobe") {
		t.Errorf("cure %q", c)
	}
	if c := kvmCure(errors.New("kvm: odd")); c == "" {
		t.Error("no cure at all")
	}
}

// TestHostWithoutKVM looks for KVM where there is none, and where something else is.
func TestHostWithoutKVM(t *testing.T) {
	for name, cure := range map[string]string{filepath.Join(t.TempDir(), "kvm"): "modprobe", "/dev/null": kvm.DefaultPath} {
		var r Report
		r.probeKVM(os.DirFS("/"), name)
		r.finish()
		if r.Code() != CodeNo || r.KVM.Device.Accessible || len(r.Problems) != 1 {
			t.Fatalf("%s: %+v", name, r)
		}
		if p := r.Problems[0]; !strings.Contains(p.What, "KVM can't be used") || !strings.Contains(p.Cure, cure) {
			t.Errorf("%s: %+v", name, p)
		}
		if r.KVM.Verdict.Reason != r.Problems[0].What || r.KVM.Device.Error == "" {
			t.Errorf("%s: %+v", name, r.KVM)
		}
	}
}

// good is the report of a host where nothing is missing.
func good() Report {
	ok := Device{Path: "/dev/x", Present: true, Mode: "0660", Group: "kvm", Accessible: true}
	tun := ok
	tun.Path = tunPath
	r := Report{
		Kernel: "6.12.1",
		CPU:    CPU{Model: "Good CPU", Online: 8, Usable: 4, Extension: "vmx"},
		KVM: KVM{
			Device: ok, Modules: []string{"kvm_intel"}, Nested: true, APIVersion: 12,
			Verdict:      Verdict{OK: true, Reason: "kernel-mode code runs", Detail: []string{"int3 and iretq: works"}},
			Capabilities: []Capability{{Name: "irqfd", Cap: "KVM_CAP_IRQFD", Value: 1, Need: Required}, {Name: "clock", Cap: "KVM_CAP_ADJUST_CLOCK", Value: 14, Need: Wanted}},
		},
		Net:      Net{Tun: tun, Features: []string{"tap", "vnet_hdr", "multi_queue"}, CanMake: yes, USO: no, VHostNet: Device{Path: vhostNetPath}},
		Memory:   Memory{Total: 16 << 30, Available: 8 << 30, PageSize: 4096, THP: "always"},
		Limits:   Limits{OpenFiles: 1024, LockedMemory: Unlimited},
		Problems: []Problem{},
	}
	return r
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Report)
		code   int
		says   string // in the problem
		cure   string // in its cure
	}{
		"good":              {func(*Report) {}, CodeOK, "", ""},
		"no irqfd":          {func(r *Report) { r.KVM.Capabilities[0].Value = 0 }, CodeNo, "irqfd (KVM_CAP_IRQFD)", "newer kernel"},
		"no clock":          {func(r *Report) { r.KVM.Capabilities[1].Value = 0 }, CodeDegraded, "clock", "newer kernel"},
		"no tun":            {func(r *Report) { r.Net.Tun = Device{Path: tunPath} }, CodeDegraded, "no /dev/net/tun", "modprobe tun"},
		"forbidden tun":     {func(r *Report) { r.Net.Tun.Accessible = false; r.Net.Tun.Error = "permission denied" }, CodeDegraded, "permission denied", "chmod 666"},
		"old tun":           {func(r *Report) { r.Net.Features = []string{"tap"} }, CodeDegraded, "no vnet headers", "kernel"},
		"single queue tun":  {func(r *Report) { r.Net.Features = []string{"tap", "vnet_hdr"} }, CodeDegraded, "multiple queues", "kernel"},
		"few files":         {func(r *Report) { r.Limits.OpenFiles = 64 }, CodeDegraded, "64 files", "ulimit -n"},
		"little memory":     {func(r *Report) { r.Memory.Available = 100 << 20 }, CodeDegraded, "100 MiB", "-m"},
		"unlimited files":   {func(r *Report) { r.Limits.OpenFiles = Unlimited }, CodeOK, "", ""},
		"KVM can't run it":  {func(r *Report) { r.add(Fatal, "kvm_pvm", "kvm_amd") }, CodeNo, "kvm_pvm", "kvm_amd"},
		"unknown memory":    {func(r *Report) { r.Memory = Memory{} }, CodeOK, "", ""},
		"no vhost-net":      {func(r *Report) { r.Net.VHostNet = Device{Path: vhostNetPath} }, CodeOK, "", ""},
		"net not looked at": {func(r *Report) { r.Net = Net{} }, CodeOK, "", ""},
	} {
		r := good()
		c.change(&r)
		r.judge()
		r.finish()
		if r.Code() != c.code || r.Exit != c.code || r.OK != (c.code != CodeNo) {
			t.Errorf("%s: code %d, exit %d, ok %t, want %d", name, r.Code(), r.Exit, r.OK, c.code)
		}
		var text strings.Builder
		if err := r.WriteText(&text); err != nil {
			t.Error(err)
		}
		if c.says == "" {
			if len(r.Problems) != 0 {
				t.Errorf("%s: problems %+v", name, r.Problems)
			}
			continue
		}
		if len(r.Problems) != 1 || !strings.Contains(r.Problems[0].What, c.says) || !strings.Contains(r.Problems[0].Cure, c.cure) {
			t.Errorf("%s: problems %+v", name, r.Problems)
		}
		if !strings.Contains(text.String(), ": "+r.Problems[0].What+"\n    cure: "+r.Problems[0].Cure+"\n") {
			t.Errorf("%s: the text does not show problem and cure:\n%s", name, &text)
		}
	}
}

func TestFatalProblemsComeFirst(t *testing.T) {
	r := good()
	r.add(Degrading, "a", "")
	r.add(Fatal, "b", "")
	r.add(Degrading, "c", "")
	r.finish()
	var order []string
	for _, p := range r.Problems {
		order = append(order, p.What)
	}
	if !slices.Equal(order, []string{"b", "a", "c"}) {
		t.Errorf("order %v", order)
	}
}

const goodText = `This host runs Linux guests.

kernel         6.12.1
cpu            Good CPU, 8 online, 4 usable, vmx
kvm            /dev/x, mode 0660, group kvm
kvm modules    kvm_intel
nested kvm     yes
test guest     int3 and iretq: works
tun            /dev/net/tun, mode 0660, group kvm
tun features   tap vnet_hdr multi_queue
make a tap     yes
tap uso        no
vhost-net      /dev/vhost-net does not exist
memory         16 GiB, 8 GiB available
page size      4 KiB
thp            always
open files     1024
locked memory  unlimited

irqfd  yes  required
clock  14   wanted
`

func TestWriteText(t *testing.T) {
	r := good()
	r.judge()
	r.finish()
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if b.String() != goodText {
		t.Errorf("got:\n%s\nwant:\n%s", &b, goodText)
	}
	var empty Report
	empty.finish()
	if err := empty.WriteText(&b); err != nil {
		t.Error(err)
	}
	if err := r.WriteText(brokenWriter{}); err == nil {
		t.Error("a failing writer goes unnoticed")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("full") }

func TestBytesText(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 2 << 20: "2 MiB", 1 << 40: "1 TiB", 1<<64 - 1: "16 EiB",
	} {
		if got := bytesText(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

// TestHost looks at this machine: what it says must fit together.
func TestHost(t *testing.T) {
	r := Host(context.Background())
	if r.Kernel == "" || r.CPU.Online < 1 || r.CPU.Usable < 1 || r.Memory.Total == 0 || r.Limits.OpenFiles == 0 {
		t.Errorf("%+v", r)
	}
	if !r.KVM.Device.Accessible || r.KVM.APIVersion != 12 || r.KVM.Verdict.Reason == "" || len(r.KVM.Capabilities) < 20 {
		t.Errorf("%+v", r.KVM)
	}
	if !r.Net.Tun.Accessible || !slices.Contains(r.Net.Features, "vnet_hdr") || r.Net.CanMake != yes || r.Net.USO == unknown {
		t.Errorf("%+v", r.Net)
	}
	if r.OK != r.KVM.Verdict.OK {
		t.Errorf("ok %t, verdict %+v, problems %+v", r.OK, r.KVM.Verdict, r.Problems)
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(data, &back); err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("JSON does not give the report back (%v):\n%s", err, data)
	}
	for _, key := range []string{`"ok":`, `"code":`, `"verdict":`, `"capabilities":`, `"problems":[`, `"uso":`} {
		if !strings.Contains(string(data), key) {
			t.Errorf("JSON lacks %s", key)
		}
	}
}

func TestHostInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r := Host(ctx)
	if r.Code() != CodeNo || len(r.Problems) != 1 || !strings.Contains(r.Problems[0].What, "interrupted") {
		t.Errorf("%+v", r.Problems)
	}
}

// TestNoTapStays checks that the temporary tap is gone.
func TestNoTapStays(t *testing.T) {
	probeNet(os.DirFS("/"))
	list, err := filepath.Glob("/sys/class/net/gvprobe*")
	if err != nil || len(list) != 0 {
		t.Errorf("taps %v stay (%v)", list, err)
	}
}
