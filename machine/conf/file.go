// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/govmm/govmm/machine"
)

// FileName is the name of a configuration file that is read without being named.
const FileName = "govmm.toml"

// maxFile is the largest configuration file, in bytes.
const maxFile = 1 << 20

// Default returns the configuration files that are read without being named and
// that exist, the lower layer first: the user's, $XDG_CONFIG_HOME/govmm/config.toml
// (~/.config if it is not set), and the folder's, ./govmm.toml.
func Default(lookup func(string) (string, bool)) []string {
	var files []string
	base, _ := lookup("XDG_CONFIG_HOME")
	if home, ok := lookup("HOME"); !filepath.IsAbs(base) && ok && filepath.IsAbs(home) {
		base = filepath.Join(home, ".config")
	}
	if filepath.IsAbs(base) {
		files = append(files, filepath.Join(base, "govmm", "config.toml"))
	}
	files = append(files, FileName)
	existing := files[:0]
	for _, f := range files {
		if _, err := os.Stat(f); err == nil || !errors.Is(err, os.ErrNotExist) {
			existing = append(existing, f)
		}
	}
	return existing
}

// File applies a configuration file to c: TOML, or JSON as Write makes it.
// Relative paths in it are relative to its folder.
func File(c *machine.Config, path string) error {
	data, err := readFile(path)
	if err != nil {
		return err
	}
	return apply(c, path, data)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, unreadable(path, err)
	}
	if len(data) > maxFile {
		return nil, usagef("configuration file %s is larger than %d KiB: name a govmm configuration", path, maxFile>>10)
	}
	return data, nil
}

// unreadable says why the file at path can't be read, and what to do. Who didn't
// name it may not know of it.
func unreadable(path string, err error) error {
	reason := err
	if e, ok := errors.AsType[*os.PathError](err); ok {
		reason = e.Err
	}
	const instead = "or name another with --config; --config /dev/null reads none"
	cure := "make it a file that can be read"
	switch {
	case errors.Is(err, os.ErrNotExist):
		cure = "create it"
	case errors.Is(err, os.ErrPermission):
		cure = "give this user the right to read it and to search the folders above it"
	}
	return usagef("configuration file %s: %w: %s, %s", path, reason, cure, instead)
}

// apply applies the content of the file at path to c.
func apply(c *machine.Config, path string, data []byte) error {
	r := reader{path, filepath.Dir(path)}
	members, err := parse(data)
	var syntax *syntaxError
	if errors.As(err, &syntax) {
		return r.errorf(syntax.line, "%s", syntax.text)
	}
	for _, m := range members {
		if err := r.setting(c, m); err != nil {
			return err
		}
	}
	return nil
}

// reader turns the nodes of one file into values.
type reader struct {
	path string
	dir  string // what relative paths are relative to
}

func (r reader) errorf(line int, format string, args ...any) error {
	return usagef("%s:%d: %w", r.path, line, fmt.Errorf(format, args...))
}

func keys() []string {
	var all []string
	for _, s := range Settings {
		all = append(all, s.Key)
	}
	return all
}

func (r reader) setting(c *machine.Config, m member) error {
	for i := range Settings {
		s := &Settings[i]
		if s.Key != m.key {
			continue
		}
		switch {
		case s.Key == "net":
			return r.nets(c, m)
		case s.Key == "serial":
			return r.serial(c, m)
		case s.list:
			return r.texts(c, s, m)
		}
		return scalarField(r, c, s.scalar, m)
	}
	return r.errorf(m.line, "key %q is unknown%s", m.key, didYouMean(m.key, keys()))
}

// scalarField sets a field of t from a node.
func scalarField[T any](r reader, t *T, f *field[T], m member) error {
	s, ok := scalarText(f.kind, m.value)
	if !ok {
		return r.errorf(m.line, "%s is %s: it must be %s", m.key, describe(m.value), f.kind)
	}
	if f.kind == pathKind {
		s = r.resolve(s)
	}
	if err := f.set(t, s); err != nil {
		return r.errorf(m.line, "%s: %w", m.key, err)
	}
	return nil
}

