// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestFrameLayout(t *testing.T) {
	var buf bytes.Buffer
	if err := NewWriter(&buf).Write(Frame{Type: Stdout, ID: 0x01020304, Payload: []byte("ab")}); err != nil {
		t.Fatal(err)
	}
	want := []byte{byte(Stdout), 1, 2, 3, 4, 0, 0, 0, 2, 'a', 'b'}
	if !bytes.Equal(buf.Bytes(), want) {
		t.Errorf("frame is % x, want % x", buf.Bytes(), want)
	}
}

func TestFramesComeBack(t *testing.T) {
	frame := rapid.Custom(func(t *rapid.T) Frame {
		return Frame{
			Type:    Type(rapid.IntRange(int(Hello), int(lastType)).Draw(t, "type")),
			ID:      rapid.Uint32().Draw(t, "id"),
			Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		sent := rapid.SliceOf(frame).Draw(t, "frames")
		var stream bytes.Buffer
		w := NewWriter(&stream)
		for _, f := range sent {
			if err := w.Write(f); err != nil {
				t.Fatal(err)
			}
		}
		r := NewReader(&stream)
		for i, want := range sent {
			got, err := r.Read()
			if err != nil {
				t.Fatalf("frame %d: %v", i, err)
			}
			if got.Type != want.Type || got.ID != want.ID || !bytes.Equal(got.Payload, want.Payload) {
				t.Fatalf("frame %d is %v, want %v", i, got, want)
			}
		}
		if _, err := r.Read(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last frame: %v, want EOF", err)
		}
	})
}

func TestReaderRefuses(t *testing.T) {
	header := func(kind Type, length uint32) string {
		b := binary.BigEndian.AppendUint32([]byte{byte(kind), 0, 0, 0, 1}, length)
		return string(b)
	}
	tests := []struct {
		name, stream, want string
	}{
		{"type 0", header(0, 0), "frame type 0"},
		{"type after the last", header(lastType+1, 0), "frame type"},
		{"payload too long", header(Stdout, MaxPayload+1), "payload of 4194305 bytes"},
		{"payload of 4 GiB", header(Stdout, 1<<32-1), "payload of 4294967295 bytes"},
		{"cut in the header", header(Stdout, 0)[:5], "unexpected EOF"},
		{"cut in the payload", header(Stdout, 3) + "ab", "unexpected EOF"},
		{"no payload at all", header(Stdout, 3), "unexpected EOF"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewReader(strings.NewReader(test.stream)).Read()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestWriterRefusesLongPayload(t *testing.T) {
	err := NewWriter(io.Discard).Write(Frame{Type: Stdin, Payload: make([]byte, MaxPayload+1)})
	if err == nil {
		t.Error("a payload over MaxPayload was accepted")
	}
}

func TestCredit(t *testing.T) {
	var buf bytes.Buffer
	if err := NewWriter(&buf).WriteCredit(7, Stderr, 70000); err != nil {
		t.Fatal(err)
	}
	f, err := NewReader(&buf).Read()
	if err != nil {
		t.Fatal(err)
	}
	stream, n, err := ParseCredit(f.Payload)
	if err != nil || f.ID != 7 || stream != Stderr || n != 70000 {
		t.Errorf("got id %d stream %d n %d error %v", f.ID, stream, n, err)
	}
	for _, bad := range []int{0, 4, 6} {
		if _, _, err := ParseCredit(make([]byte, bad)); err == nil {
			t.Errorf("a credit of %d bytes was accepted", bad)
		}
	}
}

// FuzzReader: whatever comes, the reader ends with an error, and what it took
// for frames is within the protocol's limits.
func FuzzReader(f *testing.F) {
	var good bytes.Buffer
	w := NewWriter(&good)
	for _, frame := range []Frame{{Type: Hello, Payload: []byte(`{"Version":1}`)}, {Type: Stdin, ID: 9}} {
		if err := w.Write(frame); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(good.Bytes())
	f.Add(good.Bytes()[:good.Len()-1])
	f.Add([]byte{byte(Stdout), 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream))
		total := 0
		for {
			frame, err := r.Read()
			if err != nil {
				return
			}
			if frame.Type < Hello || frame.Type > lastType || len(frame.Payload) > MaxPayload {
				t.Fatalf("accepted type %d with %d bytes", frame.Type, len(frame.Payload))
			}
			if total += headerSize + len(frame.Payload); total > len(stream) {
				t.Fatalf("frames of %d bytes from a stream of %d", total, len(stream))
			}
		}
	})
}
