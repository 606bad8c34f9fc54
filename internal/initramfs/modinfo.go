// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"strings"
)

// modinfo is the part of a module's .modinfo section that ordering needs.
type modinfo struct {
	name    string   // canonical name, with underscores; empty in old modules
	depends []string // modules whose symbols this one uses
	softPre []string // modules that should be there before this one, if they exist
}

// parseModinfo reads the .modinfo section of a module, which is an ELF
// relocatable object of any class and byte order.
func parseModinfo(module []byte) (modinfo, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return modinfo{}, fmt.Errorf("not a kernel module: %w", err)
	}
	if f.Type != elf.ET_REL {
		return modinfo{}, fmt.Errorf("not a kernel module: ELF type is %v, a module is %v", f.Type, elf.ET_REL)
	}
	section := f.Section(".modinfo")
	if section == nil {
		return modinfo{}, errors.New("not a kernel module: it has no .modinfo section")
	}
	data, err := section.Data()
	if err != nil {
		return modinfo{}, fmt.Errorf("cannot read the .modinfo section: %w", err)
	}
	return parseModinfoTags(data), nil
}

// parseModinfoTags reads NUL-terminated "tag=value" strings. Unknown tags and
// strings without '=' are not for us.
func parseModinfoTags(data []byte) modinfo {
	var info modinfo
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		tag, value, _ := strings.Cut(string(entry), "=")
		switch tag {
		case "name":
			info.name = canonicalName(value)
		case "depends":
			info.depends = append(info.depends, splitNames(value, ",")...)
		case "softdep":
			info.softPre = append(info.softPre, softdepPre(value)...)
		}
	}
	return info
}

// softdepPre returns the names after "pre:" of a softdep tag, whose form is
// "pre: NAME... post: NAME...".
func softdepPre(value string) []string {
	var names []string
	pre := false
	for _, word := range strings.Fields(value) {
		switch word {
		case "pre:":
			pre = true
		case "post:":
			pre = false
		default:
			if pre {
				names = append(names, canonicalName(word))
			}
		}
	}
	return names
}

func splitNames(list, separator string) []string {
	var names []string
	for name := range strings.SplitSeq(list, separator) {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, canonicalName(name))
		}
	}
	return names
}

// canonicalName maps '-' to '_': the kernel and its tools take both for the same.
func canonicalName(name string) string {
	return strings.ReplaceAll(name, "-", "_")
}
