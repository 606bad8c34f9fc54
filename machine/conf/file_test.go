// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/machine"
	"pgregory.net/rapid"
)

// asText is a value as it stands in a list of flags.
func asText(v any) string { return fmt.Sprint(v) }

const fullTOML = `# every key
name = "web"
kernel = "boot/bzImage"
initrds = ["a.cpio", "/b.cpio"]
cmdline = "console=ttyS0"
append = ["quiet", "panic=-1"]
entry = "pvh"
cpus = 4
memory = "2G"
hyperv = "on"
nested = true
serial = { mode = "file", path = "console.log" }
timeout = "10m"
on_panic = "continue"
on_reboot = "exit"

[[net]]
tap = "tap0"
mtu = 9000
mergeable = false

[[net]]
create = true
ip = "10.0.0.1/24"
busy_poll = "50us"
offload = "on"
pcap = "net.pcap"
`

func fullConfig(dir string) machine.Config {
	return machine.Config{
		Name: "web", Kernel: dir + "boot/bzImage", Initrds: []string{dir + "a.cpio", "/b.cpio"},
		Cmdline: "console=ttyS0", Append: []string{"quiet", "panic=-1"}, Entry: "pvh", CPUs: 4, Memory: 2 << 30, Nested: true, HyperV: "on",
		Serial:  machine.Serial{Mode: "file", Path: dir + "console.log"},
		Timeout: 10 * time.Minute, OnPanic: "continue", OnReboot: "exit",
		Nets: []machine.Net{
			{Tap: "tap0", MTU: 9000, Mergeable: "off"},
			{Create: true, IP: "10.0.0.1/24", BusyPoll: 50 * time.Microsecond, Offload: "on", Pcap: dir + "net.pcap"},
		},
	}
}

func TestFileTOML(t *testing.T) {
	for path, dir := range map[string]string{"govmm.toml": "", "etc/x.toml": "etc/", "/etc/x.toml": "/etc/"} {
		var c machine.Config
		if err := apply(&c, path, []byte(fullTOML)); err != nil {
			t.Fatal(err)
		}
		if want := fullConfig(dir); !reflect.DeepEqual(c, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", path, c, want)
		}
	}
}

func TestFileShortForms(t *testing.T) {
	var c machine.Config
	err := apply(&c, "x/govmm.toml", []byte(`
memory = 512
serial = "file=log"
net = ["tap=tap0,mtu=9000,pcap=p", { fd = 5 }]
`))
	want := machine.Config{Memory: 512 << 20, Serial: machine.Serial{Mode: "file", Path: "x/log"},
		Nets: []machine.Net{{Tap: "tap0", MTU: 9000, Pcap: "x/p"}, {FD: 5}}}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, %v; want %+v", c, err, want)
	}
}

// TestFileReplaces checks that a layer replaces what it names and nothing else.
func TestFileReplaces(t *testing.T) {
	c := fullConfig("")
	if err := apply(&c, "govmm.toml", []byte("cpus = 2\nappend = [\"debug\"]\nserial = \"none\"\n[[net]]\nfd = 3\n")); err != nil {
		t.Fatal(err)
	}
	want := fullConfig("")
	want.CPUs, want.Append, want.Serial, want.Nets = 2, []string{"debug"}, machine.Serial{Mode: "none"}, []machine.Net{{FD: 3}}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("\n got %+v\nwant %+v", c, want)
	}
}

func TestFileHome(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	var c machine.Config
	if err := apply(&c, "/etc/x.toml", []byte(`kernel = "~/linux"`)); err != nil || c.Kernel != "/home/me/linux" {
		t.Errorf("got %q, %v", c.Kernel, err)
	}
}

