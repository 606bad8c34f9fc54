// SPDX-License-Identifier: Apache-2.0

package emuhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/govmm/govmm/internal/emuhost/wire"
)

// SocketPath returns where the user's kept host listens: in
// $XDG_RUNTIME_DIR/govmm, or in /tmp/govmm-UID, which is made with mode 0700
// and must belong to the user.
func SocketPath() (string, error) {
	if runtimeDir := os.Getenv("XDG_RUNTIME_DIR"); runtimeDir != "" {
		dir := filepath.Join(runtimeDir, "govmm")
		if err := os.MkdirAll(dir, 0o700); err == nil {
			return filepath.Join(dir, "emuhost.sock"), nil
		}
	}
	dir := fmt.Sprintf("/tmp/govmm-%d", os.Getuid())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return filepath.Join(dir, "emuhost.sock"), checkOwnFolder(dir)
}

// checkOwnFolder refuses a folder that others could have put there, or can write.
func checkOwnFolder(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Getuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s must be a folder with mode 0700 of this user: remove it", dir)
	}
	return nil
}

// DaemonInfo is what a kept host tells those who attach. It is the payload of
// the first frame, of type Hello, and a superset of the agent's greeting.
type DaemonInfo struct {
	wire.Greeting
	PID      int    // of the process that owns the host
	Exchange string // the exchange folder's path on the machine
	Console  string // the console log's path
}

// Serve lets other processes use the host through a UNIX socket until ctx ends,
// one of them sends Shutdown, or the host ends.
func (h *Host) Serve(ctx context.Context, listener *net.UnixListener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-ctx.Done():
		case <-h.Done():
		}
		listener.Close()
	}()
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			select {
			case <-h.Done():
				return h.explainEnd()
			default:
				return err
			}
		}
		clients.Go(func() { h.serveClient(ctx, conn, cancel) })
	}
}

// serveClient runs one client's commands until it hangs up, which ends them, or
// the host ends, which they tell the client.
func (h *Host) serveClient(ctx context.Context, conn *net.UnixConn, shutdown func()) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer conn.Close()
	context.AfterFunc(ctx, func() { conn.Close() })
	go func() {
		select {
		case <-ctx.Done():
		case <-h.Done():
			_ = conn.CloseRead() // no new commands; those that run report their end
		}
	}()
	p := &proxy{host: h, out: wire.NewWriter(conn), commands: map[uint32]*proxied{}}
	p.receive(ctx, wire.NewReader(conn), shutdown)
	select {
	case <-h.Done():
	default:
		cancel()
	}
	p.ended.Wait()
}

// proxy stands between one client and the host. It speaks the agent's part of
// the protocol to the client, and calls Run.
type proxy struct {
	host *Host
	out  *wire.Writer

	mu       sync.Mutex
	commands map[uint32]*proxied
	ended    sync.WaitGroup // of the commands
}

// receive greets the client and acts on its frames until it hangs up.
func (p *proxy) receive(ctx context.Context, frames *wire.Reader, shutdown func()) {
	info := DaemonInfo{
		Greeting: wire.Greeting{Version: wire.Version}, PID: os.Getpid(),
		Exchange: p.host.exchange, Console: p.host.Console(),
	}
	if p.out.WriteJSON(wire.Hello, 0, info) != nil {
		return
	}
	for {
		f, err := frames.Read()
		if err != nil {
			return
		}
		if f.Type == wire.Shutdown {
			shutdown()
			return
		}
		if !p.handle(ctx, f) {
			return
		}
	}
}

// proxied is one command of a client.
type proxied struct {
	stdin          *wire.Queue
	stdout, stderr *wire.Sender
	signals        chan syscall.Signal
	sizes          chan WindowSize
	cancel         context.CancelFunc
}

// handle acts on a client's frame, and reports whether the client is in order.
func (p *proxy) handle(ctx context.Context, f wire.Frame) bool {
	if f.Type == wire.Start {
		return p.start(ctx, f)
	}
	if f.Type == wire.Ping {
		return p.out.Write(wire.Frame{Type: wire.Pong}) == nil
	}
	p.mu.Lock()
	c := p.commands[f.ID]
	p.mu.Unlock()
	if c == nil {
		return true
	}
	switch f.Type {
	case wire.Stdin:
		if len(f.Payload) == 0 {
			c.stdin.Close()
		} else {
			c.stdin.Put(f.Payload)
		}
	case wire.Signal:
		if len(f.Payload) == 1 {
			offer(c.signals, syscall.Signal(f.Payload[0]))
		}
	case wire.Resize:
		var size WindowSize
		if json.Unmarshal(f.Payload, &size) == nil {
			offer(c.sizes, size)
		}
	case wire.Kill:
		c.cancel()
	case wire.Credit:
		stream, n, err := wire.ParseCredit(f.Payload)
		if err != nil {
			return false
		}
		if stream == wire.Stdout {
			c.stdout.Grant(n)
		} else {
			c.stderr.Grant(n)
		}
	}
	return true
}

