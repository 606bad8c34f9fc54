// SPDX-License-Identifier: Apache-2.0

// Package vmbustest is the guest's side of the VMBus, for tests and benchmarks
// of devices: a hypervisor made of eventfds, a driver that negotiates and opens
// channels, and its rings. It is written from what the Linux driver does, and
// shares no code with the host's side.
package vmbustest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govmm/govmm/devices/vmbus"
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// Page is the size of a VMBus page.
const Page = 4096

// Guest physical memory of a Guest: the SynIC's pages and the page for
// hypercalls come first, what Alloc gives out after them.
const (
	simpBase  = 0x10_0000 // a page for each VP
	siefpBase = 0x20_0000 // likewise
	inputPage = 0x30_0000
	allocBase = 0x40_0000
)

// Where the VMBus's slot is in the SynIC's pages: that of source 2.
const slot = 0x200

// postTries is how often a message is posted that the host has no room for.
const postTries = 100

var le = binary.LittleEndian

// Hypervisor is a vmbus.Host that has eventfds for interrupts.
type Hypervisor struct {
	interrupts []*Interrupt
	ack        int

	mu    sync.Mutex
	kicks map[uint32]int // eventfds by connection
}

// Interrupt counts the interrupts of a virtual processor, and wakes one waiter.
type Interrupt struct {
	count atomic.Uint64
	C     chan struct{} // holds one element after an interrupt
}

// Count is how many there were.
func (i *Interrupt) Count() uint64 { return i.count.Load() }

// Inject implements vmbus.Host.
func (h *Hypervisor) Inject(vp uint32) {
	i := h.interrupts[vp]
	i.count.Add(1)
	select {
	case i.C <- struct{}{}:
	default:
	}
}

// Connect implements vmbus.Host.
func (h *Hypervisor) Connect(connection uint32, fd int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, taken := h.kicks[connection]; taken {
		return unix.EEXIST
	}
	h.kicks[connection] = fd
	return nil
}

// Disconnect implements vmbus.Host.
func (h *Hypervisor) Disconnect(connection uint32, fd int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kicks[connection] != fd {
		return unix.ENOENT
	}
	delete(h.kicks, connection)
	return nil
}

// AckFD implements vmbus.Host.
func (h *Hypervisor) AckFD() int { return h.ack }

// Guest is a guest with a VMBus driver. It is for one goroutine; channels that
// it has opened may be used by another one each.
type Guest struct {
	Mem *guestmem.Memory
	Bus *vmbus.Bus
	Hyp *Hypervisor
	// Timeout is how long at most an answer is awaited.
	Timeout time.Duration
	// PostConnection is where messages are posted; Connect sets it.
	PostConnection uint32

	next      uint64 // of Alloc
	gpadl     uint32 // the last handle
	backlog   [][]byte
	simp      []guestmem.View
	siefp     []guestmem.View
	inputView guestmem.View
}

