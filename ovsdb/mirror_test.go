package ovsdb

import (
	"reflect"
	"testing"

	"hairpin/ovsdb/jsontext"
)

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
		base, _ := m.first(jsontext.NewParser([]byte(`[false,"",{"Load_Balancer":{"`+id+`":{"initial":`+row+`}}}]`)),
			m.empty())
		if !layout.Get(base, id).Exists() {
			t.Fatal("no base")
		}
		p := jsontext.NewParser(text)
		if v, _ := m.first(p, base); p.Err() != nil && (v != base || m.last != "") {
			t.Fatalf("first: %q changed the view in spite of %v", text, p.Err())
		}
		p = jsontext.NewParser(text)
		if v := m.next(p, base); p.Err() != nil && (v != base || m.last != "") {
			t.Fatalf("next: %q changed the view in spite of %v", text, p.Err())
		}
		p = jsontext.NewParser(text)
		readReplies(p)
		refusal("x", text)
	})
}
