// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/govmm/govmm/internal/guestmem"
)

// openNonblock opens a file for reading. A named pipe without a writer would
// otherwise block for ever.
func openNonblock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		return f, nil
	}
	var pe *fs.PathError
	if !errors.As(err, &pe) {
		return nil, err
	}
	switch {
	case path == "":
		return nil, errors.New(`"": the file name is empty`)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s: %w; make the file readable for this user", path, pe.Err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w; check the path", path, pe.Err)
	}
	return nil, fmt.Errorf("%s: %w", path, pe.Err)
}

// openRegular opens a file for reading, and refuses all that is not a regular
// file: a pipe can't be read again when the guest reboots, and may never end.
func openRegular(path string) (*os.File, int64, error) {
	f, err := openNonblock(path)
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = notRegular(path, st.Mode())
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, st.Size(), nil
}

// notRegular says what a file is instead of a regular one.
func notRegular(path string, m fs.FileMode) error {
	kind := "a special file"
	switch {
	case m.IsDir():
		kind = "a folder"
	case m&fs.ModeNamedPipe != 0:
		kind = "a pipe"
	case m&fs.ModeSocket != 0:
		kind = "a socket"
	case m&fs.ModeDevice != 0:
		kind = "a device"
	}
	return fmt.Errorf("%s: is %s, expected a regular file", path, kind)
}

// copyIn copies exactly n bytes from r to guest RAM at addr.
func copyIn(mem *guestmem.Memory, addr uint64, r io.Reader, n uint64) error {
	w := mem.Writer(addr)
	buf := make([]byte, min(n, 1<<20))
	for n > 0 {
		k, err := io.ReadFull(r, buf[:min(n, uint64(len(buf)))])
		if err != nil {
			return fmt.Errorf("ends %d bytes early; was the file changed while it was read? %w", n-uint64(k), err)
		}
		if _, err := w.Write(buf[:k]); err != nil {
			return err
		}
		n -= uint64(k)
	}
	return nil
}

// sizeOf formats a number of bytes for messages. It rounds up, so that what is
// needed is never said too small.
func sizeOf(n uint64) string {
	const mib = 1 << 20
	switch {
	case n < mib && n%1024 == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < mib:
		return fmt.Sprintf("%d bytes", n)
	}
	tenths := n/mib*10 + (n%mib*10+mib-1)/mib
	if tenths%10 == 0 {
		return fmt.Sprintf("%d MiB", tenths/10)
	}
	return fmt.Sprintf("%d.%d MiB", tenths/10, tenths%10)
}
