// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMain lets the test binary be the shell.
func TestMain(m *testing.M) {
	if os.Getenv("SH_TEST_BE_SHELL") != "" {
		main()
		os.Exit(0) // never the tests again, which would start more of us
	}
	os.Exit(m.Run())
}

// shell runs the shell and returns what it printed and its exit status.
func shell(t *testing.T, input string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "SH_TEST_BE_SHELL=1")
	cmd.Stdin = strings.NewReader(input)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func TestShell(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho \"$0\" \"$#\" \"$2\"; exit 7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		input  string
		args   []string
		stdout string
		status int
	}{
		{"command", "", []string{"-c", "echo hi; false"}, "hi\n", 1},
		{"command with arguments", "", []string{"-c", `echo "$1|$2"`, "name", "a b", ""}, "a b|\n", 0},
		{"dash in an argument", "", []string{"-c", `printf '%s\n' "$1"`, "name", "-e"}, "-e\n", 0},
		{"joined flags", "", []string{"-ec", "echo a; false; echo b"}, "a\n", 1},
		{"without -e", "", []string{"-c", "echo a; false; echo b"}, "a\nb\n", 0},
		{"unset variable", "", []string{"-u", "-c", "echo $nope; echo after"}, "", 1},
		{"script", "", []string{script, "a", "b c"}, script + " 2 b c\n", 7},
		{"standard input", "echo one\nexit 3\n", nil, "one\n", 3},
		{"input for a command", "text", []string{"-c", "cat"}, "text", 0},
		{"pipes and waiting", "", []string{"-c", "(sleep 0.1; echo late) & echo early | cat; wait"}, "early\nlate\n", 0},
		{"not a command", "", []string{"-c", "govmm-no-such-command"}, "", 127},
		{"syntax error", "", []string{"-c", "if"}, "", 2},
		{"no such script", "", []string{"/no/such/script"}, "", 127},
		{"unknown flag", "", []string{"-Z"}, "", 2},
		{"-c alone", "", []string{"-c"}, "", 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, stderr, status := shell(t, test.input, test.args...)
			if stdout != test.stdout || status != test.status {
				t.Errorf("printed %q, status %d; want %q, %d; stderr %q", stdout, status, test.stdout, test.status, stderr)
			}
			if test.status == 2 && stderr == "" {
				t.Error("an error without a message")
			}
		})
	}
}

func TestComplete(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"alpha", "alps", "beta"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "album"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for _, test := range []struct {
		line string
		head string
		want []string
	}{
		{"alp", "", []string{"alpha ", "alps "}},
		{"echo " + dir + "/al", "echo ", []string{dir + "/album/", dir + "/alpha ", dir + "/alps "}},
		{"cat <" + dir + "/b", "cat <", []string{dir + "/beta "}},
		{dir + "/b", "", []string{dir + "/beta "}},
		{"zzz", "", nil},
		{"echo [", "echo ", nil},
	} {
		head, got, tail := complete(test.line+"rest", len(test.line))
		if head != test.head || tail != "rest" || !slices.Equal(got, test.want) {
			t.Errorf("%q: %q %q %q, want %q %q", test.line, head, got, tail, test.head, test.want)
		}
	}
}
