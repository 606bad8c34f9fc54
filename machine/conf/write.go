// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"bytes"
	"encoding/json"
	"io"
	"path/filepath"
	"slices"

	"github.com/govmm/govmm/machine"
)

// Write writes c with its defaults as indented JSON, which File reads back to
// the same Config from any folder: its paths are absolute.
func Write(w io.Writer, c machine.Config) error {
	c, err := absolute(c.WithDefaults())
	if err != nil {
		return err
	}
	var members []jsonMember
	for _, s := range Settings {
		if v := s.value(&c); v != nil {
			members = append(members, jsonMember{s.Key, v})
		}
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(jsonTable(members)); err != nil {
		return err
	}
	_, err = w.Write(out.Bytes())
	return err
}

// value is the setting's value for a file, or nil if it has none.
func (s *Setting) value(c *machine.Config) any {
	switch s.Key {
	case "net":
		var nets []jsonTable
		for i := range c.Nets {
			nets = append(nets, tableOf(&c.Nets[i], netFields))
		}
		return nonEmpty(nets)
	case "serial":
		return tableOf(&c.Serial, serialFields)
	case "initrds":
		return nonEmpty(c.Initrds)
	case "append":
		return nonEmpty(c.Append)
	}
	return s.scalar.get(c)
}

func nonEmpty[T any](list []T) any {
	if len(list) == 0 {
		return nil
	}
	return list
}

func tableOf[T any](t *T, fields []field[T]) jsonTable {
	table := jsonTable{}
	for _, f := range fields {
		if v := f.get(t); v != nil {
			table = append(table, jsonMember{f.key, v})
		}
	}
	return table
}

// jsonTable is a JSON object whose members keep their order.
type jsonTable []jsonMember

type jsonMember struct {
	key   string
	value any
}

// MarshalJSON implements json.Marshaler.
func (t jsonTable) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, m := range t {
		if i > 0 {
			out = append(out, ',')
		}
		for j, v := range []any{m.key, m.value} {
			if j > 0 {
				out = append(out, ':')
			}
			var text bytes.Buffer
			enc := json.NewEncoder(&text)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(v); err != nil {
				return nil, err
			}
			out = append(out, bytes.TrimSuffix(text.Bytes(), []byte("\n"))...)
		}
	}
	return append(out, '}'), nil
}

// absolute makes the paths of c absolute.
func absolute(c machine.Config) (machine.Config, error) {
	c.Initrds = slices.Clone(c.Initrds)
	c.Nets = slices.Clone(c.Nets)
	paths := []*string{&c.Kernel, &c.Serial.Path}
	for i := range c.Initrds {
		paths = append(paths, &c.Initrds[i])
	}
	for i := range c.Nets {
		paths = append(paths, &c.Nets[i].Pcap)
	}
	for _, p := range paths {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return c, err
		}
		*p = abs
	}
	return c, nil
}
