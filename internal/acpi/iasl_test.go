// SPDX-License-Identifier: Apache-2.0

package acpi

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// iasl runs Intel's ACPI compiler in dir and returns what it says.
func iasl(t *testing.T, dir string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("iasl")
	if err != nil {
		t.Fatalf("%v: it checks the tables; scripts/setup installs it (Debian package acpica-tools)", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("iasl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// complaint is how iasl reports what it does not like. A line with a count of
// zero is none.
var complaint = regexp.MustCompile(`(?i)(error|warning|remark|invalid|unknown|incorrect|disassembly completed with)`)

func complain(t *testing.T, what, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		line = strings.ReplaceAll(line, "0 Errors, 0 Warnings, 0 Remarks", "")
		if complaint.MatchString(line) {
			t.Errorf("%s: %s", what, line)
		}
	}
}

// boards are the kinds of boards whose tables are checked with iasl.
func boards() map[string]Config {
	full := board(32)
	full.I8042 = true
	full.PCI.LastBus = 255
	full.PCI.ECAM = 0x40_0000_0000
	full.Serial = append(full.Serial, ISA{0x2f8, 8, 3})
	bare := board(1)
	bare.Serial, bare.RTC, bare.PVPanic, bare.Reserved = nil, nil, 0, nil
	bare.PCI.IO, bare.PCI.Memory = nil, nil
	return map[string]Config{"usual": board(2), "full": full, "bare": bare}
}

// TestIASL: Intel's compiler reads every table without a complaint and makes the
// same AML from its own disassembly of the DSDT.
func TestIASL(t *testing.T) {
	for name, c := range boards() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			found, err := build(t, c).tables()
			if err != nil {
				t.Fatal(err)
			}
			for sig, b := range found {
				file := sig + ".aml"
				if err := os.WriteFile(filepath.Join(dir, file), b, 0o644); err != nil {
					t.Fatal(err)
				}
				complain(t, "disassembly of "+sig, iasl(t, dir, "-d", file))
				text, err := os.ReadFile(filepath.Join(dir, sig+".dsl"))
				if err != nil {
					t.Fatal(err)
				}
				complain(t, sig, string(text))
				complain(t, "compilation of "+sig, iasl(t, dir, "-p", sig+"-again", sig+".dsl"))
			}
			recompile(t, dir, found["DSDT"])
		})
	}
}

// recompile: the head of a table carries the compiler's name, so only the AML
// behind it is compared. -on keeps names as they are written.
func recompile(t *testing.T, dir string, dsdt []byte) {
	t.Helper()
	complain(t, "compilation of the DSDT", iasl(t, dir, "-on", "-p", "again", "DSDT.dsl"))
	again, err := os.ReadFile(filepath.Join(dir, "again.aml"))
	if err != nil {
		t.Fatal(err)
	}
	for i := headSize; i < len(dsdt); i++ {
		if i >= len(again) || again[i] != dsdt[i] {
			t.Errorf("iasl makes other AML from byte %#x on: % x\nthan is here: % x", i, again[min(i, len(again)):], dsdt[i:])
			return
		}
	}
	if len(again) != len(dsdt) {
		t.Errorf("iasl makes %d bytes, not %d", len(again), len(dsdt))
	}
}

// TestDSDTSource: what iasl reads in the DSDT is what the board has.
func TestDSDTSource(t *testing.T) {
	dir := t.TempDir()
	c := board(2)
	c.VMBus = true // its _HID, which guests know, is one that iasl doesn't compile
	found, err := build(t, c).tables()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "dsdt.aml"), found["DSDT"], 0o644); err != nil {
		t.Fatal(err)
	}
	iasl(t, dir, "-d", "dsdt.aml")
	text, err := os.ReadFile(filepath.Join(dir, "dsdt.dsl"))
	if err != nil {
		t.Fatal(err)
	}
	source := strings.Join(strings.Fields(regexp.MustCompile(`//.*|/\*.*?\*/`).ReplaceAllString(string(text), "")), " ")
	for _, want := range []string{
		`Device (PCI0) { Name (_HID, EisaId ("PNP0A08") ) Name (_CID, EisaId ("PNP0A03") )`,
		`IO (Decode16, 0x0CF8, 0x0CF8, 0x01, 0x08, )`,
		`WordIO (ResourceProducer, MinFixed, MaxFixed, PosDecode, EntireRange, 0x0000, 0xC000, 0xDFFF, 0x0000, 0x2000, ,, , TypeStatic, DenseTranslation)`,
		`DWordMemory (ResourceProducer, PosDecode, MinFixed, MaxFixed, NonCacheable, ReadWrite, 0x00000000, 0xC0000000, 0xDFFFFFFF, 0x00000000, 0x20000000,`,
		`QWordMemory (ResourceProducer, PosDecode, MinFixed, MaxFixed, Cacheable, ReadWrite, 0x0000000000000000, 0x0000000200000000, 0x00000009FFFFFFFF, 0x0000000000000000, 0x0000000800000000,`,
		`Memory32Fixed (ReadWrite, 0xE0000000, 0x00100000, )`,
		`Package (0x04) { 0x0001FFFF, Zero, Zero, 0x11 }`,
		`Package (0x04) { 0x001FFFFF, 0x03, Zero, 0x12 }`,
		`Device (COM1) { Name (_HID, EisaId ("PNP0501") ) Name (_UID, One) Name (_CRS, ResourceTemplate () { IO (Decode16, 0x03F8, 0x03F8, 0x01, 0x08, ) IRQ (Edge, ActiveHigh, Exclusive, ) {4} })`,
		`Device (C001) { Name (_HID, "ACPI0007" ) Name (_UID, One) }`,
		`Name (_HID, "QEMU0001")`,
		`Device (VMBS) { Name (_HID, "VMBus") Name (_UID, Zero) Name (_DDN, "VMBUS") Name (_STA, 0x0F) Name (_CRS, Buffer (0x02) { 0x79, 0x00 })`,
		`Name (\_S5, Package (0x04) { 0x05, Zero, Zero, Zero })`,
	} {
		if !strings.Contains(source, want) {
			t.Errorf("the DSDT has no %s", want)
		}
	}
	if t.Failed() {
		t.Log(string(text))
	}
}
