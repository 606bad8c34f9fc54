// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"strconv"
	"strings"
	"time"

	"github.com/govmm/govmm/internal/result"
)

// kind is what a value looks like in a file.
type kind int

const (
	textKind     kind = iota
	pathKind          // text; relative to the file's folder
	numberKind        // an integer
	sizeKind          // "512M", or an integer, in MiB
	durationKind      // "10m"
	boolKind          // true or false
	onOffKind         // "on" or "off", or true or false
)

func (k kind) String() string {
	return [...]string{"text", "a path", "a number", "a size such as \"512M\"", "a duration such as \"10m\"",
		"true or false", "\"on\" or \"off\""}[k]
}

// field is one value of a T.
type field[T any] struct {
	key  string
	kind kind
	set  func(*T, string) error
	get  func(*T) any // for a file; nil if the value is the zero value and may be left out
}

func usagef(format string, args ...any) error {
	return result.Errorf(result.Usage, format, args...)
}

func text[T any](key string, k kind, at func(*T) *string) field[T] {
	return field[T]{key, k,
		func(t *T, s string) error {
			if s == "" {
				return usagef("the value is empty: give one, or leave %s out", key)
			}
			*at(t) = s
			return nil
		},
		func(t *T) any { return orNil(*at(t)) }}
}

// number is an integer from low to high.
func number[T any](key string, low, high int, at func(*T) *int) field[T] {
	return field[T]{key, numberKind,
		func(t *T, s string) error {
			n, err := strconv.Atoi(s)
			if err != nil && !isRange(err) {
				return usagef("%q is not a number: use %d to %d", s, low, high)
			}
			if err != nil || n < low || n > high {
				return usagef("%s is out of range: use %d to %d", s, low, high)
			}
			*at(t) = n
			return nil
		},
		func(t *T) any { return orNil(*at(t)) }}
}

func size[T any](key string, at func(*T) *uint64) field[T] {
	return field[T]{key, sizeKind,
		func(t *T, s string) (err error) {
			*at(t), err = ParseSize(s)
			return err
		},
		func(t *T) any { return FormatSize(*at(t)) }}
}

func duration[T any](key string, at func(*T) *time.Duration) field[T] {
	return field[T]{key, durationKind,
		func(t *T, s string) error {
			d, err := time.ParseDuration(s)
			if err != nil {
				return usagef("%q is not a duration: use one such as 90s, 10m or 50us", s)
			}
			if d < 0 {
				return usagef("%s is negative: use a duration such as 90s", s)
			}
			*at(t) = d
			return nil
		},
		func(t *T) any {
			if *at(t) == 0 {
				return nil
			}
			return at(t).String()
		}}
}

func boolean[T any](key string, at func(*T) *bool) field[T] {
	return field[T]{key, boolKind,
		func(t *T, s string) error {
			b, err := ParseBool(s)
			if err == nil {
				*at(t) = b
			}
			return err
		},
		func(t *T) any { return orNil(*at(t)) }}
}

func onOff[T any](key string, at func(*T) *string) field[T] {
	return field[T]{key, onOffKind,
		func(t *T, s string) error {
			b, err := ParseBool(s)
			if err != nil {
				return err
			}
			*at(t) = "off"
			if b {
				*at(t) = "on"
			}
			return nil
		},
		func(t *T) any { return orNil(*at(t)) }}
}

// ParseBool reads a switch: on or off, true or false, yes or no, 1 or 0.
func ParseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "on", "true", "yes", "1":
		return true, nil
	case "off", "false", "no", "0":
		return false, nil
	}
	return false, usagef("%q is neither on nor off", s)
}

func orNil[V comparable](v V) any {
	var zero V
	if v == zero {
		return nil
	}
	return v
}
