package ovsdb

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// value reads any value into the Go value that encoding/json makes of it.
func (p *parser) value() any {
	switch p.peek() {
	case '{':
		m := map[string]any{}
		p.open('{')
		for p.more('}') {
			k := string(p.key())
			m[k] = p.value()
		}
		return m
	case '[':
		list := []any{}
		p.open('[')
		for p.more(']') {
			list = append(list, p.value())
		}
		return list
	case '"':
		return p.text()
	case 't', 'f':
		return p.boolean()
	case 'n':
		p.null()
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
		p := &parser{buf: text}
		got := p.value()
		err := p.end()
		if err != nil && strings.Contains(err.Error(), "deep") {
			return
		}
		if (err == nil) != (werr == nil) {
			t.Fatalf("%q: %v, encoding/json: %v", text, err, werr)
		}
		if err == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: %#v, encoding/json: %#v", text, got, want)
		}
		q := &parser{buf: text}
		q.skip()
		if (q.end() == nil) != (err == nil) {
			t.Fatalf("%q: read: %v, skipped: %v", text, err, q.err)
		}
	})
}

// FuzzRender reads back what is rendered.
func FuzzRender(f *testing.F) {
	f.Add("plain")
	f.Add("\"\\\n\x01\x7f é \u2028 😀")
	f.Fuzz(func(t *testing.T, s string) {
		text, err := appendText(nil, s)
		if (err != nil) != (!utf8.ValidString(s) || strings.Contains(s, "\x00")) {
			t.Fatalf("%q: %v", s, err)
		}
		if err != nil {
			return
		}
		p := &parser{buf: text}
		var want string
		if got := p.text(); p.end() != nil || json.Unmarshal(text, &want) != nil || got != s || want != s {
			t.Fatalf("%q is rendered as %s, which is %q", s, text, got)
		}
	})
}

// FuzzFrames: frames splits a stream of valid objects into these objects, for any sizes of reads.
func FuzzFrames(f *testing.F) {
	f.Add(`{"a":"}\"{"}`, `{"b":{"c":[{}]}}`, " \n")
	f.Add(`{}`, `{"\\":"\\"}`, "")
	f.Fuzz(func(t *testing.T, a, b, gap string) {
		if !json.Valid([]byte(a)) || !json.Valid([]byte(b)) || strings.Trim(gap, " \t\r\n") != "" {
			t.Skip()
		}
		a, b = strings.TrimSpace(a), strings.TrimSpace(b)
		if a[0] != '{' || b[0] != '{' {
			t.Skip()
		}
		stream := gap + a + gap + b
		for _, r := range []io.Reader{strings.NewReader(stream), iotest.OneByteReader(strings.NewReader(stream)),
			iotest.HalfReader(strings.NewReader(stream))} {
			frames := newFrames(r)
			for _, want := range []string{a, b} {
				if got, err := frames.next(); err != nil || string(got) != want {
					t.Fatalf("%q: %q %v, want %q", stream, got, err, want)
				}
			}
			if got, err := frames.next(); err != io.EOF {
				t.Fatalf("%q: %q %v, want the end", stream, got, err)
			}
		}
	})
}

func TestFramesRefuse(t *testing.T) {
	for stream, want := range map[string]string{
		"HTTP/1.1 400 Bad Request": `not JSON-RPC: want '{', have 'H'`,
		"{} []":                    `not JSON-RPC: want '{', have '['`,
		"{}\x00":                   `not JSON-RPC: want '{', have '\x00'`,
		"{\"a\":\"" + strings.Repeat("x", keepBuffer) + `"}`: "not JSON-RPC: message of more than 65536 bytes",
	} {
		frames := newFrames(strings.NewReader(stream))
		frames.limit = 1 << 16
		var err error
		for err == nil {
			_, err = frames.next()
		}
		if err.Error() != want {
			t.Errorf("%.30q: %v, want %s", stream, err, want)
		}
	}
}

// TestFramesShrink: the buffer shrinks again after a large message.
func TestFramesShrink(t *testing.T) {
	big := `{"a":"` + strings.Repeat("x", 10*keepBuffer) + `"}`
	frames := newFrames(strings.NewReader(big + "{}"))
	for _, want := range []string{big, "{}"} {
		if got, err := frames.next(); err != nil || string(got) != want {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	if _, err := frames.next(); err != io.EOF || cap(frames.buf) > keepBuffer {
		t.Errorf("%v, buffer of %d bytes", err, cap(frames.buf))
	}
}

// TestWords: interned strings are correct, even if several share a slot.
func TestWords(t *testing.T) {
	w := new(words)
	for round := range 3 {
		for i := range 3 * len(w.slot) {
			if want := fmt.Sprint("word", i%(1000*(round+1))); w.of([]byte(want)) != want {
				t.Fatal(want)
			}
		}
	}
}

// FuzzUpdates: no message makes the reader of updates panic, and after an error the mirror is
// unchanged.
func FuzzUpdates(f *testing.F) {
	const id = "11111111-2222-3333-4444-555555555555"
	row := `{"name":"x","vips":["map",[["a","b"]]],"protocol":"tcp","selection_fields":["set",["ip_src","ip_dst"]]}`
	for _, kind := range []string{"initial", "insert", "modify", "delete"} {
		f.Add([]byte(`[true,"` + id + `",{"Load_Balancer":{"` + id + `":{"` + kind + `":` + row + `}}}]`))
	}
	f.Add([]byte(`[false,"",{"Load_Balancer":{"` + id +
		`":{"modify":{"vips":["map",[["a","b"],["c","d"]]],"protocol":["set",[]]}}}}]`))
	f.Add([]byte(`["x","",{"Load_Balancer":{"` + id + `":{"delete":null}}}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		layout := NewLayout("Load_Balancer", Column{"name", reflect.TypeFor[string]()},
			Column{"vips", reflect.TypeFor[map[string]string]()},
			Column{"protocol", reflect.TypeFor[*string]()}, Column{"selection_fields", reflect.TypeFor[[]string]()})
		m, err := newMirror([]Table{layout.Mirror()})
		if err != nil {
			t.Fatal(err)
		}
		base, _ := m.first(&parser{buf: []byte(`[false,"",{"Load_Balancer":{"` + id + `":{"initial":` + row + `}}}]`)},
			m.empty())
		if !layout.Get(base, id).There() {
			t.Fatal("no base")
		}
		p := &parser{buf: text}
		if v, _ := m.first(p, base); p.err != nil && (v != base || m.last != "") {
			t.Fatalf("first: %q changed the view in spite of %v", text, p.err)
		}
		p = &parser{buf: text}
		if v := m.next(p, base); p.err != nil && (v != base || m.last != "") {
			t.Fatalf("next: %q changed the view in spite of %v", text, p.err)
		}
		p = &parser{buf: text}
		p.replies()
		refusal("x", text)
	})
}