func TestFileRefuses(t *testing.T) {
	tests := []struct {
		name, file string
		want       string
	}{
		{"unknown key", "cpus = 1\n\nmemry = \"1G\"\n", `f:3: key "memry" is unknown: did you mean memory?`},
		{"flag's name", "on-panic = \"exit\"\n", "did you mean on_panic?"},
		{"nothing near", "colour = 1\n", "f:1: key \"colour\" is unknown: use one of kernel, initrds"},
		{"unknown key of a NIC", "[[net]]\ntap = \"a\"\n[[net]]\ntap = \"b\"\nmtux = 1\n", `f:5: key "mtux" of net is unknown: did you mean mtu?`},
		{"unknown key of an inline NIC", "\nnet = [{tap = \"a\", x = 1}]\n", `f:2: key "x" of net`},
		{"unknown table", "[disk]\npath = \"x\"\n", `f:1: key "disk"`},
		{"unknown key of serial", "[serial]\nmod = \"none\"\n", `f:2: key "mod" of serial is unknown: did you mean mode?`},
		{"syntax", "cpus = 1\nmemory = \n", "f:2: "},
		{"key twice", "cpus = 1\ncpus = 2\n", "f:2: "},
		{"text for a number", "cpus = \"4\"\n", `f:1: cpus is the text "4": it must be a number`},
		{"fraction", "cpus = 1.5\n", "f:1: cpus is the number 1.5"},
		{"number out of range", "cpus = 0\n", "f:1: cpus: 0 is out of range: use 1 to 32"},
		{"number for text", "kernel = 1\n", "f:1: kernel is the number 1: it must be a path"},
		{"text for a switch", "nested = \"yes\"\n", "f:1: nested is the text \"yes\": it must be true or false"},
		{"size", "memory = \"lots\"\n", "f:1: memory: \"lots\" is not a size"},
		{"negative size", "memory = -1\n", "f:1: memory: \"-1\" is not a size"},
		{"duration without unit", "timeout = 10\n", "f:1: timeout is the number 10: it must be a duration"},
		{"date", "timeout = 2026-01-01\n", "f:1: timeout is a date or time"},
		{"text for a list", "append = \"quiet\"\n", "f:1: append is the text \"quiet\": it must be a list"},
		{"number in a list", "append = [\n\"quiet\",\n1]\n", "append has the number 1"},
		{"empty text in a list", "initrds = [\"\"]\n", "f:1: initrds: the value is empty"},
		{"empty text", "kernel = \"\"\n", "f:1: kernel: the value is empty"},
		{"table for a list", "[net]\ntap = \"a\"\n", "f:1: net is a table: it must be a list; write [[net]]"},
		{"number for a NIC", "net = [1]\n", "f:1: a NIC is the number 1"},
		{"NIC in text", "net = [\"tapp=a\"]\n", "f:1: net: net key \"tapp\" is unknown: did you mean tap?"},
		{"number for serial", "serial = 1\n", "f:1: serial is the number 1"},
		{"serial in text", "serial = \"pty\"\n", "f:1: serial: \"pty\" is unknown"},
		{"not UTF-8", "kernel = \"\xff\"\n", "f:1: "},
		{"ELF", "\x7fELF\x02\x01\x01\x00", "f:1: "},

		{"JSON, unknown key", "{\n \"cpus\": 1,\n \"memry\": 1\n}", `f:3: key "memry" is unknown: did you mean memory?`},
		{"JSON, type", "{\"cpus\": null}", "f:1: cpus is null"},
		{"JSON, large number", "{\"cpus\": 1e400}", "f:1: cpus is the number +Inf"},
		{"JSON, key twice", "{\"cpus\": 1,\n\"cpus\": 2}", `f:2: key "cpus" stands twice`},
		{"JSON, cut off", "{\"cpus\": 1,\n", "f:2: the file ends inside"},
		{"JSON, syntax", "{\n\"cpus\" 1}", "f:2: "},
		{"JSON, wrong bracket", "{\n\"net\": [}}", "f:2: "},
		{"JSON, more", "{}\n{}", "f:2: something follows"},
		{"JSON, deep", `{"net":` + strings.Repeat("[", 100000), "nested too deeply"},
		{"JSON, NIC", "{\"net\": [\n{\"tap\": \"a\",\n\"mtu\": 9}]}", "f:3: mtu: 9 is out of range"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c machine.Config
			err := apply(&c, "f", []byte(tt.file))
			var e *result.Error
			if !errors.As(err, &e) || e.Reason != result.Usage {
				t.Fatalf("got %v, want an error of reason usage", err)
			}
			if got := err.Error(); !strings.Contains(got, tt.want) || strings.Contains(got, "\n") {
				t.Errorf("got %q, want one line that says %q", got, tt.want)
			}
		})
	}
}

