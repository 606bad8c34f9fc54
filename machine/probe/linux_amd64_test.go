// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/govmm/govmm/kvm"
)

// TestLinux compares the experiment with what the module's name says: hardware
// virtualization runs everything, kvm_pvm does not.
func TestLinux(t *testing.T) {
	sys, err := kvm.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	v, err := Linux(sys)
	if err != nil {
		t.Fatal(err)
	}
	modules := kvmModules(os.DirFS("/"))
	want := !slices.Contains(modules, "kvm_pvm")
	if v.OK != want || len(v.Detail) != len(experiments) || v.Reason == "" || strings.Contains(v.Reason+v.Cure, "\n") {
		t.Errorf("modules %v: %+v", modules, v)
	}
	if v.OK != (v.Cure == "") {
		t.Errorf("ok %t, cure %q", v.OK, v.Cure)
	}
	if !v.OK && !strings.Contains(v.Reason, "kvm_pvm") {
		t.Errorf("the reason does not name the module: %q", v.Reason)
	}
}

// TestExperimentsCanFail runs guests that must not pass: one writes 0, one ends in
// a triple fault, one writes to the wrong port.
func TestExperimentsCanFail(t *testing.T) {
	sys, err := kvm.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	for _, c := range []struct{ code, says string }{
		{"\xb0\x01\xe6\x80", ""},                      // mov al, 1; out donePort, al
		{"\x30\xc0\xe6\x80", "port 0x80"},             // xor al, al; out donePort, al
		{"\xb0\x01\xe6\x81", "port 0x81"},             // wrong port
		{"\xe4\x80", "in true"},                       // in al, donePort
		{"\x0f\x0b", "KVM_EXIT_SHUTDOWN"},             // ud2
		{"\xf4", "KVM_EXIT_HLT"},                      // hlt
		{"\x90\xeb\x00\xb0\x01\xe6\x80", ""},          // nop; jmp +0; ...
		{"\xbf\x00\x00\x00\x08\x88\x07", "0x8000000"}, // MMIO
	} {
		got, err := experiment{name: "x", code: c.code}.run(sys, timeLimit)
		if err != nil || !strings.Contains(got, c.says) || (got == "") != (c.says == "") {
			t.Errorf("% x: %q (%v), want %q", c.code, got, err, c.says)
		}
	}
}

// TestExperimentTimeLimit runs a guest that does nothing for ever.
func TestExperimentTimeLimit(t *testing.T) {
	sys, err := kvm.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	if got, err := (experiment{name: "x", code: "\xeb\xfe"}).run(sys, 10*time.Millisecond); err != nil || got != "no result in time" {
		t.Errorf("%q (%v)", got, err)
	}
}

// TestBreakpointHandlerIsWhereTheTableSays keeps the snippet's padding right.
func TestBreakpointHandlerIsWhereTheTableSays(t *testing.T) {
	for _, e := range experiments {
		for vector, addr := range e.handlers {
			if code := e.code[addr-0x10000:]; code != "\xb0\x01\x48\xcf" {
				t.Errorf("%s: handler of vector %d is % x", e.name, vector, code)
			}
		}
	}
}

func TestExplain(t *testing.T) {
	v := Verdict{}
	v.explain(files(map[string]string{"sys/module/kvm_odd/refcnt": "0"}))
	if !strings.Contains(v.Reason, "(kvm_odd)") || v.Cure == "" {
		t.Errorf("%+v", v)
	}
	v = Verdict{}
	v.explain(files(nil))
	if !strings.Contains(v.Reason, "unknown KVM module") {
		t.Errorf("%+v", v)
	}
}
