// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/govmm/govmm/internal/emuhost/executor"
	"github.com/govmm/govmm/internal/emuhost/wire"
)

// work connects to the machine and serves it until it asks for the end.
func work() error {
	port, err := openPort(wire.PortName, 30*time.Second)
	if err != nil {
		return err
	}
	defer port.Close()
	return executor.Serve(port, dropCaches)
}

// dropCaches makes the kernel forget unused names and files of the machine's
// root, which may have changed since. That costs a command some milliseconds;
// without any cache, programs would start several times slower.
func dropCaches() {
	const dentriesAndInodes = "2" // Documentation/admin-guide/sysctl/vm.rst
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte(dentriesAndInodes), 0); err != nil {
		logf("files may be out of date: %v", err)
	}
}

// openPort opens the virtio-serial port of the given name. Ports appear a
// moment after their driver was loaded.
func openPort(name string, patience time.Duration) (*os.File, error) {
	deadline := time.Now().Add(patience)
	for {
		entries, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			data, err := os.ReadFile(entry)
			if err == nil && strings.TrimSpace(string(data)) == name {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(entry)), os.O_RDWR, 0)
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no virtio-serial port named %s", name)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
