package nb

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"
)

// The text form is what a user types into a shell: words are quoted for the shell (package shell).
// Values of a database column are also quoted for ovn-nbctl, which reads "…" as a JSON string.

// delimiters end an unquoted string in a column value (ovs lib/ovsdb-parser: a token is delimited
// by them).
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

// ParsePrefix parses a prefix, or an address as a full-length prefix: OVN accepts both.
func ParsePrefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		return netip.ParsePrefix(s)
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	if a.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%q has a zone", s)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}
