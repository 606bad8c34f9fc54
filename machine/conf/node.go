// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// node is a value of a file and the line that it stands on.
type node struct {
	value any // string, int64, float64, bool, nil, []node, []member, or another type, that no setting has
	line  int // from 1
}

// member is a key of a table and its value.
type member struct {
	key string
	node
}

// syntaxError is what is wrong with a file, and where.
type syntaxError struct {
	line int
	text string
}

func (e *syntaxError) Error() string { return e.text }

// parse reads a file as JSON if it begins with a brace, and as TOML otherwise.
func parse(data []byte) ([]member, error) {
	if rest := bytes.TrimLeft(data, " \t\r\n"); len(rest) > 0 && rest[0] == '{' {
		return parseJSON(data)
	}
	return parseTOML(data)
}

// parseTOML reads a TOML document. Its tables come in the order of their keys.
func parseTOML(data []byte) ([]member, error) {
	var doc map[string]any
	if _, err := toml.Decode(string(data), &doc); err != nil {
		var p toml.ParseError
		if errors.As(err, &p) {
			return nil, &syntaxError{p.Position.Line, p.Message}
		}
		return nil, &syntaxError{1, err.Error()}
	}
	return tomlTable(doc, "", 1, tomlLines(data)), nil
}

func tomlTable(table map[string]any, path string, line int, lines map[string]int) []member {
	keys := make([]string, 0, len(table))
	for k := range table {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	members := make([]member, 0, len(keys))
	for _, k := range keys {
		members = append(members, member{k, tomlNode(table[k], join(path, k), line, lines)})
	}
	return members
}

func tomlNode(value any, path string, line int, lines map[string]int) node {
	if l, ok := lines[path]; ok {
		line = l
	}
	n := node{value, line}
	switch v := value.(type) {
	case map[string]any:
		n.value = tomlTable(v, path, line, lines)
	case []map[string]any:
		list := make([]node, 0, len(v))
		for i, t := range v {
			list = append(list, tomlNode(t, at(path, i), line, lines))
		}
		n.value = list
	case []any:
		list := make([]node, 0, len(v))
		for i, e := range v {
			list = append(list, tomlNode(e, at(path, i), line, lines))
		}
		n.value = list
	}
	return n
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func at(path string, index int) string { return path + "[" + strconv.Itoa(index) + "]" }

var (
	tomlHeader = regexp.MustCompile(`^\s*(\[\[?)\s*["']?([A-Za-z0-9_-]+)["']?\s*\]`)
	tomlKey    = regexp.MustCompile(`^\s*["']?([A-Za-z0-9_-]+)["']?\s*=`)
)

// tomlLines finds the lines that a document's keys stand on, which the decoder
// does not tell. Keys inside of a line are not found: their line is that of what
// they are in.
func tomlLines(data []byte) map[string]int {
	lines := map[string]int{}
	seen := map[string]int{} // number of tables in each array of tables
	section := ""
	for i, l := range strings.Split(string(data), "\n") {
		path := ""
		if m := tomlHeader.FindStringSubmatch(l); m != nil {
			section = m[2]
			if m[1] == "[[" {
				section = at(m[2], seen[m[2]])
				seen[m[2]]++
			}
			path = section
		} else if m := tomlKey.FindStringSubmatch(l); m != nil {
			path = join(section, m[1])
		}
		if _, twice := lines[path]; path != "" && !twice {
			lines[path] = i + 1
		}
	}
	return lines
}

// maxDepth is more than any setting needs, and bounds the recursion.
const maxDepth = 8

// jsonReader reads a JSON document with the line of each value.
type jsonReader struct {
	data []byte
	dec  *json.Decoder
}

func parseJSON(data []byte) ([]member, error) {
	r := jsonReader{data, json.NewDecoder(bytes.NewReader(data))}
	r.dec.UseNumber()
	n, err := r.node(0)
	if err != nil {
		return nil, r.explain(err)
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, &syntaxError{r.line(), "something follows the end of the JSON object"}
	}
	members, ok := n.value.([]member)
	if !ok {
		return nil, &syntaxError{n.line, "the file is no JSON object"}
	}
	return members, nil
}

// line is the line that the last token ends on.
func (r *jsonReader) line() int {
	return 1 + bytes.Count(r.data[:min(r.dec.InputOffset(), int64(len(r.data)))], []byte("\n"))
}

// explain makes a syntaxError of an error of the decoder.
func (r *jsonReader) explain(err error) error {
	var known *syntaxError
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &syntaxError{1 + bytes.Count(r.data, []byte("\n")), "the file ends inside of the JSON object"}
	}
	return &syntaxError{r.line(), strings.TrimPrefix(err.Error(), "json: ")}
}

func (r *jsonReader) node(depth int) (node, error) {
	token, err := r.dec.Token()
	if err != nil {
		return node{}, err
	}
	n := node{token, r.line()}
	switch t := token.(type) {
	case json.Number:
		n.value = jsonNumber(t)
	case json.Delim:
		if depth == maxDepth {
			return n, &syntaxError{n.line, "the JSON is nested too deeply"}
		}
		if t == '{' {
			n.value, err = r.table(depth + 1)
		} else {
			n.value, err = r.array(depth + 1)
		}
	}
	return n, err
}

// jsonNumber returns an int64, or else a float64, which no setting has.
func jsonNumber(t json.Number) any {
	if i, err := t.Int64(); err == nil {
		return i
	}
	f, _ := t.Float64() // an infinity if it is too large
	return f
}

func (r *jsonReader) table(depth int) ([]member, error) {
	members := []member{}
	seen := map[string]bool{}
	for r.dec.More() {
		token, err := r.dec.Token()
		if err != nil {
			return nil, err
		}
		key, ok := token.(string)
		if !ok {
			return nil, &syntaxError{r.line(), fmt.Sprintf("%v is no key", token)}
		}
		if seen[key] {
			return nil, &syntaxError{r.line(), fmt.Sprintf("key %q stands twice", key)}
		}
		seen[key] = true
		line := r.line()
		n, err := r.node(depth)
		if err != nil {
			return nil, err
		}
		n.line = line
		members = append(members, member{key, n})
	}
	_, err := r.dec.Token() // the closing brace
	return members, err
}

func (r *jsonReader) array(depth int) ([]node, error) {
	list := []node{}
	for r.dec.More() {
		n, err := r.node(depth)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	_, err := r.dec.Token() // the closing bracket
	return list, err
}
