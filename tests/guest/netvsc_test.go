// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const netvscMAC = "02:00:00:00:00:2a"

// netvscNIC is the --net list of a NIC on the VMBus.
func netvscNIC(mtu, queues int) string {
	return fmt.Sprintf("model=netvsc,tap,ip=%s/24,mac=%s,mtu=%d,queues=%d", hostIP, netvscMAC, mtu, queues)
}

// TestNetVSC looks at a NIC on the VMBus as a stock kernel shows it, and measures
// as TestNetwork does.
func TestNetVSC(t *testing.T) {
	for _, c := range []struct {
		flavour   string
		cpus, mtu int
	}{{"6.1-cloud", 2, 1500}, {"6.12-cloud", 4, 65521}} {
		t.Run(fmt.Sprintf("%s/%d CPUs/MTU %d", c.flavour, c.cpus, c.mtu), func(t *testing.T) {
			testNetVSC(t, c.flavour, c.cpus, c.mtu)
		})
	}
}

func testNetVSC(t *testing.T, flavour string, cpus, mtu int) {
	ns := newNetns(t)
	ns.iperf(t)
	// The driver starts with 1500 bytes and raises them on demand only.
	text := fmt.Sprintf("ip link set dev eth0 mtu %d\n", mtu) + marked("sysfs", "cd /sys/class/net/eth0\ncat address mtu carrier speed") + "cd /\n" +
		marked("driver", "ethtool -i eth0") + marked("features", "ethtool -k eth0") +
		marked("channels", "ethtool -l eth0") + marked("hash", "ethtool -x eth0") +
		iperfScript() + "echo PING-ME\nread go\n" +
		marked("counters", "ethtool -S eth0") + guestStats() + "echo COUNT-ME\nread go\n"
	v := start(t, ns, scripted(t, text, "-c", strconv.Itoa(cpus), "-n", netvscNIC(mtu, cpus), kernel(t, flavour))...)
	v.expect("PING-ME", 1)
	waitQuiet(t, ns)
	pingLarge(t, ns)
	v.send("\n")
	v.expect("COUNT-ME", 1)
	host, guest := tapStats(t, ns), parseStats(t, v.section("stats"))
	v.send("\n")
	v.ends(0, "poweroff")
	v.clean()
	checkIperf(t, v)
	if got, want := v.section("sysfs"), fmt.Sprintf("%s\n%d\n1\n10000\n", netvscMAC, mtu); got != want {
		t.Errorf("address, MTU, carrier and speed are %q, want %q", got, want)
	}
	for section, patterns := range map[string][]string{
		"driver":   {`driver: hv_netvsc`},
		"features": {`tx-checksumming: on`, `tcp-segmentation-offload: on`, `large-receive-offload: on`, `rx-checksumming: on`},
		"channels": {`(?s)Current hardware settings.*Combined:\s+` + strconv.Itoa(cpus)},
		"hash":     {`with ` + strconv.Itoa(cpus) + ` RX ring`},
		"counters": {`tx_queue_0_packets: [1-9]`, `rx_queue_0_packets: [1-9]`},
	} {
		for _, p := range patterns {
			if !regexp.MustCompile(p).MatchString(v.section(section)) {
				t.Errorf("%s has no %s:\n%s", section, p, v.section(section))
			}
		}
	}
	for name, n := range guest {
		if strings.HasSuffix(name, "errors") && n > 0 {
			t.Errorf("the guest counts %d %s", n, name)
		}
	}
	if host.RX.Errors+host.TX.Errors > 0 {
		t.Errorf("the tap counts errors: %+v", host)
	}
}

// TestNetVSCChurn takes the driver away and gives it back, changes MTU and
// channels, and shuts the interface, 50 times each with a flood of frames from
// the host all the while; it reboots before that. On an emulated host, where the
// driver takes up to ten seconds to come back, it does so four times each.
func TestNetVSCChurn(t *testing.T) {
	rounds := 50
	if onEmulatedHost() {
		rounds = 4
	}
	ns := newNetns(t)
	up := "ip link set eth0 up\nip addr add " + guestIP + "/24 dev eth0\n"
	loop := func(name, body string) string {
		return fmt.Sprintf("i=0\nwhile [ $i -lt %d ]; do\n%si=$((i+1))\ndone\necho %s $i\n", rounds, body, name)
	}
	text := `echo UP
read cmd
$cmd
while read path depends; do
  case $path in */hv_netvsc.ko) nic=$path;; esac
done < /lib/modules/govmm.list
` + loop("MODULE", "rmmod hv_netvsc\ninsmod $nic\n"+up) +
		loop("MTU", "ip link set dev eth0 mtu $((1400+i))\n") +
		loop("CHANNELS", "ethtool -L eth0 combined $((1+i%2))\n") +
		loop("LINK", "ip link set eth0 down\nip link set eth0 up\n") +
		"ip addr add " + guestIP + "/24 dev eth0\nping -c 3 " + hostIP + " && echo STILL-REACHABLE\n"
	v := start(t, ns, scripted(t, text, "-c", "2", "-n", netvscNIC(1500, 2), kernel(t, "6.1-cloud"))...)
	v.expect("UP", 1)
	stop := flood(t, ns)
	v.send("reboot -f\n")
	v.expect("UP", 2)
	v.send("true\n")
	for _, what := range []string{"MODULE", "MTU", "CHANNELS", "LINK"} {
		v.expect(fmt.Sprintf("%s %d", what, rounds), 1)
	}
	v.expect("STILL-REACHABLE", 1)
	stop()
	v.ends(0, "poweroff")
	v.clean()
}
