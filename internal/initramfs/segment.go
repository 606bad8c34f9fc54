// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"fmt"
	"path"
	"strings"

	"github.com/govmm/govmm/internal/initramfs/layout"
)

// GuestModules are the drivers of the devices that govmm can give a guest, and
// the file systems and transports that come with them.
var GuestModules = []string{
	"virtio_pci", "virtio_mmio", "virtio_net", "virtio_blk", "virtio_console", "virtio_rng",
	"9pnet_virtio", "9p", "vmw_vsock_virtio_transport", "virtiofs",
	"af_packet", "hv_netvsc", "pvpanic_pci", "ibmveth",
}

// ModulesSegment returns a cpio archive with the named modules of the tree,
// all that they depend on, and the list at layout.ModuleList; and the names that this
// kernel does not have.
func ModulesSegment(t *Tree, names ...string) (segment []byte, missing []string, err error) {
	modules, missing, err := t.Resolve(names...)
	if err != nil {
		return nil, nil, err
	}
	var (
		archive Archive
		list    strings.Builder
	)
	for _, module := range modules {
		file := path.Join("/lib/modules", t.Version, module.Path)
		archive.AddFile(file, 0o644, module.Data)
		fmt.Fprintln(&list, strings.Join(append([]string{file}, module.Depends...), " "))
	}
	archive.AddFile(layout.ModuleList, 0o644, []byte(list.String()))
	segment, err = archive.Bytes()
	return segment, missing, err
}
