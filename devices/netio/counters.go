// SPDX-License-Identifier: Apache-2.0

package netio

// Counters is what a Pump and its Queue counted since the Pump was made. One
// snapshot is consistent in itself.
type Counters struct {
	RX DirCounters `json:"rx"`
	TX DirCounters `json:"tx"`

	// Wakeups is how often the pump's thread was woken from its sleep.
	Wakeups uint64 `json:"wakeups"`
	// SpinHits and SpinMisses are the busy-poll windows that found work and that
	// ended without.
	SpinHits   uint64 `json:"spin_hits"`
	SpinMisses uint64 `json:"spin_misses"`
	// Stops is the number of times that the pump was stopped, and StopMaxNs the
	// longest that a Stop waited for the thread, in nanoseconds.
	Stops     uint64 `json:"stops"`
	StopMaxNs uint64 `json:"stop_max_ns"`
}

// DirCounters counts one direction.
type DirCounters struct {
	Frames uint64 `json:"frames"` // frames that changed sides, refused ones included
	Bytes  uint64 `json:"bytes"`  // their bytes without the virtio header
	GSO    uint64 `json:"gso"`    // frames that are still to be segmented

	Batches uint64 `json:"batches"` // publications to the guest
	// BatchSizes is the histogram of frames in a publication: 1, 2 to 7, 8 to 31,
	// 32 to 63, and 64 or more.
	BatchSizes [5]uint64 `json:"batch_sizes"`

	Syscalls uint64 `json:"syscalls"` // reads or writes of the backend
	Again    uint64 `json:"again"`    // times that the backend could not go on
	Errors   uint64 `json:"errors"`   // frames that the host refused or the buffers didn't hold
	Copied   uint64 `json:"copied"`   // frames that went through a buffer of the backend
	Filtered uint64 `json:"filtered"` // frames for others that the guest didn't get

	Notified      uint64 `json:"notified"`       // interrupts sent to the guest
	Suppressed    uint64 `json:"suppressed"`     // interrupts that the guest didn't want
	Kicks         uint64 `json:"kicks"`          // wake-ups by the guest
	SpuriousKicks uint64 `json:"spurious_kicks"` // of these, with nothing to move

	// Stalls is how often the direction stopped although frames may have waited:
	// RX for want of guest buffers, TX because the backend took no more.
	// StalledNs is how long that lasted in all, in nanoseconds.
	Stalls    uint64 `json:"stalls"`
	StalledNs uint64 `json:"stalled_ns"`
	Faults    uint64 `json:"faults"` // guest faults, each of which ended the direction
}

// published counts one publication of n frames with size bytes, headers
// included.
func (c *DirCounters) published(n, size int) {
	c.Frames += uint64(n)
	c.Bytes += uint64(size - n*HeaderLen)
	c.Batches++
	c.BatchSizes[batchClass(n)]++
}

func batchClass(n int) int {
	switch {
	case n < 2:
		return 0
	case n < 8:
		return 1
	case n < 32:
		return 2
	case n < 64:
		return 3
	}
	return 4
}

// add takes in what the queue counted.
func (c *DirCounters) add(q *QueueDirCounters) {
	c.GSO, c.Syscalls, c.Errors = q.GSO, q.Syscalls, q.Errors
	c.Copied, c.Filtered = q.Copied, q.Filtered
}