func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file",
		dir:                        "is a directory",
		big:                        "larger than 1024 KiB",
		"/dev/zero":                "larger than 1024 KiB",
	} {
		var c machine.Config
		if err := File(&c, path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

func TestDefaultFiles(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write := func(path string) string {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	env := map[string]string{"HOME": filepath.Join(dir, "home")}
	lookup := func(k string) (string, bool) { v, ok := env[k]; return v, ok }
	check := func(want ...string) {
		t.Helper()
		if got := Default(lookup); !reflect.DeepEqual(append([]string{}, got...), append([]string{}, want...)) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	check()
	home := write("home/.config/govmm/config.toml")
	check(home)
	write(FileName)
	check(home, FileName)
	env["XDG_CONFIG_HOME"] = filepath.Join(dir, "xdg")
	check(FileName)
	xdg := write("xdg/govmm/config.toml")
	check(xdg, FileName)
	env["XDG_CONFIG_HOME"] = "xdg" // relative: not valid, the specification says to ignore it
	check(home, FileName)
	delete(env, "HOME")
	check(FileName)
}

// TestUnreadable: the message names the file, the reason and the cure.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	const instead = ", or name another with --config; --config /dev/null reads none"
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"missing":     "no such file or directory: create it",
		"":            "is a directory: make it a file that can be read",
		"file/config": "not a directory: make it a file that can be read",
	} {
		path = filepath.Join(dir, path)
		err := File(&machine.Config{}, path)
		if want = "configuration file " + path + ": " + want + instead; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	// Root may read everything, so the reason is made up.
	err := unreadable("/root/.config/govmm/config.toml", &os.PathError{Op: "open", Path: "/root/.config/govmm/config.toml", Err: os.ErrPermission})
	want := "configuration file /root/.config/govmm/config.toml: permission denied: " +
		"give this user the right to read it and to search the folders above it" + instead
	if err.Error() != want || !errors.Is(err, os.ErrPermission) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestEnv(t *testing.T) {
	env := map[string]string{
		"GOVMM_KERNEL": "bzImage", "GOVMM_INITRD": "a;b", "GOVMM_APPEND": "x; y", "GOVMM_CPUS": "3", "GOVMM_MEMORY": "1G",
		"GOVMM_NET": "tap=a;tap,ip=10.0.0.1/24", "GOVMM_SERIAL": "file=log", "GOVMM_ON_PANIC": "continue", "GOVMM_NESTED": "1",
		"GOVMM_TIMEOUT": "5s", "GOVMM_NAME": "",
	}
	var c machine.Config
	err := Env(&c, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
	want := machine.Config{Kernel: "bzImage", Initrds: []string{"a", "b"}, Append: []string{"x; y"}, CPUs: 3, Memory: 1 << 30,
		Nets: []machine.Net{{Tap: "a"}, {Create: true, IP: "10.0.0.1/24"}}, Serial: machine.Serial{Mode: "file", Path: "log"},
		OnPanic: "continue", Nested: true, Timeout: 5 * time.Second}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, %v; want %+v", c, err, want)
	}
	env["GOVMM_CPUS"] = "many"
	if err := Env(&c, func(k string) (string, bool) { v, ok := env[k]; return v, ok }); err == nil || !strings.HasPrefix(err.Error(), "GOVMM_CPUS: \"many\" is not a number") {
		t.Errorf("got %v", err)
	}
}

func TestSettingSerial(t *testing.T) {
	s := Find("serial")
	for value, want := range map[string]machine.Serial{
		"stdio": {Mode: "stdio"}, "none": {Mode: "none"}, "file=a=b": {Mode: "file", Path: "a=b"},
	} {
		var c machine.Config
		if err := s.Set(&c, value); err != nil || c.Serial != want {
			t.Errorf("%s: %+v, %v", value, c.Serial, err)
		}
	}
	for _, value := range []string{"", "file", "file=", "stdio=x", "none=", "pty"} {
		var c machine.Config
		if err := s.Set(&c, value); err == nil {
			t.Errorf("%q is taken as %+v", value, c.Serial)
		}
	}
}

// TestEveryFieldIsASetting checks that no field of a Config was forgotten: its
// TOML name is a key, and its JSON name is the same.
func TestEveryFieldIsASetting(t *testing.T) {
	fieldKeys := func(fields []string, typ reflect.Type) {
		t.Helper()
		for i := range typ.NumField() {
			f := typ.Field(i)
			key := f.Tag.Get("toml")
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != key {
				t.Errorf("%s.%s is %q in TOML and %q in JSON", typ, f.Name, key, name)
			}
			found := false
			for _, k := range fields {
				found = found || k == key
			}
			if !found {
				t.Errorf("%s.%s has no key %q", typ, f.Name, key)
			}
		}
		if len(fields) != typ.NumField() {
			t.Errorf("%d keys for the %d fields of %s", len(fields), typ.NumField(), typ)
		}
	}
	var net, serial []string
	for _, f := range netFields {
		net = append(net, f.key)
	}
	for _, f := range serialFields {
		serial = append(serial, f.key)
	}
	fieldKeys(keys(), reflect.TypeFor[machine.Config]())
	fieldKeys(net, reflect.TypeFor[machine.Net]())
	fieldKeys(serial, reflect.TypeFor[machine.Serial]())
}

// TestWriteReadsBack checks that what Write writes is valid JSON, and the same
// Config when it is read.
func TestWriteReadsBack(t *testing.T) {
	t.Chdir(t.TempDir())
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		var out bytes.Buffer
		if err := Write(&out, c); err != nil {
			t.Fatal(err)
		}
		if !json.Valid(out.Bytes()) {
			t.Fatalf("not JSON: %s", out.Bytes())
		}
		var got machine.Config
		if err := apply(&got, "elsewhere/c.json", out.Bytes()); err != nil {
			t.Fatalf("%v in %s", err, out.Bytes())
		}
		want, err := absolute(c.WithDefaults())
		if err != nil {
			t.Fatal(err)
		}
		// Not DeepEqual: an empty list is as good as none.
		if fmt.Sprintf("%+v", got.WithDefaults()) != fmt.Sprintf("%+v", want.WithDefaults()) {
			t.Fatalf("\n got %+v\nwant %+v\n%s", got, want, out.Bytes())
		}
	})
}

func drawConfig(t *rapid.T) machine.Config {
	word := rapid.StringN(1, 12, -1)
	sw := rapid.SampledFrom([]string{"", "on", "off"})
	net := rapid.Custom(func(t *rapid.T) machine.Net {
		return machine.Net{
			Tap: word.Draw(t, "tap"), Create: rapid.Bool().Draw(t, "create"), FD: rapid.SampledFrom([]int{0, 3, 1000}).Draw(t, "fd"),
			IP: word.Draw(t, "ip"), MTU: rapid.SampledFrom([]int{0, 1280, 9000}).Draw(t, "mtu"),
			Queues: rapid.IntRange(0, 16).Draw(t, "queues"), Ring: rapid.SampledFrom([]int{0, 64, 300, 4096}).Draw(t, "ring"),
			Mergeable: sw.Draw(t, "mergeable"), Offload: sw.Draw(t, "offload"), Batch: rapid.IntRange(0, 256).Draw(t, "batch"),
			BusyPoll: time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "busy_poll")), Pcap: rapid.SampledFrom([]string{"", "p", "/p", "<&>"}).Draw(t, "pcap"),
		}
	})
	return machine.Config{
		Kernel: word.Draw(t, "kernel"), Initrds: rapid.SliceOfN(word, 0, 3).Draw(t, "initrds"), Cmdline: word.Draw(t, "cmdline"),
		Append: rapid.SliceOfN(word, 0, 3).Draw(t, "append"), Entry: word.Draw(t, "entry"), CPUs: rapid.IntRange(0, 32).Draw(t, "cpus"),
		Memory: rapid.Uint64Range(0, 1<<30).Draw(t, "memory") << 10, Nested: rapid.Bool().Draw(t, "nested"), HyperV: sw.Draw(t, "hyperv"),
		Nets: rapid.SliceOfN(net, 0, 3).Draw(t, "net"), Serial: machine.Serial{Mode: word.Draw(t, "mode"), Path: rapid.SampledFrom([]string{"", "a"}).Draw(t, "path")},
		Timeout: time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "timeout")), OnPanic: word.Draw(t, "on_panic"), OnReboot: word.Draw(t, "on_reboot"),
		Name: word.Draw(t, "name"),
	}
}

