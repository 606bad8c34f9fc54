// SPDX-License-Identifier: Apache-2.0

package guestmem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func writeIovec(fd int, v unix.Iovec) (int, error) {
	return unix.Write(fd, unsafe.Slice(v.Base, v.Len))
}
