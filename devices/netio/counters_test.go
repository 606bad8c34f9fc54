// SPDX-License-Identifier: Apache-2.0

package netio

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"reflect"
	"strings"
	"testing"
)

// fillCounters gives every number in v a value of its own.
func fillCounters(v reflect.Value, next *uint64) {
	switch v.Kind() {
	case reflect.Uint64:
		*next++
		v.SetUint(*next)
	case reflect.Struct:
		for i := range v.NumField() {
			fillCounters(v.Field(i), next)
		}
	case reflect.Array:
		for i := range v.Len() {
			fillCounters(v.Index(i), next)
		}
	}
}

// TestCountersInLog: the log has what JSON has, under the same names.
func TestCountersInLog(t *testing.T) {
	var c Counters
	fillCounters(reflect.ValueOf(&c).Elem(), new(uint64))
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "c", c)
	var line struct{ C any }
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var want any
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(line.C, want) {
		t.Errorf("logged %v, want %v", line.C, want)
	}
}

// TestCountersAsText: pairs of key and value, without those that are zero.
func TestCountersAsText(t *testing.T) {
	var out bytes.Buffer
	c := Counters{RX: DirCounters{Frames: 3, BatchSizes: [5]uint64{1, 1}}, Wakeups: 7}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "c", c)
	const want = `msg=x c.rx.frames=3 c.rx.batch_sizes="[1 1 0 0 0]" c.wakeups=7`
	if !strings.HasSuffix(strings.TrimSpace(out.String()), want) {
		t.Errorf("logged %s, want %s", out.String(), want)
	}
}
