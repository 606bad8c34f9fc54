// SPDX-License-Identifier: Apache-2.0

package acpi

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// board is a description like that of machine/pc.
func board(cpus int) Config {
	c := Config{
		Base:  AreaStart,
		LAPIC: 0xfee00000, IOAPIC: 0xfec00000,
		PM: PM{SCI: 9, Event: 0x600, Control: 0x604, Timer: 0x608, SleepS5: 5, ResetPort: 0xcf9, ResetValue: 6},
		PCI: PCI{
			ECAM:    0xe0000000,
			LastBus: 0,
			IO:      []Ports{{0xc000, 0xdfff}},
			Memory:  []Range{{0xc0000000, 0xdfffffff}, {0x2_0000_0000, 0x9_ffff_ffff}},
			INTx:    INTx{First: 16, Lines: 8},
		},
		Serial:   []ISA{{0x3f8, 8, 4}},
		RTC:      &ISA{0x70, 2, 8},
		Century:  0x32,
		PVPanic:  0x505,
		Reserved: []Ports{{0xf4, 0xf7}, {0xcf9, 0xcf9}},
	}
	for i := range cpus {
		c.APICIDs = append(c.APICIDs, uint32(i))
	}
	return c
}

// memory is what a guest sees: the image at its address.
type memory struct {
	base uint64
	b    []byte
}

func build(t interface {
	Helper()
	Fatal(...any)
}, c Config) memory {
	t.Helper()
	b, err := Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return memory{c.Base, b}
}

// at returns n bytes, or an error in place of a panic.
func (m memory) at(addr uint64, n int) ([]byte, error) {
	if addr < m.base || addr-m.base+uint64(n) > uint64(len(m.b)) {
		return nil, fmt.Errorf("%d bytes at %#x are outside the image of %d bytes", n, addr, len(m.b))
	}
	return m.b[addr-m.base:][:n], nil
}

// table returns the table at addr with its length and checksum checked.
func (m memory) table(addr uint64, signature string) ([]byte, error) {
	head, err := m.at(addr, 36)
	if err != nil {
		return nil, err
	}
	if string(head[:4]) != signature {
		return nil, fmt.Errorf("%q at %#x, want %q", head[:4], addr, signature)
	}
	t, err := m.at(addr, int(binary.LittleEndian.Uint32(head[4:])))
	if err != nil {
		return nil, err
	}
	if s := sum(t); s != 0 {
		return nil, fmt.Errorf("the bytes of %s add up to %#x, not 0", signature, s)
	}
	return t, nil
}

func sum(b []byte) (s byte) {
	for _, c := range b {
		s += c
	}
	return s
}

// tables walks from the RSDP as an operating system does. The FACS, which has
// no checksum, and the DSDT are found through the FADT.
func (m memory) tables() (map[string][]byte, error) {
	r, err := m.at(m.base, 36)
	if err != nil {
		return nil, err
	}
	if string(r[:8]) != "RSD PTR " || r[15] != 2 || sum(r[:20]) != 0 || sum(r) != 0 {
		return nil, fmt.Errorf("bad RSDP % x", r)
	}
	x, err := m.table(binary.LittleEndian.Uint64(r[24:]), "XSDT")
	if err != nil {
		return nil, err
	}
	found := map[string][]byte{"XSDT": x}
	want := []string{"FACP", "APIC", "MCFG"}
	if len(x) != 36+8*len(want) {
		return nil, fmt.Errorf("XSDT of %d bytes", len(x))
	}
	for i, sig := range want {
		if found[sig], err = m.table(binary.LittleEndian.Uint64(x[36+8*i:]), sig); err != nil {
			return nil, err
		}
	}
	fadt := found["FACP"]
	if found["DSDT"], err = m.table(binary.LittleEndian.Uint64(fadt[140:]), "DSDT"); err != nil {
		return nil, err
	}
	facs := uint64(binary.LittleEndian.Uint32(fadt[36:]))
	if facs%64 != 0 {
		return nil, fmt.Errorf("FACS at %#x is not on a 64-byte boundary", facs)
	}
	if found["FACS"], err = m.at(facs, 64); err != nil || string(found["FACS"][:4]) != "FACS" {
		return nil, fmt.Errorf("FACS: %q, %v", found["FACS"], err)
	}
	return found, nil
}

// TestTablesProperty: for any board the tables are found, and add up.
func TestTablesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := board(rapid.IntRange(1, 64).Draw(t, "cpus"))
		c.Base = AreaStart + 64*rapid.Uint64Range(0, 800).Draw(t, "base")
		c.PCI.LastBus = rapid.Byte().Draw(t, "bus")
		c.PCI.INTx.Lines = rapid.Uint32Range(1, 8).Draw(t, "lines")
		c.I8042 = rapid.Bool().Draw(t, "i8042")
		if rapid.Bool().Draw(t, "no RTC") {
			c.RTC = nil
		}
		found, err := build(t, c).tables()
		if err != nil {
			t.Fatal(err)
		}
		if n := (len(found["APIC"]) - 44 - 12 - 10 - 6) / 8; n != len(c.APICIDs) {
			t.Fatalf("%d processors in the MADT, want %d", n, len(c.APICIDs))
		}
	})
}

