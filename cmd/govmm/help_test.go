// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/machine/conf"
)

func TestHelp(t *testing.T) {
	for args, want := range map[string][]string{
		"help":            {"Examples:", "Commands:", "run ", "exit-codes"},
		"--help":          {"Commands:"},
		"-h":              {"Commands:"},
		"help run":        {"Usage:\n  govmm run [flags] [KERNEL] [-- ARGS...]", "Examples:", "Kernel:", "-m, --memory SIZE", "Ctrl-A x"},
		"run --help":      {"--memory SIZE"},
		"run -h x y":      {"--memory SIZE"}, // help comes before what is wrong
		"help probe":      {"--json"},
		"help help":       {"govmm help [COMMAND|TOPIC]"},
		"exit-codes":      {"CODE"},
		"help exit-codes": {"CODE"},
		"help config":     {"govmm.toml", "XDG_CONFIG_HOME"},
		"help net":        {"tap=tap0"},
		"help env":        {"GOVMM_MEMORY", "GOVMM_LOG_LEVEL"},
	} {
		o := govmm(t, "real", strings.Fields(args)...)
		if o.code != 0 || o.stderr != "" {
			t.Errorf("%s: code %d, stderr %q", args, o.code, o.stderr)
		}
		for _, w := range want {
			if !strings.Contains(o.stdout, w) {
				t.Errorf("%s does not say %q:\n%s", args, w, o.stdout)
			}
		}
	}
	if help := govmm(t, "real", "help", "run").stdout; strings.Index(help, "Examples:") > strings.Index(help, "Boot a kernel in") {
		t.Error("the examples are not first")
	}
}

// TestTopicsAreComplete checks the texts against the tables that the code uses.
func TestTopicsAreComplete(t *testing.T) {
	for _, c := range result.Codes {
		row := regexp.MustCompile(`(?m)^  \S+ +` + regexp.QuoteMeta(string(c.Reason)) + ` +\S`)
		if !row.MatchString(exitCodesTopic()) {
			t.Errorf("help exit-codes has no row for %s", c.Reason)
		}
	}
	for _, s := range conf.Settings {
		if configExample[s.Key] == "" {
			t.Errorf("help config has no example of %s", s.Key)
		}
		if !slices.ContainsFunc(vmFlags, func(f flagHelp) bool { return f.name == s.Flag }) {
			t.Errorf("there is no flag --%s", s.Flag)
		}
		if !strings.Contains(envTopic(), s.Env+" ") {
			t.Errorf("help env has no %s", s.Env)
		}
	}
	for _, key := range conf.NetKeys() {
		if netHelp[key] == "" {
			t.Errorf("help net has no %s", key)
		}
	}
}

// TestConfigExamples checks that each example of help config is valid.
func TestConfigExamples(t *testing.T) {
	c := command(t, "real", "run")
	var file strings.Builder
	for key, value := range configExample {
		file.WriteString(key + " = " + value + "\n")
	}
	writeFiles(t, c.Dir, map[string]string{"govmm.toml": file.String()})
	if cfg, text := dryRun(t, c); cfg["cpus"] != 2.0 || cfg["name"] != "web" {
		t.Errorf("got %s", text)
	}
}

func TestVersion(t *testing.T) {
	o := govmm(t, "real", "version")
	if o.code != 0 || !strings.HasPrefix(o.stdout, "govmm "+release) || !strings.Contains(o.stdout, runtime.GOARCH) {
		t.Errorf("code %d, %q", o.code, o.stdout)
	}
	var b build
	if o := govmm(t, "real", "version", "--json"); json.Unmarshal([]byte(o.stdout), &b) != nil || !strings.HasPrefix(b.Version, release) || b.Go != runtime.Version() {
		t.Errorf("got %q", o.stdout)
	}
	info := &debug.BuildInfo{Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123"}, {Key: "vcs.modified", Value: "true"},
	}}
	if got, want := buildOf(info).String(), release+"+0123456789ab.modified"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestProbe(t *testing.T) {
	text, asJSON := govmm(t, "real", "probe"), govmm(t, "real", "probe", "--json")
	var report struct {
		OK   bool `json:"ok"`
		Code int  `json:"code"`
	}
	if err := json.Unmarshal([]byte(asJSON.stdout), &report); err != nil {
		t.Fatalf("%v in %s", err, asJSON.stdout)
	}
	if text.code != asJSON.code || report.Code != text.code || report.OK != (text.code != 122) || !slices.Contains([]int{0, 1, 122}, text.code) {
		t.Errorf("codes %d and %d, report %+v", text.code, asJSON.code, report)
	}
	if text.stderr != "" || text.stdout == "" {
		t.Errorf("stdout %q, stderr %q", text.stdout, text.stderr)
	}
}

