// SPDX-License-Identifier: Apache-2.0

// Package wire is the protocol between the machine and the agent inside an
// emulated host: many commands, each with its own input, output and signals,
// over one byte stream.
//
// The stream is a sequence of frames: a header of 9 bytes (type, 1 byte; id,
// 4 bytes; payload length, 4 bytes; big endian) and the payload. The id is
// that of a command, chosen by the machine's side; it is 0 in frames that
// concern no command.
//
// A stream's sender may have at most Window bytes on the way that the receiver
// has not yet granted back with a Credit frame. So a command whose output
// nobody reads stops, as it would on a full pipe, and the others go on.
package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Version is checked when the two sides meet.
const Version = 1

const (
	headerSize = 9

	// MaxPayload is the largest payload in bytes. Arguments and environment of
	// a command travel in one frame, and Linux limits those to 2 MiB by default;
	// JSON's base64 makes them larger by a third.
	MaxPayload = 4 << 20

	// MaxData is the largest payload of Stdin, Stdout and Stderr frames: small
	// enough that commands take turns.
	MaxData = 32 << 10

	// Window is the number of bytes of one stream that may be on the way.
	Window = 256 << 10
)

// Type tells what a frame is.
type Type uint8

// The frame types. The comments give the direction and the payload.
const (
	Hello    Type = iota + 1 // agent to machine: JSON of Greeting; the first frame
	Start                    // machine to agent: JSON of Spec
	Stdin                    // machine to agent: bytes; empty for end of file
	Signal                   // machine to agent: signal number, 1 byte, for the process group
	Resize                   // machine to agent: JSON of WindowSize
	Kill                     // machine to agent: nobody waits for the command any more
	Stdout                   // agent to machine: bytes
	Stderr                   // agent to machine: bytes
	Exit                     // agent to machine: JSON of Status; the last frame of a command
	Credit                   // both: stream (Stdin, Stdout or Stderr), 1 byte, and bytes granted, 4 bytes
	Ping                     // machine to agent: empty; answered by Pong
	Pong                     // agent to machine: empty
	Shutdown                 // machine to agent: power off
	Nudge                    // machine to agent: empty; means nothing, see Host.nudge
	lastType = Nudge
)

// Frame is one message.
type Frame struct {
	Type    Type
	ID      uint32
	Payload []byte
}

// Greeting is the payload of Hello.
type Greeting struct {
	Version int
}

// Spec is the payload of Start. All strings are byte slices because Linux
// allows any byte but NUL in them, and JSON strings don't.
type Spec struct {
	Path     []byte   // program; looked up in PATH if it has no slash
	Args     [][]byte // arguments after the program's name
	Dir      []byte   // working directory; "" is "/"
	Env      [][]byte // "NAME=value"; nil is the agent's default
	HasStdin bool     // false: standard input is /dev/null
	TTY      bool     // a pseudo terminal is standard input, output and error
	Size     WindowSize
}

// WindowSize is a terminal's size in characters.
type WindowSize struct {
	Rows, Cols uint16
}

// Status is the payload of Exit.
type Status struct {
	Code   int    // exit status; 128 plus the signal's number if a signal ended it
	Signal int    // the signal that ended the command, or 0
	Error  string // why the command did not run to its end, or ""
	Ended  bool   // Error is the end of the whole host
}

// Reader reads frames.
type Reader struct {
	r *bufio.Reader
}

// NewReader returns a Reader of frames from r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, 2*MaxData)}
}

// Read returns the next frame. It returns io.EOF at the end of the stream
// between two frames, and io.ErrUnexpectedEOF within one.
func (r *Reader) Read() (Frame, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r.r, header[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Type: Type(header[0]), ID: binary.BigEndian.Uint32(header[1:])}
	if f.Type < Hello || f.Type > lastType {
		return Frame{}, fmt.Errorf("emulated host protocol: frame type %d does not exist", f.Type)
	}
	length := binary.BigEndian.Uint32(header[5:])
	if length > MaxPayload {
		return Frame{}, fmt.Errorf("emulated host protocol: payload of %d bytes, at most %d are allowed", length, MaxPayload)
	}
	payload, err := io.ReadAll(io.LimitReader(r.r, int64(length)))
	if err != nil {
		return Frame{}, err
	}
	if len(payload) < int(length) {
		return Frame{}, io.ErrUnexpectedEOF
	}
	f.Payload = payload
	return f, nil
}

// Writer writes frames; its methods may be called concurrently.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter returns a Writer of frames to w.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: w}
}

// Write sends one frame.
func (w *Writer) Write(f Frame) error {
	if len(f.Payload) > MaxPayload {
		return fmt.Errorf("emulated host protocol: payload of %d bytes, at most %d are allowed", len(f.Payload), MaxPayload)
	}
	buf := make([]byte, headerSize, headerSize+len(f.Payload))
	buf[0] = byte(f.Type)
	binary.BigEndian.PutUint32(buf[1:], f.ID)
	binary.BigEndian.PutUint32(buf[5:], uint32(len(f.Payload)))
	buf = append(buf, f.Payload...)
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.w.Write(buf)
	return err
}

// WriteJSON sends v as the payload of a frame.
func (w *Writer) WriteJSON(t Type, id uint32, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Write(Frame{Type: t, ID: id, Payload: payload})
}

// WriteCredit grants n more bytes of a stream to its sender.
func (w *Writer) WriteCredit(id uint32, stream Type, n int) error {
	payload := binary.BigEndian.AppendUint32([]byte{byte(stream)}, uint32(n))
	return w.Write(Frame{Type: Credit, ID: id, Payload: payload})
}

// ParseCredit returns the contents of a Credit frame.
func ParseCredit(payload []byte) (stream Type, n int, err error) {
	if len(payload) != 5 {
		return 0, 0, fmt.Errorf("emulated host protocol: credit of %d bytes, expected 5", len(payload))
	}
	return Type(payload[0]), int(binary.BigEndian.Uint32(payload[1:])), nil
}
