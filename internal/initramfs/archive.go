// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"bytes"
	"path"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

// Archive collects files for one cpio archive in the "newc" format that the
// kernel unpacks. The same files give the same bytes: all times are zero, and
// inode numbers follow from the order of the files.
type Archive struct {
	records []cpio.Record
	seen    map[string]bool
}

// AddFile adds a regular file at name, with the folders above it. mode is its
// permission bits. A name that is there already is not added again, and the
// first contents stay.
func (a *Archive) AddFile(name string, mode uint64, data []byte) {
	name = cleanName(name)
	a.addParents(name)
	if a.claim(name) {
		a.records = append(a.records, cpio.StaticFile(name, string(data), mode))
	}
}

// AddSymlink adds a symbolic link at name that points to target.
func (a *Archive) AddSymlink(name, target string) {
	name = cleanName(name)
	a.addParents(name)
	if a.claim(name) {
		a.records = append(a.records, cpio.Symlink(name, target))
	}
}

// AddDir adds an empty folder with the permission bits 0755.
func (a *Archive) AddDir(name string) {
	name = cleanName(name)
	if name == "" {
		return
	}
	a.addParents(name)
	if a.claim(name) {
		a.records = append(a.records, cpio.Directory(name, 0o755))
	}
}

// AddCharDevice adds a character device node.
func (a *Archive) AddCharDevice(name string, mode, major, minor uint64) {
	name = cleanName(name)
	a.addParents(name)
	if a.claim(name) {
		a.records = append(a.records, cpio.CharDev(name, mode, major, minor))
	}
}

// Bytes returns the archive with its trailer, padded to a multiple of 4 bytes,
// so that archives can be put one after the other.
func (a *Archive) Bytes() ([]byte, error) {
	var buf bytes.Buffer
	w := cpio.Newc.Writer(&buf)
	for i, record := range a.records {
		record.Ino = uint64(i + 1)
		record.MTime = 0
		record.NLink = 1
		if err := w.WriteRecord(record); err != nil {
			return nil, err
		}
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return nil, err
	}
	return pad(buf.Bytes()), nil
}

// Concat joins archives (compressed ones too) into one initrd. The kernel
// wants each to start at a multiple of 4 bytes and skips zeros in between.
func Concat(segments ...[]byte) []byte {
	var initrd []byte
	for _, segment := range segments {
		initrd = append(pad(initrd), segment...)
	}
	return initrd
}

// pad appends zeros up to a multiple of 4 bytes.
func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func (a *Archive) addParents(name string) {
	if parent := path.Dir(name); parent != "." {
		a.AddDir(parent)
	}
}

// claim records a name and tells whether it is new.
func (a *Archive) claim(name string) bool {
	if a.seen[name] {
		return false
	}
	if a.seen == nil {
		a.seen = map[string]bool{}
	}
	a.seen[name] = true
	return true
}

// cleanName makes a name relative and removes "..": nothing leaves the root.
func cleanName(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}
