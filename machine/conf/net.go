// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"math"
	"strings"
	"time"

	"github.com/govmm/govmm/internal/suggest"
	"github.com/govmm/govmm/machine"
)

// netFields are the keys of a NIC in a file.
var netFields = []field[machine.Net]{
	text("model", textKind, func(n *machine.Net) *string { return &n.Model }),
	text("tap", textKind, func(n *machine.Net) *string { return &n.Tap }),
	boolean("create", func(n *machine.Net) *bool { return &n.Create }),
	number("fd", 3, math.MaxInt32, func(n *machine.Net) *int { return &n.FD }),
	text("ip", textKind, func(n *machine.Net) *string { return &n.IP }),
	text("mac", textKind, func(n *machine.Net) *string { return &n.MAC }),
	number("mtu", machine.MinMTU, machine.MaxMTU, func(n *machine.Net) *int { return &n.MTU }),
	number("queues", 1, machine.MaxQueues, func(n *machine.Net) *int { return &n.Queues }),
	number("ring", machine.MinRing, machine.MaxRing, func(n *machine.Net) *int { return &n.Ring }),
	onOff("mergeable", func(n *machine.Net) *string { return &n.Mergeable }),
	onOff("offload", func(n *machine.Net) *string { return &n.Offload }),
	number("batch", 1, machine.MaxBatch, func(n *machine.Net) *int { return &n.Batch }),
	duration("busy_poll", func(n *machine.Net) *time.Duration { return &n.BusyPoll }),
	text("pcap", pathKind, func(n *machine.Net) *string { return &n.Pcap }),
}

// NoNet is the --net list of a VM without a NIC.
const NoNet = "none"

// ParseNet reads a NIC from a --net list: key=value, separated by commas, in any
// order. The keys are those of a file, with '-' for '_'; instead of create, tap
// stands without a value. A value can't contain a comma.
func ParseNet(list string) (machine.Net, error) {
	var n machine.Net
	seen := map[string]bool{}
	for item := range strings.SplitSeq(list, ",") {
		key, value, valued := strings.Cut(item, "=")
		f := findField(netFields, strings.ReplaceAll(key, "-", "_"))
		switch {
		case item == "":
			return n, usagef("net %q has an empty item: write key=value,key=value", list)
		case item == NoNet:
			return n, usagef("net %q: none is the whole list of a VM without a NIC; remove it", list)
		case f == nil || f.key == "create":
			return n, usagef("net key %q is unknown%s", key, didYouMean(key, NetKeys()))
		case seen[f.key]:
			return n, usagef("net key %s stands twice in %q: keep one", key, list)
		}
		seen[f.key] = true
		if f.key == "tap" && !valued {
			n.Create = true
			continue
		}
		if !valued {
			return n, usagef("net key %s has no value: write %s=VALUE", key, key)
		}
		if err := f.set(&n, value); err != nil {
			return n, usagef("net key %s: %w", key, err)
		}
	}
	return n, nil
}

// ParseNets reads the NICs of a VM, each from a --net list; the list none alone
// is no NIC.
func ParseNets(lists []string) ([]machine.Net, error) {
	if len(lists) == 1 && lists[0] == NoNet {
		return nil, nil
	}
	var nets []machine.Net
	for _, list := range lists {
		if list == NoNet {
			return nil, usagef("net none stands beside other NICs: keep one or the other")
		}
		n, err := ParseNet(list)
		if err != nil {
			return nil, err
		}
		nets = append(nets, n)
	}
	return nets, nil
}

// NetKeys returns the keys of a --net list.
func NetKeys() []string {
	var keys []string
	for _, f := range netFields {
		if f.key != "create" {
			keys = append(keys, strings.ReplaceAll(f.key, "_", "-"))
		}
	}
	return keys
}

// findField finds a field by its key.
func findField[T any](fields []field[T], key string) *field[T] {
	for i := range fields {
		if fields[i].key == key {
			return &fields[i]
		}
	}
	return nil
}

// didYouMean is the end of a message about a word that is not one of words.
func didYouMean(word string, words []string) string {
	if near := suggest.Nearest(word, words); near != "" {
		return ": did you mean " + near + "?"
	}
	return ": use one of " + strings.Join(words, ", ")
}