func TestCompletionScripts(t *testing.T) {
	for _, shell := range shells {
		o := govmm(t, "real", "completion", shell)
		if o.code != 0 || !strings.Contains(o.stdout, "__complete") || !strings.Contains(o.stdout, "govmm") {
			t.Errorf("%s: code %d, %.200q", shell, o.code, o.stdout)
		}
		if shell == "bash" {
			c := exec.Command("bash", "-n")
			c.Stdin = strings.NewReader(o.stdout)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("bash: %v: %s", err, out)
			}
		}
	}
}

// TestCompletions checks what a shell is offered; the scripts ask __complete.
func TestCompletions(t *testing.T) {
	for line, want := range map[string][]string{
		"r":                 {"run\tboot a kernel"},
		"run --me":          {"--memory\t"},
		"run --entry ":      {"auto", "linux64", "pvh"},
		"run --on-panic c":  {"continue"},
		"run -n ":           {"none", "tap=", "tap,ip=", "fd="},
		"run --log-level d": {"debug"},
		"completion ":       {"bash", "zsh", "fish"},
		"help e":            {"exit-codes", "env"},
	} {
		fields := strings.Split(line, " ")
		got := govmm(t, "real", append([]string{"__complete"}, fields...)...).stdout
		for _, w := range want {
			if !strings.Contains("\n"+got, "\n"+w) {
				t.Errorf("%q: got %q, want %q", line, got, w)
			}
		}
	}
	// Files are left to the shell: directive 0.
	for _, line := range []string{"run ", "run -k ", "run -i "} {
		if got := govmm(t, "real", append([]string{"__complete"}, strings.Split(line, " ")...)...).stdout; !strings.HasSuffix(got, ":0\n") {
			t.Errorf("%q: got %q", line, got)
		}
	}
}

func TestManualPages(t *testing.T) {
	c := command(t, "real", "man", "share/man")
	if o := run(t, c); o.code != 0 || o.stdout+o.stderr != "" {
		t.Fatalf("code %d, %q, %q", o.code, o.stdout, o.stderr)
	}
	pages, err := filepath.Glob(filepath.Join(c.Dir, "share/man/man[17]/*.[17]"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range pages {
		found = append(found, filepath.Base(path))
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		checkPage(t, filepath.Base(path), string(text))
	}
	for _, want := range []string{"govmm.1", "govmm-run.1", "govmm-probe.1", "govmm-version.1", "govmm-exit-codes.7", "govmm-config.7", "govmm-net.7", "govmm-env.7"} {
		if !slices.Contains(found, want) {
			t.Errorf("there is no page %s in %v", want, found)
		}
	}
	if o := govmm(t, "real", "man", "/dev/null/man"); o.code != 122 || !strings.Contains(o.lastLine(), "/dev/null") {
		t.Errorf("code %d, %s", o.code, o.stderr)
	}
}

// checkPage checks a page against the rules of groff_man(7): only known macros,
// blocks that are closed, and no character that would be set as another.
func checkPage(t *testing.T, name, text string) {
	t.Helper()
	macros := map[string]bool{".TH": true, ".SH": true, ".PP": true, ".TP": true, ".RS": true, ".RE": true, ".nf": true, ".fi": true}
	open := 0
	for i, line := range strings.Split(text, "\n") {
		macro, _, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, ".") && !macros[macro], strings.HasPrefix(line, "'"):
			t.Errorf("%s:%d: unknown macro %q", name, i+1, line)
		case macro == ".RS":
			open++
		case macro == ".RE":
			open--
		}
		if open < 0 || open > 1 {
			t.Errorf("%s:%d: %d blocks are open", name, i+1, open)
		}
		if rest := strings.ReplaceAll(line, `\-`, ""); !strings.HasPrefix(line, ".") && strings.Contains(rest, "-") {
			t.Errorf("%s:%d: a '-' would be set as a hyphen: %q", name, i+1, line)
		}
		if strings.Contains(regexp.MustCompile(`\\(e|-|&|f[BIR]|\((aq|dq|ga|ha|ti))`).ReplaceAllString(line, ""), `\`) {
			t.Errorf("%s:%d: unknown escape in %q", name, i+1, line)
		}
	}
	if !strings.HasPrefix(text, ".TH \"") || !strings.Contains(text, "\n.SH \"NAME\"\n"+strings.ReplaceAll(strings.TrimRight(name, ".17"), "-", `\-`)+` \- `) {
		t.Errorf("%s has no title or NAME as whatis(1) needs it:\n%.200s", name, text)
	}
}

func TestRoffText(t *testing.T) {
	var r roff
	r.text("A \\ b\n.dot 'q' \"d\"\n\n  literal -x\n\nend")
	want := "A \\e b\n\\&.dot \\(aqq\\(aq \\(dqd\\(dq\n.PP\n.PP\n.RS 4\n.nf\nliteral \\-x\n.fi\n.RE\n.PP\nend\n"
	if r.String() != want {
		t.Errorf("got %q, want %q", r.String(), want)
	}
}