// TestFADT checks fields at the offsets of the specification's table.
func TestFADT(t *testing.T) {
	c := board(1)
	found, err := build(t, c).tables()
	if err != nil {
		t.Fatal(err)
	}
	f := found["FACP"]
	u := func(off, n int) (v uint64) {
		for i := range n {
			v |= uint64(f[off+i]) << (8 * i)
		}
		return v
	}
	if len(f) != 276 || f[8] != 6 || f[131] != 3 {
		t.Errorf("FADT of %d bytes, revision %d.%d", len(f), f[8], f[131])
	}
	for _, c := range []struct {
		field  string
		off, n int
		want   uint64
	}{
		{"SCI_INT", 46, 2, 9},
		{"SMI_CMD", 48, 4, 0},
		{"PM1a_EVT_BLK", 56, 4, 0x600},
		{"PM1a_CNT_BLK", 64, 4, 0x604},
		{"PM_TMR_BLK", 76, 4, 0x608},
		{"GPE0_BLK", 80, 4, 0},
		{"PM1_EVT_LEN", 88, 1, 4},
		{"PM1_CNT_LEN", 89, 1, 2},
		{"PM_TMR_LEN", 91, 1, 4},
		{"CENTURY", 108, 1, 0x32},
		{"IAPC_BOOT_ARCH: legacy devices, no 8042, no VGA, no ASPM", 109, 2, 0x15},
		{"Flags: WBINVD, PROC_C1, SLP_BUTTON, FIX_RTC, TMR_VAL_EXT, RESET_REG_SUP", 112, 4, 0x565},
		{"RESET_REG head: I/O, 8 bits, byte access", 116, 4, 0x01000801},
		{"RESET_REG", 120, 8, 0xcf9},
		{"RESET_VALUE", 128, 1, 6},
		{"X_PM1a_EVT_BLK head", 148, 4, 0x02002001},
		{"X_PM1a_EVT_BLK", 152, 8, 0x600},
		{"X_PM1a_CNT_BLK head", 172, 4, 0x02001001},
		{"X_PM1a_CNT_BLK", 176, 8, 0x604},
		{"X_PM_TMR_BLK head", 208, 4, 0x03002001},
		{"X_PM_TMR_BLK", 212, 8, 0x608},
	} {
		if got := u(c.off, c.n); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.field, got, c.want)
		}
	}
	c.I8042, c.RTC = true, nil
	if found, err = build(t, c).tables(); err != nil {
		t.Fatal(err)
	}
	if f = found["FACP"]; u(109, 2) != 0x37 || u(108, 1) != 0 {
		t.Errorf("with an 8042 and no RTC: IAPC_BOOT_ARCH %#x, CENTURY %#x", u(109, 2), u(108, 1))
	}
}

func TestMADT(t *testing.T) {
	c := board(2)
	c.APICIDs = []uint32{0, 8}
	c.IOAPICID = 3
	found, err := build(t, c).tables()
	if err != nil {
		t.Fatal(err)
	}
	want := "\x00\x00\xe0\xfe\x01\x00\x00\x00" +
		"\x00\x08\x00\x00\x01\x00\x00\x00" +
		"\x00\x08\x01\x08\x01\x00\x00\x00" +
		"\x01\x0c\x03\x00\x00\x00\xc0\xfe\x00\x00\x00\x00" +
		"\x02\x0a\x00\x09\x09\x00\x00\x00\x0d\x00" +
		"\x04\x06\xff\x00\x00\x01"
	if got := string(found["APIC"][36:]); got != want {
		t.Errorf("got  % x\nwant % x", got, want)
	}
}

func TestMCFG(t *testing.T) {
	c := board(1)
	c.PCI.ECAM, c.PCI.LastBus = 0x40_e000_0000, 255
	found, err := build(t, c).tables()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("\x00", 8) + "\x00\x00\x00\xe0\x40\x00\x00\x00" + "\x00\x00\x00\xff" + "\x00\x00\x00\x00"
	if got := string(found["MCFG"][36:]); got != want {
		t.Errorf("got % x, want % x", got, want)
	}
}

// TestINTx: neighbouring slots' INTA# are on different lines, and the pins of a
// slot too.
func TestINTx(t *testing.T) {
	i := INTx{First: 16, Lines: 8}
	for _, c := range []struct {
		slot, pin int
		want      uint32
	}{{0, 0, 16}, {0, 3, 19}, {1, 0, 17}, {7, 0, 23}, {7, 1, 16}, {31, 3, 18}} {
		if got := i.GSI(c.slot, c.pin); got != c.want {
			t.Errorf("slot %d pin %d: GSI %d, want %d", c.slot, c.pin, got, c.want)
		}
	}
}

func TestBadBoards(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Base = 0x1000 }, "base 0x1000"},
		{func(c *Config) { c.Base++ }, "multiple of 64"},
		{func(c *Config) { c.Base = AreaEnd - 64 }, "their area ends at"},
		{func(c *Config) { c.APICIDs = nil }, "no processor"},
		{func(c *Config) { c.APICIDs[0] = 255 }, "APIC id 255"},
		{func(c *Config) { c.APICIDs = make([]uint32, 256) }, "processor 255"},
		{func(c *Config) { c.PM.SCI = 16 }, "SCI 16"},
		{func(c *Config) { c.PCI.INTx.Lines = 0 }, "interrupt pins"},
		{func(c *Config) { c.Serial[0].IRQ = 16 }, "interrupt 16"},
		{func(c *Config) { c.PCI.IO[0].Last = 0 }, "window 0xc000 to 0x0"},
		{func(c *Config) { c.Reserved = []Ports{{1, 0x400}} }, "ports 0x1 to 0x400"},
		{func(c *Config) { c.PCI.ECAM = 0xfff00001 }, "ECAM"},
	} {
		b := board(1)
		c.change(&b)
		if _, err := Build(b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}
