// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockTests makes the test binaries of one machine run one after the other:
// guests that share the few emulated CPUs would run into their time limits. The
// lock ends with unlock, or with the process.
func lockTests(ctx context.Context) (unlock func(), err error) {
	dir, err := cacheFolder()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	for announced := false; ; announced = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if !announced {
			fmt.Fprintln(os.Stderr, "emuhost: waiting for other guest tests on this machine")
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
