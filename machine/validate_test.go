// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/govmm/govmm/internal/result"
	"pgregory.net/rapid"
)

// good is a Config that passes; each case breaks one thing of it.
func good() Config {
	return Config{Kernel: "bzImage", Nets: []Net{{Tap: "tap0"}, {Create: true, IP: "10.0.0.1/24"}, {FD: 3}}}
}

func TestValidateRefuses(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*Config)
		want  []string // what the message names: the thing and the cure
	}{
		{"no kernel", func(c *Config) { c.Kernel = "" }, []string{"no kernel", "-k"}},
		{"empty initrd", func(c *Config) { c.Initrds = []string{"a", ""} }, []string{"initrd", "leave"}},
		{"NUL in cmdline", func(c *Config) { c.Append = []string{"a\x00b"} }, []string{"NUL", "remove"}},
		{"entry", func(c *Config) { c.Entry = "linux32" }, []string{"linux32", "auto, linux64 or pvh"}},
		{"CPUs below", func(c *Config) { c.CPUs = -1 }, []string{"-1", "1 to 32"}},
		{"CPUs above", func(c *Config) { c.CPUs = MaxCPUs + 1 }, []string{"33", "1 to 32"}},
		{"memory below", func(c *Config) { c.Memory = MinMemory - MemoryUnit }, []string{"33488896", "32M to 1024G"}},
		{"memory above", func(c *Config) { c.Memory = MaxMemory + MemoryUnit }, []string{"out of range", "1024G"}},
		{"memory, part of a page", func(c *Config) { c.Memory = MinMemory + 4096 }, []string{"pages", "64K"}},
		{"name, character", func(c *Config) { c.Name = "a/b" }, []string{`"a/b"`, "letters"}},
		{"name, first character", func(c *Config) { c.Name = "-a" }, []string{`"-a"`, "begin with"}},
		{"name, not ASCII", func(c *Config) { c.Name = "vé" }, []string{"letters"}},
		{"name, length", func(c *Config) { c.Name = strings.Repeat("x", 65) }, []string{"65", "64"}},
		{"serial mode", func(c *Config) { c.Serial.Mode = "pty" }, []string{"pty", "stdio, file or none"}},
		{"serial file, no path", func(c *Config) { c.Serial.Mode = "file" }, []string{"no path", "file=PATH"}},
		{"serial path without file", func(c *Config) { c.Serial.Path = "x" }, []string{"stdio", "only file"}},
		{"timeout", func(c *Config) { c.Timeout = -time.Second }, []string{"-1s", "10m"}},
		{"on-panic", func(c *Config) { c.OnPanic = "reboot" }, []string{"on-panic", "exit or continue"}},
		{"on-reboot", func(c *Config) { c.OnReboot = "halt" }, []string{"on-reboot", "reboot or exit"}},
		{"NICs", func(c *Config) { c.Nets = make([]Net, MaxNets+1) }, []string{"9 NICs", "8"}},
		{"no tap", func(c *Config) { c.Nets[1] = Net{} }, []string{"net 1", "tap=NAME"}},
		{"two taps", func(c *Config) { c.Nets[0].FD = 9 }, []string{"net 0", "only one of"}},
		{"model", func(c *Config) { c.Nets[0].Model = "e1000" }, []string{"e1000", "virtio"}},
		{"fd of a standard stream", func(c *Config) { c.Nets[2].FD = 2 }, []string{"fd=2", "3 or above"}},
		{"fd negative", func(c *Config) { c.Nets[2].FD = -1 }, []string{"fd=-1", "3 or above"}},
		{"fd with queues", func(c *Config) { c.Nets[2].Queues = 2 }, []string{"queues=2", "queues=1"}},
		{"ip without create", func(c *Config) { c.Nets[0].IP = "10.0.0.1/24" }, []string{"10.0.0.1/24", "ip addr add"}},
		{"tap name, 16 characters", func(c *Config) { c.Nets[0].Tap = "a234567890123456" }, []string{"16 characters", "15"}},
		{"tap name, slash", func(c *Config) { c.Nets[0].Tap = "a/b" }, []string{`"a/b"`, "ip link"}},
		{"tap name, dots", func(c *Config) { c.Nets[0].Tap = ".." }, []string{`".."`}},
		{"tap name, pattern", func(c *Config) { c.Nets[0].Tap = "tap%d" }, []string{"tap%d"}},
		{"mac, syntax", func(c *Config) { c.Nets[0].MAC = "02:00" }, []string{"02:00", "six bytes"}},
		{"mac, EUI-64", func(c *Config) { c.Nets[0].MAC = "02:00:00:00:00:00:00:01" }, []string{"six bytes"}},
		{"mac, group", func(c *Config) { c.Nets[0].MAC = "03:00:00:00:00:01" }, []string{"group", "02"}},
		{"mac, zero", func(c *Config) { c.Nets[0].MAC = "00:00:00:00:00:00" }, []string{"leave it out"}},
		{"mtu below", func(c *Config) { c.Nets[0].MTU = 1279 }, []string{"1279", "1280 to 65535"}},
		{"mtu above", func(c *Config) { c.Nets[0].MTU = 65536 }, []string{"65536", "1280 to 65535"}},
		{"ip, no length", func(c *Config) { c.Nets[1].IP = "10.0.0.1" }, []string{"10.0.0.1", "/24"}},
		{"ip, multicast", func(c *Config) { c.Nets[1].IP = "224.0.0.1/24" }, []string{"can't be"}},
		{"ip, network", func(c *Config) { c.Nets[1].IP = "10.0.0.0/24" }, []string{"10.0.0.1/24"}},
		{"queues", func(c *Config) { c.Nets[0].Queues = 17 }, []string{"17", "1 to 16"}},
		{"ring, not a power of two", func(c *Config) { c.Nets[0].Ring = 300 }, []string{"300", "64 to 4096"}},
		{"ring below", func(c *Config) { c.Nets[0].Ring = 32 }, []string{"32", "power of two"}},
		{"ring above", func(c *Config) { c.Nets[0].Ring = 8192 }, []string{"8192", "power of two"}},
		{"ring negative", func(c *Config) { c.Nets[0].Ring = -64 }, []string{"-64", "power of two"}},
		{"batch", func(c *Config) { c.Nets[0].Batch = 257 }, []string{"257", "1 to 256"}},
		{"busy poll", func(c *Config) { c.Nets[0].BusyPoll = time.Second }, []string{"1s", "100ms"}},
		{"mergeable", func(c *Config) { c.Nets[0].Mergeable = "yes" }, []string{"mergeable", "on or off"}},
		{"offload", func(c *Config) { c.Nets[0].Offload = "tso" }, []string{"offload", "on or off"}},
		{"one tap twice", func(c *Config) { c.Nets[1] = Net{Tap: "tap0"} }, []string{"net 0 and net 1", "tap0"}},
		{"one fd twice", func(c *Config) { c.Nets[1] = Net{FD: 3} }, []string{"net 1 and net 2", "3"}},
		{"one mac twice", func(c *Config) {
			c.Nets[0].MAC = "02:00:00:00:00:0a"
			c.Nets[2].MAC = "02-00-00-00-00-0A"
		}, []string{"net 0 and net 2", "MAC"}},
		{"hyperv", func(c *Config) { c.HyperV = "yes" }, []string{"hyperv", "on or off"}},
		{"netvsc without hyperv", func(c *Config) { c.HyperV, c.Nets[0].Model = "off", "netvsc" }, []string{"netvsc", "hyperv"}},
		{"netvsc, ring", func(c *Config) { c.Nets[0] = Net{Tap: "t", Model: "netvsc", Ring: 256} }, []string{"model=virtio"}},
		{"netvsc, mergeable", func(c *Config) { c.Nets[0] = Net{Tap: "t", Model: "netvsc", Mergeable: "on"} }, []string{"model=virtio"}},
		{"one capture twice", func(c *Config) { c.Nets[0].Pcap, c.Nets[1].Pcap = "x", "x" }, []string{"capture"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := good()
			tt.spoil(&c)
			err := c.Validate()
			var e *result.Error
			if !errors.As(err, &e) || e.Reason != result.Usage {
				t.Fatalf("got %v, want an error of reason usage", err)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q has more than one line", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}

func TestValidateAdmits(t *testing.T) {
	limits := func(spoil func(*Config)) Config {
		c := good()
		spoil(&c)
		return c
	}
	for name, c := range map[string]Config{
		"a kernel alone":  {Kernel: "bzImage"},
		"three NICs":      good(),
		"the defaults":    good().WithDefaults(),
		"least":           limits(func(c *Config) { c.CPUs, c.Memory = 1, MinMemory }),
		"most":            limits(func(c *Config) { c.CPUs, c.Memory = MaxCPUs, MaxMemory }),
		"a /31 network":   limits(func(c *Config) { c.Nets[1].IP = "10.0.0.0/31" }),
		"an IPv6 network": limits(func(c *Config) { c.Nets[1].IP = "fd00::1/64" }),
		"least tuning": limits(func(c *Config) {
			c.Nets[0] = Net{Tap: "a23456789012345", MTU: MinMTU, Queues: 1, Ring: MinRing, Batch: 1, Mergeable: "off", Offload: "off"}
		}),
		"most tuning": limits(func(c *Config) {
			c.Nets[0] = Net{Tap: "t", MTU: MaxMTU, Queues: MaxQueues, Ring: MaxRing, Batch: MaxBatch, BusyPoll: MaxBusyPoll}
		}),
		"Hyper-V without a NIC": {Kernel: "bzImage", HyperV: "on"},
		"netvsc": limits(func(c *Config) {
			c.Nets[0] = Net{Tap: "t", Model: "netvsc", MTU: 9000, Queues: 4, MAC: "02:00:00:00:00:01"}
		}),
		"a file":    limits(func(c *Config) { c.Serial = Serial{Mode: "file", Path: "log"} }),
		"long name": limits(func(c *Config) { c.Name = strings.Repeat("x", MaxName) }),
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWithDefaults(t *testing.T) {
	c := good()
	d := c.WithDefaults()
	if c.Nets[0].MAC != "" {
		t.Error("WithDefaults changed its receiver")
	}
	if d.CPUs != 1 || d.Memory != DefaultMemory || d.Cmdline != DefaultCmdline || d.Entry != "auto" ||
		d.Serial.Mode != "stdio" || d.OnPanic != "exit" || d.OnReboot != "reboot" || d.Name != DefaultName {
		t.Errorf("got %+v", d)
	}
	n := d.Nets[2]
	if n.Model != "virtio" || n.Queues != 1 || n.Ring != 1024 || n.Batch != 64 || n.Mergeable != "on" || n.Offload != "on" || n.FD != 3 {
		t.Errorf("got %+v", n)
	}
	if d.HyperV != "off" {
		t.Errorf("Hyper-V is %s for virtio", d.HyperV)
	}
	if got := (Config{Nets: []Net{{}, {Model: "netvsc"}}}).WithDefaults(); got.HyperV != "on" {
		t.Errorf("Hyper-V is %s for netvsc", got.HyperV)
	}
	if again := d.WithDefaults(); again.Nets[0] != d.Nets[0] || again.Nets[1] != d.Nets[1] {
		t.Errorf("the defaults have other defaults: %+v and %+v", again, d)
	}
}

func TestDeriveMAC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name, tap := rapid.String().Draw(t, "name"), rapid.String().Draw(t, "tap")
		index := rapid.IntRange(0, MaxNets-1).Draw(t, "index")
		mac := DeriveMAC(name, index, tap)
		if len(mac) != 6 || mac[0]&3 != 2 {
			t.Fatalf("%v is not a locally administered unicast address", mac)
		}
		if got := DeriveMAC(name, index, tap); got.String() != mac.String() {
			t.Fatalf("%v, then %v", mac, got)
		}
		if checkMAC(mac.String()) != nil {
			t.Fatalf("%v is refused", mac)
		}
	})
	seen := map[string]bool{}
	for _, name := range []string{"a", "b"} {
		for index := range MaxNets {
			for _, tap := range []string{"", "tap0", "tap1"} {
				seen[DeriveMAC(name, index, tap).String()] = true
			}
		}
	}
	if want := 2 * MaxNets * 3; len(seen) != want {
		t.Errorf("%d addresses for %d NICs", len(seen), want)
	}
	// The address must outlive versions of govmm, because a guest's network
	// configuration may name it. This is the SHA-256 of "govmm\0govmm\0" +
	// "0\0tap0" by another program, its local bit set already.
	if got := DeriveMAC("govmm", 0, "tap0").String(); got != "1e:61:e7:08:9d:40" {
		t.Errorf("the address of govmm's first NIC on tap0 has changed to %s", got)
	}
}
