// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/govmm/govmm/internal/emuhost/wire"
	"golang.org/x/sys/unix"
)

// kernelCommandLine: a panic or an oops ends QEMU (it has -no-reboot), so that
// trouble in the host shows at once. The lockup watchdogs are off because a
// busy machine makes emulated CPUs stand still for seconds. Transparent huge
// pages are off because the kernel, when it makes one, takes pages of a guest
// away for a moment: QEMU's SVM then loses its way if the guest takes an
// interrupt through such a page, and the host dies of the guest's interrupt.
const kernelCommandLine = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nowatchdog " +
	"rcupdate.rcu_cpu_stall_suppress=1 transparent_hugepage=never"

// process is one QEMU.
type process struct {
	cmd     *exec.Cmd
	conn    net.Conn // the agent's port
	console string   // path of the console log
	stderr  lockedBuffer
	exited  chan struct{} // closed when QEMU has ended
}

// qemuArguments: the port's socket is file descriptor 3.
func qemuArguments(o Options, initrd, console, exchange string) []string {
	return []string{
		"-accel", "tcg,thread=multi,tb-size=1024",
		"-cpu", "EPYC,+svm,+npt,+nrip-save",
		"-smp", strconv.Itoa(o.CPUs),
		"-m", strconv.Itoa(o.MemoryMiB),
		"-nodefaults", "-display", "none", "-no-reboot",
		"-serial", "file:" + escapeCommas(console),
		"-kernel", o.Kernel,
		"-initrd", initrd,
		"-append", kernelCommandLine,
		"-chardev", "socket,id=agent,fd=3",
		"-device", "virtio-serial-pci",
		"-device", "virtserialport,chardev=agent,name=" + wire.PortName,
		"-device", "virtio-rng-pci",
		"-virtfs", "local,path=/,mount_tag=" + wire.RootTag + ",security_model=none,readonly=on,multidevs=remap",
		"-virtfs", "local,path=" + escapeCommas(exchange) + ",mount_tag=" + wire.ExchangeTag + ",security_model=none,multidevs=remap",
	}
}

// escapeCommas writes a value the way QEMU's option parser wants it.
func escapeCommas(value string) string {
	return strings.ReplaceAll(value, ",", ",,")
}

// startQEMU starts QEMU; the agent need not be up when it returns.
func startQEMU(o Options, initrd, exchange string) (*process, error) {
	console, err := newConsoleLog()
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "agent port")
	defer theirs.Close()
	ours := os.NewFile(uintptr(fds[0]), "agent port")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, err
	}
	p := &process{conn: conn, console: console, exited: make(chan struct{})}
	p.cmd = exec.Command(o.QEMU, qemuArguments(o, initrd, console, exchange)...)
	p.cmd.Stderr = &p.stderr
	p.cmd.ExtraFiles = []*os.File{theirs}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, // nothing outlives this program, however it ends
		Setpgid:   true,            // a Ctrl-C at the terminal is for the command inside
	}
	if err := p.launch(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot start %s: %w", o.QEMU, err)
	}
	return p, nil
}

// launch starts QEMU from a thread that lives as long as QEMU does: the signal
// of Pdeathsig comes when the starting thread ends, not the process.
func (p *process) launch() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.exited)
	}()
	return <-started
}

// kill ends QEMU and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
	p.conn.Close()
}

// awaitAgent waits for the agent's greeting.
func (p *process) awaitAgent(ctx context.Context, timeout time.Duration, frames *wire.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	greeted := make(chan error, 1)
	go func() { greeted <- readGreeting(frames) }()
	select {
	case err := <-greeted:
		return err
	case <-p.exited:
		return fmt.Errorf("QEMU ended (%v)", p.cmd.ProcessState)
	case <-ctx.Done():
		return fmt.Errorf("not up after %v: %w", timeout, ctx.Err())
	}
}

// explain adds what QEMU and the host's kernel said last to an error.
func (p *process) explain(err error) error {
	var b strings.Builder
	fmt.Fprintf(&b, "emulated host: %v", err)
	if text := strings.TrimSpace(p.stderr.String()); text != "" {
		fmt.Fprintf(&b, "\nQEMU said: %s", lastLines(text, 10))
	}
	fmt.Fprintf(&b, "\nend of the console log %s:\n%s", p.console, consoleTail(p.console))
	return &hostError{text: b.String(), cause: err}
}

// hostError has a text of its own and keeps its cause for errors.Is.
type hostError struct {
	text  string
	cause error
}

func (e *hostError) Error() string { return e.text }
func (e *hostError) Unwrap() error { return e.cause }

func consoleTail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	text := string(bytes.ToValidUTF8(data, []byte("?")))
	return lastLines(strings.TrimSpace(text), 30)
}

func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// keptLogs is how many console logs stay in the cache.
const keptLogs = 40

// newConsoleLog names a new console log and removes the oldest ones.
func newConsoleLog() (string, error) {
	dir, err := cacheFolder("logs")
	if err != nil {
		return "", err
	}
	logs, err := filepath.Glob(filepath.Join(dir, "console-*.log"))
	if err != nil {
		return "", err
	}
	slices.Sort(logs) // their names begin with the time
	for _, old := range logs[:max(0, len(logs)-keptLogs+1)] {
		_ = os.Remove(old)
	}
	stamp := time.Now().UTC().Format("20060102-150405.000")
	return filepath.Join(dir, fmt.Sprintf("console-%s-%d.log", stamp, os.Getpid())), nil
}