// scalarText returns a value in the form that a field's set takes, if the value
// is of the right type.
func scalarText(k kind, value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, k != numberKind && k != boolKind
	case int64:
		return strconv.FormatInt(v, 10), k == numberKind || k == sizeKind
	case bool:
		return strconv.FormatBool(v), k == boolKind || k == onOffKind
	}
	return "", false
}

func describe(value any) string {
	switch v := value.(type) {
	case string:
		return "the text " + strconv.Quote(v)
	case int64, float64:
		return fmt.Sprintf("the number %v", v)
	case bool:
		return strconv.FormatBool(v)
	case []node:
		return "a list"
	case []member:
		return "a table"
	case nil:
		return "null"
	}
	return "a date or time"
}

// resolve returns a path of the file as govmm can open it.
func (r reader) resolve(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	if path == "" || filepath.IsAbs(path) || r.dir == "." {
		return path
	}
	return filepath.Join(r.dir, path)
}

func (r reader) texts(c *machine.Config, s *Setting, m member) error {
	list, ok := m.value.([]node)
	if !ok {
		return r.errorf(m.line, "%s is %s: it must be a list, such as [\"one\"]", m.key, describe(m.value))
	}
	values := make([]string, 0, len(list))
	for _, n := range list {
		v, ok := n.value.(string)
		if !ok {
			return r.errorf(n.line, "%s has %s in its list: it must be text", m.key, describe(n.value))
		}
		if s.path {
			v = r.resolve(v)
		}
		values = append(values, v)
	}
	if err := s.set(c, values); err != nil {
		return r.errorf(m.line, "%s: %w", m.key, err)
	}
	return nil
}

// nets reads the NICs: a list in which each is a table or a --net list.
func (r reader) nets(c *machine.Config, m member) error {
	list, ok := m.value.([]node)
	if !ok {
		return r.errorf(m.line, "net is %s: it must be a list; write [[net]] above each NIC's keys", describe(m.value))
	}
	nets := make([]machine.Net, 0, len(list))
	for _, n := range list {
		nic, err := r.nic(n)
		if err != nil {
			return err
		}
		nets = append(nets, nic)
	}
	c.Nets = nets
	return nil
}

func (r reader) nic(n node) (machine.Net, error) {
	var nic machine.Net
	switch v := n.value.(type) {
	case string:
		nic, err := ParseNet(v)
		if err != nil {
			return nic, r.errorf(n.line, "net: %w", err)
		}
		if nic.Pcap != "" {
			nic.Pcap = r.resolve(nic.Pcap)
		}
		return nic, nil
	case []member:
		return nic, group(r, &nic, netFields, "net", v)
	}
	return nic, r.errorf(n.line, "a NIC is %s: it must be a table, or text as --net takes it", describe(n.value))
}

// serial reads the serial port: a table, or text as --serial takes it.
func (r reader) serial(c *machine.Config, m member) error {
	switch v := m.value.(type) {
	case string:
		if err := setSerial(c, []string{v}); err != nil {
			return r.errorf(m.line, "serial: %w", err)
		}
		c.Serial.Path = r.resolve(c.Serial.Path)
		return nil
	case []member:
		c.Serial = machine.Serial{}
		return group(r, &c.Serial, serialFields, "serial", v)
	}
	return r.errorf(m.line, "serial is %s: it must be a table, or text as --serial takes it", describe(m.value))
}

// group sets the fields of a table.
func group[T any](r reader, t *T, fields []field[T], name string, members []member) error {
	for _, m := range members {
		f := findField(fields, m.key)
		if f == nil {
			var known []string
			for _, f := range fields {
				known = append(known, f.key)
			}
			return r.errorf(m.line, "key %q of %s is unknown%s", m.key, name, didYouMean(m.key, known))
		}
		if err := scalarField(r, t, f, m); err != nil {
			return err
		}
	}
	return nil
}
