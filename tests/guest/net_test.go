// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	hostIP  = "10.0.0.1"
	guestIP = "10.0.0.2"
	tapName = "govmm0" // the first tap that govmm makes in a namespace
)

// linkStats are the statistics of a network device.
type linkStats struct {
	RX, TX struct{ Packets, Bytes, Errors, Dropped uint64 }
}

// tapStats reads the host's statistics of the tap.
func tapStats(t *testing.T, ns *netns) linkStats {
	t.Helper()
	var links []struct{ Stats64 linkStats }
	if err := json.Unmarshal([]byte(ns.run(t, "ip", "-j", "-s", "link", "show", tapName)), &links); err != nil || len(links) != 1 {
		t.Fatal("ip -j -s link:", err)
	}
	return links[0].Stats64
}

// pingLarge sends the largest pings that there are, 45 fragments at an MTU of
// 1500, once a second: an emulated guest may take most of that to answer. None
// may be lost.
func pingLarge(t *testing.T, ns *netns) {
	t.Helper()
	out, err := ns.output("ping", "-c", "5", "-i", "1", "-W", "10", "-s", "65507", guestIP)
	if err != nil || !strings.Contains(out, " 0% packet loss") {
		t.Errorf("ping -s 65507: %v\n%s", err, out)
	}
}

// waitQuiet waits until the tap has delivered what still waits in its queue after
// a flood: until then a burst may find the queue full and be dropped there.
func waitQuiet(t *testing.T, ns *netns) {
	t.Helper()
	const rounds = 60
	last := tapStats(t, ns).TX.Packets
	for range rounds {
		time.Sleep(time.Second)
		now := tapStats(t, ns).TX.Packets
		if now == last {
			return
		}
		last = now
	}
	t.Fatalf("frames still go to the guest after %d s", rounds)
}

// guestStats makes the guest print its NIC's statistics.
func guestStats() string {
	return marked("stats", `for f in rx_packets rx_errors rx_dropped tx_packets tx_errors tx_dropped; do
echo $f $(cat /sys/class/net/eth0/statistics/$f)
done`)
}

func parseStats(t *testing.T, text string) map[string]uint64 {
	t.Helper()
	stats := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			t.Fatalf("guest statistics: %q", line)
		}
		stats[name] = n
	}
	return stats
}

// iperfRuns are the measurements of each network test, run in the guest.
var iperfRuns = []struct{ name, args string }{
	{"tcp-send", "-t 2"},
	{"tcp-receive", "-t 2 -R"},
	{"tcp-parallel", "-t 2 -P 8"},
	{"udp-send", "-t 2 -u -b 40M"},
	{"udp-receive", "-t 2 -u -b 40M -R"},
}

func iperfScript() string {
	var b strings.Builder
	for _, r := range iperfRuns {
		b.WriteString(marked(r.name, fmt.Sprintf("iperf3 -c %s %s; echo status $?", hostIP, r.args)))
	}
	return b.String()
}

var received = regexp.MustCompile(`([\d.]+) [KMG]?Bytes +([\d.]+) ([KMG]?)bits/sec.*receiver`)

// checkIperf checks that every measurement has moved data and ended well.
func checkIperf(t *testing.T, v *vm) {
	t.Helper()
	for _, r := range iperfRuns {
		text := v.section(r.name)
		if !strings.Contains(text, "status 0\n") {
			t.Errorf("iperf3 %s:\n%s", r.args, text)
			continue
		}
		found := received.FindAllStringSubmatch(text, -1)
		if len(found) == 0 || found[len(found)-1][1] == "0.00" {
			t.Errorf("iperf3 %s: nothing was received\n%s", r.args, text)
			continue
		}
		last := found[len(found)-1]
		t.Logf("%-12s %s %sbit/s", r.name, last[2], last[3])
	}
}

// TestNetwork runs iperf3 and ping with small, large and the largest frames, with
// and without mergeable buffers, and compares what both sides have counted.
func TestNetwork(t *testing.T) {
	for _, mtu := range []int{1500, 9000, 65521} {
		for _, mergeable := range []string{"on", "off"} {
			t.Run(fmt.Sprintf("MTU %d/mergeable %s", mtu, mergeable), func(t *testing.T) {
				testNetwork(t, fmt.Sprintf("tap,ip=%s/24,mtu=%d,mergeable=%s", hostIP, mtu, mergeable), mtu)
			})
		}
	}
	t.Run("two queue pairs", func(t *testing.T) {
		v := testNetwork(t, "tap,ip="+hostIP+"/24,queues=2,mtu=1428", 1428)
		if got := strings.TrimSpace(v.section("queues")); got != "rx-0 rx-1 tx-0 tx-1" {
			t.Errorf("the guest's queues are %s", got)
		}
	})
	// Without MSI-X the card interrupts by a level line, whose state the driver
	// clears by reading the ISR.
	t.Run("INTx", func(t *testing.T) {
		testNetwork(t, "tap,ip="+hostIP+"/24", 1500, "-a", "pci=nomsi")
	})
}

