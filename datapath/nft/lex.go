package nft

import (
	"fmt"
	"strings"
)

// kind is the kind of a token.
type kind uint8

const (
	word        kind = iota // also an operator, ':' or '.'
	text                    // a string in quotation marks, without them
	punctuation             // one of { } ; ,
	comment                 // # to the end of the line
	newline
	end
)

type token struct {
	kind kind
	s    string
	line int
}

// lex splits nft's text into tokens. The end of a line is a token, because it ends a rule.
func lex(in string) ([]token, error) {
	out := make([]token, 0, len(in)/5)
	line := 1
	for i := 0; i < len(in); {
		switch c := in[i]; {
		case c == '\n':
			out = append(out, token{newline, "\n", line})
			line++
			i++
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case strings.IndexByte("{};,", c) >= 0:
			out = append(out, token{punctuation, in[i : i+1], line})
			i++
		case c == '#':
			n := lengthUntil(in[i:], "\n")
			out = append(out, token{comment, in[i : i+n], line})
			i += n
		case c == '"':
			n := strings.IndexAny(in[i+1:], "\"\n")
			if n < 0 || in[i+1+n] == '\n' {
				return nil, fmt.Errorf("line %d: a string has no end", line)
			}
			out = append(out, token{text, in[i+1 : i+1+n], line})
			i += n + 2
		default:
			n := lengthUntil(in[i:], " \t\r\n{};,\"#")
			out = append(out, token{word, in[i : i+n], line})
			i += n
		}
	}
	return append(out, token{end, "end of text", line}), nil
}

// lengthUntil returns the number of bytes of s before the first of the characters.
func lengthUntil(s, characters string) int {
	if n := strings.IndexAny(s, characters); n >= 0 {
		return n
	}
	return len(s)
}
