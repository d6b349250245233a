package ovsdb

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// The functions of this file append JSON to a buffer. Requests with 10 000 rows are common at
// start. The types of all values are known, so the reflection of encoding/json is not needed.

func appendString[S ~string | []byte](buf []byte, s S) []byte {
	const hex = "0123456789abcdef"
	buf = append(buf, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			buf = append(buf, '\\', c)
		case c < ' ':
			buf = append(buf, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			buf = append(buf, c)
		}
	}
	return append(buf, '"')
}

// appendText is appendString for the text of a column, which must be UTF-8 without NUL (RFC 7047,
// 3.1).
func appendText(buf []byte, s string) ([]byte, error) {
	for i := range len(s) {
		if s[i] == 0 {
			return buf, fmt.Errorf("string %q has a NUL", s)
		}
	}
	if !utf8.ValidString(s) {
		return buf, fmt.Errorf("string %q is not UTF-8", s)
	}
	return appendString(buf, s), nil
}

func appendUUID(buf []byte, u UUID) ([]byte, error) {
	switch {
	case u == "":
		return buf, fmt.Errorf("empty UUID")
	case u.Named():
		buf = append(buf, `["named-uuid",`...)
	default:
		buf = append(buf, `["uuid",`...)
	}
	return append(appendString(buf, string(u)), ']'), nil
}

func appendInt(buf []byte, n int) ([]byte, error) {
	return strconv.AppendInt(buf, int64(n), 10), nil
}

func appendReal(buf []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return buf, fmt.Errorf("real %v cannot be written", f)
	}
	return strconv.AppendFloat(buf, f, 'g', -1, 64), nil
}

func appendBool(buf []byte, b bool) ([]byte, error) {
	return strconv.AppendBool(buf, b), nil
}

func appendStrings(buf []byte, list []string) []byte {
	buf = append(buf, '[')
	for i, s := range list {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = appendString(buf, s)
	}
	return append(buf, ']')
}