// testNetwork runs all measurements with one NIC.
func testNetwork(t *testing.T, nic string, mtu int, args ...string) *vm {
	ns := newNetns(t)
	ns.iperf(t)
	text := marked("mtu", "cat /sys/class/net/eth0/mtu") + marked("queues", "echo $(ls /sys/class/net/eth0/queues)") + iperfScript() +
		"echo PING-ME\nread go\n" + guestStats() + "echo COUNT-ME\nread go\n"
	v := start(t, ns, scripted(t, text, append(args, "-c", "2", "-n", nic, kernel(t, "6.1-cloud"))...)...)
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
	if got := strings.TrimSpace(v.section("mtu")); got != strconv.Itoa(mtu) {
		t.Errorf("the guest's MTU is %s, want %d", got, mtu)
	}
	// What the guest sends the tap receives. A few frames may pass between the
	// two readings (neighbour discovery), and the card's filter leaves out some of
	// the host's multicasts.
	const slack = 20
	if d := diff(guest["tx_packets"], host.RX.Packets); d > slack {
		t.Errorf("the guest has sent %d packets, the tap received %d", guest["tx_packets"], host.RX.Packets)
	}
	if d := diff(guest["rx_packets"], host.TX.Packets); d > slack {
		t.Errorf("the guest has received %d packets, the tap sent %d", guest["rx_packets"], host.TX.Packets)
	}
	for name, n := range guest {
		if strings.HasSuffix(name, "errors") && n > 0 {
			t.Errorf("the guest counts %d %s", n, name)
		}
	}
	if host.RX.Errors+host.TX.Errors > 0 {
		t.Errorf("the tap counts errors: %+v", host)
	}
	return v
}

func diff(a, b uint64) uint64 { return max(a, b) - min(a, b) }

// TestUnbindBind takes the NIC's driver away and gives it back 50 times, with a
// flood of frames from the host all the while.
func TestUnbindBind(t *testing.T) {
	ns := newNetns(t)
	text := `echo READY
read go
i=0
while [ $i -lt 50 ]; do
  echo virtio0 > /sys/bus/virtio/drivers/virtio_net/unbind
  echo virtio0 > /sys/bus/virtio/drivers/virtio_net/bind
  ip link set eth0 up
  ip addr add ` + guestIP + `/24 dev eth0
  i=$((i+1))
done
echo ROUNDS $i
ping -c 3 ` + hostIP + ` && echo STILL-REACHABLE
`
	v := start(t, ns, scripted(t, text, "-c", "2", "-n", "tap,ip="+hostIP+"/24", kernel(t, "6.1-cloud"))...)
	v.expect("READY", 1)
	stop := flood(t, ns)
	v.send("\n")
	v.expect("ROUNDS 50", 1)
	v.expect("STILL-REACHABLE", 1)
	stop()
	v.ends(0, "poweroff")
	v.clean()
}

