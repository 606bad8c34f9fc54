// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// writeFiles writes files, by their path below dir.
func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// dryRun returns the configuration that c resolves.
func dryRun(t *testing.T, c *exec.Cmd) (map[string]any, string) {
	t.Helper()
	c.Args = append(c.Args[:2], append([]string{"--dry-run"}, c.Args[2:]...)...)
	o := run(t, c)
	if o.code != 0 || o.stderr != "" {
		t.Fatalf("code %d, %s", o.code, o.stderr)
	}
	var cfg map[string]any
	if err := json.Unmarshal([]byte(o.stdout), &cfg); err != nil {
		t.Fatalf("%v in %s", err, o.stdout)
	}
	return cfg, o.stdout
}

// TestLayers takes away one layer after the other.
func TestLayers(t *testing.T) {
	files := map[string]string{
		"govmm.toml":        "cpus = 3\nname = \"folder\"\n",
		"govmm/config.toml": "cpus = 2\nname = \"user\"\nmemory = \"1G\"\n",
		"named.toml":        "cpus = 7\n",
	}
	tests := []struct {
		name           string
		args           string
		env            string
		without        []string
		cpus           float64
		vmName, memory string
	}{
		{"flag", "-c 5", "GOVMM_CPUS=4", nil, 5, "folder", "1G"},
		{"environment", "", "GOVMM_CPUS=4", nil, 4, "folder", "1G"},
		{"folder", "", "", nil, 3, "folder", "1G"},
		{"user", "", "", []string{"govmm.toml"}, 2, "user", "1G"},
		{"default", "", "", []string{"govmm.toml", "govmm/config.toml"}, 1, "govmm", "512M"},
		{"named", "--config named.toml", "", nil, 7, "govmm", "512M"},
		{"named by the environment", "", "GOVMM_CONFIG=named.toml", nil, 7, "govmm", "512M"},
		{"none", "--config /dev/null", "", nil, 1, "govmm", "512M"},
		{"empty variable", "", "GOVMM_CPUS=", nil, 3, "folder", "1G"},
		{"the last of a flag", "-c 5 --cpus 6", "", nil, 6, "folder", "1G"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := command(t, "real", append([]string{"run", "bzImage"}, strings.Fields(tt.args)...)...)
			writeFiles(t, c.Dir, files)
			for _, f := range tt.without {
				if err := os.Remove(filepath.Join(c.Dir, f)); err != nil {
					t.Fatal(err)
				}
			}
			if tt.env != "" {
				c.Env = append(c.Env, tt.env)
			}
			cfg, text := dryRun(t, c)
			if cfg["cpus"] != tt.cpus || cfg["name"] != tt.vmName || cfg["memory"] != tt.memory {
				t.Errorf("got %s", text)
			}
		})
	}
}

func TestLayersRefuse(t *testing.T) {
	tests := []struct{ name, file, env, want string }{
		{"folder", "cpus = 1\nmemry = 2\n", "", `govmm.toml:2: key \"memry\" is unknown: did you mean memory?`},
		{"environment", "", "GOVMM_CPUS=x", `GOVMM_CPUS: \"x\" is not a number`},
		{"switch", "", "GOVMM_QUIET=perhaps", `GOVMM_QUIET: \"perhaps\" is neither on nor off`},
		{"level", "", "GOVMM_LOG_LEVEL=loud", `--log-level \"loud\" is unknown`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := command(t, "end:poweroff", "run", "bzImage")
			writeFiles(t, c.Dir, map[string]string{"govmm.toml": tt.file})
			c.Env = append(c.Env, tt.env)
			if o := run(t, c); o.code != 2 || !strings.Contains(o.lastLine(), tt.want) {
				t.Errorf("code %d, %s", o.code, o.stderr)
			}
		})
	}
}

// TestDryRunFeedsBack: what --dry-run prints is the same VM for --config, from
// another folder too.
func TestDryRunFeedsBack(t *testing.T) {
	args := []string{"run", "boot/bzImage", "-i", "a.cpio", "-i", "/b.cpio", "-a", "quiet", "-a", "panic=-1", "--entry", "pvh", "-c", "4", "-m", "3330M",
		"-n", "tap=tap0,mtu=9000,queues=4,ring=1024,mergeable=off,busy-poll=50us,pcap=x.pcap", "-n", "tap,ip=10.0.0.1/24",
		"--serial", "file=log", "--name", "web", "--timeout", "90s", "--on-panic", "continue", "--on-reboot", "exit", "--nested", "--", "a b", "c"}
	cfg, text := dryRun(t, command(t, "real", args...))
	if cfg["nested"] != true || cfg["timeout"] != "1m30s" || !strings.HasSuffix(cfg["kernel"].(string), "/boot/bzImage") {
		t.Errorf("got %s", text)
	}
	c := command(t, "real", "run", "--config", "vm.json")
	writeFiles(t, c.Dir, map[string]string{"vm.json": text})
	if _, again := dryRun(t, c); again != text {
		t.Errorf("got %s, from %s", again, text)
	}
}

