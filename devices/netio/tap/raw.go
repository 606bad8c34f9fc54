// SPDX-License-Identifier: Apache-2.0

package tap

import "golang.org/x/sys/unix"

// Raw is a tap's descriptor with nothing around it: the loop that benchmarks
// measure the packet engine against.
type Raw int

// Send writes one frame.
func (fd Raw) Send(vec []unix.Iovec) unix.Errno {
	if len(vec) == 1 {
		return write(int(fd), &vec[0])
	}
	return writev(int(fd), vec)
}

// Recv reads one frame and returns its size.
func (fd Raw) Recv(vec []unix.Iovec) (int, unix.Errno) {
	if len(vec) == 1 {
		return read(int(fd), &vec[0])
	}
	return readv(int(fd), vec)
}