func TestWriteTextForms(t *testing.T) {
	var out bytes.Buffer
	c := fullConfig("/")
	c.Nets = c.Nets[:1]
	if err := Write(&out, c); err != nil {
		t.Fatal(err)
	}
	want := `{
  "kernel": "/boot/bzImage",
  "initrds": [
    "/a.cpio",
    "/b.cpio"
  ],
  "append": [
    "quiet",
    "panic=-1"
  ],
  "cmdline": "console=ttyS0",
  "entry": "pvh",
  "cpus": 4,
  "memory": "2G",
  "net": [
    {
      "model": "virtio",
      "tap": "tap0",
      "mac": "` + machine.DeriveMAC("web", 0, "tap0").String() + `",
      "mtu": 9000,
      "queues": 1,
      "ring": 1024,
      "mergeable": "off",
      "offload": "on",
      "batch": 64
    }
  ],
  "serial": {
    "mode": "file",
    "path": "/console.log"
  },
  "name": "web",
  "timeout": "10m0s",
  "on_panic": "continue",
  "on_reboot": "exit",
  "hyperv": "on",
  "nested": true
}
`
	if out.String() != want {
		t.Errorf("got %s", out.String())
	}
}

// FuzzFile feeds files, TOML and JSON: each is refused in one line, or gives a
// Config that survives being written and read.
func FuzzFile(f *testing.F) {
	f.Add([]byte(fullTOML))
	f.Add([]byte("net = [\"tap=a\", {fd = 3}]\nserial = \"file=x\"\n"))
	var out bytes.Buffer
	if err := Write(&out, fullConfig("/")); err != nil {
		f.Fatal(err)
	}
	f.Add(out.Bytes())
	f.Add([]byte(`{"net":[[[`))
	f.Add([]byte("[[net]]\n[net]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var c machine.Config
		err := apply(&c, "f", data)
		var e *result.Error
		if err != nil {
			if !errors.As(err, &e) || e.Reason != result.Usage {
				t.Fatalf("%v is no usage error", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			return
		}
		var out bytes.Buffer
		var again machine.Config
		if err := Write(&out, c); err != nil {
			t.Fatal(err)
		}
		if err := apply(&again, "/f", out.Bytes()); err != nil {
			t.Fatalf("%v in %s", err, out.Bytes())
		}
		if err := again.Validate(); err != nil {
			t.Fatalf("%v in %s", err, out.Bytes())
		}
	})
}
