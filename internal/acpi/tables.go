// SPDX-License-Identifier: Apache-2.0

package acpi

// Root system description pointer (table 5-27).
const (
	rsdpSize     = 36
	rsdpV1Size   = 20 // what the first checksum covers
	rsdpRevision = 2
)

func rsdp(xsdt uint64) []byte {
	b := make([]byte, rsdpSize)
	copy(b, "RSD PTR ")
	copy(b[9:], oemID)
	b[15] = rsdpRevision
	le.PutUint32(b[20:], rsdpSize)
	le.PutUint64(b[24:], xsdt)
	b[8] = checksum(b[:rsdpV1Size])
	b[32] = checksum(b)
	return b
}

func xsdt(tables ...uint64) []byte {
	var body []byte
	for _, addr := range tables {
		body = le.AppendUint64(body, addr)
	}
	return table("XSDT", 1, body)
}

// facsTable is the firmware ACPI control structure (table 5-39): empty but for
// its head. It is writable memory, has no checksum, and holds the global lock.
func facsTable() []byte {
	b := make([]byte, 64)
	copy(b, "FACS")
	le.PutUint32(b[4:], uint32(len(b)))
	b[32] = 2 // version
	return b
}

// Offsets in the FADT (table 5-33). Blocks that are not there stay 0: no SMI
// command port (the board is always in ACPI mode), no PM2, no general purpose
// events.
const (
	fadtSize     = 276
	fadtRevision = 6
	fadtMinor    = 3

	fadtFirmwareCtrl = 36
	fadtDSDT         = 40
	fadtProfile      = 45
	fadtSCI          = 46
	fadtPM1Event     = 56
	fadtPM1Control   = 64
	fadtPMTimer      = 76
	fadtPM1EventLen  = 88
	fadtPM1CtrlLen   = 89
	fadtPMTimerLen   = 91
	fadtC2Latency    = 96
	fadtC3Latency    = 98
	fadtCentury      = 108
	fadtBootArch     = 109
	fadtFlags        = 112
	fadtResetReg     = 116
	fadtResetValue   = 128
	fadtMinorVersion = 131
	fadtXDSDT        = 140
	fadtXPM1Event    = 148
	fadtXPM1Control  = 172
	fadtXPMTimer     = 208
	fadtHypervisor   = 268
)

// profileEnterpriseServer: Preferred_PM_Profile.
const profileEnterpriseServer = 4

// Latencies above 100 and 1000 µs say that there is no C2 and no C3.
const (
	noC2 = 101
	noC3 = 1001
)

// FADT flags (table 5-34). PWR_BUTTON is clear: the power button is fixed
// hardware.
const (
	flagWBINVD    = 1 << 0
	flagProcC1    = 1 << 2
	flagSlpButton = 1 << 5 // there is no fixed sleep button
	flagFixRTC    = 1 << 6 // the RTC's wake status is not in the PM1 registers
	flagTmrValExt = 1 << 8 // the PM timer has 32 bits
	flagResetReg  = 1 << 10
)

// IAPC_BOOT_ARCH flags (table 5-35).
const (
	bootLegacyDevices = 1 << 0
	boot8042          = 1 << 1
	bootNoVGA         = 1 << 2
	bootNoASPM        = 1 << 4
	bootNoRTC         = 1 << 5
)

