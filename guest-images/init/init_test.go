// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseCommandLine(t *testing.T) {
	c := parseCommandLine("console=ttyS0 quiet govmm.ip=10.0.0.2/24 govmm.ip=dhcp,dev=eth1 " +
		"name=\"two words\" \"whole=word here\" panic=-1 -- sh -c \"echo a  b\" \"\" x=y -- z\n")
	for name, want := range map[string][]string{
		"console":  {"ttyS0"},
		"govmm.ip": {"10.0.0.2/24", "dhcp,dev=eth1"},
		"name":     {"two words"},
		"whole":    {"word here"},
		"panic":    {"-1"},
		"quiet":    nil,
		"x":        nil, // of the command
	} {
		if got := c.values[name]; !slices.Equal(got, want) {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if want := []string{"sh", "-c", "echo a  b", "", "x=y", "--", "z"}; !slices.Equal(c.command, want) {
		t.Errorf("command %q, want %q", c.command, want)
	}
	if c.last("govmm.ip") != "dhcp,dev=eth1" || c.last("none") != "" {
		t.Errorf("last: %q, %q", c.last("govmm.ip"), c.last("none"))
	}
}

func TestParseCommandLineWithoutCommand(t *testing.T) {
	for _, text := range []string{"", "\n", "quiet", "quiet --", "a=--b", "\"--x\""} {
		if c := parseCommandLine(text); len(c.command) != 0 {
			t.Errorf("%q: command %q", text, c.command)
		}
	}
}

func FuzzParseCommandLine(f *testing.F) {
	f.Add("console=ttyS0 a=\"b c\" -- sh -c \"x y\"")
	f.Add("\"")
	f.Add("-- --")
	f.Fuzz(func(t *testing.T, text string) {
		c := parseCommandLine(text)
		for name := range c.values {
			if strings.Contains(name, "=") {
				t.Errorf("name %q", name)
			}
		}
		if _, err := parseAddresses(c); err == nil && len(c.values["govmm.ip"]) > 0 {
			for _, value := range c.values["govmm.ip"] {
				if a, err := parseAddress(value); err != nil || !a.dhcp && a.network == nil {
					t.Errorf("%q: %+v, %v", value, a, err)
				}
			}
		}
	})
}

// String describes an address for comparison.
func (a address) String() string {
	return fmt.Sprintf("dev=%s dhcp=%v net=%v gw=%v", a.device, a.dhcp, a.network, a.gateway)
}

func TestParseAddress(t *testing.T) {
	for value, want := range map[string]string{
		"10.0.0.2/24":                      "dev= dhcp=false net=10.0.0.2/24 gw=<nil>",
		"10.0.0.2/24,gw=10.0.0.1":          "dev= dhcp=false net=10.0.0.2/24 gw=10.0.0.1",
		"10.0.0.2/30,dev=eth1,gw=10.0.0.1": "dev=eth1 dhcp=false net=10.0.0.2/30 gw=10.0.0.1",
		"fd00::2/64,gw=fd00::1":            "dev= dhcp=false net=fd00::2/64 gw=fd00::1",
		"dhcp":                             "dev= dhcp=true net=<nil> gw=<nil>",
		"dhcp,dev=eth2":                    "dev=eth2 dhcp=true net=<nil> gw=<nil>",
	} {
		if got, err := parseAddress(value); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v; want %s", value, got, err, want)
		}
	}
	for _, value := range []string{"", "10.0.0.2", "10.0.0.2/33", "x/24", "10.0.0.2/24,gw=x", "dhcp,metric=3"} {
		if got, err := parseAddress(value); err == nil {
			t.Errorf("%q was accepted: %v", value, got)
		}
	}
}

func TestParseKernelAddress(t *testing.T) {
	for value, want := range map[string]string{
		"10.0.0.2": "dev= dhcp=false net=10.0.0.2/8 gw=<nil>", // the class's mask
		"10.0.0.2::10.0.0.1:255.255.255.0:vm:eth0:off": "dev=eth0 dhcp=false net=10.0.0.2/24 gw=10.0.0.1",
		"192.168.7.9:::255.255.255.252":                "dev= dhcp=false net=192.168.7.9/30 gw=<nil>",
		":::::eth1:dhcp":                               "dev=eth1 dhcp=true net=<nil> gw=<nil>",
		"dhcp":                                         "dev= dhcp=true net=<nil> gw=<nil>",
		"on":                                           "dev= dhcp=true net=<nil> gw=<nil>",
		"10.0.0.2:10.0.0.9:10.0.0.1:255.255.255.0::eth0": "dev=eth0 dhcp=false net=10.0.0.2/24 gw=10.0.0.1",
	} {
		got, wanted, err := parseKernelAddress(value)
		if err != nil || !wanted || got.String() != want {
			t.Errorf("%s: %v, %v, %v; want %s", value, got, wanted, err, want)
		}
	}
	for _, value := range []string{"off", "none", "", ":::::eth0:off"} {
		if got, wanted, err := parseKernelAddress(value); wanted || err != nil {
			t.Errorf("%q asks for %v, error %v", value, got, err)
		}
	}
	for _, value := range []string{"x", "fd00--", "10.0.0.2:::255.0.255.0", "10.0.0.2:::mask", "10.0.0.2:::0.0.0.0", "10.0.0.2::gw:255.0.0.0"} {
		if got, _, err := parseKernelAddress(value); err == nil {
			t.Errorf("%q was accepted: %v", value, got)
		}
	}
}

func TestParseAddressesGoesOnAfterAnError(t *testing.T) {
	c := parseCommandLine("govmm.ip=junk govmm.ip=10.0.0.2/24 ip=more:junk ip=dhcp")
	got, err := parseAddresses(c)
	if len(got) != 2 || err == nil || !strings.Contains(err.Error(), "govmm.ip=junk") || !strings.Contains(err.Error(), "ip=more:junk") {
		t.Errorf("got %v, error %v", got, err)
	}
}

func TestLoadListed(t *testing.T) {
	const list = `/m/virtio_ring.ko
/m/virtio.ko virtio_ring
/m/hv_vmbus.ko

/m/hv_netvsc.ko hv_vmbus
/m/needs-netvsc.ko hv_netvsc
/m/broken.ko
/m/twice.ko virtio
/m/virtio-rng.ko virtio
/m/after-broken.ko broken
`
	answers := map[string]error{
		"/m/hv_vmbus.ko": unix.ENODEV, // no such device on this machine
		"/m/broken.ko":   unix.ENOEXEC,
		"/m/twice.ko":    unix.EEXIST, // loaded already
	}
	var loaded []string
	failures := loadListed(list, func(path string) error {
		loaded = append(loaded, path)
		return answers[path]
	})
	want := []string{"/m/virtio_ring.ko", "/m/virtio.ko", "/m/hv_vmbus.ko", "/m/broken.ko", "/m/twice.ko", "/m/virtio-rng.ko"}
	if !slices.Equal(loaded, want) {
		t.Errorf("loaded %q, want %q", loaded, want)
	}
	if len(failures) != 1 || !strings.Contains(failures[0].Error(), "module broken") {
		t.Errorf("failures %v, want broken's alone", failures)
	}
}
