// SPDX-License-Identifier: Apache-2.0

// Package virtionet is the virtio network card (virtio 1.2, 5.1): the device
// model, without a transport.
//
// Each queue pair is a netio.Port with a netio.Pump of its own, which moves
// frames between the guest's rings and one queue of the backend. virtio's frame
// header is netio's, so frames pass as they are: the kernel reads and writes
// guest memory by iovecs. The only bytes that the device itself writes are the
// header's num_buffers, the rings and the control queue's answers.
//
// What the driver accepts is what the backend is set to, before the first frame
// is read. Everything that changes with traffic running, such as the number of
// queue pairs, stops the pumps, changes, and starts them again.
package virtionet
