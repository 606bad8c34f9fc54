// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/govmm/govmm/internal/initramfs"
)

const agentPackage = "github.com/govmm/govmm/internal/emuhost/agent"

// hostModules are loaded before the host's first command: what the agent needs,
// KVM, and what tests of networking need. The kernel cannot ask for modules
// later, for its modprobe would look in the machine's own module tree.
var hostModules = []string{
	"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay",
	"kvm_amd", "tun", "tap", "vhost_net", "vhost_vsock", "vsock_loopback",
	"bridge", "veth", "macvtap", "virtio_rng", "sch_netem", "af_packet", "loop", "fuse",
}

// cacheFolder returns the cache's folder for this package, which exists then.
func cacheFolder(elem ...string) (string, error) {
	cache, err := initramfs.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(append([]string{cache, "emuhost"}, elem...)...)
	return dir, os.MkdirAll(dir, 0o755)
}

// BuildAgent compiles the agent into the cache and returns its path. It must
// run inside the source tree and needs the go command.
func BuildAgent() (string, error) {
	dir, err := cacheFolder()
	if err != nil {
		return "", err
	}
	target := filepath.Join(dir, "agent-"+runtime.GOARCH)
	temporary := fmt.Sprintf("%s.%d", target, os.Getpid())
	defer os.Remove(temporary)
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", temporary, agentPackage)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build the emulated host's agent: %w\n%s", err, output)
	}
	return target, os.Rename(temporary, target)
}

// findAgent builds the agent where its source is, and else takes the one built
// last.
func findAgent() (string, error) {
	path, buildErr := BuildAgent()
	if buildErr == nil {
		return path, nil
	}
	dir, err := cacheFolder()
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "agent-"+runtime.GOARCH)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", buildErr
	}
	return path, nil
}

// makeInitrd writes the host's initramfs (agent and modules) into the cache and
// returns its path. The name follows from the contents, so that hosts with the
// same contents share it.
func makeInitrd(o Options) (string, error) {
	agent := o.Agent
	if agent == "" {
		var err error
		if agent, err = findAgent(); err != nil {
			return "", err
		}
	}
	initrd, err := packInitrd(agent, o.Kernel, o.Modules)
	if err != nil {
		return "", err
	}
	dir, err := cacheFolder()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(initrd)
	path := filepath.Join(dir, fmt.Sprintf("initrd-%x.cpio", sum[:8]))
	now := time.Now()
	if err := os.Chtimes(path, now, now); err == nil {
		return path, nil
	}
	removeOldInitrds(dir)
	temporary := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer os.Remove(temporary)
	if err := os.WriteFile(temporary, initrd, 0o644); err != nil {
		return "", err
	}
	return path, os.Rename(temporary, path)
}

// initrdLife is how long an initrd stays in the cache after a newer one was
// made: longer than any QEMU takes to read it.
const initrdLife = time.Hour

// removeOldInitrds keeps the cache from growing with each change of the agent.
func removeOldInitrds(dir string) {
	old, _ := filepath.Glob(filepath.Join(dir, "initrd-*.cpio"))
	for _, path := range old {
		if stat, err := os.Stat(path); err == nil && time.Since(stat.ModTime()) > initrdLife {
			_ = os.Remove(path)
		}
	}
}

func packInitrd(agent, kernel string, extra []string) ([]byte, error) {
	program, err := os.ReadFile(agent)
	if err != nil {
		return nil, err
	}
	var archive initramfs.Archive
	archive.AddFile("init", 0o755, program)
	archive.AddDir("dev")
	archive.AddCharDevice("dev/console", 0o600, 5, 1) // the kernel opens it before the agent mounts anything
	base, err := archive.Bytes()
	if err != nil {
		return nil, err
	}
	tree, err := initramfs.FindTree(kernel, "")
	if err != nil {
		return nil, err
	}
	wanted := append(append([]string{}, hostModules...), extra...)
	modules, missing, err := initramfs.ModulesSegment(tree, wanted...)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("the emulated host's kernel %s lacks %s: it must be a full one, not a cloud kernel", kernel, strings.Join(missing, ", "))
	}
	return initramfs.Concat(base, modules), nil
}
