// Package shell quotes words for a shell, so that printed commands can be run as they are.
package shell

import (
	"fmt"
	"strings"
)

// Word quotes a word for the shell: unchanged, 'in single quotes', or $'with \n escapes' if it has
// control characters.
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
