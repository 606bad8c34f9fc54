// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// cloneDevice is where taps come from.
const cloneDevice = "/dev/net/tun"

// MaxQueues is the number of queues that a tap can have (MAX_TAP_QUEUES).
const MaxQueues = 256

// baseFlags are what every tap is opened with: layer 2, no packet information
// but the virtio header before each frame.
const baseFlags = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR

// Options says which tap to open, in one of three ways.
type Options struct {
	// Name is an interface that exists, or with Create the new one's name. The
	// latter may contain one %d, for which the kernel puts the first free number.
	Name string
	// Create makes the interface; it vanishes with Close or with the process. It
	// needs CAP_NET_ADMIN.
	Create bool
	// FDs are open descriptors of one tap, one for each queue, instead of a Name.
	// Open takes them over if it succeeds.
	FDs []int

	// Queues is the number of queues, 0 meaning 1. With FDs it is their number.
	Queues int
	// MTU is the interface's MTU in bytes; 0 leaves it as it is.
	MTU int
	// Addrs are the host's addresses on a new interface, with their networks.
	Addrs []netip.Prefix
	// Log takes warnings; nil drops them.
	Log *slog.Logger
}

// DefaultName is the Name that Create uses if none is given.
const DefaultName = "govmm%d"

// Open opens a tap. It must be called on a thread in the interface's network
// namespace. Its errors name the interface, what is wrong, and the cure; nothing
// is left behind then.
func Open(o Options) (*Tap, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Queues == 0 {
		o.Queues = max(1, len(o.FDs))
	}
	if o.Create && o.Name == "" {
		o.Name = DefaultName
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	switch {
	case len(o.FDs) > 0:
		return openFDs(o)
	case o.Create:
		return create(o)
	}
	return openExisting(o)
}

// check refuses what can be seen to be wrong without asking the kernel.
func (o *Options) check() error {
	if len(o.FDs) > 0 {
		switch {
		case o.Name != "" || o.Create:
			return errors.New("tap: give either a name or file descriptors")
		case o.Queues != len(o.FDs):
			return fmt.Errorf("tap: %d queues need as many file descriptors, %d were given", o.Queues, len(o.FDs))
		}
	} else if err := CheckName(o.Name, o.Create); err != nil {
		return err
	}
	if o.Queues < 1 || o.Queues > MaxQueues {
		return fmt.Errorf("tap %s: %d queues: a tap has 1 to %d", o.Name, o.Queues, MaxQueues)
	}
	if o.MTU != 0 && (o.MTU < MinMTU || o.MTU > MaxMTU) {
		return fmt.Errorf("tap %s: MTU %d is out of range: %d to %d bytes are possible", o.Name, o.MTU, MinMTU, MaxMTU)
	}
	if len(o.Addrs) > 0 && !o.Create {
		return fmt.Errorf("tap %s: addresses are set on a new interface only: set them with `ip addr add %s dev %s`", o.Name, o.Addrs[0], o.Name)
	}
	for _, a := range o.Addrs {
		if !a.IsValid() {
			return fmt.Errorf("tap %s: an address without its network: write it as 10.0.0.1/24", o.Name)
		}
	}
	return nil
}

// MTUs that a tap can have: ETH_MIN_MTU, and 65535 bytes with the Ethernet
// header.
const (
	MinMTU = 68
	MaxMTU = 65535 - 14
)

// CheckName tells whether name can be that of an interface, by the kernel's
// rules; pattern allows one %d.
func CheckName(name string, pattern bool) error {
	bad := func(why string) error { return fmt.Errorf("tap name %q: %s", name, why) }
	plain := name
	if pattern {
		plain = strings.Replace(name, "%d", "0", 1)
	}
	switch {
	case name == "":
		return bad("it is empty")
	case len(plain) >= unix.IFNAMSIZ:
		return bad(fmt.Sprintf("it has %d characters, an interface's name has at most %d", len(plain), unix.IFNAMSIZ-1))
	case plain == "." || plain == "..":
		return bad("this is no interface's name")
	case strings.ContainsAny(plain, "/:%"):
		return bad("an interface's name has no '/', ':' or '%'")
	case strings.ContainsFunc(plain, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return bad("an interface's name has no white space or control character")
	}
	return nil
}

// openExisting opens an interface that someone else made.
func openExisting(o Options) (*Tap, error) {
	link, err := findTap(o.Name)
	if err != nil {
		return nil, err
	}
	multi := link.Flags&netlink.TUNTAP_MULTI_QUEUE != 0
	if o.Queues > 1 && !multi {
		return nil, fmt.Errorf("tap %s has one queue, %d were asked for: make it with `ip tuntap add dev %s mode tap multi_queue`, or ask for one", o.Name, o.Queues, o.Name)
	}
	if o.MTU != 0 && o.MTU != link.MTU {
		return nil, fmt.Errorf("tap %s has MTU %d, %d was asked for: set it with `ip link set dev %s mtu %d`", o.Name, link.MTU, o.MTU, o.Name, o.MTU)
	}
	if link.Queues+link.DisabledQueues > 0 {
		// With several queues the kernel would let us share it, and each process
		// would see some of the frames.
		return nil, explainAttach(unix.EBUSY, link)
	}
	flags := uint16(baseFlags)
	if multi {
		flags |= unix.IFF_MULTI_QUEUE
	}
	_, fds, err := openQueues(o.Name, flags, o.Queues)
	if err != nil {
		return nil, explainAttach(err, link)
	}
	t, err := finish(o.Name, fds, o)
	if err != nil {
		return nil, err
	}
	t.bringUp(link)
	return t, nil
}

// findTap looks an interface up and sees that it is a tap.
func findTap(name string) (*netlink.Tuntap, error) {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return nil, fmt.Errorf("tap %s does not exist: make it with `ip tuntap add dev %s mode tap user $USER`, or let govmm make one", name, name)
	case err != nil:
		return nil, fmt.Errorf("tap %s: look it up: %w", name, err)
	}
	tt, ok := link.(*netlink.Tuntap)
	if !ok {
		return nil, fmt.Errorf("interface %s is of type %q, not a tap: attach a tap to it by a bridge", name, link.Type())
	}
	if tt.Mode != netlink.TUNTAP_MODE_TAP {
		return nil, fmt.Errorf("interface %s is a tun, which carries no Ethernet: make it with `ip tuntap add dev %s mode tap`", name, name)
	}
	return tt, nil
}

// openQueues opens the clone device once for each queue, and returns the
// interface's name, which flags and name make the kernel choose.
func openQueues(name string, flags uint16, queues int) (string, []int, error) {
	var fds []int
	fail := func(err error) (string, []int, error) {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return "", nil, err
	}
	for range queues {
		fd, err := unix.Open(cloneDevice, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fail(explainClone(err))
		}
		fds = append(fds, fd)
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return fail(err)
		}
		ifr.SetUint16(flags)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
			return fail(os.NewSyscallError("ioctl(TUNSETIFF)", err))
		}
		name = ifr.Name()
		flags &^= unix.IFF_TUN_EXCL // the further queues are of the same interface
	}
	return name, fds, nil
}