// NewGuest makes a guest with the given bytes of RAM, a multiple of 64 KiB and at
// least 8 MiB, whose SynICs are on. Close ends it.
func NewGuest(ram uint64, vps int, devices ...vmbus.Device) (*Guest, error) {
	mem, err := guestmem.New(guestmem.Range{Size: ram})
	if err != nil {
		return nil, err
	}
	ack, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	h := &Hypervisor{ack: ack, kicks: map[uint32]int{}}
	for range vps {
		h.interrupts = append(h.interrupts, &Interrupt{C: make(chan struct{}, 1)})
	}
	g := &Guest{
		Mem: mem, Hyp: h, Timeout: 10 * time.Second, PostConnection: 1, next: allocBase, gpadl: 0xe1e0f,
		Bus: vmbus.New(vmbus.Config{Memory: mem, VPs: vps, Host: h}),
	}
	for _, d := range devices {
		if err := g.Bus.Add(d); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	if err := g.views(vps); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	for vp := range vps {
		g.EnableSynIC(vp)
	}
	return g, nil
}

func (g *Guest) views(vps int) (err error) {
	g.simp, g.siefp = make([]guestmem.View, vps), make([]guestmem.View, vps)
	var errs []error
	for vp := range vps {
		g.simp[vp], err = g.Mem.View(simpBase+uint64(vp)*Page, Page, Page)
		errs = append(errs, err)
		g.siefp[vp], err = g.Mem.View(siefpBase+uint64(vp)*Page, Page, Page)
		errs = append(errs, err)
	}
	g.inputView, err = g.Mem.View(inputPage, Page, Page)
	return errors.Join(append(errs, err)...)
}

// Close stops the bus and frees everything.
func (g *Guest) Close() error {
	g.Bus.Stop()
	return errors.Join(g.Bus.Close(), unix.Close(g.Hyp.ack), g.Mem.Close())
}

// EnableSynIC sets the registers of a virtual processor as Linux does, and
// DisableSynIC clears them.
func (g *Guest) EnableSynIC(vp int) {
	off := uint64(vp) * Page
	g.Bus.WriteSynIC(uint32(vp), 1, simpBase+off|1, siefpBase+off|1)
}

// DisableSynIC clears the registers of a virtual processor.
func (g *Guest) DisableSynIC(vp int) { g.Bus.WriteSynIC(uint32(vp), 0, 0, 0) }

// Interrupt is that of a virtual processor.
func (g *Guest) Interrupt(vp int) *Interrupt { return g.Hyp.interrupts[vp] }

// Alloc gives out n zeroed pages, contiguous in guest RAM.
func (g *Guest) Alloc(n int) (gpa uint64, err error) {
	gpa = g.next
	if err := g.Mem.Zero(gpa, uint64(n)*Page); err != nil {
		return 0, err
	}
	g.next += uint64(n) * Page
	return gpa, nil
}

// Post posts a message as HvCallPostMessage does and returns the status.
func (g *Guest) Post(msg []byte) (status uint64) {
	var in [16]byte
	le.PutUint32(in[0:], g.PostConnection)
	le.PutUint32(in[8:], 1)
	le.PutUint32(in[12:], uint32(len(msg)))
	g.inputView.CopyOut(0, in[:])
	g.inputView.CopyOut(16, msg)
	return g.Bus.Hypercall(0x5c, [2]uint64{inputPage, 0})
}

// Take takes the message in the slot of a virtual processor, as Linux does: it
// frees the slot, and writes EOM if more is waiting. It returns nil if there is
// none.
func (g *Guest) Take(vp int) []byte {
	v := g.simp[vp]
	if v.Load32(slot) == 0 {
		return nil
	}
	msg := make([]byte, min(v.Load32(slot+4)&0xff, 240))
	v.CopyIn(slot+16, msg)
	v.Store32(slot, 0)
	if v.Load32(slot+4)&0x100 != 0 {
		_, _ = unix.Write(g.Hyp.ack, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only if it is signalled anyway
	}
	return msg
}

// Event takes the event flag of a channel on a virtual processor.
func (g *Guest) Event(vp int, relid uint32) bool {
	off := slot + uint64(relid/32)*4
	bit := uint32(1) << (relid % 32)
	set := g.siefp[vp].Load32(off)&bit != 0
	if set {
		g.siefp[vp].Store32(off, g.siefp[vp].Load32(off)&^bit)
	}
	return set
}

// Await returns the next message of a type to VP 0. Others are kept for later
// calls.
func (g *Guest) Await(typ uint32) ([]byte, error) {
	for i, m := range g.backlog {
		if len(m) >= 8 && le.Uint32(m) == typ {
			g.backlog = append(g.backlog[:i], g.backlog[i+1:]...)
			return m, nil
		}
	}
	for deadline := time.Now().Add(g.Timeout); time.Now().Before(deadline); {
		m := g.Take(0)
		switch {
		case m == nil:
			select {
			case <-g.Hyp.interrupts[0].C:
			case <-time.After(time.Millisecond):
			}
		case len(m) >= 8 && le.Uint32(m) == typ:
			return m, nil
		default:
			g.backlog = append(g.backlog, m)
		}
	}
	return nil, fmt.Errorf("no message of type %d within %v", typ, g.Timeout)
}

// Message builds a message of u32 fields.
func Message(typ uint32, fields ...uint32) []byte {
	m := le.AppendUint32(nil, typ)
	m = le.AppendUint32(m, 0)
	for _, f := range fields {
		m = le.AppendUint32(m, f)
	}
	return m
}

// request posts a message and awaits the answer.
func (g *Guest) request(msg []byte, answer uint32) ([]byte, error) {
	status := g.Post(msg)
	for try := 0; status == 19 && try < postTries; try++ {
		time.Sleep(time.Millisecond)
		status = g.Post(msg)
	}
	if status != 0 {
		return nil, fmt.Errorf("message type %d: status %d", le.Uint32(msg), status)
	}
	return g.Await(answer)
}

// InitiateContact is that message for a version.
func InitiateContact(version, vp uint32) []byte {
	m := make([]byte, 40)
	le.PutUint32(m, 14)
	le.PutUint32(m[8:], version)
	le.PutUint32(m[12:], vp)
	if version >= 5<<16 {
		m[16] = 2
	}
	return m
}

// Connect negotiates a version, major number in the upper 16 bits. It fails if
// the host refuses it.
func (g *Guest) Connect(version uint32) error {
	g.backlog = nil
	g.PostConnection = 1
	if version >= 5<<16 {
		g.PostConnection = 4
	}
	m, err := g.request(InitiateContact(version, 0), 15)
	if err != nil {
		return err
	}
	if m[8] != 1 || m[9] != 0 {
		return fmt.Errorf("version %#x was refused", version)
	}
	if version >= 5<<16 {
		g.PostConnection = le.Uint32(m[12:])
	}
	return nil
}

// Offer is what the host offered.
type Offer struct {
	Class, Instance vmbus.GUID
	SubIndex        int
	Relid           uint32
	Connection      uint32
}

func parseOffer(m []byte) (o Offer, err error) {
	if len(m) != 196 || m[190]&1 != 1 || m[189] != 0 {
		return o, fmt.Errorf("offer %x", m)
	}
	copy(o.Class[:], m[8:])
	copy(o.Instance[:], m[24:])
	o.SubIndex = int(le.Uint16(m[180:]))
	o.Relid, o.Connection = le.Uint32(m[184:]), le.Uint32(m[192:])
	return o, nil
}

// RequestOffers returns what is on the bus.
func (g *Guest) RequestOffers() (offers []Offer, err error) {
	if _, err := g.request(Message(3), 4); err != nil {
		return nil, err
	}
	var rest [][]byte
	for _, m := range g.backlog {
		if le.Uint32(m) != 1 {
			rest = append(rest, m)
			continue
		}
		o, err := parseOffer(m)
		if err != nil {
			return nil, err
		}
		offers = append(offers, o)
	}
	g.backlog = rest
	return offers, nil
}

// AwaitOffer returns the next offer, of a sub-channel for example.
func (g *Guest) AwaitOffer() (Offer, error) {
	m, err := g.Await(1)
	if err != nil {
		return Offer{}, err
	}
	return parseOffer(m)
}

// AwaitRescind returns the next channel that is rescinded, and releases it.
func (g *Guest) AwaitRescind() (relid uint32, err error) {
	m, err := g.Await(2)
	if err != nil {
		return 0, err
	}
	relid = le.Uint32(m[8:])
	if status := g.Post(Message(13, relid)); status != 0 {
		return relid, fmt.Errorf("RELID_RELEASED: status %d", status)
	}
	return relid, nil
}

// Share makes a GPADL of pages, in the messages that Linux makes of it: at most
// 26 page numbers in the first one and 28 in each further one.
func (g *Guest) Share(relid uint32, pages ...uint64) (handle uint32, err error) {
	g.gpadl++
	handle = g.gpadl
	msgs := GPADLMessages(relid, handle, pages)
	for _, m := range msgs[:len(msgs)-1] {
		if status := g.Post(m); status != 0 {
			return handle, fmt.Errorf("GPADL message: status %d", status)
		}
	}
	m, err := g.request(msgs[len(msgs)-1], 10)
	if err != nil {
		return handle, err
	}
	if le.Uint32(m[12:]) != handle || le.Uint32(m[16:]) != 0 {
		return handle, fmt.Errorf("GPADL %#x: answer %x", handle, m)
	}
	return handle, nil
}

// GPADLMessages builds the messages that make a GPADL of pages, addresses that
// are multiples of Page.
func GPADLMessages(relid, handle uint32, pages []uint64) (msgs [][]byte) {
	const first, further = 26, 28
	m := Message(8, relid, handle)
	m = le.AppendUint16(m, uint16(8+8*len(pages)))
	m = le.AppendUint16(m, 1)
	m = le.AppendUint32(m, uint32(len(pages)*Page))
	m = le.AppendUint32(m, 0)
	room := first
	for _, gpa := range pages {
		if room == 0 {
			msgs = append(msgs, m)
			m, room = Message(9, 0, handle), further
		}
		m = le.AppendUint64(m, gpa/Page)
		room--
	}
	return append(msgs, m)
}

// Pages lists the addresses of n contiguous pages.
func Pages(gpa uint64, n int) (pages []uint64) {
	for i := range n {
		pages = append(pages, gpa+uint64(i)*Page)
	}
	return pages
}

// Unshare tears a GPADL down.
func (g *Guest) Unshare(relid, handle uint32) error {
	m, err := g.request(Message(11, relid, handle), 12)
	if err == nil && le.Uint32(m[8:]) != handle {
		err = fmt.Errorf("GPADL %#x: answer %x", handle, m)
	}
	return err
}

// Open opens a channel with two rings of the given number of pages each, one of
// them the header, whose interrupts go to a virtual processor.
func (g *Guest) Open(o Offer, pages int, vp uint32) (*Channel, error) {
	gpa, err := g.Alloc(2 * pages)
	if err != nil {
		return nil, err
	}
	c := &Channel{guest: g, Offer: o, VP: vp}
	if c.Out, err = newRing(g.Mem, gpa, pages); err != nil {
		return nil, err
	}
	if c.In, err = newRing(g.Mem, gpa+uint64(pages)*Page, pages); err != nil {
		return nil, err
	}
	if c.GPADL, err = g.Share(o.Relid, Pages(gpa, 2*pages)...); err != nil {
		return nil, err
	}
	m, err := g.request(OpenMessage(o.Relid, c.GPADL, vp, uint32(pages)), 6)
	if err != nil {
		return nil, err
	}
	if le.Uint32(m[8:]) != o.Relid || le.Uint32(m[12:]) != o.Relid || le.Uint32(m[16:]) != 0 {
		return nil, fmt.Errorf("OPEN_RESULT %x", m)
	}
	g.Hyp.mu.Lock()
	defer g.Hyp.mu.Unlock()
	fd, ok := g.Hyp.kicks[o.Connection]
	if !ok {
		return nil, fmt.Errorf("connection %d has no eventfd", o.Connection)
	}
	c.KickFD = fd
	return c, nil
}

// OpenMessage builds an OPEN whose open id is the channel's number.
func OpenMessage(relid, gpadl, vp, split uint32) []byte {
	return append(Message(5, relid, relid, gpadl, vp, split), make([]byte, 120)...)
}
