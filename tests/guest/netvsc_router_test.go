// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const (
	farIP  = "10.0.1.1"
	farMAC = "02:00:00:00:00:2b"
)

// TestNetVSCRouter makes the guest a router between a NIC on the VMBus and a
// virtio one: what it passes on must have right checksums, in both directions, and
// coalescing is off by then.
func TestNetVSCRouter(t *testing.T) {
	near, far := newNetns(t), newNetns(t)
	for _, tap := range []string{"near0", "far0"} {
		near.run(t, "ip", "tuntap", "add", "mode", "tap", "name", tap)
	}
	near.run(t, "ip", "addr", "add", hostIP+"/24", "dev", "near0")
	near.run(t, "ip", "link", "set", "near0", "up")
	near.run(t, "ip", "route", "add", "10.0.1.0/24", "via", guestIP)
	far.iperf(t)
	text := `for d in /sys/class/net/eth*; do
  case $(cat $d/address) in
    ` + netvscMAC + `) nic=${d##*/};;
    ` + farMAC + `) other=${d##*/};;
  esac
done
ip link set $nic up
ip link set $other up
ip addr add ` + guestIP + `/24 dev $nic
ip addr add 10.0.1.2/24 dev $other
echo 1 > /proc/sys/net/ipv4/ip_forward
` + marked("features", "ethtool -k $nic") + "echo ROUTING\nread go\n"
	v := start(t, near, scripted(t, text, "-c", "2",
		"-n", "model=netvsc,tap=near0,mac="+netvscMAC, "-n", "tap=far0,mac="+farMAC, kernel(t, "6.1-cloud"))...)
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

// TestNetVSCVersions has the driver work over older versions of the VMBus too:
// they differ in when buffers are taken back, and in how channels are closed.
func TestNetVSCVersions(t *testing.T) {
	ns := newNetns(t)
	text := `while read path depends; do
  case $path in */hv_vmbus.ko) bus=$path;; */hv_netvsc.ko) nic=$path;; esac
done < /lib/modules/govmm.list
for version in 0x40000 0x40001 0x50000 0x50002; do
  rmmod hv_netvsc
  rmmod hv_vmbus
  insmod $bus max_version=$version
  insmod $nic
  ip link set eth0 up
  ip addr add ` + guestIP + `/24 dev eth0
  ip link set dev eth0 mtu 1400
  ping -c 3 ` + hostIP + ` && echo REACHED $version
done
`
	v := start(t, ns, scripted(t, text, "-c", "2", "-n", netvscNIC(1500, 2), kernel(t, "6.1-cloud"))...)
	v.expect("REACHED 0x50002", 1)
	v.ends(0, "poweroff")
	v.clean()
	for _, version := range []string{"0x40000", "0x40001", "0x50000"} {
		if !strings.Contains(v.output(), "REACHED "+version) {
			t.Errorf("the host can't be reached with version %s", version)
		}
	}
}
