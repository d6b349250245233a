package report

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Replies of agents are printed on an administrator's terminal, and can contain text of tenants.
// Control characters in it could change what the terminal shows.

// Plain returns text that is safe to print on a terminal. It replaces control characters other than
// those in keep, and characters that change the writing direction, by escapes such as \u001b.
func Plain(text, keep string) string {
	isUnsafe := func(r rune) bool { return isControl(r) && !strings.ContainsRune(keep, r) }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, isUnsafe) {
		return text
	}
	var b strings.Builder
	for _, r := range text { // an invalid byte of UTF-8 is U+FFFD
		if isUnsafe(r) {
			fmt.Fprintf(&b, `\u%04x`, r) // as in JSON
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isControl reports whether a character controls a terminal or the writing direction.
func isControl(r rune) bool {
	return unicode.IsControl(r) || r == '\u061c' || r >= '\u200e' && r <= '\u200f' || r >= '\u2028' && r <= '\u202e' ||
		r >= '\u2066' && r <= '\u2069'
}

// PlainStrings applies Plain to all strings in the value that v points to. Errors and reasons keep
// line feeds: commands show their first line.
func PlainStrings(v any) { makePlain(reflect.ValueOf(v), "") }

func makePlain(v reflect.Value, keep string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			makePlain(v.Elem(), keep)
		}
	case reflect.Slice:
		for i := range v.Len() {
			makePlain(v.Index(i), keep)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			keep := ""
			switch v.Type().Field(i).Name {
			case "Error", "Reason", "Degraded":
				keep = "\n"
			}
			makePlain(v.Field(i), keep)
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString(Plain(v.String(), keep))
		}
	}
}

// Counted returns "1 node" or "2 nodes".
func Counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
