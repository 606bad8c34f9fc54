// SPDX-License-Identifier: Apache-2.0

package netio

import "errors"

// Offload is a set of TUN_F_* bits (linux/if_tun.h), as TUNSETOFFLOAD takes
// them: what the guest can receive without the host's stack finishing it.
type Offload uint32

// TUN_F_* values.
const (
	OffloadCsum   Offload = 0x01 // TUN_F_CSUM: partial checksums
	OffloadTSO4   Offload = 0x02 // TUN_F_TSO4
	OffloadTSO6   Offload = 0x04 // TUN_F_TSO6
	OffloadTSOECN Offload = 0x08 // TUN_F_TSO_ECN
	OffloadUSO4   Offload = 0x20 // TUN_F_USO4
	OffloadUSO6   Offload = 0x40 // TUN_F_USO6
)

// Normalise drops the bits that the kernel refuses without others: segmentation
// without checksum offload, ECN without TSO, and one USO without the other.
func (o Offload) Normalise() Offload {
	if o&OffloadCsum == 0 {
		return 0
	}
	if o&(OffloadTSO4|OffloadTSO6) == 0 {
		o &^= OffloadTSOECN
	}
	if uso := OffloadUSO4 | OffloadUSO6; o&uso != uso {
		o &^= uso
	}
	return o
}

// Backend is the host's side of a NIC: a tap, a loop, a capture around another.
type Backend interface {
	// Name is what messages call the backend, such as the tap's name.
	Name() string
	// Queues returns its queues, one for each queue pair that the NIC may use.
	Queues() []Queue
	// Offloads is what SetOffloads can turn on.
	Offloads() Offload
	// SetOffloads sets what the guest accepts; called with no Pump running.
	// Frames that wait are discarded if the guest may not take them any more.
	SetOffloads(Offload) error
	// MTU is the host's MTU, the largest that the guest should use, in bytes
	// without the Ethernet header.
	MTU() int
	// SetActive says how many queues, counted from the first, take part: the
	// host spreads received frames over these. Called with no Pump running.
	SetActive(n int) error
	// Close ends the backend's life; no Pump may run. It removes what the
	// backend made.
	Close() error
}

// Queue is one queue of a Backend, used by one Pump at a time.
type Queue interface {
	// PollFD is readable when Recv has a frame, and writable when Send may go on.
	// An error or hang-up condition on it means that the backend is gone.
	PollFD() int
	// Send sends the frames of b from index from on, in order, and returns how
	// many it took: sent or, for a frame that the host refuses, counted as an
	// error. It returns ErrAgain if the host takes no more for now, and
	// another error if the backend is gone.
	Send(b *TxBatch, from int) (n int, err error)
	// Recv reads up to max frames into b. It returns ErrAgain when the host has
	// no more for now, nil when b has no space or max is reached, and another
	// error if the backend is gone.
	Recv(b *RxBatch, max int) (n int, err error)
	// Counters counts since the queue was made.
	Counters() QueueCounters
}

// QueueCounters is what only a Queue can count, for each direction; index them
// by RX and TX.
type QueueCounters [2]QueueDirCounters

// QueueDirCounters counts one direction of a Queue.
type QueueDirCounters struct {
	// Errors is the number of frames that the host refused (TX), or that didn't
	// fit in the guest's buffers (RX).
	Errors uint64
	// GSO is the number of frames that are still to be segmented.
	GSO uint64
	// Syscalls is the number of reads or writes, in vain or not.
	Syscalls uint64
	// Copied is the number of frames that went through a buffer of the backend.
	Copied uint64
	// Filtered is the number of received frames that the Filter left out.
	Filtered uint64
}

// ErrAgain says that a Queue can't go on until PollFD is ready.
var ErrAgain = errors.New("would block")