// explainClone tells why the clone device can't be opened.
func explainClone(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("%s: %w: the kernel's tun driver is not loaded: run `modprobe tun` as root (in a container, pass the device in)", cloneDevice, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: %w: it is usually open to all: run `chmod 666 %s` as root", cloneDevice, err, cloneDevice)
	}
	return fmt.Errorf("%s: %w", cloneDevice, err)
}

// explainAttach tells why an existing interface can't be opened.
func explainAttach(err error, link *netlink.Tuntap) error {
	name := link.Name
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("tap %s: %w: it belongs to %s, and this is user %d: make it with `ip tuntap add dev %s mode tap user %d`", name, err, owner(link), os.Geteuid(), name, os.Geteuid())
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("tap %s: %w: another process has it open", name, err)
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("tap %s: %w: all its queues are open in other processes", name, err)
	}
	return fmt.Errorf("tap %s: %w", name, err)
}

// noOwner is how the kernel reports a tap without an owner or group.
const noOwner = ^uint32(0)

func owner(link *netlink.Tuntap) string {
	switch {
	case link.Owner != noOwner:
		return fmt.Sprintf("user %d", link.Owner)
	case link.Group != noOwner:
		return fmt.Sprintf("group %d", link.Group)
	}
	return "root"
}

// openFDs takes over descriptors that are open already.
func openFDs(o Options) (*Tap, error) {
	name := ""
	for _, fd := range o.FDs {
		ifr, err := unix.NewIfreq("")
		if err != nil {
			return nil, err
		}
		if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr); err != nil {
			return nil, explainFD(fd, err)
		}
		switch flags := ifr.Uint16(); {
		case flags&unix.IFF_TAP == 0:
			return nil, fmt.Errorf("file descriptor %d is of %s, a tun, which carries no Ethernet: open it with IFF_TAP", fd, ifr.Name())
		case flags&unix.IFF_VNET_HDR == 0:
			return nil, fmt.Errorf("file descriptor %d of tap %s was opened without IFF_VNET_HDR, which the virtio header needs", fd, ifr.Name())
		}
		if name != "" && name != ifr.Name() {
			return nil, fmt.Errorf("file descriptors %d and %d are of two taps, %s and %s: give the queues of one", o.FDs[0], fd, name, ifr.Name())
		}
		name = ifr.Name()
	}
	control, err := controlSocket()
	if err != nil {
		return nil, fmt.Errorf("tap %s: %w", name, err)
	}
	if !sameInterface(o.FDs[0], control, name) {
		o.Log.Warn("the tap is in another network namespace, so its MTU is unknown", "tap", name, "assumed", defaultMTU)
		_ = unix.Close(control)
		control = -1
	} else if err := checkNoPI(name); err != nil {
		_ = unix.Close(control)
		return nil, err
	}
	own := make([]int, 0, len(o.FDs))
	for _, fd := range o.FDs {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeAll(append(own, control))
			return nil, fmt.Errorf("tap %s: file descriptor %d: %w", name, fd, os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", err))
		}
		own = append(own, dup)
	}
	t, err := attach(name, own, control, o.Log)
	if err != nil {
		return nil, err
	}
	closeAll(o.FDs)
	if o.MTU != 0 && o.MTU != t.MTU() {
		return nil, errors.Join(fmt.Errorf("tap %s has MTU %d, %d was asked for: set it with `ip link set dev %s mtu %d`", name, t.MTU(), o.MTU, name, o.MTU), t.Close())
	}
	return t, nil
}

