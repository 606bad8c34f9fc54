// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/machine"
)

func TestParseNet(t *testing.T) {
	for list, want := range map[string]machine.Net{
		"tap=tap0":                       {Tap: "tap0"},
		"tap":                            {Create: true},
		"tap,ip=10.0.0.1/24":             {Create: true, IP: "10.0.0.1/24"},
		"ip=10.0.0.1/24,tap":             {Create: true, IP: "10.0.0.1/24"},
		"fd=7":                           {FD: 7},
		"tap=t,busy-poll=50us":           {Tap: "t", BusyPoll: 50 * time.Microsecond},
		"tap=t,busy_poll=50us":           {Tap: "t", BusyPoll: 50 * time.Microsecond},
		"tap=t,offload=false":            {Tap: "t", Offload: "off"},
		"tap=t,pcap=/tmp/a=b":            {Tap: "t", Pcap: "/tmp/a=b"},
		"model=virtio,tap=t,mergeable=1": {Model: "virtio", Tap: "t", Mergeable: "on"},
		"tap=t,mac=02:00:00:00:00:01,mtu=9000,queues=4,ring=1024,batch=1,mergeable=off,offload=on": {
			Tap: "t", MAC: "02:00:00:00:00:01", MTU: 9000, Queues: 4, Ring: 1024, Batch: 1, Mergeable: "off", Offload: "on"},
	} {
		got, err := ParseNet(list)
		if err != nil || got != want {
			t.Errorf("ParseNet(%q) = %+v, %v; want %+v", list, got, err, want)
		}
	}
}

func TestParseNetRefuses(t *testing.T) {
	for list, want := range map[string]string{
		"":                                     "empty item",
		"tap=t,":                               "empty item",
		"tapp=t":                               "did you mean tap?",
		"tap=t,mtux=9000":                      "did you mean mtu?",
		"tap=t,busypoll=1us":                   "did you mean busy-poll?",
		"bridge=br0":                           "use one of model, tap",
		"create=true":                          `"create" is unknown`,
		"tap=t,mtu=1500,mtu=1":                 "mtu stands twice",
		"tap,tap=t":                            "tap stands twice",
		"tap=t,queues":                         "write queues=VALUE",
		"tap=":                                 "empty",
		"tap=t,mtu=big":                        "1280 to 65535",
		"tap=t,mtu=1":                          "1 is out of range",
		"tap=t,queues=0":                       "0 is out of range: use 1 to 16",
		"tap=t,ring=-1":                        "out of range: use 64 to 4096",
		"tap=t,batch=1e2":                      "not a number",
		"tap=t,batch=" + "9999999999999999999": "out of range",
		"fd=1":                                 "1 is out of range: use 3 to",
		"tap=t,busy-poll=5":                    "not a duration",
		"tap=t,busy-poll=-5s":                  "negative",
		"tap=t,offload=partial":                "neither on nor off",
		"none,tap=t":                           "none",
	} {
		got, err := ParseNet(list)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseNet(%q) = %+v, %v; want an error that says %q", list, got, err, want)
		}
	}
}

func TestParseNets(t *testing.T) {
	if nets, err := ParseNets([]string{"none"}); err != nil || len(nets) != 0 {
		t.Errorf("none: %v, %v", nets, err)
	}
	if nets, err := ParseNets([]string{"tap=a", "tap=b"}); err != nil || len(nets) != 2 || nets[1].Tap != "b" {
		t.Errorf("two taps: %v, %v", nets, err)
	}
	if _, err := ParseNets([]string{"tap=a", "none"}); err == nil || !strings.Contains(err.Error(), "beside") {
		t.Errorf("a tap and none: %v", err)
	}
}

// FuzzParseNet checks that no list does harm, and that a list which is read
// says the same when it is written back.
func FuzzParseNet(f *testing.F) {
	for _, s := range []string{"none", "tap", "tap=tap0,mtu=9000", "tap,ip=10.0.0.1/24", "fd=3,mac=02:00:00:00:00:01", ",=,", "tap=t,busy_poll=1us"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		n, err := ParseNet(list)
		var e *result.Error
		if err != nil {
			if !errors.As(err, &e) || e.Reason != result.Usage {
				t.Fatalf("%v is no usage error", err)
			}
			return
		}
		var items []string
		for _, m := range tableOf(&n, netFields) {
			if m.key == "create" {
				items = append(items, "tap")
				continue
			}
			items = append(items, m.key+"="+asText(m.value))
		}
		if again, err := ParseNet(strings.Join(items, ",")); err != nil || again != n {
			t.Fatalf("%q is %+v; written as %q it is %+v, %v", list, n, items, again, err)
		}
	})
}
