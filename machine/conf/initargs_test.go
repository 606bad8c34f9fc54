// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"reflect"
	"strings"
	"testing"

	"github.com/govmm/govmm/machine"
	"pgregory.net/rapid"
)

// kernelWords splits a command line as next_arg of the kernel's lib/cmdline.c
// does: spaces end a word except between quotes, and quotes around a whole word,
// or around a value, go. It is written from that function's behaviour, byte by
// byte, with the kernel's idea of what a space is.
func kernelWords(line string) []string {
	space := func(b byte) bool { return b == ' ' || b >= '\t' && b <= '\r' || b == 0xa0 }
	var words []string
	for i := 0; i < len(line); {
		if space(line[i]) {
			i++
			continue
		}
		start, quoted := i, false
		for i < len(line) && (quoted || !space(line[i])) {
			if line[i] == '"' {
				quoted = !quoted
			}
			i++
		}
		w := line[start:i]
		if strings.HasPrefix(w, `"`) {
			w = strings.TrimSuffix(w[1:], `"`)
		}
		words = append(words, w)
	}
	return words
}

func TestAddInitArgs(t *testing.T) {
	tests := []struct {
		append, args, want []string
	}{
		{nil, nil, nil},
		{nil, []string{"sh", "-c", "echo hi; exit 3"}, []string{`-- sh -c "echo hi; exit 3"`}},
		{[]string{"quiet"}, []string{"a=b c"}, []string{"quiet", `-- "a=b c"`}},
		{[]string{"quiet -- x"}, []string{"y"}, []string{"quiet -- x", "y"}},
		{nil, []string{"--x", "voilà"}, []string{`-- --x "voilà"`}},
	}
	for _, tt := range tests {
		c := machine.Config{Append: tt.append}
		if err := AddInitArgs(&c, tt.args); err != nil || !reflect.DeepEqual(c.Append, tt.want) {
			t.Errorf("%q + %q = %q, %v; want %q", tt.append, tt.args, c.Append, err, tt.want)
		}
	}
	for want, args := range map[string][]string{
		"empty":    {""},
		`no way`:   {`say "hi"`},
		"too many": make([]string, 32),
		`\x00`:     {"a\x00b"},
		"leave it": {"a", "--", "b"},
	} {
		var c machine.Config
		if err := AddInitArgs(&c, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

func TestInitArgsArrive(t *testing.T) {
	word := rapid.StringMatching("[ -!#-~\t\u00a0\u00e0é✓=]{1,8}")
	rapid.Check(t, func(t *rapid.T) {
		args := rapid.SliceOfN(word.Filter(func(w string) bool { return w != dashes }), 1, maxInitArgs).Draw(t, "args")
		c := machine.Config{Append: []string{"quiet"}}
		if err := AddInitArgs(&c, args); err != nil {
			t.Fatal(err)
		}
		got := kernelWords(strings.Join(c.Append, " "))
		if want := append([]string{"quiet", "--"}, args...); !reflect.DeepEqual(got, want) {
			t.Fatalf("init gets %q, want %q; the line is %q", got, want, c.Append)
		}
	})
}
