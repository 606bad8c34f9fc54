// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// CacheDir returns the folder where kernels and images are kept: $GOVMM_CACHE,
// by default govmm in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("GOVMM_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder: %w; set GOVMM_CACHE", err)
	}
	return filepath.Join(dir, "govmm"), nil
}

// BaseImage returns the path of govmm's own guest image for this architecture.
func BaseImage() (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	image := filepath.Join(cache, "images", baseImageName())
	_, err = os.Stat(image)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the guest image %s does not exist yet: run `make images`, or give an initrd", image)
	}
	if err != nil {
		return "", err
	}
	return image, nil
}

// Default returns the initrd of a kernel for which the user gave none, as
// segments that are to be loaded one after the other, each at a multiple of 4
// bytes: the modules that this kernel needs for govmm's devices, and the base
// image. A kernel without a module tree gets the base image alone, for it may
// have everything built in. kernel is the path of the image, version its
// release string (see FindTree).
func Default(kernel, version string) ([][]byte, error) {
	image, err := BaseImage()
	if err != nil {
		return nil, err
	}
	base, err := os.ReadFile(image)
	if err != nil {
		return nil, err
	}
	tree, err := FindTree(kernel, version)
	if errors.Is(err, ErrNoModules) {
		return [][]byte{base}, nil
	}
	if err != nil {
		return nil, err
	}
	modules, _, err := ModulesSegment(tree, GuestModules...)
	if err != nil {
		return nil, err
	}
	return [][]byte{modules, base}, nil
}

// baseImageName is the image's file name, which guest-images/build gives it.
func baseImageName() string { return "uroot-" + runtime.GOARCH + ".cpio.lz4" }
