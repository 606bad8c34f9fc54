// SPDX-License-Identifier: Apache-2.0

// Package result holds why a run ended: the reasons, and the exit code of each.
// The table is what `govmm help exit-codes` prints.
package result

import (
	"context"
	"errors"
	"fmt"
)

// Reason says in one word why a run ended.
type Reason string

// The reasons of a run's end.
const (
	PowerOff    Reason = "poweroff"     // the guest switched itself off
	Stopped     Reason = "stopped"      // the user ended the VM at the console (Ctrl-A x)
	DebugExit   Reason = "debug-exit"   // the guest wrote a status to the debug-exit port
	Usage       Reason = "usage"        // the command line or configuration is wrong
	Splat       Reason = "splat"        // oops, WARN, KASAN, lockdep, stall
	KTAP        Reason = "ktap"         // KTAP or TAP reports a failure
	Panic       Reason = "panic"        // kernel panic
	Reset       Reason = "reset"        // guest reset with --on-reboot exit
	TripleFault Reason = "triple-fault" // the CPU shut down
	KVMError    Reason = "kvm-error"    // KVM internal error or failed entry
	Hang        Reason = "hang"         // no progress
	NoStatus    Reason = "no-status"    // the guest's command ended without a status
	NoInit      Reason = "no-init"      // user space was never reached
	BadImage    Reason = "bad-image"    // kernel, initrd or command line refused
	Host        Reason = "host"         // the host can't: KVM, permission, tap, disk full
	Bug         Reason = "bug"          // a bug in govmm
	Timeout     Reason = "timeout"      // --timeout
	Skipped     Reason = "skipped"      // can't be tested
	Signal      Reason = "signal"       // govmm was stopped by a signal
)

// Code is a row of the exit code table.
type Code struct {
	Code    int // the process's exit status; for Signal, 128 is added to the signal's number
	Reason  Reason
	Meaning string
}

// Codes is the exit code table, in the order of the codes. Reasons that can't
// end a run of this version are not in it.
var Codes = []Code{
	{0, PowerOff, "the guest powered itself off"},
	{0, Stopped, "the user ended the VM with Ctrl-A x"},
	{2, Usage, "wrong command line or configuration; no VM was made"},
	{116, Panic, "kernel panic"},
	{117, Reset, "the guest reset itself and --on-reboot is exit"},
	{117, TripleFault, "triple fault"},
	{117, KVMError, "KVM could not go on (internal error or failed entry)"},
	{121, BadImage, "kernel, initrd or command line refused before the first instruction"},
	{122, Host, "the host can't: KVM, a permission, the tap, memory, a full disk"},
	{123, Bug, "a bug in govmm"},
	{124, Timeout, "--timeout ran out"},
	{128, Signal, "128+n: govmm was stopped by signal n (130 SIGINT, 143 SIGTERM, 129 SIGHUP)"},
}

// Result is how a run ended.
type Result struct {
	Reason  Reason `json:"reason"`
	Code    int    `json:"code"`
	Detail  string `json:"detail,omitempty"`  // one line: what exactly, and what to do
	Console string `json:"console,omitempty"` // the last lines of the guest's console
}

// Of makes the result for a reason with the code of the table.
func Of(r Reason, format string, args ...any) Result {
	return Result{Reason: r, Code: codeOf(r), Detail: fmt.Sprintf(format, args...)}
}

// OfSignal is the result of a run that signal n ended.
func OfSignal(n int, name string) Result {
	return Result{Reason: Signal, Code: 128 + n, Detail: "stopped by " + name}
}

// OfStatus is the result of a guest that wrote status to the debug-exit port:
// the status is the exit code, and at most 113, so that it can't be taken for
// one of govmm's own.
func OfStatus(status int) Result {
	return Result{Reason: DebugExit, Code: min(status, maxGuestStatus), Detail: fmt.Sprintf("the guest's status is %d", status)}
}

// maxGuestStatus is the largest exit code that is the guest's own.
const maxGuestStatus = 113

// OfContext is the result of a run whose context ended: that of the cause if it
// is an error of this package, else Stopped.
func OfContext(ctx context.Context) Result {
	cause := context.Cause(ctx)
	var end End
	var e *Error
	if errors.As(cause, &end) || errors.As(cause, &e) {
		return OfError(cause)
	}
	return Of(Stopped, "%v", cause)
}

func codeOf(r Reason) int {
	for _, c := range Codes {
		if c.Reason == r {
			return c.Code
		}
	}
	return codeOf(Bug)
}

// Error is an error that knows the reason it ends a run with.
type Error struct {
	Reason Reason
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error itself.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error; %w works as in fmt.Errorf.
func Errorf(r Reason, format string, args ...any) error {
	return &Error{r, fmt.Errorf(format, args...)}
}

// End is a whole result as an error: the cause with which a context is cancelled
// that a run lives in.
type End struct{ Result }

func (e End) Error() string { return e.Detail }

// OfError is the result for an error: its own result or reason if it has one,
// else a bug.
func OfError(err error) Result {
	var end End
	if errors.As(err, &end) {
		return end.Result
	}
	var e *Error
	if errors.As(err, &e) {
		return Of(e.Reason, "%v", err)
	}
	return Of(Bug, "%v", err)
}
