// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package machine

import (
	"runtime"

	"github.com/govmm/govmm/internal/result"
)

// host is empty: there is no board for this architecture.
type host struct{}

func noBoard() error {
	return result.Errorf(result.Host, "govmm can't run guests on %s: use it on x86-64", runtime.GOARCH)
}

func (m *Machine) openHost() error { return noBoard() }

func (h *host) close() error { return nil }

func (m *Machine) newBoard() (board, error) { return nil, noBoard() }
