// SPDX-License-Identifier: Apache-2.0

package probe

import "slices"

// Exit codes of a report.
const (
	CodeOK       = 0   // everything govmm can use is there
	CodeDegraded = 1   // guests run, with something missing
	CodeNo       = 122 // the host can't run guests
)

// Severity says how much a problem matters.
type Severity string

const (
	// Fatal problems keep every guest from running.
	Fatal Severity = "fatal"
	// Degrading problems cost a feature or speed.
	Degrading Severity = "degrading"
)

// Problem is something that is missing, and what to do about it.
type Problem struct {
	Severity Severity `json:"severity"`
	What     string   `json:"what"`
	Cure     string   `json:"cure"`
}

// Report is all that govmm wants to know about a host.
type Report struct {
	OK       bool      `json:"ok"`   // Linux guests run
	Exit     int       `json:"code"` // Code
	Kernel   string    `json:"kernel"`
	CPU      CPU       `json:"cpu"`
	KVM      KVM       `json:"kvm"`
	Net      Net       `json:"net"`
	Memory   Memory    `json:"memory"`
	Limits   Limits    `json:"limits"`
	Problems []Problem `json:"problems"`
}

// CPU describes the processors.
type CPU struct {
	Model      string `json:"model"`
	Online     int    `json:"online"`     // logical processors
	Usable     int    `json:"usable"`     // of which this process may use
	Extension  string `json:"extension"`  // vmx, svm or empty
	Hypervisor bool   `json:"hypervisor"` // this host is a virtual machine itself
}

// Device is a device node.
type Device struct {
	Path       string `json:"path"`
	Present    bool   `json:"present"`
	Mode       string `json:"mode,omitempty"` // octal permissions
	Group      string `json:"group,omitempty"`
	Accessible bool   `json:"accessible"` // it opens for reading and writing
	Error      string `json:"error,omitempty"`
}

// KVM describes /dev/kvm and what is behind it.
type KVM struct {
	Device       Device       `json:"device"`
	Modules      []string     `json:"modules"` // loaded or built in
	Nested       bool         `json:"nested"`  // guests may use KVM themselves
	APIVersion   int          `json:"api_version,omitempty"`
	Verdict      Verdict      `json:"verdict"`
	HyperV       *Verdict     `json:"hyperv,omitempty"` // whether a guest can have NICs on a VMBus; nil: not asked
	Capabilities []Capability `json:"capabilities,omitempty"`
}

// Capability is one line of the capability table.
type Capability struct {
	Name  string `json:"name"`  // in words
	Cap   string `json:"cap"`   // the kernel's name
	Value int    `json:"value"` // 0: no; 1: yes, or a count, size or mask
	Need  Need   `json:"need"`
}

// Need says what govmm does with a capability.
type Need string

const (
	Required Need = "required" // no guest runs without it
	Wanted   Need = "wanted"   // some feature is lost without it
	Optional Need = "optional" // good to know
)

// Net describes what there is for guest networking.
type Net struct {
	Tun      Device   `json:"tun"`
	Features []string `json:"features,omitempty"` // TUNGETFEATURES
	CanMake  string   `json:"create_tap"`         // yes, no or unknown
	USO      string   `json:"uso"`                // UDP segmentation offload: yes, no or unknown
	VHostNet Device   `json:"vhost_net"`
}

// Memory describes the host's memory; sizes are in bytes.
type Memory struct {
	Total     uint64     `json:"total"`
	Available uint64     `json:"available"`
	PageSize  int        `json:"page_size"`
	THP       string     `json:"thp"` // always, madvise, never or empty
	HugePages []HugePage `json:"huge_pages,omitempty"`
}

// HugePage is one size of reserved huge pages.
type HugePage struct {
	Size  uint64 `json:"size"` // bytes
	Total uint64 `json:"total"`
	Free  uint64 `json:"free"`
}

// Unlimited is the value of a limit that does not exist.
const Unlimited = ^uint64(0)

// Limits are this process's resource limits.
type Limits struct {
	OpenFiles    uint64 `json:"open_files"`
	LockedMemory uint64 `json:"locked_memory"` // bytes
}

// Code is the exit code the report stands for.
func (r *Report) Code() int {
	switch {
	case !r.OK:
		return CodeNo
	case len(r.Problems) > 0:
		return CodeDegraded
	}
	return CodeOK
}

// add appends a problem.
func (r *Report) add(s Severity, what, cure string) {
	r.Problems = append(r.Problems, Problem{Severity: s, What: what, Cure: cure})
}

// finish sorts fatal problems to the front and sets what follows from them.
func (r *Report) finish() {
	slices.SortStableFunc(r.Problems, func(a, b Problem) int {
		return rank(a.Severity) - rank(b.Severity)
	})
	r.OK = !slices.ContainsFunc(r.Problems, func(p Problem) bool { return p.Severity == Fatal })
	r.Exit = r.Code()
}

func rank(s Severity) int {
	if s == Fatal {
		return 0
	}
	return 1
}
