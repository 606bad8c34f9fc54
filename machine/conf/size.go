// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// units are the suffixes of a size, the largest first.
var units = []struct {
	suffix string
	shift  uint
}{{"T", 40}, {"G", 30}, {"M", 20}, {"K", 10}}

// ParseSize reads a size such as 512M or 4G and returns bytes. The suffixes K,
// M, G and T are powers of 1024, in either case, and may be written KiB or KB;
// a number without one is in MiB.
func ParseSize(s string) (uint64, error) {
	digits := strings.TrimRight(s, "kKmMgGtTiIbB")
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil && !isRange(err) {
		return 0, badSize(s)
	}
	shift, ok := unitShift(s[len(digits):])
	switch {
	case !ok:
		return 0, badSize(s)
	case err != nil || n > math.MaxUint64>>shift:
		return 0, usagef("size %s is more than any computer has: use one such as 512M or 4G", s)
	case n == 0:
		return 0, usagef("size %s is nothing: use one such as 512M or 4G", s)
	}
	return n << shift, nil
}

func badSize(s string) error {
	return usagef("%q is not a size: use a whole number and K, M, G or T, such as 512M or 4G; a bare number is in MiB", s)
}

// isRange tells whether a number was one, only too large for its type.
func isRange(err error) bool { return errors.Is(err, strconv.ErrRange) }

func unitShift(suffix string) (uint, bool) {
	if suffix == "" {
		return 20, true
	}
	suffix = strings.ToUpper(suffix)
	for _, u := range units {
		if suffix == u.suffix || suffix == u.suffix+"IB" || suffix == u.suffix+"B" {
			return u.shift, true
		}
	}
	return 0, false
}

// FormatSize writes a size of n bytes, a multiple of 1024, so that ParseSize
// reads it back.
func FormatSize(n uint64) string {
	for _, u := range units {
		if n>>u.shift != 0 && n&(1<<u.shift-1) == 0 {
			return strconv.FormatUint(n>>u.shift, 10) + u.suffix
		}
	}
	return strconv.FormatUint(n>>10, 10) + "K"
}
