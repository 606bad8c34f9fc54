// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/govmm/govmm/internal/emuhost/wire"
	"github.com/govmm/govmm/internal/initramfs"
)

// ExchangeDir is the exchange folder's path inside every emulated host.
const ExchangeDir = wire.ExchangeDir

// Options describe an emulated host. The zero value is good for most uses.
type Options struct {
	// CPUs is the number of emulated CPUs; 0: 1. With more, an interrupt from one
	// to another that comes at the wrong moment of a guest's exit takes the host
	// down: QEMU's SVM does not always hold it back until STGI.
	CPUs      int
	MemoryMiB int // RAM in MiB, taken from the machine as it is touched; 0: 8192

	Kernel   string // a full Debian kernel image with its modules beside it; "": the cache's 6.1
	QEMU     string // qemu-system-x86_64; "": the cache's, else the one in PATH
	Agent    string // the agent's binary; "": built from source, else the cache's
	Exchange string // exchange folder on the machine; "": a temporary one

	Modules []string // further kernel modules to load in the host

	// BootTimeout bounds one attempt to start, in case QEMU hangs; 0: 3 minutes.
	// A second attempt follows a failed one.
	BootTimeout time.Duration

	// FreezeTimeout is how long the running host may be silent although it was
	// asked for a sign of life, before it is given up; 0: 2 minutes.
	FreezeTimeout time.Duration

	// Logf reports a failed first attempt; nil: standard error.
	Logf func(format string, args ...any)
}

// withDefaults returns the options with every field set but Agent and Exchange.
func (o Options) withDefaults() (Options, error) {
	if o.CPUs == 0 {
		o.CPUs = 1
	}
	if o.MemoryMiB == 0 {
		o.MemoryMiB = 8192
	}
	if o.BootTimeout == 0 {
		o.BootTimeout = 3 * time.Minute
	}
	if o.FreezeTimeout == 0 {
		o.FreezeTimeout = 2 * time.Minute
	}
	if o.Logf == nil {
		o.Logf = func(format string, args ...any) { fmt.Fprintf(os.Stderr, "emuhost: "+format+"\n", args...) }
	}
	var err error
	if o.Kernel == "" {
		if o.Kernel, err = cachedKernel("6.1"); err != nil {
			return o, err
		}
	}
	if o.QEMU == "" {
		if o.QEMU, err = findQEMU(); err != nil {
			return o, err
		}
	}
	return o, nil
}

// cachedKernel returns the image of a kernel that scripts/fetch-kernels got.
func cachedKernel(flavour string) (string, error) {
	cache, err := initramfs.CacheDir()
	if err != nil {
		return "", err
	}
	pattern := filepath.Join(cache, "kernels", flavour, "boot", "vmlinuz-*")
	images, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	if len(images) == 0 {
		return "", fmt.Errorf("no kernel for the emulated host (%s): run scripts/fetch-kernels", pattern)
	}
	return images[len(images)-1], nil
}

// minQEMU is the oldest major version that emulates SVM well enough. Version 10
// is better: with 7.2 a host froze once in 37 starts.
const minQEMU = 7

// findQEMU returns the cache's QEMU, or else the machine's.
func findQEMU() (string, error) {
	cache, err := initramfs.CacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "qemu", "bin", "qemu-system-x86_64")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		path, err = exec.LookPath("qemu-system-x86_64")
		if err != nil {
			return "", errors.New("no qemu-system-x86_64 for the emulated host: run scripts/setup and scripts/fetch-kernels")
		}
	}
	major, err := qemuMajor(path)
	if err != nil {
		return "", err
	}
	if major < minQEMU {
		return "", fmt.Errorf("%s is version %d: the emulated host needs %d or newer, run scripts/fetch-kernels", path, major, minQEMU)
	}
	return path, nil
}

var qemuVersion = regexp.MustCompile(`QEMU emulator version (\d+)\.`)

func qemuMajor(path string) (int, error) {
	output, err := exec.Command(path, "--version").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%s --version: %w: %s", path, err, output)
	}
	match := qemuVersion.FindSubmatch(output)
	if match == nil {
		return 0, fmt.Errorf("%s --version: unexpected answer %q", path, output)
	}
	return strconv.Atoi(string(match[1]))
}
