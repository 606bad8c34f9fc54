// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpenErrors(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		is   error
		says []string
	}{
		{plain + "/no", unix.ENOTDIR, []string{plain}},
		{plain + "-missing", fs.ErrNotExist, []string{"modprobe", "nested virtualization", plain + "-missing"}},
		{plain, nil, []string{"is not a KVM device", DefaultPath}},
		{"/dev/null", nil, []string{"/dev/null is not a KVM device"}},
	} {
		_, err := Open(c.path)
		if err == nil {
			t.Errorf("%s opened", c.path)
			continue
		}
		if c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v is not %v", c.path, err, c.is)
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: error %q does not say %q", c.path, err, s)
			}
		}
	}
}

func TestPermissionErrorNamesTheCure(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode os.FileMode
		gid  int
		says []string
	}{
		{0o660, 12345, []string{"mode 0660", "group 12345", "usermod -aG 12345"}},
		{0o600, 0, []string{"mode 0600", "group root", "chown root:kvm " + file, "chmod 660"}},
		{0o660, 0, []string{"mode 0660", "group root", "chown root:kvm"}}, // nobody should join root
	} {
		if err := errors.Join(os.Chown(file, -1, c.gid), os.Chmod(file, c.mode)); err != nil {
			t.Fatal(err)
		}
		err := openError(file, unix.EACCES)
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%v is not ErrPermission", err)
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("error %q does not say %q", err, s)
			}
		}
	}
	if err := openError(DefaultPath, unix.ENODEV); !strings.Contains(err.Error(), "modprobe") {
		t.Errorf("error %q does not name the module", err)
	}
	if err := openError(file+"-gone", unix.EACCES); !errors.Is(err, unix.EACCES) {
		t.Errorf("%v is not EACCES", err)
	}
}
