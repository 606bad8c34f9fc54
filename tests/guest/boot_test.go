// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/u-root/u-root/pkg/cpio"
	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/boot"
)

// flavours are the stock kernels that everything must work on.
var flavours = []string{"6.1-cloud", "6.1", "6.12-cloud"}

// vmlinux unpacks the ELF image out of a flavour's bzImage.
func vmlinux(t *testing.T, flavour string) string {
	t.Helper()
	image, err := boot.Extract(kernel(t, flavour))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "vmlinux")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestBoot boots every kernel through every entry to a marker from user space,
// and every kernel and entry with 1, 2 and 4 vCPUs.
func TestBoot(t *testing.T) {
	entries := []string{"bzImage", "vmlinux by PVH", "vmlinux by the 64-bit entry"}
	cpus := []int{1, 2, 4}
	text := marked("cpus", "grep -c ^processor /proc/cpuinfo") +
		marked("uname", "uname -r") + marked("net", "ls /sys/class/net") +
		marked("clock", "cat /sys/devices/system/clocksource/clocksource0/current_clocksource") +
		marked("topology", "cat /sys/devices/system/cpu/cpu0/topology/core_siblings_list /sys/devices/system/cpu/cpu0/topology/thread_siblings_list") +
		"echo MARKER-FROM-USER-SPACE\n"
	for i, flavour := range flavours {
		for j, entry := range entries {
			n := cpus[(i+j)%len(cpus)]
			t.Run(fmt.Sprintf("%s/%s/%d CPUs", flavour, entry, n), func(t *testing.T) {
				args := scripted(t, text, "-c", strconv.Itoa(n))
				switch entry {
				case "bzImage":
					args = append(args, kernel(t, flavour))
				case "vmlinux by PVH":
					args = append(args, "--entry", "pvh", vmlinux(t, flavour))
				default:
					args = append(args, "--entry", "linux64", vmlinux(t, flavour))
				}
				v := start(t, newNetns(t), args...)
				v.expect("MARKER-FROM-USER-SPACE", 1)
				v.ends(0, "poweroff")
				v.clean()
				if got := strings.TrimSpace(v.section("cpus")); got != strconv.Itoa(n) {
					t.Errorf("the guest has %s CPUs, want %d", got, n)
				}
				if got := v.section("uname"); !strings.HasPrefix(got, strings.TrimSuffix(flavour, "-cloud")+".") {
					t.Errorf("the guest runs %s", got)
				}
				if got := strings.TrimSpace(v.section("clock")); got != "kvm-clock" {
					t.Errorf("the guest's clock is %s", got)
				}
				want := "0-" + strconv.Itoa(n-1) + "\n0\n" // N cores of one socket
				if n == 1 {
					want = "0\n0\n"
				}
				if got := v.section("topology"); got != want {
					t.Errorf("core and thread siblings of CPU 0 are %q, want %q", got, want)
				}
			})
		}
	}
}

// TestMemory boots with memory sizes on both sides of the hole below 4 GiB.
func TestMemory(t *testing.T) {
	text := marked("meminfo", "grep MemTotal /proc/meminfo") + marked("ram", "cat /proc/iomem")
	for _, mib := range []uint64{128, 2048, 3072, 3330, 4096, 6144} {
		t.Run(fmt.Sprintf("%d MiB", mib), func(t *testing.T) {
			v := start(t, newNetns(t), scripted(t, text, "-m", fmt.Sprint(mib), kernel(t, "6.1-cloud"))...)
			v.ends(0, "poweroff")
			v.clean()
			var ram uint64
			for _, m := range regexp.MustCompile(`(?m)^([0-9a-f]+)-([0-9a-f]+) : System RAM`).FindAllStringSubmatch(v.section("ram"), -1) {
				first, err1 := strconv.ParseUint(m[1], 16, 64)
				last, err2 := strconv.ParseUint(m[2], 16, 64)
				if err1 != nil || err2 != nil {
					t.Fatal(m)
				}
				ram += last - first + 1
				if hole := uint64(3) << 30; first < hole && last >= hole || first >= hole && first < 1<<32 {
					t.Errorf("RAM at %#x-%#x lies in the hole below 4 GiB", first, last)
				}
			}
			// The kernel keeps page 0; 384 KiB and the EBDA's kilobyte below 1 MiB
			// are no RAM.
			if missing := mib<<20 - ram; missing > 400<<10 {
				t.Errorf("the guest sees %d KiB of RAM, %d less than it was given", ram>>10, missing>>10)
			}
			var total uint64
			if _, err := fmt.Sscanf(strings.TrimSpace(v.section("meminfo")), "MemTotal: %d kB", &total); err != nil {
				t.Fatal(err)
			}
			if kib := mib << 10; total > kib || total < kib-kib/16-100<<10 {
				t.Errorf("MemTotal is %d KiB of %d", total, kib)
			}
		})
	}
}

// TestManyCPUs boots with as many vCPUs as most users will ever ask for: on an
// emulated host each of them waits for its turn on one CPU.
func TestManyCPUs(t *testing.T) {
	const n = 16
	text := marked("cpus", "grep -c ^processor /proc/cpuinfo") +
		marked("online", "cat /sys/devices/system/cpu/online")
	v := start(t, newNetns(t), scripted(t, text, "-c", strconv.Itoa(n), "-n", "tap", kernel(t, "6.12-cloud"))...)
	v.ends(0, "poweroff")
	v.clean()
	if got := strings.TrimSpace(v.section("cpus")); got != strconv.Itoa(n) {
		t.Errorf("the guest has %s CPUs, want %d", got, n)
	}
	if got := strings.TrimSpace(v.section("online")); got != "0-15" {
		t.Errorf("the guest's CPUs %s are online", got)
	}
}

// TestLargeInitrd boots with an initrd of 300 MiB in 1 GiB: what is unpacked and
// what is still packed must fit side by side. (TestRefusals has it in 256 MiB.)
func TestLargeInitrd(t *testing.T) {
	const size = 300 << 20
	file := archive(t, cpio.Record{
		ReaderAt: io.NewSectionReader(zeros{}, 0, size),
		Info:     cpio.Info{Name: "large", Mode: unix.S_IFREG | 0o600, FileSize: size},
	})
	text := marked("size", "ls -l /large")
	v := start(t, newNetns(t), scripted(t, text, "-m", "1G", "-i", file, kernel(t, "6.1-cloud"))...)
	v.ends(0, "poweroff")
	v.clean()
	if got := v.section("size"); !strings.Contains(got, strconv.Itoa(size)) {
		t.Errorf("the file of %d bytes is %s", size, got)
	}
}

// zeros is an endless file.
type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

// TestInitrdThatTheKernelCannotUnpack: what the kernel says of it reaches the user.
func TestInitrdThatTheKernelCannotUnpack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "initrd.zst")
	// A frame header of Zstandard (RFC 8878, section 3.1.1) and then nonsense.
	if err := os.WriteFile(file, append([]byte{0x28, 0xb5, 0x2f, 0xfd}, bytes.Repeat([]byte{0xff}, 4096)...), 0o600); err != nil {
		t.Fatal(err)
	}
	v := start(t, newNetns(t), "run", "-a", "quiet", "-i", file, kernel(t, "6.1-cloud"))
	v.ends(116, "panic")
	if !strings.Contains(v.output(), "Initramfs unpacking failed") {
		t.Error("the console does not say that the initrd could not be unpacked")
	}
}
