// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govmm/govmm/internal/initramfs"
	"github.com/govmm/govmm/internal/result"
	"github.com/govmm/govmm/kvm"
	"github.com/govmm/govmm/machine/probe"
)

// TestNewRefusesAHostThatCantRunLinux asks the probe what to expect: on a host
// whose KVM can't run Linux New says so, on others it makes the VM.
func TestNewRefusesAHostThatCantRunLinux(t *testing.T) {
	cache, err := initramfs.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := filepath.Glob(filepath.Join(cache, "kernels", "6.1-cloud", "boot", "vmlinuz-*"))
	if err != nil || len(kernels) == 0 {
		t.Fatal("no kernel in the cache: run scripts/fetch-kernels")
	}
	initrd := filepath.Join(t.TempDir(), "initrd")
	if err := os.WriteFile(initrd, []byte("070701"), 0o600); err != nil {
		t.Fatal(err)
	}
	sys, err := kvm.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	verdict, err := probe.Linux(sys)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Kernel: kernels[0], Initrds: []string{initrd}, Serial: Serial{Mode: "none"}}
	m, err := New(cfg, Streams{}, slog.New(slog.DiscardHandler))
	if verdict.OK {
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	r := result.OfError(err)
	if r.Reason != result.Host || r.Code != 122 || !strings.Contains(r.Detail, verdict.Reason) || !strings.Contains(r.Detail, verdict.Cure) {
		t.Errorf("New says %+v, the probe %+v", r, verdict)
	}
}

// TestHyperVNeedsKVMsHelp checks the error for a host whose KVM has no Hyper-V.
func TestHyperVNeedsKVMsHelp(t *testing.T) {
	err := checkHyperV(func(c kvm.Cap) (int, error) {
		if c == kvm.CapHyperVSynIC2 {
			return 0, nil
		}
		return 1, nil
	})
	r := result.OfError(err)
	if r.Reason != result.Host || !strings.Contains(r.Detail, "KVM_CAP_HYPERV_SYNIC2") || !strings.Contains(r.Detail, "CONFIG_KVM_HYPERV") {
		t.Errorf("%+v", r)
	}
	if err := checkHyperV(func(kvm.Cap) (int, error) { return 1, nil }); err != nil {
		t.Error(err)
	}
	if err := checkHyperV(func(kvm.Cap) (int, error) { return 0, errors.New("broken") }); result.OfError(err).Reason != result.Host {
		t.Error(err)
	}
}
