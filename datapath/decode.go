package datapath

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/delta"
)

// Decode parses what Encode wrote into the value that v points to. An unknown field or kind, as
// from another version, is an error that names it.
func Decode(text []byte, v any) error {
	d := decoder{json.NewDecoder(bytes.NewReader(text)), structs{}}
	if err := d.value(reflect.ValueOf(v).Elem()); err != nil {
		return err
	}
	if _, err := d.json.Token(); err != io.EOF {
		return fmt.Errorf("unexpected text after the value")
	}
	return nil
}

type decoder struct {
	json *json.Decoder
	structs
}

// value decodes into v, which must be settable.
func (d decoder) value(v reflect.Value) error {
	switch x := v.Addr().Interface().(type) {
	case *cluster.MAC:
		var text string
		err := d.json.Decode(&text)
		if err == nil {
			*x, err = cluster.ParseMAC(text)
		}
		return err
	case delta.AnyMap:
		entries := reflect.New(reflect.TypeOf(x.Plain())).Elem()
		err := d.value(entries)
		x.SetPlain(entries.Interface())
		return err
	case encoding.TextUnmarshaler:
		return d.json.Decode(x)
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(v.Elem())
	case reflect.Interface:
		return d.kind(v)
	case reflect.Struct:
		fields := d.fieldsOf(v.Type())
		return d.object(func(name string) error {
			i := slices.IndexFunc(fields, func(f reflect.StructField) bool { return f.Name == name })
			if i < 0 {
				return fmt.Errorf("a field of %s that this version does not know", v.Type())
			}
			return d.value(v.FieldByIndex(fields[i].Index))
		})
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		return d.entries(v)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		return d.list(func() error {
			item := reflect.New(v.Type().Elem()).Elem()
			if err := d.value(item); err != nil {
				return err
			}
			v.Set(reflect.Append(v, item))
			return nil
		})
	}
	return d.json.Decode(v.Addr().Interface())
}

// kind decodes {"KIND": value} into v, an interface.
func (d decoder) kind(v reflect.Value) error {
	err := d.object(func(name string) error {
		i := slices.IndexFunc(kinds[v.Type()], func(t reflect.Type) bool { return kindName(t) == name })
		if i < 0 {
			return fmt.Errorf("a kind of %s that this version does not know", v.Type())
		}
		x := reflect.New(kinds[v.Type()][i]).Elem()
		err := d.value(x)
		v.Set(x)
		return err
	})
	if err == nil && v.IsNil() {
		err = fmt.Errorf("a %s without a kind", v.Type())
	}
	return err
}

// entries decodes into an empty map.
func (d decoder) entries(m reflect.Value) error {
	form := formOf(m.Type())
	entry := func(text string) error {
		key, v := reflect.New(m.Type().Key()).Elem(), reflect.New(m.Type().Elem()).Elem()
		var err error
		switch form {
		case textKeys:
			if x, ok := key.Addr().Interface().(encoding.TextUnmarshaler); ok {
				err = x.UnmarshalText([]byte(text))
			} else {
				key.SetString(text)
			}
			if err == nil {
				err = d.value(v)
			}
		case pairs:
			err = d.object(func(name string) error {
				switch name {
				case "Key":
					return d.value(key)
				case "Value":
					return d.value(v)
				}
				return fmt.Errorf("neither Key nor Value")
			})
		case ownKeys:
			if err = d.value(v); err == nil {
				key = ownKey(v, m.Type().Key())
			}
		}
		if err == nil && m.MapIndex(key).IsValid() {
			err = fmt.Errorf("%v is there twice", key)
		}
		if err == nil {
			m.SetMapIndex(key, v)
		}
		return err
	}
	if form == textKeys {
		return d.object(entry)
	}
	return d.list(func() error { return entry("") })
}

// ownKey returns the key that a value contains.
func ownKey(v reflect.Value, key reflect.Type) reflect.Value {
	switch x := v.Interface().(type) {
	case nb.Row:
		return reflect.ValueOf(x.Key())
	case *flow.Flow:
		return reflect.ValueOf(x.ID())
	}
	return reflect.Indirect(v).FieldByIndex(embedded(v.Type(), key))
}

// object decodes an object: member decodes the value with that name.
func (d decoder) object(member func(name string) error) error {
	return d.between('{', '}', func() error {
		name, err := d.json.Token()
		if err != nil {
			return err
		}
		if err := member(name.(string)); err != nil { // names in JSON are strings
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// list decodes a list: item decodes the next value.
func (d decoder) list(item func() error) error { return d.between('[', ']', item) }

// between decodes what is between two brackets: item decodes the next value.
func (d decoder) between(start, end json.Delim, item func() error) error {
	if t, err := d.json.Token(); err != nil {
		return err
	} else if t != start {
		return fmt.Errorf("unexpected %v, expected %v", t, start)
	}
	for d.json.More() {
		if err := item(); err != nil {
			return err
		}
	}
	t, err := d.json.Token()
	if err == nil && t != end {
		err = fmt.Errorf("unexpected %v, expected %v", t, end)
	}
	return err
}
