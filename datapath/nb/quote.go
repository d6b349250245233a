package nb

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The text form is what one types into a shell: words are quoted for the shell (package shell), and values of a database column
// also for ovn-nbctl, where a double-quoted string is a JSON string.

// delimiters end an unquoted string in a column value (ovs lib/ovsdb-parser: a token is delimited by them).
const delimiters = ":=, []{}!<>"

// value quotes a string for a column value or a map key.
func value(s string) string {
	plain := s != "" && utf8.ValidString(s)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == 0x7f || c == '"' || c == '\\' || strings.IndexByte(delimiters, c) >= 0 {
			plain = false
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// token reads what value wrote from the start of s and gives the rest.
func token(s string) (tok, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		n := strings.IndexAny(s, delimiters)
		if n < 0 {
			n = len(s)
		}
		if n == 0 {
			return "", "", fmt.Errorf(`a value is missing at %q (an empty string is "")`, s)
		}
		if strings.IndexByte(s[:n], '"') >= 0 {
			return "", "", fmt.Errorf("%q has a quote inside", s[:n])
		}
		return s[:n], s[n:], nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], nil
		case c == '\\' && i+1 < len(s) && (s[i+1] == '"' || s[i+1] == '\\'):
			i++
			b.WriteByte(s[i])
		case c == '\\' && i+5 < len(s) && s[i+1] == 'u':
			n, err := strconv.ParseUint(s[i+2:i+6], 16, 7)
			if err != nil {
				return "", "", fmt.Errorf("unknown escape %q", s[i:i+6])
			}
			b.WriteByte(byte(n))
			i += 5
		case c == '\\':
			return "", "", fmt.Errorf("unknown escape in %s", s)
		default:
			b.WriteByte(c)
		}
	}
	return "", "", fmt.Errorf("%s: a double quote is not closed", s)
}
