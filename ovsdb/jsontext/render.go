package jsontext

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// The functions of this file append JSON to a buffer. Requests with 10 000 rows are common at
// start. The types of all values are known, so the reflection of encoding/json is not needed.

// AppendString appends a string, which must be UTF-8.
func AppendString[S ~string | []byte](buf []byte, s S) []byte {
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

// AppendText is AppendString for the text of a column, which must be UTF-8 without NUL (RFC 7047,
// 3.1).
func AppendText(buf []byte, s string) ([]byte, error) {
	for i := range len(s) {
		if s[i] == 0 {
			return buf, fmt.Errorf("string %q has a NUL", s)
		}
	}
	if !utf8.ValidString(s) {
		return buf, fmt.Errorf("string %q is not UTF-8", s)
	}
	return AppendString(buf, s), nil
}

// AppendInt appends an integer. It returns no error.
func AppendInt(buf []byte, n int) ([]byte, error) {
	return strconv.AppendInt(buf, int64(n), 10), nil
}

// AppendReal appends a number. It returns an error for an infinite one, and for NaN.
func AppendReal(buf []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return buf, fmt.Errorf("real %v cannot be written", f)
	}
	return strconv.AppendFloat(buf, f, 'g', -1, 64), nil
}

// AppendBool appends true or false. It returns no error.
func AppendBool(buf []byte, b bool) ([]byte, error) {
	return strconv.AppendBool(buf, b), nil
}

// AppendStrings appends an array of strings.
func AppendStrings(buf []byte, list []string) []byte {
	buf = append(buf, '[')
	for i, s := range list {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = AppendString(buf, s)
	}
	return append(buf, ']')
}
