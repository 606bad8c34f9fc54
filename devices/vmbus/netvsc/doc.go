// SPDX-License-Identifier: Apache-2.0

// Package netvsc is Hyper-V's synthetic network card, as the hv_netvsc driver
// finds it on the VMBus: NVSP sets up channels and shared buffers, and RNDIS
// messages inside of it carry frames and configuration ([MS-RNDIS], and the
// NDIS structures that it refers to).
//
// Each channel is a netio.Port. While frames flow, a netio.Pump owns the
// channel's rings. A packet that is no frame makes the Pump's Port pause; the
// session's goroutine then stops the pumps, answers it, and starts them again:
// whatever changes the NIC thus meets no frame under way.
//
// All numbers on the wire are little-endian. Offsets inside an RNDIS message
// count from its body, which follows the eight bytes of type and length.
package netvsc
