package datapath

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
)

// kinds lists the types that an interface may hold, in JSON {"SNAT": {"Addr": "10.0.0.1"}}. It is
// read-only.
var kinds = map[reflect.Type][]reflect.Type{
	reflect.TypeFor[nb.Row]():      typesOf(nb.Rows()...),
	reflect.TypeFor[flow.Action](): typesOf(flow.Actions()...),
	reflect.TypeFor[nft.Match](): typesOf[nft.Match](nft.AddrIn{}, nft.DstIsLocal{}, nft.L4Proto{}, nft.DstPort{},
		nft.OutInterface{},
		nft.InInterface{}, nft.MarkIs{}, nft.InSet{}, nft.EtherSrc{}, nft.NoSYN{}, nft.CTMarkIs{},
		nft.CTState(""), nft.CTDirection("")),
	reflect.TypeFor[nft.Statement](): typesOf[nft.Statement](nft.Accept{}, nft.Drop{}, nft.Return{}, nft.Reject{},
		nft.Masquerade{}, nft.SNAT{}, nft.Forward{},
		nft.Dup{}, nft.SetMark{}, nft.AddMark{}, nft.SaveMark{}, nft.RestoreMark{}, nft.SNATMap{}, nft.DNATMap{}),
}

func typesOf[T any](values ...T) (list []reflect.Type) {
	for _, v := range values {
		list = append(list, reflect.TypeOf(v))
	}
	return list
}

// kindName returns the name of a type, or of a pointer's element type.
func kindName(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Name()
}

// mapForm is the form of a map in JSON.
type mapForm int

const (
	textKeys mapForm = iota // {"10.0.0.1": …}
	pairs                   // [{"Key": …, "Value": …}], if keys are not text
	ownKeys                 // [value], if values contain their keys
)

func formOf(m reflect.Type) mapForm {
	switch key := m.Key(); {
	case key == reflect.TypeFor[nb.Key](), key == reflect.TypeFor[flow.ID](), embedded(m.Elem(), key) != nil:
		return ownKeys
	case key.Kind() == reflect.String, key.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return textKeys
	}
	return pairs
}

// embedded returns the index of the key that a struct embeds.
func embedded(t, key reflect.Type) []int {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	if f, found := t.FieldByName(key.Name()); found && f.Anonymous && f.Type == key {
		return f.Index
	}
	return nil
}

// structs caches the fields of structs: a State has thousands of values of a few types.
type structs map[reflect.Type][]reflect.StructField

// fieldsOf lists the fields of a struct, including those of embedded structs.
func (s structs) fieldsOf(t reflect.Type) []reflect.StructField {
	fields, known := s[t]
	if !known {
		fields = slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.Anonymous })
		s[t] = fields
	}
	return fields
}

// Encode writes a State, or a part of one, as JSON. Equal values give equal JSON. Fields have their
// Go names; zero fields are omitted.
func Encode(v any) ([]byte, error) {
	e := encoder{structs: structs{}}
	e.leaves = json.NewEncoder(&e.out)
	e.leaves.SetEscapeHTML(false)
	if err := e.value(reflect.ValueOf(v)); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return append(e.out.Bytes(), '\n'), nil
}

type encoder struct {
	out    bytes.Buffer
	leaves *json.Encoder
	structs
}

func (e *encoder) value(v reflect.Value) error {
	switch x := v.Interface().(type) {
	case cluster.MAC:
		return e.leaf(x.String())
	case interface{ Plain() any }: // of delta.AnyMap
		return e.value(reflect.ValueOf(x.Plain()))
	case encoding.TextMarshaler:
		return e.leaf(x)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return fmt.Errorf("a %s is nil", v.Type())
		}
		return e.value(v.Elem())
	case reflect.Interface:
		t := v.Elem().Type()
		if !slices.Contains(kinds[v.Type()], t) {
			return fmt.Errorf("%s is no kind of %s", t, v.Type())
		}
		return e.list("{}", 1, func(int) error { return e.member(kindName(t), v.Elem()) })
	case reflect.Struct:
		var fields []reflect.StructField
		for _, f := range e.fieldsOf(v.Type()) {
			if !v.FieldByIndex(f.Index).IsZero() {
				fields = append(fields, f)
			}
		}
		return e.list("{}", len(fields),
			func(i int) error { return e.member(fields[i].Name, v.FieldByIndex(fields[i].Index)) })
	case reflect.Map:
		return e.entries(v)
	case reflect.Slice:
		return e.list("[]", v.Len(), func(i int) error { return e.value(v.Index(i)) })
	}
	return e.leaf(v.Interface())
}

func (e *encoder) leaf(v any) error {
	err := e.leaves.Encode(v)
	e.out.Truncate(max(0, e.out.Len()-1)) // remove the newline
	return err
}

func (e *encoder) list(ends string, n int, item func(int) error) error {
	e.out.WriteByte(ends[0])
	for i := range n {
		if i > 0 {
			e.out.WriteByte(',')
		}
		if err := item(i); err != nil {
			return err
		}
	}
	return e.out.WriteByte(ends[1])
}

func (e *encoder) member(name string, v reflect.Value) error {
	if err := e.leaf(name); err != nil {
		return err
	}
	e.out.WriteByte(':')
	return e.value(v)
}

func (e *encoder) entries(m reflect.Value) error {
	form := formOf(m.Type())
	start := e.out.Len()
	var entries []string
	for key, v := range m.Seq2() {
		var err error
		switch form {
		case textKeys:
			if err = e.value(key); err == nil {
				e.out.WriteByte(':')
				err = e.value(v)
			}
		case pairs:
			err = e.list("{}", 2,
				func(i int) error { return e.member([]string{"Key", "Value"}[i], []reflect.Value{key, v}[i]) })
		case ownKeys:
			err = e.value(v)
		}
		if err != nil {
			return err
		}
		entries = append(entries, string(e.out.Bytes()[start:]))
		e.out.Truncate(start)
	}
	slices.Sort(entries)
	ends := map[bool]string{true: "{}", false: "[]"}[form == textKeys]
	return e.list(ends, len(entries), func(i int) error {
		_, err := e.out.WriteString(entries[i])
		return err
	})
}
