// Package shell quotes words for a shell and splits lines as one does, so that printed commands can be run as they are.
package shell

import (
	"fmt"
	"strconv"
	"strings"
)

// Word quotes a word for the shell: as it is, 'in single quotes', or $'with \n escapes' when it has control characters.
func Word(s string) string {
	plain, control := s != "", false
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("_./:,=@%+-", c) >= 0:
		case c < ' ' || c == 0x7f:
			plain, control = false, true
		default:
			plain = false
		}
	}
	switch {
	case plain:
		return s
	case !control:
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

// Words splits a line as a shell does, without expansions. A word that begins with # begins the comment.
func Words(line string) (list []string, comment string, err error) {
	for i := 0; i < len(line); {
		switch c := line[i]; {
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case c == '#':
			return list, strings.TrimSpace(line[i+1:]), nil
		default:
			w, next, err := oneWord(line, i)
			if err != nil {
				return nil, "", err
			}
			list, i = append(list, w), next
		}
	}
	return list, "", nil
}

// oneWord reads the word that begins at i and tells where it ends.
func oneWord(line string, i int) (string, int, error) {
	var b strings.Builder
	for i < len(line) {
		switch c := line[i]; {
		case c == ' ' || c == '\t' || c == '\r':
			return b.String(), i, nil
		case c == '\'':
			end := strings.IndexByte(line[i+1:], '\'')
			if end < 0 {
				return "", 0, fmt.Errorf("a single quote is not closed")
			}
			b.WriteString(line[i+1 : i+1+end])
			i += end + 2
		case c == '$' && strings.HasPrefix(line[i:], "$'"):
			next, err := dollarQuoted(&b, line, i+2)
			if err != nil {
				return "", 0, err
			}
			i = next
		case c == '\\' && i+1 < len(line):
			b.WriteByte(line[i+1])
			i += 2
		case strings.IndexByte("\"\\$`;&|<>()*?~", c) >= 0:
			return "", 0, fmt.Errorf("%q must be in single quotes", line[i:])
		default:
			b.WriteByte(c)
			i++
		}
	}
	return b.String(), i, nil
}

// dollarQuoted reads the rest of $'…' from i and tells where it ends. Escapes are those that Word writes.
func dollarQuoted(b *strings.Builder, line string, i int) (int, error) {
	for i < len(line) {
		switch c := line[i]; {
		case c == '\'':
			return i + 1, nil
		case c == '\\' && i+1 < len(line) && (line[i+1] == '\'' || line[i+1] == '\\'):
			b.WriteByte(line[i+1])
			i += 2
		case c == '\\' && i+3 < len(line) && line[i+1] == 'x':
			n, err := strconv.ParseUint(line[i+2:i+4], 16, 8)
			if err != nil || n == 0 {
				return 0, fmt.Errorf("unknown escape %q", line[i:i+4])
			}
			b.WriteByte(byte(n))
			i += 4
		case c == '\\':
			return 0, fmt.Errorf(`unknown escape in $'…'`)
		default:
			b.WriteByte(c)
			i++
		}
	}
	return 0, fmt.Errorf("a $' quote is not closed")
}
