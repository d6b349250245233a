package jsontext

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// value reads any value into the Go value that encoding/json makes of it.
func (p *Parser) value() any {
	switch p.Peek() {
	case '{':
		m := map[string]any{}
		p.Open('{')
		for p.More('}') {
			k := string(p.Key())
			m[k] = p.value()
		}
		return m
	case '[':
		list := []any{}
		p.Open('[')
		for p.More(']') {
			list = append(list, p.value())
		}
		return list
	case '"':
		return p.Text()
	case 't', 'f':
		return p.Boolean()
	case 'n':
		p.Null()
		return nil
	}
	return json.Number(p.number())
}

// FuzzParse compares the parser with encoding/json: the same texts are valid, and have the same
// values.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{}`, ` [ ] `, `{"a":[1,-0,0.5,1e9,1E-2,true,false,null,"x"],"b":{"c":{}}}`,
		`"\u00e9\ud83d\ude00\ud83d\u0041\n\/\"\\"`, `"\ud800\ud800\udc00"`,
		`[1,]`, `[,1]`, `{"a"}`, `{"a":1,}`, `{1:2}`, `01`, `-`, `1.`, `1e`, `tru`, `nul`, `"`, `"\x"`, `"\u12"`,
		"\"\x01\"", `[1 2]`, `]`, `{"a":1]`, `[1}`, `1 1`, ``,
		`["map",[["k","v"]]]`, `["uuid","00000000-0000-0000-0000-000000000000"]`, "\"a\x00\"", "{}\x00",
		strings.Repeat("[", 300),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !utf8.Valid(text) {
			t.Skip("encoding/json changes what is not UTF-8")
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		var want any
		werr := d.Decode(&want)
		if werr == nil && !json.Valid(text) {
			werr = errors.New("more after the value")
		}
		p := NewParser(text)
		got := p.value()
		err := p.End()
		if err != nil && strings.Contains(err.Error(), "deep") {
			return
		}
		if (err == nil) != (werr == nil) {
			t.Fatalf("%q: %v, encoding/json: %v", text, err, werr)
		}
		if err == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: %#v, encoding/json: %#v", text, got, want)
		}
		q := NewParser(text)
		q.Skip()
		if (q.End() == nil) != (err == nil) {
			t.Fatalf("%q: read: %v, skipped: %v", text, err, q.err)
		}
	})
}

// FuzzRender reads back what is rendered.
func FuzzRender(f *testing.F) {
	f.Add("plain")
	f.Add("\"\\\n\x01\x7f é \u2028 😀")
	f.Fuzz(func(t *testing.T, s string) {
		text, err := AppendText(nil, s)
		if (err != nil) != (!utf8.ValidString(s) || strings.Contains(s, "\x00")) {
			t.Fatalf("%q: %v", s, err)
		}
		if err != nil {
			return
		}
		p := NewParser(text)
		var want string
		if got := p.Text(); p.End() != nil || json.Unmarshal(text, &want) != nil || got != s || want != s {
			t.Fatalf("%q is rendered as %s, which is %q", s, text, got)
		}
	})
}

// TestWords: interned strings are correct, even if several share a slot.
func TestWords(t *testing.T) {
	w := new(Interner)
	for round := range 3 {
		for i := range 3 * len(w.slot) {
			if want := fmt.Sprint("word", i%(1000*(round+1))); w.of([]byte(want)) != want {
				t.Fatal(want)
			}
		}
	}
}
