package ovsdb

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a message; OVSDB's messages are at most a dozen levels deep.
const maxDepth = 200

// parser is a pull parser of one complete JSON text (RFC 8259). The first reply to a monitor
// request has megabytes, and encoding/json would scan a message once per level of nesting and
// allocate each value twice.
//
// The first error is kept: it moves the parser to the end of the text, where every method returns a
// zero value and more returns false. So callers read what they expect and check err once.
//
//	p.open('{')
//	for p.more('}') {
//		switch string(p.key()) { … default: p.skip() }
//	}
type parser struct {
	buf   []byte
	pos   int
	first bool // no element of the innermost open container was read yet
	depth int
	err   error
	tmp   []byte // holds the last string that had escapes
	words *words // if set, equal strings share their storage
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("byte %d: %w", p.pos, fmt.Errorf(format, args...))
	}
	p.pos = len(p.buf)
}

// peek skips white space and returns the next byte, 0 at the end.
func (p *parser) peek() byte {
	for p.pos < len(p.buf) {
		switch c := p.buf[p.pos]; c {
		case ' ', '\t', '\r', '\n':
			p.pos++
		default:
			return c
		}
	}
	return 0
}

// take consumes c.
func (p *parser) take(c byte) bool {
	if p.peek() != c {
		p.fail("want %q, have %s", c, p.here())
		return false
	}
	p.pos++
	return true
}

// here describes the next byte for an error text.
func (p *parser) here() string {
	if p.pos == len(p.buf) {
		return "the end"
	}
	return strconv.QuoteRune(rune(p.buf[p.pos]))
}

// open consumes the start of an object ('{') or an array ('[').
func (p *parser) open(c byte) {
	if p.depth++; p.depth > maxDepth {
		p.fail("nested more than %d deep", maxDepth)
		return
	}
	p.first = p.take(c)
}

// more is called before each element; at the end of the container it consumes shut ('}' or ']') and
// returns false.
func (p *parser) more(shut byte) bool {
	if p.peek() == shut {
		p.pos++
		p.depth--
		p.first = false
		return false
	}
	if !p.first {
		p.take(',')
	}
	p.first = false
	return p.err == nil
}

// next calls more and fails if there is no other element.
func (p *parser) next() {
	if !p.more(']') {
		p.fail("array is too short")
	}
}

// shut calls more and fails if the array does not end.
func (p *parser) shut() {
	if p.more(']') {
		p.fail("array is too long")
	}
}

// key consumes a member's name and colon. The bytes are valid until the next call.
func (p *parser) key() []byte {
	k := p.str()
	p.take(':')
	return k
}

// str consumes a string. The bytes are valid until the next call.
func (p *parser) str() []byte {
	if !p.take('"') {
		return nil
	}
	start := p.pos
	for i := start; i < len(p.buf); i++ {
		switch c := p.buf[i]; {
		case c == '"':
			p.pos = i + 1
			return p.buf[start:i]
		case c == '\\':
			return p.escaped(start, i)
		case c < ' ':
			p.pos = i
			p.fail("control character %#02x in a string", c)
			return nil
		}
	}
	p.fail("string has no end")
	return nil
}

// escaped continues a string whose first escape is at i.
func (p *parser) escaped(start, i int) []byte {
	p.tmp = append(p.tmp[:0], p.buf[start:i]...)
	p.pos = i
	for p.pos < len(p.buf) {
		c := p.buf[p.pos]
		p.pos++
		switch {
		case c == '"':
			return p.tmp
		case c < ' ':
			p.fail("control character %#02x in a string", c)
		case c != '\\':
			p.tmp = append(p.tmp, c)
		default:
			p.escape()
		}
	}
	p.fail("string has no end")
	return nil
}

// escape consumes what follows a backslash.
func (p *parser) escape() {
	if p.pos == len(p.buf) {
		return
	}
	c := p.buf[p.pos]
	p.pos++
	switch c {
	case '"', '\\', '/':
		p.tmp = append(p.tmp, c)
	case 'b':
		p.tmp = append(p.tmp, '\b')
	case 'f':
		p.tmp = append(p.tmp, '\f')
	case 'n':
		p.tmp = append(p.tmp, '\n')
	case 'r':
		p.tmp = append(p.tmp, '\r')
	case 't':
		p.tmp = append(p.tmp, '\t')
	case 'u':
		p.tmp = utf8.AppendRune(p.tmp, p.unicode())
	default:
		p.fail("unknown escape %q", c)
	}
}

