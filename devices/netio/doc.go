// SPDX-License-Identifier: Apache-2.0

// Package netio is the packet engine that all NIC models share.
//
// A Port is the guest's side of one queue pair: a virtio queue pair, a VMBus
// channel, a PAPR logical LAN. A Queue is the host's side: one queue of a tap.
// A Pump moves frames between one Port and one Queue, on one OS thread that
// sleeps in epoll.
//
//	guest RAM <-- Port <-- Pump --> Queue --> tap
//
// All calls take batches, and the frames stay where they are: a batch holds
// iovecs that point into guest memory, and the tap's readv and writev move the
// payload once. Every frame begins with the 12 bytes of struct virtio_net_hdr_v1
// (virtio 1.2, 5.1.6), little-endian, wherever they lie: virtio points the first
// iovec at the guest's own header, other NICs at the header field of the batch
// entry and convert. Nothing is allocated per frame.
//
// Nothing is dropped here. A guest without receive buffers makes the pump stop
// reading from the tap; the kernel's queue then fills and drops, where `ip -s
// link` shows it.
package netio
