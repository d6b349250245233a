package jsontext

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// FuzzFrames: frames splits a stream of valid objects into these objects, for any sizes of reads.
func FuzzFrames(f *testing.F) {
	f.Add(`{"a":"}\"{"}`, `{"b":{"c":[{}]}}`, " \n")
	f.Add(`{}`, `{"\\":"\\"}`, "")
	f.Fuzz(func(t *testing.T, a, b, gap string) {
		if !json.Valid([]byte(a)) || !json.Valid([]byte(b)) || strings.Trim(gap, " \t\r\n") != "" {
			t.Skip()
		}
		a, b = strings.TrimSpace(a), strings.TrimSpace(b)
		if a[0] != '{' || b[0] != '{' {
			t.Skip()
		}
		stream := gap + a + gap + b
		for _, r := range []io.Reader{strings.NewReader(stream), iotest.OneByteReader(strings.NewReader(stream)),
			iotest.HalfReader(strings.NewReader(stream))} {
			frames := NewFrames(r)
			for _, want := range []string{a, b} {
				if got, err := frames.Next(); err != nil || string(got) != want {
					t.Fatalf("%q: %q %v, want %q", stream, got, err, want)
				}
			}
			if got, err := frames.Next(); err != io.EOF {
				t.Fatalf("%q: %q %v, want the end", stream, got, err)
			}
		}
	})
}

func TestFramesRefuse(t *testing.T) {
	for stream, want := range map[string]string{
		"HTTP/1.1 400 Bad Request": `not JSON-RPC: want '{', have 'H'`,
		"{} []":                    `not JSON-RPC: want '{', have '['`,
		"{}\x00":                   `not JSON-RPC: want '{', have '\x00'`,
		"{\"a\":\"" + strings.Repeat("x", KeepBuffer) + `"}`: "not JSON-RPC: message of more than 65536 bytes",
	} {
		frames := NewFrames(strings.NewReader(stream))
		frames.limit = 1 << 16
		var err error
		for err == nil {
			_, err = frames.Next()
		}
		if err.Error() != want {
			t.Errorf("%.30q: %v, want %s", stream, err, want)
		}
	}
}

// TestFramesShrink: the buffer shrinks again after a large message.
func TestFramesShrink(t *testing.T) {
	big := `{"a":"` + strings.Repeat("x", 10*KeepBuffer) + `"}`
	frames := NewFrames(strings.NewReader(big + "{}"))
	for _, want := range []string{big, "{}"} {
		if got, err := frames.Next(); err != nil || string(got) != want {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	if _, err := frames.Next(); err != io.EOF || cap(frames.buf) > KeepBuffer {
		t.Errorf("%v, buffer of %d bytes", err, cap(frames.buf))
	}
}
