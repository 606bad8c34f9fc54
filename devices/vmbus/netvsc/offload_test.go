// SPDX-License-Identifier: Apache-2.0

package netvsc

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/govmm/govmm/devices/netio"
)

// Heads of TCP segments as Linux hands them over for a large send: no length in
// the IP header, no IPv4 checksum, and in the TCP checksum the sum of a pseudo
// header without a length.
const (
	ethernetHead = "020000000001" + "02000000002a"
	// From 10.0.0.2 to 10.0.0.1, TTL 64: 0a00+0002+0a00+0001+0006 = 1409.
	largeIPv4 = ethernetHead + "0800" + "45000000" + "12344000" + "40060000" + "0a000002" + "0a000001"
	largeTCP4 = "14511451" + "00000001" + "00000002" + "80100200" + "14090000" + "0101080a0000000100000002"
	// From fd00::2 to fd00::1: fd00+0002+fd00+0001+0006 = fa0a with the carry.
	largeIPv6 = ethernetHead + "86dd" + "60000000" + "00000640" +
		"fd000000000000000000000000000002" + "fd000000000000000000000000000001"
	largeTCP6 = "14511451" + "00000001" + "00000002" + "50100200" + "fa0a0000"
)

// lsoInfo is the information of a large send (NDIS_TCP_LARGE_SEND_OFFLOAD_NET_BUFFER_LIST_INFO).
func lsoInfo(mss, transport, bits uint32) uint32 { return mss | transport<<20 | bits }

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	check(t, err)
	return b
}

// TestLargeSend compares with headers that were computed by hand.
func TestLargeSend(t *testing.T) {
	const n = 60000
	for _, c := range []struct {
		name   string
		head   string
		lso    uint32
		want   string // the head afterwards
		header string
	}{
		{
			// Length 60000-14 = ea52. 4500+ea52+1234+4000+4006+0a00+0002+0a00+0001 =
			// 1d58f, with the carry d590, and the complement is 2a6f. The TCP segment
			// has 60000-34 = ea3e bytes, and 1409+ea3e = fe47.
			"IPv4, TCP with options", largeIPv4 + largeTCP4, lsoInfo(1448, 34, lsoV2),
			ethernetHead + "0800" + "4500ea52" + "12344000" + "40062a6f" + "0a000002" + "0a000001" +
				"14511451" + "00000001" + "00000002" + "80100200" + "fe470000" + "0101080a0000000100000002",
			"0101" + "4200" + "a805" + "2200" + "1000" + "0000",
		},
		{
			// 60000-54 = ea2a, and fa0a+ea2a = 1e434, with the carry e435.
			"IPv6", largeIPv6 + largeTCP6, lsoInfo(1428, 54, lsoV2|lsoIPv6),
			ethernetHead + "86dd" + "60000000" + "ea2a0640" +
				"fd000000000000000000000000000002" + "fd000000000000000000000000000001" +
				"14511451" + "00000001" + "00000002" + "50100200" + "e4350000",
			"0104" + "4a00" + "9405" + "3600" + "1000" + "0000",
		},
	} {
		head, h := unhex(t, c.head), netio.Header{}
		if !largeSend(&h, head, n, c.lso) {
			t.Errorf("%s: refused", c.name)
			continue
		}
		if want := unhex(t, c.want); !bytes.Equal(head, want) {
			t.Errorf("%s: head\n%x, want\n%x", c.name, head, want)
		}
		if want := unhex(t, c.header); !bytes.Equal(h[:], want) {
			t.Errorf("%s: virtio header %x, want %x", c.name, h, want)
		}
	}
}

// TestLargeSendRefuses: information that the headers contradict.
func TestLargeSendRefuses(t *testing.T) {
	v4, v6 := unhex(t, largeIPv4+largeTCP4), unhex(t, largeIPv6+largeTCP6)
	with := func(head []byte, at int, b byte) []byte {
		head = bytes.Clone(head)
		head[at] = b
		return head
	}
	for name, c := range map[string]struct {
		head []byte
		n    int
		lso  uint32
	}{
		"version 1":                      {v4, 60000, lsoInfo(1448, 34, 0)},
		"segments of 0 bytes":            {v4, 60000, lsoInfo(0, 34, lsoV2)},
		"segments of 1 byte":             {v4, 60000, lsoInfo(1, 34, lsoV2)},
		"segments of more than 64 KiB":   {v4, 60000, lsoInfo(0x10000, 34, lsoV2)},
		"transport header at 0":          {v4, 60000, lsoInfo(1448, 0, lsoV2)},
		"transport header in Ethernet's": {v4, 60000, lsoInfo(1448, 13, lsoV2)},
		"transport header in IPv4's":     {v4, 60000, lsoInfo(1448, 30, lsoV2)},
		"transport header far behind":    {v4, 60000, lsoInfo(1448, 1023, lsoV2)},
		"IPv6 said of IPv4":              {v4, 60000, lsoInfo(1448, 34, lsoV2|lsoIPv6)},
		"IPv4 said of IPv6":              {v6, 60000, lsoInfo(1428, 54, lsoV2)},
		"transport header in IPv6's":     {v6, 60000, lsoInfo(1428, 50, lsoV2|lsoIPv6)},
		"IPv4 header of 0 bytes":         {with(v4, 14, 0x40), 60000, lsoInfo(1448, 34, lsoV2)},
		"IPv4 header of 60 bytes":        {with(v4, 14, 0x4f), 60000, lsoInfo(1448, 34, lsoV2)},
		"TCP header of 0 bytes":          {with(v4, 46, 0x00), 60000, lsoInfo(1448, 34, lsoV2)},
		"TCP header behind the frame":    {with(v4, 46, 0xf0), 66, lsoInfo(1448, 34, lsoV2)},
		"larger than IP can be":          {v4, 65550, lsoInfo(1448, 34, lsoV2)},
		"no whole TCP header":            {v4[:50], 50, lsoInfo(1448, 34, lsoV2)},
	} {
		var h netio.Header
		if largeSend(&h, c.head, c.n, c.lso) {
			t.Errorf("%s: accepted as %x", name, h)
		}
	}
}

// TestChecksumHeader: the transport header must be in the frame.
func TestChecksumHeader(t *testing.T) {
	const tcp, udp = 1<<0 | 1<<2, 1<<1 | 1<<3
	for _, c := range []struct {
		info uint32
		n    int
		want string // nothing: refused
	}{
		{0, 60, "000000000000000000000000"},
		{tcp | 34<<16, 60, "010000000000220010000000"},
		{udp | 54<<16, 62, "010000000000360006000000"},
		{tcp | 34<<16, 52, "010000000000220010000000"},
		{tcp | 34<<16, 51, ""},
		{udp | 13<<16, 60, ""},
		{udp | 1023<<16, 1030, ""},
	} {
		var h netio.Header
		if ok := checksumHeader(&h, c.info, c.n); ok != (c.want != "") {
			t.Errorf("%#x in %d bytes: %v", c.info, c.n, ok)
		} else if ok && hex.EncodeToString(h[:]) != c.want {
			t.Errorf("%#x in %d bytes: %x, want %s", c.info, c.n, h, c.want)
		}
	}
}
