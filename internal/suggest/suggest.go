// SPDX-License-Identifier: Apache-2.0

// Package suggest finds the word that was meant by a mistyped one.
package suggest

import (
	"slices"
	"strings"
)

// Nearest returns the word of words that is nearest to word, or "" if none is
// near enough to be meant: a third of its letters may be wrong, or it is the
// only one that begins with word. Case and the difference between '-' and '_'
// don't count. Of equally near words, the first is taken.
func Nearest(word string, words []string) string {
	const long = 64 // nobody mistypes this; it bounds the work
	if word == "" || len(word) > long {
		return ""
	}
	want := normal(word)
	best, least := "", max(1, len(want)/3)+1
	for _, w := range words {
		if d := distance(want, normal(w)); d < least {
			best, least = w, d
		}
	}
	if best != "" {
		return best
	}
	begin := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !strings.HasPrefix(normal(w), want) })
	if len(begin) == 1 {
		return begin[0]
	}
	return ""
}

func normal(s string) string {
	return strings.ReplaceAll(strings.ToLower(s), "_", "-")
}

// distance is the number of letters to insert, delete, replace or swap with
// their neighbour to turn a into b (optimal string alignment).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			replace := rows[i-1][j-1]
			if x[i-1] != y[j-1] {
				replace++
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, replace)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
}
