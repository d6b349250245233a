// Package jsontext reads and writes the JSON of ovsdb-server's messages (RFC 8259), without
// reflection. It does not know their meaning.
//
// [Frames] cuts a stream into messages, a [Parser] reads one message, and the Append functions
// render a request. What a Parser accepts is valid JSON, the same as for encoding/json; tests
// compare the two.
package jsontext

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a message; OVSDB's messages are at most a dozen levels deep.
const maxDepth = 200

// Parser is a pull parser of one complete JSON text (RFC 8259). The first reply to a monitor
// request has megabytes, and encoding/json would scan a message once per level of nesting and
// allocate each value twice.
//
// The first error is kept: it moves the parser to the end of the text, where every method returns a
// zero value and More returns false. So callers read what they expect, and check End or Err once.
//
//	p.Open('{')
//	for p.More('}') {
//		switch string(p.Key()) { … default: p.Skip() }
//	}
type Parser struct {
	buf      []byte
	pos      int
	first    bool // no element of the innermost open container was read yet
	depth    int
	err      error
	tmp      []byte    // holds the last string that had escapes
	Interner *Interner // if set, equal strings share their storage
}

// NewParser returns a parser of a text. It refers to the text, and does not change it.
func NewParser(text []byte) *Parser { return &Parser{buf: text} }

// Err returns the error; nil if there is none yet.
func (p *Parser) Err() error { return p.err }

// Fail records an error at the current position, unless there is one.
func (p *Parser) Fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("byte %d: %w", p.pos, fmt.Errorf(format, args...))
	}
	p.pos = len(p.buf)
}

// Note adds a location before the text of an error. Callers call it for the inner location first.
func (p *Parser) Note(where string) {
	if p.err != nil {
		p.err = fmt.Errorf("%s: %w", where, p.err)
	}
}

// Peek skips white space and returns the next byte, 0 at the end.
func (p *Parser) Peek() byte {
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
func (p *Parser) take(c byte) bool {
	if p.Peek() != c {
		p.Fail("want %q, have %s", c, p.here())
		return false
	}
	p.pos++
	return true
}

// here describes the next byte for an error text.
func (p *Parser) here() string {
	if p.pos == len(p.buf) {
		return "the end"
	}
	return strconv.QuoteRune(rune(p.buf[p.pos]))
}

// Open consumes the start of an object ('{') or an array ('[').
func (p *Parser) Open(c byte) {
	if p.depth++; p.depth > maxDepth {
		p.Fail("nested more than %d deep", maxDepth)
		return
	}
	p.first = p.take(c)
}

// More is called before each element; at the end of the container it consumes shut ('}' or ']') and
// returns false.
func (p *Parser) More(shut byte) bool {
	if p.Peek() == shut {
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

// Next calls More and fails if there is no other element.
func (p *Parser) Next() {
	if !p.More(']') {
		p.Fail("array is too short")
	}
}

// Shut calls More and fails if the array does not end.
func (p *Parser) Shut() {
	if p.More(']') {
		p.Fail("array is too long")
	}
}

// Enter consumes the start of an array and its first element, if that is the string tag. Otherwise
// it consumes nothing, and returns false.
func (p *Parser) Enter(tag string) bool {
	if p.Peek() != '[' {
		return false
	}
	pos, depth, err := p.pos, p.depth, p.err
	p.Open('[')
	p.Next()
	if string(p.Bytes()) == tag {
		return true
	}
	p.pos, p.depth, p.err = pos, depth, err
	return false
}

// Key consumes a member's name and colon. The bytes are valid until the next call.
func (p *Parser) Key() []byte {
	k := p.Bytes()
	p.take(':')
	return k
}

// Bytes consumes a string. The bytes are valid until the next call.
func (p *Parser) Bytes() []byte {
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
			p.Fail("control character %#02x in a string", c)
			return nil
		}
	}
	p.Fail("string has no end")
	return nil
}

// escaped continues a string whose first escape is at i.
func (p *Parser) escaped(start, i int) []byte {
	p.tmp = append(p.tmp[:0], p.buf[start:i]...)
	p.pos = i
	for p.pos < len(p.buf) {
		c := p.buf[p.pos]
		p.pos++
		switch {
		case c == '"':
			return p.tmp
		case c < ' ':
			p.Fail("control character %#02x in a string", c)
		case c != '\\':
			p.tmp = append(p.tmp, c)
		default:
			p.escape()
		}
	}
	p.Fail("string has no end")
	return nil
}

// escape consumes what follows a backslash.
func (p *Parser) escape() {
	if p.pos == len(p.buf) {
		return // escaped reports that the string has no end
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
		p.Fail("unknown escape %q", c)
	}
}

// unicode consumes the digits of a \u escape and, if it is the first half of a surrogate pair, the
// second half.
func (p *Parser) unicode() rune {
	r := p.hex4()
	if !utf16.IsSurrogate(r) {
		return r
	}
	if rest := p.buf[p.pos:]; len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
		second := p.pos
		p.pos += 2
		if pair := utf16.DecodeRune(r, p.hex4()); pair != utf8.RuneError || p.err != nil {
			return pair
		}
		p.pos = second // it is no second half: an escape of its own
	}
	return utf8.RuneError
}

