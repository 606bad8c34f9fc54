// SPDX-License-Identifier: Apache-2.0

// Command pack completes a u-root archive to govmm's guest image: it appends
// init, and programs of unpacked Debian packages with the shared libraries that
// they need.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/govmm/govmm/internal/initramfs"
)

func main() {
	base := flag.String("base", "", "u-root archive `FILE`")
	initProgram := flag.String("init", "", "`FILE` to be /init")
	root := flag.String("root", "", "`DIR` where Debian packages were unpacked")
	output := flag.String("o", "", "`FILE` to write")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: pack -base FILE -init FILE -root DIR -o FILE [PROGRAM...]   (PROGRAM: a path below DIR)")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := pack(*base, *initProgram, *root, flag.Args(), *output); err != nil {
		fmt.Fprintf(os.Stderr, "pack: %v\n", err)
		os.Exit(1)
	}
}

func pack(base, initProgram, root string, programs []string, output string) error {
	archive, err := os.ReadFile(base)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(initProgram)
	if err != nil {
		return err
	}
	var extra initramfs.Archive
	extra.AddDir("dev")
	extra.AddCharDevice("dev/console", 0o600, 5, 1) // init's standard streams, before it mounts anything
	extra.AddFile("init", 0o755, program)
	extra.AddSymlink("bin/reboot", "/init")
	extra.AddSymlink("bin/halt", "/init")
	extra.AddSymlink("bin/poweroff", "/init")
	for _, dir := range []string{"etc", "mnt", "proc", "root", "run", "sys", "tmp"} {
		extra.AddDir(dir)
	}
	extra.AddFile("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	extra.AddFile("etc/group", 0o644, []byte("root:x:0:\n"))
	extra.AddFile("etc/resolv.conf", 0o644, nil) // u-root's names a public server
	extra.AddFile("etc/hosts", 0o644, []byte("127.0.0.1 localhost\n::1 localhost\n"))
	if err := addPrograms(&extra, root, programs); err != nil {
		return err
	}
	segment, err := extra.Bytes()
	if err != nil {
		return err
	}
	image, err := compress(initramfs.Concat(archive, segment))
	if err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(output), fmt.Sprintf(".%s.%d", filepath.Base(output), os.Getpid()))
	defer os.Remove(temporary)
	if err := os.WriteFile(temporary, image, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, output)
}