// offer sends without waiting: a client that sends signals faster than the host
// takes them loses some, as with a pending signal of a process.
func offer[T any](ch chan<- T, value T) {
	select {
	case ch <- value:
	default:
	}
}

func (p *proxy) start(ctx context.Context, f wire.Frame) bool {
	var spec wire.Spec
	if json.Unmarshal(f.Payload, &spec) != nil {
		return false
	}
	const pending = 16
	ctx, cancel := context.WithCancel(ctx)
	c := &proxied{
		stdin:   wire.NewQueue(),
		stdout:  wire.NewSender(p.out, f.ID, wire.Stdout),
		stderr:  wire.NewSender(p.out, f.ID, wire.Stderr),
		signals: make(chan syscall.Signal, pending),
		sizes:   make(chan WindowSize, pending),
		cancel:  cancel,
	}
	p.mu.Lock()
	p.commands[f.ID] = c
	p.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { // a client that is gone reads nothing any more
		c.stdin.Close()
		c.stdout.Close()
		c.stderr.Close()
	})
	p.ended.Go(func() {
		status := p.run(ctx, f.ID, c, spec)
		stop()
		cancel()
		p.mu.Lock()
		delete(p.commands, f.ID)
		p.mu.Unlock()
		_ = p.out.WriteJSON(wire.Exit, f.ID, status)
	})
	return true
}

// run runs a client's command. A cancelled one is killed at once: the client
// has already given it the time it wanted to.
func (p *proxy) run(ctx context.Context, id uint32, c *proxied, spec wire.Spec) wire.Status {
	cmd := Cmd{
		Path: string(spec.Path), Args: stringsOf(spec.Args), Dir: string(spec.Dir), Env: stringsOf(spec.Env),
		Stdout: c.stdout, Stderr: c.stderr,
		TTY: spec.TTY, Size: spec.Size, Signals: c.signals, Resize: c.sizes,
		Grace: killNow,
	}
	if spec.HasStdin {
		cmd.Stdin = &queueReader{queue: c.stdin, out: p.out, id: id}
	}
	code, err := p.host.Run(ctx, cmd)
	c.stdin.Close()
	if err != nil && ctx.Err() == nil {
		return wire.Status{Code: code, Error: err.Error(), Ended: errors.Is(err, errHostGone)}
	}
	return wire.Status{Code: code}
}

// queueReader reads a client's input and grants it more.
type queueReader struct {
	queue *wire.Queue
	rest  []byte
	out   *wire.Writer
	id    uint32
}

func (r *queueReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		data, err := r.queue.Take()
		if err != nil {
			return 0, err
		}
		r.rest = data
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, r.out.WriteCredit(r.id, wire.Stdin, n)
}

func stringsOf(in [][]byte) []string {
	if in == nil {
		return nil
	}
	out := make([]string, len(in))
	for i, b := range in {
		out[i] = string(b)
	}
	return out
}

// ErrNotRunning says that no host is kept for this user.
var ErrNotRunning = errors.New("no emulated host is running")

// Attach connects to the host that the user keeps running (see Serve).
func Attach() (*Host, DaemonInfo, error) {
	var info DaemonInfo
	path, err := SocketPath()
	if err != nil {
		return nil, info, err
	}
	conn, err := net.Dial("unix", path)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, info, ErrNotRunning
	}
	if err != nil {
		return nil, info, err
	}
	frames := wire.NewReader(conn)
	f, err := frames.Read()
	if err == nil && (f.Type != wire.Hello || json.Unmarshal(f.Payload, &info) != nil) {
		err = errors.New("its first frame is no greeting")
	}
	if err == nil && info.Version != wire.Version {
		err = fmt.Errorf("it speaks protocol version %d, this program %d: stop it and start it again", info.Version, wire.Version)
	}
	if err != nil {
		conn.Close()
		return nil, info, fmt.Errorf("the running emulated host (%s): %w", path, err)
	}
	h := &Host{exchange: info.Exchange, stopping: make(chan struct{}), close: conn.Close}
	h.client = newClient(conn, frames)
	go h.client.receive()
	return h, info, nil
}

// AttachOrStart returns the host that the user keeps running, or else starts
// one with the options.
func AttachOrStart(ctx context.Context, o Options) (*Host, error) {
	h, _, err := Attach()
	if errors.Is(err, ErrNotRunning) {
		return Start(ctx, o)
	}
	return h, err
}

// StopDaemon asks the process that keeps a host to end it.
func (h *Host) StopDaemon() error {
	return h.client.out.Write(wire.Frame{Type: wire.Shutdown})
}