// unicode consumes the digits of a \u escape and, if it is the first half of a surrogate pair, the
// second half.
func (p *parser) unicode() rune {
	r := p.hex4()
	if !utf16.IsSurrogate(r) {
		return r
	}
	if rest := p.buf[p.pos:]; len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
		back := p.pos
		p.pos += 2
		if both := utf16.DecodeRune(r, p.hex4()); both != utf8.RuneError || p.err != nil {
			return both
		}
		p.pos = back // an escape of its own
	}
	return utf8.RuneError
}

func (p *parser) hex4() rune {
	if len(p.buf)-p.pos >= 4 {
		if n, err := strconv.ParseUint(string(p.buf[p.pos:p.pos+4]), 16, 32); err == nil {
			p.pos += 4
			return rune(n)
		}
	}
	p.fail("\\u wants four hexadecimal digits")
	return 0
}

// text consumes a string and returns a copy.
func (p *parser) text() string {
	b := p.str()
	if p.words != nil {
		return p.words.of(b)
	}
	return string(b)
}

// number consumes a number and returns its text.
func (p *parser) number() []byte {
	p.peek()
	start := p.pos
	if p.at('-') {
		p.pos++
	}
	switch {
	case p.at('0'):
		p.pos++
	case !p.digits():
		p.fail("want a number, have %s", p.here())
		return nil
	}
	if p.at('.') {
		p.pos++
		if !p.digits() {
			p.fail("number without digits after its point")
		}
	}
	if p.at('e') || p.at('E') {
		p.pos++
		if p.at('+') || p.at('-') {
			p.pos++
		}
		if !p.digits() {
			p.fail("number without digits in its exponent")
		}
	}
	return p.buf[start:p.pos]
}

func (p *parser) at(c byte) bool { return p.pos < len(p.buf) && p.buf[p.pos] == c }

// digits consumes one or more digits.
func (p *parser) digits() bool {
	start := p.pos
	for p.pos < len(p.buf) && p.buf[p.pos] >= '0' && p.buf[p.pos] <= '9' {
		p.pos++
	}
	return p.pos > start
}

func (p *parser) integer() int {
	b := p.number()
	if p.err != nil {
		return 0
	}
	n, err := strconv.Atoi(string(b))
	if err != nil {
		p.fail("want an integer: %w", errors.Unwrap(err))
	}
	return n
}

func (p *parser) real() float64 {
	b := p.number()
	if p.err != nil {
		return 0
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		p.fail("want a real number: %w", errors.Unwrap(err))
	}
	return f
}

func (p *parser) boolean() bool {
	if p.peek() == 't' {
		p.word("true")
		return p.err == nil
	}
	p.word("false")
	return false
}

// null consumes a null if that comes next.
func (p *parser) null() bool {
	if p.peek() != 'n' {
		return false
	}
	p.word("null")
	return p.err == nil
}

func (p *parser) word(w string) {
	if len(p.buf)-p.pos < len(w) || string(p.buf[p.pos:p.pos+len(w)]) != w {
		p.fail("want %s, have %s", w, p.here())
		return
	}
	p.pos += len(w)
}

// skip consumes a value of any kind.
func (p *parser) skip() {
	switch c := p.peek(); c {
	case '{':
		p.open('{')
		for p.more('}') {
			p.key()
			p.skip()
		}
	case '[':
		p.open('[')
		for p.more(']') {
			p.skip()
		}
	case '"':
		p.str()
	case 't', 'f':
		p.boolean()
	case 'n':
		p.null()
	default:
		p.number()
	}
}

// raw consumes a value of any kind and returns its text.
func (p *parser) raw() []byte {
	p.peek()
	start := p.pos
	p.skip()
	if p.err != nil {
		return nil
	}
	return p.buf[start:p.pos]
}

// end consumes the end of the text and returns the error, if there was one.
func (p *parser) end() error {
	p.peek()
	if p.err == nil && p.pos < len(p.buf) {
		p.fail("want the end, have %s", p.here())
	}
	return p.err
}

// words interns strings: most keys, and many values, occur in every row. It is a table of fixed
// size in which a new string replaces an old one.
type words struct {
	slot [1 << 12]string
}

func (s *words) of(b []byte) string {
	if len(b) > 64 {
		return string(b)
	}
	h := uint32(2166136261) // FNV-1a
	for _, c := range b {
		h = (h ^ uint32(c)) * 16777619
	}
	e := &s.slot[(h^h>>16)%uint32(len(s.slot))]
	if *e != string(b) {
		*e = string(b)
	}
	return *e
}
