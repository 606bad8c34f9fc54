// SPDX-License-Identifier: Apache-2.0

package pc

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/govmm/govmm/boot"
	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/kvm"
)

// loadAddr is where the test's kernels are linked to.
const loadAddr = 0x100_0000

// testKernel makes an ELF kernel of a few instructions, entered in 64-bit mode.
// KVM runs them everywhere: instructions as simple as these it can emulate even
// where it can't run Linux.
func testKernel(t *testing.T, code []byte) *boot.Kernel {
	t.Helper()
	const header, segment = 64, 56
	body := append(bytes.Clone(code), "\x00Linux version 0.0.1-test (nobody)\x00"...)
	var f bytes.Buffer
	write := func(v any) {
		if err := binary.Write(&f, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	write(elf.Header64{
		Ident:   [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:    uint16(elf.ET_EXEC),
		Machine: uint16(elf.EM_X86_64),
		Version: uint32(elf.EV_CURRENT),
		Entry:   loadAddr,
		Phoff:   header, Ehsize: header, Phentsize: segment, Phnum: 1,
	})
	write(elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Off: header + segment,
		Vaddr: loadAddr, Paddr: loadAddr, Filesz: uint64(len(body)), Memsz: 1 << 20, Align: 1,
	})
	f.Write(body)
	path := filepath.Join(t.TempDir(), "vmlinux")
	if err := os.WriteFile(path, f.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := boot.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

// newBoard makes a board for a test kernel.
func newBoard(t *testing.T, code string, change func(*Config)) (*Board, *bytes.Buffer) {
	t.Helper()
	sys, err := kvm.Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.Close() })
	out := new(bytes.Buffer)
	cfg := Config{
		System: sys, Log: slog.New(slog.DiscardHandler), CPUs: 1, Memory: 64 << 20,
		Kernel: testKernel(t, []byte(code)), Entry: boot.EntryLinux64, Cmdline: "test", Console: out,
		OnPanic: func() {},
	}
	if change != nil {
		change(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, out
}

// Instructions of the test kernels.
const (
	outb = "\xee" // out %al, (%dx)
	outw = "\x66\xef"
	hlt  = "\xf4\xeb\xfd" // 1: hlt; jmp 1b
	spin = "\xeb\xfe"     // 1: jmp 1b
)

func dx(port uint16) string { return "\x66\xba" + string([]byte{byte(port), byte(port >> 8)}) }
func al(v byte) string      { return "\xb0" + string([]byte{v}) }
func ax(v uint16) string    { return "\x66\xb8" + string([]byte{byte(v), byte(v >> 8)}) }

func print(s string) string {
	code := dx(portCOM1)
	for _, c := range []byte(s) {
		code += al(c) + outb
	}
	return code
}

// TestEnds runs a kernel for each way in which a guest can end its VM.
func TestEnds(t *testing.T) {
	panicked := false
	for _, c := range []struct {
		name   string
		code   string
		reason result.Reason
		exit   int
	}{
		{"power off by ACPI", print("bye\n") + dx(portPM+4) + ax(5<<10|1<<13) + outw + hlt, result.PowerOff, 0},
		{"reset by 0xcf9", dx(0xcf9) + al(6) + outb + hlt, result.Reset, 117},
		{"reset by the keyboard controller", dx(0x64) + al(0xfe) + outb + hlt, result.Reset, 117},
		{"debug exit", dx(0xf4) + al(42) + outb + hlt, result.DebugExit, 42},
		{"debug exit that looks like govmm's", dx(0xf4) + al(124) + outb + hlt, result.DebugExit, 113},
		{"triple fault", "\x31\xc0\x0f\x22\xd8\xc7\x00\x00\x00\x00\x00" + hlt, result.TripleFault, 117}, // no page tables
		{"pvpanic, then debug exit", dx(0x505) + al(1) + outb + dx(0xf4) + al(7) + outb + hlt, result.DebugExit, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			panicked = false
			b, out := newBoard(t, c.code, func(cfg *Config) { cfg.OnPanic = func() { panicked = true } })
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			r := b.Run(ctx)
			if r.Reason != c.reason || r.Code != c.exit {
				t.Errorf("ended with %+v", r)
			}
			if strings.Contains(c.code, print("bye\n")) && out.String() != "bye\n" {
				t.Errorf("the console shows %q", out)
			}
			if want := strings.HasPrefix(c.name, "pvpanic"); panicked != want {
				t.Errorf("panic reported: %v", panicked)
			}
		})
	}
}

// TestRunEndsWithItsContext stops guests that would run for ever: one that
// halts, one that spins, and one whose other vCPUs were never started.
func TestRunEndsWithItsContext(t *testing.T) {
	for name, code := range map[string]string{"halted": hlt, "spinning": spin} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBoard(t, code, func(cfg *Config) { cfg.CPUs = 4 })
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("enough")) })
			if r := b.Run(ctx); r.Reason != result.Stopped || r.Detail != "enough" {
				t.Errorf("ended with %+v", r)
			}
		})
	}
}

func TestSharedLine(t *testing.T) {
	var level bool
	s := &sharedLine{out: lineFunc(func(l bool) { level = l })}
	a, b := s.join(), s.join()
	for i, c := range []struct {
		line interface{ Set(bool) }
		set  bool
		want bool
	}{{a, true, true}, {b, true, true}, {a, true, true}, {a, false, true}, {a, false, true}, {b, false, false}, {b, true, true}} {
		c.line.Set(c.set)
		if level != c.want {
			t.Errorf("step %d: the wire is %v", i, level)
		}
	}
}

type lineFunc func(bool)

func (f lineFunc) Set(level bool) { f(level) }
