// SPDX-License-Identifier: Apache-2.0

package netio

import (
	"github.com/govmm/govmm/internal/guestmem"
	"golang.org/x/sys/unix"
)

// MAC is an Ethernet address.
type MAC = [6]byte

var broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// Filter says which destination addresses a NIC receives. It doesn't change
// once a backend has it. A nil *Filter receives everything.
//
// It is not the kernel's filter of a tap (TUNSETTXFILTER), for three reasons:
// that one belongs to the interface, so that a tap which outlives a killed
// process would be deaf to the next owner's address; it knows 8 addresses
// exactly, and the rest by a hash; and its drops can't be told from others. What
// it would save is one read for each unwanted frame.
type Filter struct {
	own          MAC
	exact        map[MAC]struct{}
	allUnicast   bool
	allMulticast bool
}

// NewFilter makes a filter that receives broadcasts and frames for own and the
// further addresses, unicast and multicast, and all of a kind if the flag says
// so.
func NewFilter(own MAC, further []MAC, allUnicast, allMulticast bool) *Filter {
	f := &Filter{own: own, exact: make(map[MAC]struct{}, len(further)), allUnicast: allUnicast, allMulticast: allMulticast}
	for _, a := range further {
		f.exact[a] = struct{}{}
	}
	return f
}

// Wants reports whether a frame for dst is received.
func (f *Filter) Wants(dst MAC) bool {
	if f == nil || dst == f.own || dst == broadcast {
		return true
	}
	if multicast := dst[0]&1 != 0; multicast && f.allMulticast || !multicast && f.allUnicast {
		return true
	}
	_, ok := f.exact[dst]
	return ok
}

// WantsFrame is Wants for the frame in vec, which begins with its header. A
// guest that changes it meanwhile decides what it receives, as it may.
func (f *Filter) WantsFrame(vec []unix.Iovec) bool {
	if f == nil {
		return true
	}
	var head [HeaderLen + len(MAC{})]byte
	guestmem.Gather(head[:], vec)
	return f.Wants(MAC(head[HeaderLen:]))
}

// Filterer is what a Backend may be besides: one that can leave out received
// frames.
type Filterer interface {
	// SetFilter replaces the filter; nil receives everything. It holds for the
	// next frame that is read, and may be called while Pumps run.
	SetFilter(*Filter)
}
