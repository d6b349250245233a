package jsontext

import (
	"fmt"
	"io"
)

// maxMessage bounds one message, in bytes; the whole northbound database of a node with 10 000
// Services is 10 MB.
const maxMessage = 256 << 20

// KeepBuffer is the size, in bytes, to which a buffer shrinks again after a large message.
const KeepBuffer = 256 << 10

// Frames cuts a stream into JSON objects. The protocol has no framing: an object ends where its
// braces balance.
type Frames struct {
	r     io.Reader
	buf   []byte // buf[start:] is read and not yet returned
	start int
	scan  int // buf[start:scan] is scanned
	depth int
	quote bool // in a string
	slash bool // after a backslash in a string
	limit int
}

// NewFrames returns the frames of a stream.
func NewFrames(r io.Reader) *Frames {
	return &Frames{r: r, buf: make([]byte, 0, KeepBuffer), limit: maxMessage}
}

// Next returns the next object. The bytes are valid until the next call. Only the braces are
// checked.
func (f *Frames) Next() ([]byte, error) {
	for {
		if f.step() {
			msg := f.buf[f.start:f.scan]
			f.start = f.scan
			return msg, nil
		}
		if f.depth == 0 && f.scan < len(f.buf) {
			return nil, fmt.Errorf("not JSON-RPC: want '{', have %q", f.buf[f.scan])
		}
		if len(f.buf)-f.start > f.limit {
			return nil, fmt.Errorf("not JSON-RPC: message of more than %d bytes", f.limit)
		}
		if err := f.fill(); err != nil {
			return nil, err
		}
	}
}

// step scans the bytes read, up to the end of an object. It stops at a byte that cannot start one.
func (f *Frames) step() (found bool) {
	i, depth, quote, slash := f.scan, f.depth, f.quote, f.slash // in registers
	for ; i < len(f.buf) && !found; i++ {
		c := f.buf[i]
		switch {
		case quote:
			quote = slash || c != '"'
			slash = !slash && c == '\\'
		case c == '"' && depth > 0:
			quote = true
		case c == '{':
			depth++
		case c == '}' && depth > 0:
			depth--
			found = depth == 0
		case depth == 0:
			if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
				f.scan = i
				return false
			}
			f.start = i + 1
		}
	}
	f.scan, f.depth, f.quote, f.slash = i, depth, quote, slash
	return found
}

// fill reads more.
func (f *Frames) fill() error {
	f.makeRoom()
	n, err := f.r.Read(f.buf[len(f.buf):cap(f.buf)])
	f.buf = f.buf[:len(f.buf)+n]
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// makeRoom moves or copies unread bytes, so that the buffer has space at its end.
func (f *Frames) makeRoom() {
	have := f.buf[f.start:]
	switch {
	case len(have) == 0 && cap(f.buf) > 4*KeepBuffer:
		f.buf = make([]byte, 0, KeepBuffer)
	case len(have) > 0 && len(f.buf) < cap(f.buf):
		return
	case len(have) > cap(f.buf)/2:
		f.buf = append(make([]byte, 0, 2*cap(f.buf)), have...)
	default:
		f.buf = append(f.buf[:0], have...)
	}
	f.scan -= f.start
	f.start = 0
}