// neighbour gives 10.0.0.77 on the guest's network a hardware address, although
// nobody answers ARP, and returns a way to send to it.
func neighbour(t *testing.T, ns *netns, mac string) net.Conn {
	t.Helper()
	ns.run(t, "ip", "neigh", "replace", "10.0.0.77", "lladdr", mac, "dev", tapName)
	conn, err := ns.dialUDP("10.0.0.77:9")
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// flood sends frames to the guest as fast as the tap takes them, until stopped:
// to the broadcast address, which passes every filter, and for an IP address that
// the guest does not have.
func flood(t *testing.T, ns *netns) (stop func()) {
	t.Helper()
	conn := neighbour(t, ns, "ff:ff:ff:ff:ff:ff")
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	done := make(chan struct{})
	go func() {
		defer close(done)
		frame := make([]byte, 1400)
		for ctx.Err() == nil {
			for range 32 {
				_, _ = conn.Write(frame) // ENOBUFS when the tap's queue is full
			}
			time.Sleep(time.Millisecond)
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
		conn.Close()
	})
	t.Cleanup(stop)
	return stop
}

// TestReceiveFilter sends frames for somebody else: the guest sees them only while
// its card is promiscuous.
func TestReceiveFilter(t *testing.T) {
	ns := newNetns(t)
	const count = "echo COUNT $(cat /sys/class/net/eth0/statistics/rx_packets)\nread go\n"
	const promiscuous = "echo 0x1103 > /sys/class/net/eth0/flags\n" // IFF_UP, BROADCAST, PROMISC, MULTICAST
	v := start(t, ns, scripted(t, count+count+promiscuous+count+count, "-n", "tap,ip="+hostIP+"/24", kernel(t, "6.12-cloud"))...)
	v.expect("COUNT", 1) // the tap is there
	conn := neighbour(t, ns, "02:00:00:00:00:77")
	defer conn.Close()
	const frames, others = 100, 30 // others: multicasts of the host
	received := func(n int) (before, after int) {
		before, _ = strconv.Atoi(v.expect(`COUNT (\d+)`, n)[1])
		for range frames {
			if _, err := conn.Write(make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		waitQuiet(t, ns)
		v.send("\n")
		after, _ = strconv.Atoi(v.expect(`COUNT (\d+)`, n+1)[1])
		v.send("\n")
		return before, after
	}
	if before, after := received(1); after-before > others {
		t.Errorf("of %d frames for somebody else the guest got %d", frames, after-before)
	}
	if before, after := received(3); after-before < frames {
		t.Errorf("of %d frames for somebody else the promiscuous guest got %d", frames, after-before)
	}
	v.ends(0, "poweroff")
	v.clean()
}

// TestReboot reboots a guest 20 times under traffic in both directions. The tap
// stays the same over all boots.
func TestReboot(t *testing.T) {
	ns := newNetns(t)
	ns.iperf(t)
	text := "iperf3 -c " + hostIP + " -t 600 > /dev/null &\nsleep 1\necho UP $(cat /proc/sys/kernel/random/boot_id)\nread cmd\n$cmd\n"
	v := start(t, ns, scripted(t, text, "-n", "tap,ip="+hostIP+"/24", kernel(t, "6.1-cloud"))...)
	ids := map[string]bool{}
	const reboots = 20
	for i := 1; i <= reboots+1; i++ {
		ids[v.expect(`UP ([0-9a-f-]+)`, i)[1]] = true
		if i == 1 {
			flood(t, ns)
		}
		if i <= reboots {
			v.send("reboot -f\n")
		}
	}
	if len(ids) != reboots+1 {
		t.Errorf("%d different boots, want %d", len(ids), reboots+1)
	}
	v.send("true\n")
	v.ends(0, "poweroff")
	v.clean()
}

// TestTapIsDeletedWhileRunning uses a tap that exists, with the MTU it has, and
// takes it away: the guest sees its link go down, and lives.
func TestTapIsDeletedWhileRunning(t *testing.T) {
	ns := newNetns(t)
	ns.run(t, "ip", "tuntap", "add", "mode", "tap", "name", "gone0")
	ns.run(t, "ip", "link", "set", "gone0", "mtu", "9000")
	ns.run(t, "ip", "link", "set", "gone0", "up")
	text := `echo MTU $(cat /sys/class/net/eth0/mtu)
echo CARRIER $(cat /sys/class/net/eth0/carrier)
read go
i=0
while [ $i -lt 100 ] && [ "$(cat /sys/class/net/eth0/carrier)" = 1 ]; do sleep 0.1; i=$((i+1)); done
echo CARRIER $(cat /sys/class/net/eth0/carrier)
`
	v := start(t, ns, scripted(t, "ip link set eth0 up\n"+text, "-n", "tap=gone0", kernel(t, "6.1-cloud"))...)
	v.expect("MTU 9000", 1)
	v.expect("CARRIER 1", 1)
	ns.run(t, "ip", "link", "del", "gone0")
	v.send("\n")
	v.expect("CARRIER 0", 1)
	v.ends(0, "poweroff")
	v.clean()
	if !strings.Contains(v.log(), "gone0") {
		t.Errorf("no message names the tap:\n%s", v.log())
	}
}

// TestFloodOfAStalledGuest sends more than the guest's ring holds while nobody
// there receives, then asks whether it receives again.
func TestFloodOfAStalledGuest(t *testing.T) {
	ns := newNetns(t)
	text := "ip link set eth0 down\necho DOWN\nread go\nip link set eth0 up\nip addr add " + guestIP + "/24 dev eth0\necho UP\nread go\n"
	v := start(t, ns, scripted(t, text, "-n", "tap,ip="+hostIP+"/24,ring=64", kernel(t, "6.12-cloud"))...)
	v.expect("DOWN", 1)
	stop := flood(t, ns)
	time.Sleep(3 * time.Second)
	stop()
	v.send("\n")
	v.expect("UP", 1)
	if out := ns.run(t, "ping", "-c", "3", "-W", "10", guestIP); !strings.Contains(out, " 0% packet loss") {
		t.Errorf("after the flood:\n%s", out)
	}
	v.send("\n")
	v.ends(0, "poweroff")
	v.clean()
}
