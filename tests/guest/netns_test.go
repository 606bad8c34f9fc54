// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	vnetns "github.com/vishvananda/netns"
)

// netns is a network namespace of a test's own, in which taps are made and both
// ends of a measurement run. Its goroutine has a thread for itself that lives in
// the namespace: processes that start on it are born there.
type netns struct {
	jobs chan func()
}

// newNetns makes a namespace that is gone when the test ends.
func newNetns(t *testing.T) *netns {
	t.Helper()
	ns := &netns{jobs: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		h, err := vnetns.New()
		if err == nil {
			defer h.Close()
		}
		made <- err
		for job := range ns.jobs {
			job()
		}
	}()
	if err := <-made; err != nil {
		t.Fatal("make a network namespace:", err)
	}
	t.Cleanup(func() { close(ns.jobs) })
	ns.run(t, "ip", "link", "set", "lo", "up")
	return ns
}

// start starts a command in the namespace.
func (ns *netns) start(cmd *exec.Cmd) error {
	done := make(chan error)
	ns.jobs <- func() { done <- cmd.Start() }
	return <-done
}

// dialUDP makes a UDP socket in the namespace.
func (ns *netns) dialUDP(addr string) (conn net.Conn, err error) {
	done := make(chan struct{})
	ns.jobs <- func() {
		defer close(done)
		conn, err = net.Dial("udp", addr)
	}
	<-done
	return conn, err
}

// output runs a command in the namespace and returns what it printed, also if it
// fails.
func (ns *netns) output(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := ns.start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

// run runs a command that must succeed and returns what it printed.
func (ns *netns) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := ns.output(name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// iperf runs an iperf3 server in the namespace until the test ends.
func (ns *netns) iperf(t *testing.T) {
	t.Helper()
	cmd := exec.Command("iperf3", "-s", "-B", "0.0.0.0")
	if err := ns.start(cmd); err != nil {
		t.Fatal("iperf3 (scripts/setup installs it):", err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		_ = cmd.Wait()
	})
}
