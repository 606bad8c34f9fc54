// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/machine/conf"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// topics are the texts of govmm help. A line that begins with two spaces stands
// as it is in a manual page; other lines are running text.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "exit-codes", Short: "what each exit code means", Long: exitCodesTopic()},
		{Use: "config", Short: "configuration files, and what comes before what", Long: configTopic()},
		{Use: "net", Short: "NICs and taps: the list of --net", Long: netTopic()},
		{Use: "env", Short: "variables of the environment", Long: envTopic()},
	}
}

// table writes rows of cells in columns, indented.
func table(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintf(w, "  %s\n", strings.Join(row, "\t"))
	}
	_ = w.Flush() // to memory
	return strings.TrimRight(b.String(), "\n")
}

func exitCodesTopic() string {
	rows := [][]string{{"CODE", "REASON", "MEANING"}}
	guest := []string{"0-113", string(result.DebugExit), "the status that the guest wrote to the debug-exit port; 113 if it was larger"}
	for _, c := range result.Codes {
		code := fmt.Sprint(c.Code)
		if c.Reason == result.Signal {
			code = "128+n"
		}
		if c.Code != 0 && guest != nil {
			rows, guest = append(rows, guest), nil
		}
		meaning := strings.TrimPrefix(c.Meaning, "128+n: ")
		rows = append(rows, []string{code, string(c.Reason), meaning})
	}
	return `Every run of govmm ends with an exit code, and with a last line on standard error
that gives the reason, the code and what exactly happened:

  govmm: reason=panic code=116 detail="Kernel panic - not syncing: ..."

With --result FILE, the same and the last lines of the guest's console are
written to FILE as JSON.

` + table(rows) + `

govmm probe ends with 0 if all is well, 1 if guests run with something missing,
and 122 if they don't run.`
}

func configTopic() string {
	rows := [][]string{{"KEY", "LIKE", "EXAMPLE"}}
	for _, s := range conf.Settings {
		rows = append(rows, []string{s.Key, "--" + s.Flag, configExample[s.Key]})
	}
	return `The settings of a VM come from these places. Each replaces what the ones below it
say of the same setting, lists as a whole:

  1. flags
  2. variables of the environment (govmm help env)
  3. ./govmm.toml
  4. $XDG_CONFIG_HOME/govmm/config.toml (~/.config if it is not set)
  5. defaults

--config FILE is read instead of 3 and 4; --config /dev/null is none of them.
The files are TOML. --config also reads the JSON that --dry-run prints. A key
that is not known is an error. Relative paths are relative to the file's folder.

` + table(rows) + `

A NIC is also a table, with the keys of govmm help net; for the busy-poll of a
list, it has busy_poll, and create = true for a list's tap without a name:

  [[net]]
  create = true
  ip = "10.0.0.1/24"

serial is also a table: { mode = "file", path = "console.log" }.`
}

// configExample is an example of each key's value.
var configExample = map[string]string{
	"kernel":    `"bzImage"`,
	"initrds":   `["initrd.zst"]`,
	"append":    `["quiet", "panic=-1"]`,
	"cmdline":   `"console=ttyS0"`,
	"entry":     `"auto"`,
	"cpus":      `2`,
	"memory":    `"1G"`,
	"net":       `["tap=tap0,mtu=9000"]`,
	"serial":    `"file=console.log"`,
	"name":      `"web"`,
	"timeout":   `"10m"`,
	"on_panic":  `"exit"`,
	"on_reboot": `"reboot"`,
	"hyperv":    `"on"`,
	"nested":    `false`,
}

// netHelp is what each key of a --net list means.
var netHelp = map[string]string{
	"model":     "virtio (the default) or netvsc, Hyper-V's",
	"tap":       "the name of a tap; without a name: govmm makes one and removes it at the end",
	"fd":        "the file descriptor of an open tap, 3 or above",
	"ip":        "the host's address on the tap that govmm makes, such as 10.0.0.1/24",
	"mac":       "the guest's MAC address (derived from the VM's name, the NIC's number and the tap)",
	"mtu":       "bytes, 1280 to 65535 (the tap's)",
	"queues":    "queue pairs, 1 to 16 (1)",
	"ring":      "virtio: the largest ring size, a power of two from 64 to 4096 (1024)",
	"mergeable": "virtio: on or off: large frames in several receive buffers (on)",
	"offload":   "on or off: checksums and segmentation by the host (on)",
	"batch":     "frames after which used buffers are published, 1 to 256 (64)",
	"busy-poll": "how long a queue's thread spins before it sleeps, up to 100ms (0s)",
	"pcap":      "a file to capture the NIC's frames to",
}

func netTopic() string {
	var rows [][]string
	for _, key := range conf.NetKeys() {
		rows = append(rows, []string{key, netHelp[key]})
	}
	return `--net LIST gives the VM a NIC. LIST is key=value, separated by commas, with exactly
one of tap=NAME, tap and fd. --net none, the default, is no NIC.

  govmm run bzImage -n tap=tap0
  govmm run bzImage -n tap,ip=10.0.0.1/24
  govmm run bzImage -n tap=tap0,queues=4 -n tap=tap1,mtu=9000

` + table(rows) + `

A tap that exists needs no privilege, if it is yours:

  sudo ip tuntap add tap0 mode tap user $USER
  sudo ip link set tap0 up

With queues above 1 the tap must have been made with multi_queue. A tap that
govmm makes needs CAP_NET_ADMIN.`
}

func envTopic() string {
	var rows [][]string
	for _, s := range conf.Settings {
		rows = append(rows, []string{s.Env, "--" + s.Flag})
	}
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.SortFlags = false
	new(runOptions).define(own)
	own.VisitAll(func(f *pflag.Flag) { rows = append(rows, []string{envName(f.Name), "--" + f.Name}) })
	return `Each flag of govmm run can be set by a variable of the environment. A flag that is
given comes first; an empty variable counts as none.

` + table(rows) + `

Several files in GOVMM_INITRD, and several NICs in GOVMM_NET, are separated by ';'.
GOVMM_APPEND is one text. Switches are on or off, true or false, 1 or 0.`
}
