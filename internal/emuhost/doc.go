// SPDX-License-Identifier: Apache-2.0

// Package emuhost runs commands on an emulated x86-64 host: a stock Linux
// kernel in QEMU's TCG, with AMD SVM and nested paging emulated, so that it has
// a complete /dev/kvm on machines whose own KVM cannot run Linux guests.
//
// The host's root file system is the machine's own, with a tmpfs over it: all
// programs and files are there under the same paths, everything is writable,
// and no change reaches the machine. What is to be kept goes to the exchange
// folder, which both sides see (Host.Exchange outside, ExchangeDir inside).
//
// Commands run as on the machine itself: see Cmd. Tests use Main.
package emuhost