func (p *Parser) hex4() rune {
	if len(p.buf)-p.pos >= 4 {
		if n, err := strconv.ParseUint(string(p.buf[p.pos:p.pos+4]), 16, 32); err == nil {
			p.pos += 4
			return rune(n)
		}
	}
	p.Fail("\\u wants four hexadecimal digits")
	return 0
}

// Text consumes a string and returns a copy.
func (p *Parser) Text() string {
	b := p.Bytes()
	if p.Interner != nil {
		return p.Interner.of(b)
	}
	return string(b)
}

// number consumes a number and returns its text.
func (p *Parser) number() []byte {
	p.Peek()
	start := p.pos
	if p.at('-') {
		p.pos++
	}
	switch {
	case p.at('0'):
		p.pos++
	case !p.digits():
		p.Fail("want a number, have %s", p.here())
		return nil
	}
	if p.at('.') {
		p.pos++
		if !p.digits() {
			p.Fail("number without digits after its point")
		}
	}
	if p.at('e') || p.at('E') {
		p.pos++
		if p.at('+') || p.at('-') {
			p.pos++
		}
		if !p.digits() {
			p.Fail("number without digits in its exponent")
		}
	}
	return p.buf[start:p.pos]
}

func (p *Parser) at(c byte) bool { return p.pos < len(p.buf) && p.buf[p.pos] == c }

// digits consumes one or more digits.
func (p *Parser) digits() bool {
	start := p.pos
	for p.pos < len(p.buf) && p.buf[p.pos] >= '0' && p.buf[p.pos] <= '9' {
		p.pos++
	}
	return p.pos > start
}

// Integer consumes an integer.
func (p *Parser) Integer() int {
	b := p.number()
	if p.err != nil {
		return 0
	}
	n, err := strconv.Atoi(string(b))
	if err != nil {
		p.Fail("want an integer: %w", errors.Unwrap(err))
	}
	return n
}

// Real consumes a number.
func (p *Parser) Real() float64 {
	b := p.number()
	if p.err != nil {
		return 0
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		p.Fail("want a real number: %w", errors.Unwrap(err))
	}
	return f
}

// Boolean consumes true or false.
func (p *Parser) Boolean() bool {
	if p.Peek() == 't' {
		p.word("true")
		return p.err == nil
	}
	p.word("false")
	return false
}

// Null consumes a null if that comes next.
func (p *Parser) Null() bool {
	if p.Peek() != 'n' {
		return false
	}
	p.word("null")
	return p.err == nil
}

func (p *Parser) word(w string) {
	if len(p.buf)-p.pos < len(w) || string(p.buf[p.pos:p.pos+len(w)]) != w {
		p.Fail("want %s, have %s", w, p.here())
		return
	}
	p.pos += len(w)
}

// Skip consumes a value of any kind.
func (p *Parser) Skip() {
	switch c := p.Peek(); c {
	case '{':
		p.Open('{')
		for p.More('}') {
			p.Key()
			p.Skip()
		}
	case '[':
		p.Open('[')
		for p.More(']') {
			p.Skip()
		}
	case '"':
		p.Bytes()
	case 't', 'f':
		p.Boolean()
	case 'n':
		p.Null()
	default:
		p.number()
	}
}

// Raw consumes a value of any kind and returns its text.
func (p *Parser) Raw() []byte {
	p.Peek()
	start := p.pos
	p.Skip()
	if p.err != nil {
		return nil
	}
	return p.buf[start:p.pos]
}

// End consumes the end of the text and returns the error, if there was one.
func (p *Parser) End() error {
	p.Peek()
	if p.err == nil && p.pos < len(p.buf) {
		p.Fail("want the end, have %s", p.here())
	}
	return p.err
}

// Interner interns strings: most keys, and many values, occur in every row. It is a table of fixed
// size in which a new string replaces an old one.
type Interner struct {
	slot [1 << 12]string
}

func (s *Interner) of(b []byte) string {
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
