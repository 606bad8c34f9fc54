// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// newAttachedHost returns a Host that reaches a local one through a socket.
func newAttachedHost(t *testing.T) *Host {
	t.Helper()
	owner := newLocalHost(t)
	serve(t, owner)
	h, info, err := Attach()
	if err != nil {
		t.Fatal(err)
	}
	if info.PID != os.Getpid() || h.Exchange() != owner.Exchange() {
		t.Errorf("the daemon says %+v, exchange %s", info, h.Exchange())
	}
	t.Cleanup(func() {
		if err := h.Stop(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// serve lets Attach find the host. Serve's result comes over the channel.
func serve(t *testing.T, h *Host) <-chan error {
	t.Helper()
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	path, err := SocketPath()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		served <- h.Serve(ctx, listener)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return served
}

func TestAttachWithoutDaemon(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if _, _, err := Attach(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("error %v, want %v", err, ErrNotRunning)
	}
}

func TestAttachToADeadDaemonsSocket(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	path, err := SocketPath()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	if _, _, err := Attach(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("error %v, want %v", err, ErrNotRunning)
	}
}

func TestShutdownEndsServe(t *testing.T) {
	owner := newLocalHost(t)
	served := serve(t, owner)
	h, _, err := Attach()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.StopDaemon(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve returned %v", err)
	}
	<-h.Done()
	if _, err := h.Run(context.Background(), newShell("exit 0").Cmd); !errors.Is(err, errHostGone) {
		t.Errorf("a command after the end: %v, want %v", err, errHostGone)
	}
}

func TestServeEndsWithTheHost(t *testing.T) {
	owner := newLocalHost(t)
	served := serve(t, owner)
	h, _, err := Attach()
	if err != nil {
		t.Fatal(err)
	}
	s := newShell("echo ready; exec sleep 1000")
	go func() {
		s.stdout.await("ready")
		owner.close()
	}()
	if _, err := h.Run(context.Background(), s.Cmd); !errors.Is(err, errHostGone) {
		t.Errorf("the attached command's error is %v, want %v", err, errHostGone)
	}
	if err := <-served; !errors.Is(err, errHostGone) {
		t.Errorf("Serve returned %v, want %v", err, errHostGone)
	}
}

func TestCommandsEndWithTheirClient(t *testing.T) {
	owner := newLocalHost(t)
	serve(t, owner)
	h, _, err := Attach()
	if err != nil {
		t.Fatal(err)
	}
	s := newShell("echo $$; exec sleep 1000")
	go func() {
		s.stdout.await("\n")
		h.close() // as if the client's process had ended
	}()
	if _, err := h.Run(context.Background(), s.Cmd); !errors.Is(err, errHostGone) {
		t.Errorf("error %v", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(s.stdout.String()))
	if err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, pid)
	if code := mustRun(t, owner, newShell("exit 6").Cmd); code != 6 {
		t.Errorf("the host's own command: exit code %d", code)
	}
}

func TestSocketFolderOfAnotherUserIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := checkOwnFolder(dir); err == nil {
		t.Error("a folder that everybody can write was accepted")
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := checkOwnFolder(link); err == nil {
		t.Error("a symbolic link was accepted")
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkOwnFolder(dir); err != nil {
		t.Error(err)
	}
}
