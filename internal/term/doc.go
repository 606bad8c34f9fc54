// SPDX-License-Identifier: Apache-2.0

// Package term is the user's side of a VM's console: the terminal in raw mode
// and back, the keys that are meant for govmm and not for the guest, and input
// whose Read can be ended.
package term
