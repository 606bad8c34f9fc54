// SPDX-License-Identifier: Apache-2.0

// Package layout is what govmm and the init of its guest image agree on: names
// of files in the initramfs, parameters of the kernel command line, and what
// init prints.
package layout

const (
	// ModuleList is where init finds the modules to load. Each line is the
	// absolute path of a module, followed by the names of the modules that it
	// depends on, all separated by spaces. The lines are in load order.
	ModuleList = "/lib/modules/govmm.list"

	// Run is a program or script that init runs instead of a shell when a
	// further initrd brings it. Init then prints ExitMarker and powers off.
	Run = "/etc/govmm/run"

	// ExitMarker and a decimal exit status are the last line that init prints
	// after a command. A status is 128 plus the signal's number if a signal
	// ended the command.
	ExitMarker = "govmm-init: exit status "
)

// Parameters of the kernel command line that init understands. What follows
// " -- " on the command line is a command (or the arguments of Run, if that
// exists), which init runs instead of a shell.
const (
	// AddressParameter configures an interface: ADDRESS/PREFIX[,gw=ADDRESS][,dev=NAME],
	// or dhcp[,dev=NAME]. It may be repeated. Without dev it means the first
	// Ethernet interface.
	AddressParameter = "govmm.ip"

	// KernelAddressParameter is the kernel's own form
	// CLIENT:SERVER:GATEWAY:NETMASK:HOSTNAME:DEVICE:AUTOCONF
	// (Documentation/admin-guide/nfs/nfsroot.rst), for kernels that lack it.
	KernelAddressParameter = "ip"

	// HostnameParameter sets the host name.
	HostnameParameter = "govmm.hostname"
)
