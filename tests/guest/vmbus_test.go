// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"regexp"
	"strings"
	"testing"
)

// vmbusVersions are those that a Linux guest can be held to, as its driver's
// max_version wants them, and as it reports them.
var vmbusVersions = []struct{ max, reported string }{
	{"0x20004", "2.4"}, {"0x30000", "3.0"}, {"0x40000", "4.0"}, {"0x40001", "4.1"},
	{"0x50000", "5.0"}, {"0x50001", "5.1"}, {"0x50002", "5.2"}, {"0x50003", "5.3"},
}

// TestHyperV boots a guest that finds Hyper-V instead of KVM, reboots it, unloads
// and loads its VMBus with every version, and has it panic at last: it then
// unloads the VMBus with its interrupts off.
func TestHyperV(t *testing.T) {
	text := `echo UP
read cmd
$cmd
while read path depends; do
  case $path in */hv_vmbus.ko) bus=$path;; esac
done < /lib/modules/govmm.list
` + marked("clock", "cat /sys/devices/system/clocksource/clocksource0/current_clocksource") +
		"rmmod hv_netvsc\n"
	for _, v := range vmbusVersions {
		text += "rmmod hv_vmbus\ninsmod $bus max_version=" + v.max + "\n"
	}
	text += marked("log", "dmesg") + marked("dmesg", complaints) + "echo DUMPED\nread go\necho c > /proc/sysrq-trigger\n"
	v := start(t, newNetns(t), scripted(t, text, "-c", "2", "--hyperv", "on", "--on-panic", "continue", "-a", "panic=-1", kernel(t, "6.1-cloud"))...)
	v.expect("UP", 1)
	v.send("reboot -f\n")
	v.expect("UP", 2)
	v.send("true\n")
	v.expect("DUMPED", 1)
	v.send("\n")
	v.expect("UP", 3)
	v.send("exit 0\n")
	v.ends(0, "poweroff")
	v.clean()
	log := v.section("log")
	if !strings.Contains(log, "Hypervisor detected: Microsoft Hyper-V") {
		t.Error("the guest has not found Hyper-V")
	}
	if got := strings.TrimSpace(v.section("clock")); got != "hyperv_clocksource_tsc_page" {
		t.Errorf("the guest's clock is %s", got)
	}
	var got, want []string
	for _, m := range regexp.MustCompile(`Vmbus version:([0-9.]+)`).FindAllStringSubmatch(log, -1) {
		got = append(got, m[1])
	}
	want = append(want, "5.3") // at the boot
	for _, v := range vmbusVersions {
		want = append(want, v.reported)
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("VMBus versions %v, want %v", got, want)
	}
}
