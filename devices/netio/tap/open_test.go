// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func mustOpen(t *testing.T, o Options) *Tap {
	t.Helper()
	tap, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tap.Close(); err != nil {
			t.Error(err)
		}
	})
	return tap
}

func TestCheckName(t *testing.T) {
	for name, want := range map[string]string{
		"tap0":             "",
		"a":                "",
		"exactly15chars_":  "",
		"sixteen_chars_xx": "at most 15",
		"":                 "empty",
		".":                "no interface's name",
		"..":               "no interface's name",
		"a/b":              "'/'",
		"a:1":              "':'",
		"tap%d":            "'%'",
		"a b":              "white space",
		"a\n":              "white space",
	} {
		err := CheckName(name, false)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("CheckName(%q) = %v, want %q", name, err, want)
		}
	}
	for name, ok := range map[string]bool{"govmm%d": true, "exactly15chars%d": true, "exactly_15chars%d": false, "%d%d": false, "a%s": false} {
		if err := CheckName(name, true); (err == nil) != ok {
			t.Errorf("CheckName(%q) as a pattern = %v", name, err)
		}
	}
}

// Every error names the interface and the cure.
func TestOpenErrors(t *testing.T) {
	for _, test := range []struct {
		name  string
		setup func(*testing.T)
		o     Options
		want  []string
	}{
		{"long name", nil, Options{Name: "sixteen_chars_xx"}, []string{"sixteen_chars_xx", "at most 15"}},
		{"too many queues", nil, Options{Name: "t", Queues: 257}, []string{"257 queues", "1 to 256"}},
		{"negative queues", nil, Options{Name: "t", Queues: -1}, []string{"-1 queues"}},
		{"small MTU", nil, Options{Create: true, MTU: 67}, []string{"MTU 67", "68 to 65521"}},
		{"large MTU", nil, Options{Create: true, MTU: 65522}, []string{"MTU 65522", "68 to 65521"}},
		{"address of an existing tap", nil, Options{Name: "t", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, []string{"ip addr add 10.0.0.1/24 dev t"}},
		{"invalid address", nil, Options{Create: true, Addrs: []netip.Prefix{{}}}, []string{"10.0.0.1/24"}},
		{"name and descriptor", nil, Options{Name: "t", FDs: []int{0}}, []string{"either"}},
		{"queues and descriptors", nil, Options{FDs: []int{0}, Queues: 2}, []string{"2 queues"}},
		{"missing", nil, Options{Name: "nosuch"}, []string{"nosuch does not exist", "ip tuntap add dev nosuch mode tap user"}},
		{"no tap", func(t *testing.T) { run(t, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1") },
			Options{Name: "v0"}, []string{"v0", `"veth"`, "bridge"}},
		{"tun", func(t *testing.T) { run(t, "ip", "tuntap", "add", "dev", "u0", "mode", "tun") },
			Options{Name: "u0"}, []string{"u0 is a tun", "mode tap"}},
		{"one queue", func(t *testing.T) { run(t, "ip", "tuntap", "add", "dev", "t0", "mode", "tap") },
			Options{Name: "t0", Queues: 2}, []string{"t0 has one queue", "2 were asked for", "ip tuntap add dev t0 mode tap multi_queue"}},
		{"other MTU", func(t *testing.T) { run(t, "ip", "tuntap", "add", "dev", "t0", "mode", "tap") },
			Options{Name: "t0", MTU: 9000}, []string{"t0 has MTU 1500", "ip link set dev t0 mtu 9000"}},
		{"busy", func(t *testing.T) {
			run(t, "ip", "tuntap", "add", "dev", "t0", "mode", "tap")
			mustOpen(t, Options{Name: "t0"})
		}, Options{Name: "t0"}, []string{"t0", "another process"}},
		{"busy queues", func(t *testing.T) {
			run(t, "ip", "tuntap", "add", "dev", "t0", "mode", "tap", "multi_queue")
			mustOpen(t, Options{Name: "t0", Queues: 2})
		}, Options{Name: "t0", Queues: 2}, []string{"t0", "another process"}},
		{"exists already", func(t *testing.T) { run(t, "ip", "tuntap", "add", "dev", "t0", "mode", "tap") },
			Options{Name: "t0", Create: true}, []string{"make tap t0", "exists already"}},
		{"no device", func(t *testing.T) { withCloneDevice(t, 0) },
			Options{Create: true}, []string{"/dev/net/tun", "modprobe tun"}},
		{"unreadable device", func(t *testing.T) { withCloneDevice(t, 0o600); becomeNobody(t) },
			Options{Create: true}, []string{"/dev/net/tun", "chmod 666"}},
		{"create without privilege", func(t *testing.T) { withCloneDevice(t, 0o666); becomeNobody(t) },
			Options{Create: true}, []string{"make tap govmm%d", "CAP_NET_ADMIN", "ip tuntap add"}},
		{"somebody else's", func(t *testing.T) {
			run(t, "ip", "tuntap", "add", "dev", "t0", "mode", "tap", "user", "1234")
			withCloneDevice(t, 0o666)
			becomeNobody(t)
		}, Options{Name: "t0"}, []string{"t0", "user 1234", "user 65534", "ip tuntap add dev t0 mode tap user 65534"}},
		{"closed descriptor", nil, Options{FDs: []int{999}}, []string{"file descriptor 999 is not open"}},
		{"other descriptor", nil, Options{FDs: []int{0}}, []string{"file descriptor 0 is no tap"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inNetns(t)
			if test.setup != nil {
				test.setup(t)
			}
			tap, err := Open(test.o)
			if err == nil {
				tap.Close()
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

// The owner of a tap needs no privilege; the number of queues adapts to it.
func TestOpenExisting(t *testing.T) {
	for _, test := range []struct {
		flags  []string
		queues int
	}{
		{nil, 1},
		{[]string{"multi_queue"}, 1},
		{[]string{"multi_queue"}, 4},
		{[]string{"pi", "vnet_hdr"}, 1},
	} {
		t.Run(fmt.Sprint(test.flags, test.queues), func(t *testing.T) {
			inNetns(t)
			run(t, append([]string{"ip", "tuntap", "add", "dev", "t0", "mode", "tap", "user", fmt.Sprint(nobody)}, test.flags...)...)
			run(t, "ip", "link", "set", "t0", "mtu", "9000", "up")
			withCloneDevice(t, 0o666)
			becomeNobody(t)
			tap := mustOpen(t, Options{Name: "t0", Queues: test.queues, MTU: 9000})
			if tap.Name() != "t0" || len(tap.Queues()) != test.queues || tap.MTU() != 9000 {
				t.Errorf("%s with %d queues, MTU %d", tap.Name(), len(tap.Queues()), tap.MTU())
			}
			if tap.Offloads()&0xf != 0xf {
				t.Errorf("offloads %#x", tap.Offloads())
			}
		})
	}
}

// A tap that is down is brought up if that is allowed, else it is a warning.
func TestOpenDown(t *testing.T) {
	inNetns(t)
	run(t, "ip", "tuntap", "add", "dev", "t0", "mode", "tap", "user", fmt.Sprint(nobody))
	mustOpen(t, Options{Name: "t0"})
	if linkOf(t, "t0").Attrs().RawFlags&unix.IFF_UP == 0 {
		t.Error("root didn't bring the tap up")
	}
	run(t, "ip", "tuntap", "add", "dev", "t1", "mode", "tap", "user", fmt.Sprint(nobody))
	withCloneDevice(t, 0o666)
	becomeNobody(t)
	var log strings.Builder
	mustOpen(t, Options{Name: "t1", Log: slog.New(slog.NewTextHandler(&log, nil))})
	if !strings.Contains(log.String(), "ip link set dev t1 up") {
		t.Errorf("no warning with a cure: %s", log.String())
	}
}

func TestCreate(t *testing.T) {
	inNetns(t)
	run(t, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=0", "net.ipv6.conf.all.disable_ipv6=0")
	want := []string{"10.0.0.1/24", "fd00::1/64"}
	o := Options{Create: true, MTU: 9000, Queues: 2}
	for _, a := range want {
		o.Addrs = append(o.Addrs, netip.MustParsePrefix(a))
	}
	first, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	second := mustOpen(t, Options{Create: true})
	if first.Name() != "govmm0" || second.Name() != "govmm1" {
		t.Errorf("made %s and %s", first.Name(), second.Name())
	}
	link := linkOf(t, "govmm0")
	if a := link.Attrs(); a.MTU != 9000 || a.RawFlags&unix.IFF_UP == 0 || first.MTU() != 9000 {
		t.Errorf("MTU %d, %d, flags %#x", a.MTU, first.MTU(), a.RawFlags)
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, a := range addrs {
		got[a.IPNet.String()] = a.Flags
	}
	for _, a := range want {
		if flags, ok := got[a]; !ok || flags&unix.IFA_F_TENTATIVE != 0 {
			t.Errorf("address %s is missing or tentative: %v", a, got)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	var missing netlink.LinkNotFoundError
	if _, err := netlink.LinkByName("govmm0"); !errors.As(err, &missing) {
		t.Errorf("after Close: %v", err)
	}
}

// What can't be set up is not left behind.
func TestCreateFailure(t *testing.T) {
	inNetns(t)
	// An IPv6 address is refused, because the namespace has IPv6 disabled.
	_, err := Open(Options{Create: true, Addrs: []netip.Prefix{netip.MustParsePrefix("fd00::1/64")}})
	if err == nil || !strings.Contains(err.Error(), "fd00::1/64") {
		t.Errorf("error = %v", err)
	}
	links, err := netlink.LinkList()
	if err != nil || len(links) != 1 {
		t.Errorf("left behind: %v, %v", links, err)
	}
}

// TestKilled sees that a tap doesn't outlive its process, however that ends.
func TestKilled(t *testing.T) {
	if os.Getenv("TAP_TEST_CHILD") != "" {
		tap, err := Open(Options{Create: true})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(tap.Name())
		time.Sleep(time.Hour) // until killed
	}
	inNetns(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), "TAP_TEST_CHILD=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	name, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	linkOf(t, strings.TrimSpace(name))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	for range 1000 {
		if _, err := netlink.LinkByName("govmm0"); err != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the tap outlived its process")
}

// openFD opens a tap as another program would.
func openFD(t *testing.T, name string, flags uint16) int {
	t.Helper()
	fd, err := unix.Open(cloneDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if name == "" {
		return fd
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	ifr.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestOpenFD(t *testing.T) {
	inNetns(t)
	const mq = baseFlags | unix.IFF_MULTI_QUEUE
	fds := []int{openFD(t, "t0", mq), openFD(t, "t0", mq)}
	run(t, "ip", "link", "set", "t0", "mtu", "2000", "up")
	tap := mustOpen(t, Options{FDs: fds})
	if tap.Name() != "t0" || tap.MTU() != 2000 || len(tap.Queues()) != 2 {
		t.Errorf("%s, MTU %d, %d queues", tap.Name(), tap.MTU(), len(tap.Queues()))
	}
	for _, q := range tap.queues {
		flags, err := unix.FcntlInt(uintptr(q.fd), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("flags %#x, %v: the descriptor blocks", flags, err)
		}
	}
	for _, test := range []struct {
		fds  []int
		want string
	}{
		{[]int{openFD(t, "u0", unix.IFF_TUN|unix.IFF_NO_PI|unix.IFF_VNET_HDR)}, "u0, a tun"},
		{[]int{openFD(t, "t1", unix.IFF_TAP|unix.IFF_NO_PI)}, "IFF_VNET_HDR"},
		{[]int{openFD(t, "t2", unix.IFF_TAP|unix.IFF_VNET_HDR)}, "IFF_NO_PI"},
		{[]int{openFD(t, "", 0)}, "has no interface"},
		{[]int{openFD(t, "t3", baseFlags), openFD(t, "t4", baseFlags)}, "two taps, t3 and t4"},
	} {
		if tap, err := Open(Options{FDs: test.fds}); err == nil || !strings.Contains(err.Error(), test.want) {
			if err == nil {
				tap.Close()
			}
			t.Errorf("error = %v, want %q", err, test.want)
		}
		closeAll(test.fds) // still ours: Open failed
	}
}

// A descriptor may come from another network namespace.
func TestOpenFDElsewhere(t *testing.T) {
	inNetns(t)
	fd := openFD(t, "t0", baseFlags)
	run(t, "ip", "link", "set", "t0", "mtu", "2000")
	inNetns(t)
	run(t, "ip", "tuntap", "add", "dev", "t0", "mode", "tap") // a namesake
	var log strings.Builder
	tap := mustOpen(t, Options{FDs: []int{fd}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if tap.MTU() != defaultMTU || !strings.Contains(log.String(), "another network namespace") {
		t.Errorf("MTU %d, log %s", tap.MTU(), log.String())
	}
}