// checkNoPI refuses a tap whose frames begin with struct tun_pi. TUNGETIFF
// doesn't tell: its IFF_NOFILTER has the value of IFF_NO_PI.
func checkNoPI(name string) error {
	link, err := findTap(name)
	if err != nil {
		return err
	}
	if link.Flags&netlink.TUNTAP_NO_PI == 0 {
		return fmt.Errorf("the file descriptor of tap %s was opened without IFF_NO_PI, so that its frames begin with other bytes", name)
	}
	return nil
}

// explainFD tells why a descriptor is no tap.
func explainFD(fd int, err error) error {
	switch {
	case errors.Is(err, unix.EBADF):
		return fmt.Errorf("file descriptor %d is not open: whoever starts govmm must open it and pass it on", fd)
	case errors.Is(err, unix.EBADFD):
		return fmt.Errorf("file descriptor %d is of %s but has no interface: make one with TUNSETIFF first", fd, cloneDevice)
	}
	return fmt.Errorf("file descriptor %d is no tap: %w", fd, os.NewSyscallError("ioctl(TUNGETIFF)", err))
}

// sameInterface tells whether the tap behind fd is what this network namespace
// knows by its name. Unprivileged callers can't ask for the tap's namespace, but
// an address chosen at random tells as well.
func sameInterface(fd, control int, name string) bool {
	ours, err1 := unix.NewIfreq(name)
	theirs, err2 := unix.NewIfreq(name)
	if err1 != nil || err2 != nil {
		return false
	}
	return unix.IoctlIfreq(fd, unix.SIOCGIFHWADDR, theirs) == nil &&
		unix.IoctlIfreq(control, unix.SIOCGIFHWADDR, ours) == nil && *ours == *theirs
}

// controlSocket opens a socket for ioctls on interfaces.
func controlSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return fd, os.NewSyscallError("socket", err)
}

// finish makes the Tap of an interface in this network namespace.
func finish(name string, fds []int, o Options) (*Tap, error) {
	control, err := controlSocket()
	if err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("tap %s: %w", name, err)
	}
	return attach(name, fds, control, o.Log)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// bringUp sees to it that an existing interface is up, as far as allowed: the
// network is the owner's business, so that a failure is a warning.
func (t *Tap) bringUp(link netlink.Link) {
	if link.Attrs().RawFlags&unix.IFF_UP != 0 {
		return
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.log.Warn("the tap is down, so the guest reaches nothing", "tap", t.name, "cure", "ip link set dev "+t.name+" up", "error", err)
	}
}
