// SPDX-License-Identifier: Apache-2.0

// Package vmbus is the host's side of Hyper-V's VMBus: the channels, ring
// buffers and messages by which a guest's hv_vmbus driver finds and drives
// synthetic devices. It knows nothing of what the channels carry.
//
// The parts are apart, each to be tested alone:
//
//   - protocol is the state machine of versions, offers, GPADLs and channels:
//     messages in, actions out, no threads and no guest memory but page numbers.
//   - SynIC is the guest's synthetic interrupt controller as far as the host
//     writes to it: message slots and event flags in guest memory (TLFS, chapter
//     11). How an interrupt reaches a processor is the Host's business.
//   - Channel is what a Device works with: an InRing, an OutRing, an eventfd that
//     the guest signals, and the pages that the guest has shared.
//   - Bus joins them and calls the Devices.
//
// Where the TLFS (Hyper-V's Top Level Functional Specification) is silent, the
// comments name what the Linux driver expects; VMBus itself has no other
// specification.
package vmbus
