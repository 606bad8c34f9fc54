// SPDX-License-Identifier: Apache-2.0

// Package netbench measures what the packet engine costs, without a guest.
//
// A real virtio-net device moves frames between a real tap, in a network
// namespace of its own, and rings in real guest memory, which a driver in this
// process keeps going. The measure is a bare loop over the same tap that does
// nothing but the system calls. Both run in turn, in slices, and what counts is
// the CPU time of the thread that moves the frames, so that other load on the
// machine matters little; driver and packet source run on the same thread while
// the clock is stopped. The result is a ratio: 0.9 means that nine tenths of the
// time go into system calls that nobody can avoid.
package netbench
