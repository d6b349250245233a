package report

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What nodes answer is shown on an administrator's terminal, and nodes pass on what tenants have
// written. A terminal obeys control characters, and readers believe what they see.

// Plain returns a text that a terminal only prints: control characters, but for those in keep, and
// marks that change the direction of writing stand there as \u001b.
func Plain(text, keep string) string {
	obeyed := func(r rune) bool { return disguises(r) && !strings.ContainsRune(keep, r) }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, obeyed) {
		return text
	}
	var b strings.Builder
	for _, r := range text { // a byte that is no UTF-8 is U+FFFD
		if obeyed(r) {
			fmt.Fprintf(&b, `\u%04x`, r) // as JSON has it
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// disguises reports whether a character is obeyed rather than shown.
func disguises(r rune) bool {
	return unicode.IsControl(r) || r == '\u061c' || r >= '\u200e' && r <= '\u200f' || r >= '\u2028' && r <= '\u202e' ||
		r >= '\u2066' && r <= '\u2069'
}

// PlainStrings makes all strings in a value that v points to plain. Only what tells why may have
// several lines: its first one is shown.
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
			case "Error", "Reason", "Neglected":
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
