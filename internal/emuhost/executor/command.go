// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/govmm/govmm/internal/emuhost/wire"
	"golang.org/x/sys/unix"
)

// command is one command of the machine.
type command struct {
	id             uint32
	spec           wire.Spec
	out            *wire.Writer
	stdin          *wire.Queue
	stdout, stderr *wire.Sender

	mu      sync.Mutex
	process *os.Process // nil before the start and after the end
	ends    []*os.File  // our ends of its pipes and of its terminal
	pty     *os.File    // the master, with spec.TTY
	killed  bool
}

func newCommand(out *wire.Writer, id uint32, spec wire.Spec) *command {
	return &command{
		id: id, spec: spec, out: out,
		stdin:  wire.NewQueue(),
		stdout: wire.NewSender(out, id, wire.Stdout),
		stderr: wire.NewSender(out, id, wire.Stderr),
	}
}

// run runs the command to its end, and until all its output has been sent.
func (c *command) run() wire.Status {
	cmd, err := c.prepare()
	if err != nil {
		return wire.Status{Code: 127, Error: err.Error()}
	}
	var output sync.WaitGroup
	if c.spec.TTY {
		err = c.startOnTerminal(cmd, &output)
	} else {
		err = c.startOnPipes(cmd, &output)
	}
	if err != nil {
		c.closeEnds()
		return wire.Status{Code: startFailure(err), Error: err.Error()}
	}
	// The error is in the state, or there is none: the streams are our own.
	_ = cmd.Wait()
	c.mu.Lock()
	c.process = nil
	c.mu.Unlock()
	output.Wait()
	c.stdin.Close()
	c.closeEnds()
	return exitStatus(cmd.ProcessState)
}

// prepare makes the exec.Cmd without its streams.
func (c *command) prepare() (*exec.Cmd, error) {
	env := DefaultEnvironment
	if c.spec.Env != nil {
		env = stringsOf(c.spec.Env)
	}
	dir := string(c.spec.Dir)
	if dir == "" {
		dir = "/"
	}
	// The error of fork and exec would name the program, whichever is missing.
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	path, err := lookPath(string(c.spec.Path), dir, env)
	if err != nil {
		return nil, err
	}
	return &exec.Cmd{
		Path: path,
		Args: append([]string{string(c.spec.Path)}, stringsOf(c.spec.Args)...),
		Dir:  dir,
		Env:  env,
	}, nil
}

// startOnPipes starts cmd in a process group of its own with a pipe for each
// standard stream.
func (c *command) startOnPipes(cmd *exec.Cmd, output *sync.WaitGroup) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var theirs []*os.File
	defer func() { closeAll(theirs) }()

	var input *os.File
	if c.spec.HasStdin {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		theirs = append(theirs, r)
		c.own(w)
		cmd.Stdin, input = r, w
	}
	outputs := make([]*os.File, 2)
	for i := range outputs {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		theirs = append(theirs, w)
		c.own(r)
		outputs[i] = r
		if i == 0 {
			cmd.Stdout = w
		} else {
			cmd.Stderr = w
		}
	}
	if err := c.start(cmd); err != nil {
		return err
	}
	if input != nil {
		go c.feed(input, nil)
	}
	output.Go(func() { forward(c.stdout, outputs[0]) })
	output.Go(func() { forward(c.stderr, outputs[1]) })
	return nil
}

// startOnTerminal starts cmd in a session of its own on a pseudo terminal.
func (c *command) startOnTerminal(cmd *exec.Cmd, output *sync.WaitGroup) error {
	master, slave, err := openTerminal()
	if err != nil {
		return err
	}
	defer slave.Close()
	c.own(master)
	c.mu.Lock()
	c.pty = master
	c.mu.Unlock()
	c.resize(c.spec.Size)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.start(cmd); err != nil {
		return err
	}
	if c.spec.HasStdin {
		const endOfTransmission = 0x04 // what a terminal's line discipline takes for end of file
		go c.feed(master, []byte{endOfTransmission})
	}
	output.Go(func() { forward(c.stdout, master) })
	return nil
}

// start starts cmd unless it was killed before.
func (c *command) start(cmd *exec.Cmd) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killed {
		return os.ErrProcessDone
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.process = cmd.Process
	return nil
}

// feed writes what the machine sends to w. At the end of the input it writes
// eof if there is one, and else closes w. When the command no longer reads, the
// rest is taken and dropped, as a shell's broken pipe would.
func (c *command) feed(w *os.File, eof []byte) {
	broken := false
	for {
		data, err := c.stdin.Take()
		if err != nil {
			break
		}
		if !broken {
			_, err := w.Write(data)
			broken = err != nil
		}
		if c.out.WriteCredit(c.id, wire.Stdin, len(data)) != nil {
			break
		}
	}
	if eof == nil {
		w.Close()
	} else if !broken {
		_, _ = w.Write(eof)
	}
}

// forward sends what it reads from r until the end. A terminal ends with EIO,
// when nobody has it open any more.
func forward(s *wire.Sender, r *os.File) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{s}, struct{ io.Reader }{r}, make([]byte, wire.MaxData))
}

// own registers a file to be closed at the end.
func (c *command) own(f *os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, f)
}

func (c *command) closeEnds() {
	c.mu.Lock()
	defer c.mu.Unlock()
	closeAll(c.ends)
	c.pty = nil
}

// input takes data for the standard input; none is the end of it.
func (c *command) input(data []byte) {
	if len(data) == 0 {
		c.stdin.Close()
		return
	}
	c.stdin.Put(data)
}

// signal sends a signal to the command's process group.
func (c *command) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process != nil {
		_ = unix.Kill(-c.process.Pid, sig)
	}
}

// kill ends a command that nobody waits for any more, and lets run return even
// if a process outside its group still holds its output open.
func (c *command) kill() {
	c.signal(syscall.SIGKILL)
	c.mu.Lock()
	c.killed = true
	c.mu.Unlock()
	c.stdin.Close()
	c.stdout.Close()
	c.stderr.Close()
	c.closeEnds()
}

func (c *command) grant(stream wire.Type, n int) {
	switch stream {
	case wire.Stdout:
		c.stdout.Grant(n)
	case wire.Stderr:
		c.stderr.Grant(n)
	}
}

// resize sets the terminal's size, which signals SIGWINCH to its processes.
func (c *command) resize(size wire.WindowSize) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pty == nil || size == (wire.WindowSize{}) {
		return
	}
	conn, err := c.pty.SyscallConn()
	if err != nil {
		return
	}
	// Not Fd: that would make the file blocking, and Close could not end a read.
	_ = conn.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
}

// openTerminal returns both ends of a new pseudo terminal.
func openTerminal() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("/dev/ptmx: %w", err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		unix.Close(fd)
		return nil, nil, fmt.Errorf("/dev/ptmx: %w", err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), "/dev/ptmx"), slave, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// exitStatus maps a signal to 128 plus its number, as shells do.
func exitStatus(state *os.ProcessState) wire.Status {
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		sig := int(status.Signal())
		return wire.Status{Code: 128 + sig, Signal: sig}
	}
	return wire.Status{Code: state.ExitCode()}
}
