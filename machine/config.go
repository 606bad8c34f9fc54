// SPDX-License-Identifier: Apache-2.0

// Package machine runs one virtual machine from its configuration to the reason
// of its end.
package machine

import (
	"io"
	"time"
)

// Config is all of a VM. It is plain data: the command line, a TOML file and a
// Go caller fill the same fields. The zero value of a field means its default.
type Config struct {
	Name    string   `json:"name" toml:"name"`
	Kernel  string   `json:"kernel" toml:"kernel"`   // bzImage, ELF vmlinux, or a kernel build folder
	Initrds []string `json:"initrds" toml:"initrds"` // concatenated in this order; none: govmm's own image
	// Cmdline replaces the default kernel command line if not empty; Append is
	// added to either, in order, separated by spaces.
	Cmdline string   `json:"cmdline" toml:"cmdline"`
	Append  []string `json:"append" toml:"append"`
	// Entry is how the kernel is entered: auto, linux64 or pvh.
	Entry  string `json:"entry" toml:"entry"`
	CPUs   int    `json:"cpus" toml:"cpus"`     // 1 to MaxCPUs
	Memory uint64 `json:"memory" toml:"memory"` // bytes
	Nested bool   `json:"nested" toml:"nested"` // show svm/vmx to the guest
	// HyperV shows the guest Hyper-V with a VMBus instead of KVM: on or off; empty:
	// on if a NIC needs it.
	HyperV string `json:"hyperv" toml:"hyperv"`

	Nets   []Net  `json:"net" toml:"net"`
	Serial Serial `json:"serial" toml:"serial"`

	Timeout  time.Duration `json:"timeout" toml:"timeout"`     // 0: none
	OnPanic  string        `json:"on_panic" toml:"on_panic"`   // exit or continue
	OnReboot string        `json:"on_reboot" toml:"on_reboot"` // reboot or exit
}

// Limits of a VM.
const (
	MaxCPUs   = 32
	MinMemory = 32 << 20 // bytes
	MaxNets   = 8
)

// Defaults of a Config.
const (
	DefaultCmdline = "console=ttyS0"
	DefaultMemory  = 512 << 20
)

// Net is one NIC and its backend. Exactly one of Tap, Create and FD says which
// tap: an existing one by name, one that govmm makes and removes, or one that is
// already open.
type Net struct {
	Model  string `json:"model" toml:"model"`             // virtio, or netvsc: Hyper-V's
	Tap    string `json:"tap,omitempty" toml:"tap"`       // name of an existing tap
	Create bool   `json:"create,omitempty" toml:"create"` // make a tap, remove it at the end
	FD     int    `json:"fd,omitempty" toml:"fd"`         // an open tap's file descriptor, > 2
	IP     string `json:"ip,omitempty" toml:"ip"`         // with Create: the host's address on the tap, CIDR
	MAC    string `json:"mac,omitempty" toml:"mac"`       // the guest's; empty: derived from the VM's and the NIC's name
	MTU    int    `json:"mtu,omitempty" toml:"mtu"`       // bytes; 0: the tap's
	Queues int    `json:"queues,omitempty" toml:"queues"` // queue pairs, 1 to 16
	// Ring is the largest ring size, 64 to 4096, a power of two; it and Mergeable are
	// virtio's. Mergeable and Offload can be switched off to compare: on or off.
	Ring      int    `json:"ring,omitempty" toml:"ring"`
	Mergeable string `json:"mergeable,omitempty" toml:"mergeable"`
	Offload   string `json:"offload,omitempty" toml:"offload"`
	// Batch is the number of frames after which used buffers are published, 1 to
	// 256; BusyPoll is how long a queue's thread spins before it sleeps.
	Batch    int           `json:"batch,omitempty" toml:"batch"`
	BusyPoll time.Duration `json:"busy_poll,omitempty" toml:"busy_poll"`
	Pcap     string        `json:"pcap,omitempty" toml:"pcap"` // capture file
}

// Serial is the first serial port.
type Serial struct {
	Mode string `json:"mode" toml:"mode"`           // stdio, file or none
	Path string `json:"path,omitempty" toml:"path"` // with file
}

// Streams are what a VM with Serial mode stdio is connected to. In may be nil.
// A read from In that ends does not end the VM.
type Streams struct {
	In  io.Reader
	Out io.Writer
}