func (c *Config) fadt(facs, dsdt uint64) []byte {
	t := make([]byte, fadtSize)
	le.PutUint32(t[fadtFirmwareCtrl:], uint32(facs))
	le.PutUint32(t[fadtDSDT:], uint32(dsdt))
	le.PutUint64(t[fadtXDSDT:], dsdt)
	t[fadtProfile] = profileEnterpriseServer
	le.PutUint16(t[fadtSCI:], uint16(c.PM.SCI))
	le.PutUint32(t[fadtPM1Event:], uint32(c.PM.Event))
	le.PutUint32(t[fadtPM1Control:], uint32(c.PM.Control))
	le.PutUint32(t[fadtPMTimer:], uint32(c.PM.Timer))
	t[fadtPM1EventLen], t[fadtPM1CtrlLen], t[fadtPMTimerLen] = 4, 2, 4
	copy(t[fadtXPM1Event:], gas(c.PM.Event, 32, accessWord))
	copy(t[fadtXPM1Control:], gas(c.PM.Control, 16, accessWord))
	copy(t[fadtXPMTimer:], gas(c.PM.Timer, 32, accessDWord))
	le.PutUint16(t[fadtC2Latency:], noC2)
	le.PutUint16(t[fadtC3Latency:], noC3)
	if c.RTC != nil {
		t[fadtCentury] = c.Century
	}
	le.PutUint16(t[fadtBootArch:], c.bootArch())
	le.PutUint32(t[fadtFlags:], flagWBINVD|flagProcC1|flagSlpButton|flagFixRTC|flagTmrValExt|flagResetReg)
	copy(t[fadtResetReg:], gas(c.PM.ResetPort, 8, accessByte))
	t[fadtResetValue] = c.PM.ResetValue
	t[fadtMinorVersion] = fadtMinor
	copy(t[fadtHypervisor:], "GOVMM")
	return table("FACP", fadtRevision, t[headSize:])
}

// bootArch: without 8042 Linux does not probe for a keyboard. Nothing here is
// lost by that, and a probe costs boot time.
func (c *Config) bootArch() uint16 {
	v := uint16(bootLegacyDevices | bootNoVGA | bootNoASPM)
	if c.I8042 {
		v |= boot8042
	}
	if c.RTC == nil {
		v |= bootNoRTC
	}
	return v
}

// Access sizes of a generic address structure.
const (
	accessByte  = 1
	accessWord  = 2
	accessDWord = 3
)

// gas is a generic address structure (table 5-25) for I/O ports.
func gas(port uint16, bits, access byte) []byte {
	const systemIO = 1
	b := []byte{systemIO, bits, 0, access}
	return le.AppendUint64(b, uint64(port))
}

// MADT (table 5-43) and its structures.
const (
	madtRevision   = 5
	madtPCATCompat = 1 << 0 // there are two 8259s, too

	typeLocalAPIC = 0
	typeIOAPIC    = 1
	typeOverride  = 2
	typeLAPICNMI  = 4

	lapicEnabled  = 1 << 0
	allProcessors = 0xff
	lint1         = 1

	// MPS INTI flags (table 5-49).
	activeHigh     = 1
	levelTriggered = 3 << 2
)

// madt lists the interrupt controllers. ISA interrupts are GSIs of the same
// number, and edge-triggered, unless overridden: the SCI is a level. There is no
// override of the timer's interrupt, since KVM brings it to pin 0 of its IOAPIC.
func (c *Config) madt() []byte {
	b := le.AppendUint32(nil, c.LAPIC)
	b = le.AppendUint32(b, madtPCATCompat)
	for uid, id := range c.APICIDs {
		b = append(b, typeLocalAPIC, 8, byte(uid), byte(id))
		b = le.AppendUint32(b, lapicEnabled)
	}
	b = append(b, typeIOAPIC, 12, c.IOAPICID, 0)
	b = le.AppendUint32(b, c.IOAPIC)
	b = le.AppendUint32(b, 0) // first GSI
	b = append(b, typeOverride, 10, 0, c.PM.SCI)
	b = le.AppendUint32(b, uint32(c.PM.SCI))
	b = le.AppendUint16(b, activeHigh|levelTriggered)
	b = append(b, typeLAPICNMI, 6, allProcessors)
	b = le.AppendUint16(b, 0) // polarity and trigger as the bus has them
	b = append(b, lint1)
	return table("APIC", madtRevision, b)
}

// mcfg says where PCI's memory-mapped configuration space is.
func (c *Config) mcfg() []byte {
	b := make([]byte, 8) // reserved
	b = le.AppendUint64(b, c.PCI.ECAM)
	b = le.AppendUint16(b, 0) // segment
	b = append(b, 0, c.PCI.LastBus)
	b = le.AppendUint32(b, 0) // reserved
	return table("MCFG", 1, b)
}