func TestInitArgs(t *testing.T) {
	cfg, text := dryRun(t, command(t, "real", "run", "bzImage", "-a", "quiet", "--", "sh", "-c", "exit 3", "--json", "-k"))
	want := []any{"quiet", `-- sh -c "exit 3" --json -k`}
	if got := cfg["append"].([]any); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %s", text)
	}
}

func TestFlagValues(t *testing.T) {
	// A value may begin with a dash, and be the name of a flag.
	cfg, text := dryRun(t, command(t, "real", "run", "bzImage", "-a", "-append", "-a=--dry-run", "--nested=off"))
	if got := cfg["append"].([]any); len(got) != 2 || got[0] != "-append" || got[1] != "--dry-run" || cfg["nested"] != nil {
		t.Errorf("got %s", text)
	}
	c := command(t, "real", "run")
	c.Env = append(c.Env, "GOVMM_KERNEL=/bzImage", "GOVMM_NET=tap=a;tap=b", "GOVMM_INITRD=/a;/b", "GOVMM_APPEND=x; y", "GOVMM_NESTED=on", "GOVMM_ON_REBOOT=exit")
	cfg, text = dryRun(t, c)
	if cfg["kernel"] != "/bzImage" || len(cfg["net"].([]any)) != 2 || len(cfg["initrds"].([]any)) != 2 ||
		cfg["append"].([]any)[0] != "x; y" || cfg["nested"] != true || cfg["on_reboot"] != "exit" {
		t.Errorf("got %s", text)
	}
}

func TestResultFile(t *testing.T) {
	read := func(t *testing.T, c *exec.Cmd) recordData {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(c.Dir, "r.json"))
		if err != nil {
			t.Fatal(err)
		}
		var data recordData
		if err := json.Unmarshal(text, &data); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		return data
	}
	for mode, code := range map[string]int{"end:poweroff": 0, "end:panic": 116, "refuse": 121, "panic-run": 123} {
		c := command(t, mode, "run", "bzImage", "--name", "web", "--result", "r.json")
		writeFiles(t, c.Dir, map[string]string{"r.json": "of the run before"})
		run(t, c)
		data := read(t, c)
		if data.Code != code || data.Detail == "" || data.Name != "web" || data.Kernel != "bzImage" || data.Version == "" || data.Started.IsZero() || data.Seconds <= 0 {
			t.Errorf("%s: got %+v", mode, data)
		}
		if files, err := os.ReadDir(c.Dir); err != nil || len(files) != 1 {
			t.Errorf("%s: files %v are left, %v", mode, files, err)
		}
	}

	c := command(t, "end:poweroff", "run", "bzImage", "-c", "0", "--result", "r.json")
	if o := run(t, c); o.code != 2 || read(t, c).Reason != "usage" {
		t.Errorf("usage: code %d, %+v", o.code, read(t, c))
	}
	c = command(t, "end:poweroff", "run", "bzImage", "--dry-run", "--result", "r.json")
	if o := run(t, c); o.code != 0 {
		t.Errorf("dry run: code %d", o.code)
	}
	if files, err := os.ReadDir(c.Dir); err != nil || len(files) != 0 {
		t.Errorf("dry run: files %v, %v", files, err)
	}
	if o := govmm(t, "end:poweroff", "run", "bzImage", "--result", "no/such/folder/r.json"); o.code != 122 || !strings.Contains(o.lastLine(), "no/such/folder") {
		t.Errorf("no folder: code %d, %s", o.code, o.stderr)
	}
	// The device is full: only a run that went well becomes the host's failure.
	for mode, code := range map[string]int{"end:poweroff": 122, "end:panic": 116} {
		if o := govmm(t, mode, "run", "bzImage", "--result", "/dev/full"); o.code != code || !strings.Contains(o.lastLine(), "no space left") {
			t.Errorf("full, %s: code %d, %s", mode, o.code, o.stderr)
		}
	}
	if o := govmm(t, "end:poweroff", "run", "bzImage", "--result", "/dev/stdout"); o.code != 0 || !strings.Contains(o.stdout, `"reason": "poweroff"`) {
		t.Errorf("device: code %d, %q", o.code, o.stdout)
	}
}

func TestMistypedVariable(t *testing.T) {
	c := command(t, "end:poweroff", "run", "bzImage")
	c.Env = append(c.Env, "GOVMM_MEMROY=1G", "GOVMM_SOMETHING_ELSE=1")
	o := run(t, c)
	if o.code != 0 || !strings.Contains(o.stderr, "name=GOVMM_MEMROY meant=GOVMM_MEMORY") || strings.Count(o.stderr, "unknown variable") != 1 {
		t.Errorf("code %d, %s", o.code, o.stderr)
	}
}

func TestLogFormat(t *testing.T) {
	c := command(t, "close-fails", "run", "bzImage", "--log-format", "json")
	line, _, _ := strings.Cut(strings.TrimPrefix(run(t, c).stderr, "CLOSED\n"), "\n")
	var entry struct{ Level, Msg, Err string }
	if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Level != "ERROR" || entry.Err == "" {
		t.Errorf("got %q, %v", line, err)
	}
}
