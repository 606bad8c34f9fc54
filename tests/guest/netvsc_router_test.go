// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/u-root/u-root/pkg/cpio"
)

const (
	farIP      = "10.0.1.1"
	farMAC     = "02:00:00:00:00:2b"
	taggedHost = "10.0.5.1"
)

// TestNetVSCRouter makes the guest a router between a NIC on the VMBus and a
// virtio one: what it passes on must have right checksums, in both directions, and
// coalescing is off by then. The way in has a VLAN too.
func TestNetVSCRouter(t *testing.T) {
	near, far := newNetns(t), newNetns(t)
	for _, tap := range []string{"near0", "far0"} {
		near.run(t, "ip", "tuntap", "add", "mode", "tap", "name", tap)
	}
	near.run(t, "ip", "addr", "add", hostIP+"/24", "dev", "near0")
	near.run(t, "ip", "link", "set", "near0", "up")
	near.run(t, "ip", "route", "add", "10.0.1.0/24", "via", guestIP)
	near.run(t, "ip", "link", "add", "link", "near0", "name", "near0.5", "type", "vlan", "id", "5")
	near.run(t, "ip", "addr", "add", taggedHost+"/24", "dev", "near0.5")
	near.run(t, "ip", "link", "set", "near0.5", "up")
	near.iperf(t)
	far.iperf(t)
	text := `for d in /sys/class/net/eth*; do
  case $(cat $d/address) in
    ` + netvscMAC + `) nic=${d##*/};;
    ` + farMAC + `) other=${d##*/};;
  esac
done
for m in llc stp mrp garp 8021q; do insmod /modules/$m.ko; done
ip link set $nic up
ip link set $other up
ip addr add ` + guestIP + `/24 dev $nic
ip addr add 10.0.1.2/24 dev $other
ip link add link $nic name tagged type vlan id 5
ip link set tagged up
ip addr add 10.0.5.2/24 dev tagged
echo 1 > /proc/sys/net/ipv4/ip_forward
` + marked("features", "ethtool -k $nic") +
		marked("tagged-send", "iperf3 -c "+taggedHost+" -t 2; echo status $?") +
		marked("tagged-receive", "iperf3 -c "+taggedHost+" -t 2 -R; echo status $?") +
		"echo ROUTING\nread go\n"
	image := kernel(t, "6.1-cloud")
	args := scripted(t, text, "-i", vlanModules(t, image), "-c", "2",
		"-n", "model=netvsc,tap=near0,mac="+netvscMAC, "-n", "tap=far0,mac="+farMAC, image)
	v := start(t, near, args...)
	v.expect("ROUTING", 1)
	connect(t, near, far)
	for _, run := range []string{"-t 2", "-t 2 -R", "-t 2 -u -b 20M -l 1400", "-t 2 -u -b 20M -l 1400 -R"} {
		out := near.run(t, "iperf3", append(strings.Fields(run), "-c", farIP)...)
		found := received.FindAllStringSubmatch(out, -1)
		if len(found) == 0 || found[len(found)-1][1] == "0.00" {
			t.Errorf("iperf3 %s: nothing was received\n%s", run, out)
			continue
		}
		t.Logf("routed, %s: %s %sbit/s", run, found[len(found)-1][2], found[len(found)-1][3])
	}
	if out := near.run(t, "ping", "-c", "3", "-W", "10", "-s", "65507", farIP); !strings.Contains(out, " 0% packet loss") {
		t.Errorf("ping -s 65507 through the router:\n%s", out)
	}
	for _, ns := range []*netns{near, far} {
		checkSums(t, ns)
	}
	v.send("\n")
	v.ends(0, "poweroff")
	v.clean()
	if !strings.Contains(v.section("features"), "large-receive-offload: off") {
		t.Errorf("a router coalesces:\n%s", v.section("features"))
	}
	for _, name := range []string{"tagged-send", "tagged-receive"} {
		if text := v.section(name); !strings.Contains(text, "status 0\n") || !received.MatchString(text) {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

// connect moves far0 into the namespace far, whose way back is the guest.
func connect(t *testing.T, near, far *netns) {
	t.Helper()
	resident := exec.Command("sleep", "infinity")
	if err := far.start(resident); err != nil {
		t.Fatal(err)
	}
	defer func() {
		resident.Process.Kill()
		_ = resident.Wait()
	}()
	near.run(t, "ip", "link", "set", "far0", "netns", strconv.Itoa(resident.Process.Pid))
	far.run(t, "ip", "addr", "add", farIP+"/24", "dev", "far0")
	far.run(t, "ip", "link", "set", "far0", "up")
	far.run(t, "ip", "route", "add", "10.0.0.0/24", "via", "10.0.1.2")
}

// vlanModules is an initrd with the module for VLANs and those below it.
func vlanModules(t *testing.T, image string) string {
	t.Helper()
	files := []cpio.Record{cpio.Directory("modules", 0o755)}
	for _, name := range []string{"net/llc/llc", "net/802/stp", "net/802/mrp", "net/802/garp", "net/8021q/8021q"} {
		found, err := filepath.Glob(filepath.Join(filepath.Dir(image), "../lib/modules/*/kernel", name+".ko"))
		if err != nil || len(found) != 1 {
			t.Fatalf("the kernel's module %s: %v, %v", name, found, err)
		}
		b, err := os.ReadFile(found[0])
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, cpio.StaticFile("modules/"+filepath.Base(found[0]), string(b), 0o644))
	}
	return archive(t, files...)
}

// checkSums checks that nothing has arrived in a namespace with a wrong checksum.
func checkSums(t *testing.T, ns *netns) {
	t.Helper()
	stats := ns.run(t, "nstat", "-asz", "TcpInCsumErrors", "UdpInCsumErrors", "IcmpInCsumErrors", "IpExtInCsumErrors")
	counts := regexp.MustCompile(`CsumErrors +(\d+)`).FindAllStringSubmatch(stats, -1)
	if len(counts) != 4 {
		t.Fatalf("nstat:\n%s", stats)
	}
	for _, c := range counts {
		if c[1] != "0" {
			t.Errorf("wrong checksums have arrived:\n%s", stats)
		}
	}
}
