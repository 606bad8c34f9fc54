// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"testing"

	"github.com/govmm/govmm/devices/netio"
	"github.com/govmm/govmm/devices/netio/loop"
)

// FuzzRNDISData: whatever a packet message says, what comes out is inside.
func FuzzRNDISData(f *testing.F) {
	f.Add(packetMessageOf(make([]byte, 60), 0, 0, 2, 1448|34<<20|1<<30, 6, 1<<4))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < packetSize {
			return
		}
		m, ok := parsePacket((*[packetSize]byte)(b), len(b))
		if !ok {
			return
		}
		if m.length < packetSize || m.length > len(b) || m.dataOffset+m.dataLen > m.length || m.ppiOffset+m.ppiLen > m.length {
			t.Fatalf("%+v of %d bytes", m, len(b))
		}
		info, ok := parsePPI(b[m.ppiOffset:][:m.ppiLen])
		if !ok {
			return
		}
		head := make([]byte, min(m.dataLen, maxHead))
		copy(head, b[m.dataOffset:])
		if len(head) < ethernetLen {
			return
		}
		var h netio.Header
		if largeSend(&h, head, m.dataLen, info.lso) && int(le.Uint16(h[2:])) > m.dataLen {
			t.Fatalf("headers of %d bytes in a frame of %d", le.Uint16(h[2:]), m.dataLen)
		}
		if checksumHeader(&h, info.checksum, m.dataLen) && h[0] != 0 && int(le.Uint16(h[6:]))+int(le.Uint16(h[8:]))+2 > max(m.dataLen, 40) {
			t.Fatalf("checksum behind a frame of %d bytes: %x", m.dataLen, h)
		}
		completeIPv4(head)
	})
}

// FuzzNVSP: only messages that are long enough for their type pass.
func FuzzNVSP(f *testing.F) {
	f.Add(nvspMessage(nvspSendRNDIS, 0, noSection, 0))
	f.Fuzz(func(t *testing.T, m []byte) {
		typ, ok := parseNVSP(m)
		if ok && typ == nvspSendRNDIS {
			parseRNDISPacket(m)
		}
		if ok && len(m) < 6 {
			t.Fatalf("NVSP %d in %d bytes", typ, len(m))
		}
	})
}

// FuzzRNDISControl: every answer is a whole message that fits in a section.
func FuzzRNDISControl(f *testing.F) {
	f.Add(u32s(2, 24, 1, 1, 0, 0x4000))
	f.Add(u32s(4, 28, 2, oidLinkSpeed, 0, 0, 0))
	f.Add(append(u32s(4, 32, 2, oidOffloadHardware, 4, 20, 0), 0xa7, 3, 156, 0))
	f.Add(append(u32s(5, 68, 2, oidReceiveScale, 40, 20, 0), make([]byte, 40)...))
	f.Add(append(u32s(5, 68, 2, oidConfigParameter, 40, 20, 0), make([]byte, 40)...))
	wire, err := loop.New(1)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = wire.Close() })
	d, err := New(Config{Name: "net0", MAC: testMAC, Backend: wire, MTU: 1500, Offload: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		if len(m) < rndisHeader || len(m) > maxControl {
			return
		}
		s := &session{d: d, rndis: rndisState{ready: true}}
		reply, ok := s.rndisControl(m)
		if reply != nil && (!ok || int(le.Uint32(reply[4:])) != len(reply) || len(reply) > 4096) {
			t.Fatalf("answer %x", reply)
		}
	})
}
