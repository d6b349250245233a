package codec

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"hairpin/ovsdb/jsontext"
)

// Column converts between values of one Go type and values of a column. All methods take an
// addressable reflect.Value of that type, except Append, which takes any.
type Column interface {
	// read sets dst to the value that comes next.
	read(p *jsontext.Parser, dst reflect.Value)
	// patch changes dst by the difference that comes next (update2 in ovsdb-server(7)).
	patch(p *jsontext.Parser, dst reflect.Value)
	// Append renders src.
	Append(buf []byte, src reflect.Value) ([]byte, error)
	// equal compares two values.
	equal(a, b reflect.Value) bool
	// check returns why values of the column do not fit the Go type.
	check(ColumnSchema) error
}

// atom converts between one Go type and an atomic type of RFC 7047, 5.1.
type atom[T comparable] struct {
	base    string // its name in a schema
	read    func(*jsontext.Parser) T
	append  func([]byte, T) ([]byte, error)
	compare func(a, b T) int
}

// columnOf returns the Column for a Go type, or nil.
func columnOf(t reflect.Type) Column {
	text := atom[string]{"string", (*jsontext.Parser).Text, jsontext.AppendText, cmp.Compare[string]}
	integer := atom[int]{"integer", (*jsontext.Parser).Integer, jsontext.AppendInt, cmp.Compare[int]}
	ref := atom[UUID]{"uuid", ReadUUID, appendUUID, cmp.Compare[UUID]}
	for _, columnFor := range []func(reflect.Type) Column{
		text.column, integer.column, ref.column,
		atom[float64]{"real", (*jsontext.Parser).Real, jsontext.AppendReal, cmp.Compare[float64]}.column,
		atom[bool]{"boolean", (*jsontext.Parser).Boolean, jsontext.AppendBool, compareBool}.column,
		mapOf[string, string]{text, text}.column, mapOf[string, int]{text, integer}.column,
		mapOf[string, UUID]{text, ref}.column, mapOf[int, UUID]{integer, ref}.column,
	} {
		if c := columnFor(t); c != nil {
			return c
		}
	}
	return nil
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// ReadUUID consumes ["uuid", U]. The server never sends a named one.
func ReadUUID(p *jsontext.Parser) UUID {
	p.Open('[')
	p.Next()
	tag := string(p.Bytes())
	p.Next()
	u := UUID(p.Bytes()) // a copy, not interned: it would replace strings that recur
	p.Shut()
	if p.Err() == nil && (tag != "uuid" || !IsUUID(string(u))) {
		p.Fail("want a UUID, have %q %q", tag, u)
		return ""
	}
	return u
}

// appendUUID renders ["uuid", U], or ["named-uuid", U] within a transaction.
func appendUUID(buf []byte, u UUID) ([]byte, error) {
	switch {
	case u == "":
		return buf, fmt.Errorf("empty UUID")
	case u.Named():
		buf = append(buf, `["named-uuid",`...)
	default:
		buf = append(buf, `["uuid",`...)
	}
	return append(jsontext.AppendString(buf, string(u)), ']'), nil
}

// column returns the Column for t, if t is T, *T or []T.
func (a atom[T]) column(t reflect.Type) Column {
	switch t {
	case reflect.TypeFor[T]():
		return scalar[T]{a}
	case reflect.TypeFor[*T]():
		return optional[T]{a}
	case reflect.TypeFor[[]T]():
		return set[T]{a}
	}
	return nil
}

// elements consumes a set, or a bare atom, which is a set of one.
func (a atom[T]) elements(p *jsontext.Parser) []T {
	if p.Enter("set") {
		var list []T
		p.Next()
		p.Open('[')
		for p.More(']') {
			list = append(list, a.read(p))
		}
		p.Shut()
		return list
	}
	return []T{a.read(p)}
}

// sorted consumes a set and sorts it. The server sends sets in order, so the sort is normally
// skipped.
func (a atom[T]) sorted(p *jsontext.Parser) []T {
	list := a.elements(p)
	if !slices.IsSortedFunc(list, a.compare) {
		slices.SortFunc(list, a.compare)
	}
	return slices.Compact(list)
}

func (a atom[T]) appendSet(buf []byte, list []T) (_ []byte, err error) {
	buf = append(buf, `["set",[`...)
	for i, e := range list {
		if i > 0 {
			buf = append(buf, ',')
		}
		if buf, err = a.append(buf, e); err != nil {
			return buf, err
		}
	}
	return append(buf, "]]"...), nil
}

// scalar is a column of exactly one atom.
type scalar[T comparable] struct{ atom[T] }

func (c scalar[T]) ptr(v reflect.Value) *T { return v.Addr().Interface().(*T) }

func (c scalar[T]) read(p *jsontext.Parser, dst reflect.Value) { *c.ptr(dst) = c.atom.read(p) }

func (c scalar[T]) patch(p *jsontext.Parser, dst reflect.Value) { c.read(p, dst) }

func (c scalar[T]) Append(buf []byte, src reflect.Value) ([]byte, error) {
	return c.atom.append(buf, src.Interface().(T))
}

func (c scalar[T]) equal(a, b reflect.Value) bool { return *c.ptr(a) == *c.ptr(b) }

func (c scalar[T]) check(s ColumnSchema) error {
	return want(s, s.Key.Type == c.base && s.Value == nil && s.Min == 1 && s.Max == 1, "one "+c.base)
}

// optional is a column of at most one atom.
type optional[T comparable] struct{ atom[T] }

func (c optional[T]) ptr(v reflect.Value) **T { return v.Addr().Interface().(**T) }

func (c optional[T]) read(p *jsontext.Parser, dst reflect.Value) {
	switch list := c.elements(p); len(list) {
	case 0:
		*c.ptr(dst) = nil
	case 1:
		*c.ptr(dst) = &list[0]
	default:
		p.Fail("want at most one value, have %d", len(list))
	}
}

func (c optional[T]) patch(p *jsontext.Parser, dst reflect.Value) { c.read(p, dst) }

func (c optional[T]) Append(buf []byte, src reflect.Value) ([]byte, error) {
	if e := src.Interface().(*T); e != nil {
		return c.atom.append(buf, *e)
	}
	return c.appendSet(buf, nil)
}

func (c optional[T]) equal(a, b reflect.Value) bool {
	x, y := *c.ptr(a), *c.ptr(b)
	return x == y || x != nil && y != nil && *x == *y
}

func (c optional[T]) check(s ColumnSchema) error {
	return want(s, s.Key.Type == c.base && s.Value == nil && s.Min == 0 && s.Max == 1, "at most one "+c.base)
}

// set is a column of many atoms.
type set[T comparable] struct{ atom[T] }

func (c set[T]) ptr(v reflect.Value) *[]T { return v.Addr().Interface().(*[]T) }

func (c set[T]) read(p *jsontext.Parser, dst reflect.Value) { c.store(dst, c.sorted(p)) }

// store stores nil for an empty set.
func (c set[T]) store(dst reflect.Value, list []T) {
	if len(list) == 0 {
		list = nil
	}
	*c.ptr(dst) = list
}

// patch: the difference of two sets is the elements that only one of them has.
func (c set[T]) patch(p *jsontext.Parser, dst reflect.Value) {
	c.store(dst, toggle(*c.ptr(dst), c.sorted(p), c.compare))
}

func (c set[T]) Append(buf []byte, src reflect.Value) ([]byte, error) {
	return c.appendSet(buf, src.Interface().([]T))
}

func (c set[T]) equal(a, b reflect.Value) bool { return slices.Equal(*c.ptr(a), *c.ptr(b)) }

func (c set[T]) check(s ColumnSchema) error {
	return want(s, s.Key.Type == c.base && s.Value == nil && s.Max > 1, "a set of "+c.base)
}

// toggle returns a new slice with the elements that are in exactly one of two ascending slices. It
// copies unchanged sections at once, because one of up to 10 000 references of a set column may
// change.
func toggle[T any](have, diff []T, compare func(a, b T) int) []T {
	out := make([]T, 0, len(have)+len(diff))
	for _, d := range diff {
		i, found := slices.BinarySearchFunc(have, d, compare)
		out = append(out, have[:i]...)
		if found {
			i++
		} else {
			out = append(out, d)
		}
		have = have[i:]
	}
	return append(out, have...)
}

// mapOf is a column of many pairs.
type mapOf[K cmp.Ordered, V comparable] struct {
	key   atom[K]
	value atom[V]
}

func (c mapOf[K, V]) column(t reflect.Type) Column {
	if t == reflect.TypeFor[map[K]V]() {
		return c
	}
	return nil
}

func (c mapOf[K, V]) ptr(v reflect.Value) *map[K]V { return v.Addr().Interface().(*map[K]V) }

// pairs consumes ["map", [[key, value], …]].
func (c mapOf[K, V]) pairs(p *jsontext.Parser, each func(K, V)) {
	p.Open('[')
	p.Next()
	if tag := string(p.Bytes()); tag != "map" {
		p.Fail("want a map, have %q", tag)
	}
	p.Next()
	p.Open('[')
	for p.More(']') {
		p.Open('[')
		p.Next()
		k := c.key.read(p)
		p.Next()
		v := c.value.read(p)
		p.Shut()
		each(k, v)
	}
	p.Shut()
}

func (c mapOf[K, V]) read(p *jsontext.Parser, dst reflect.Value) {
	var m map[K]V
	c.pairs(p, func(k K, v V) {
		if m == nil {
			m = make(map[K]V)
		}
		m[k] = v
	})
	*c.ptr(dst) = m
}

// patch: the difference of two maps has the pairs that were added, the old pairs that were removed,
// and the new pair of each key whose value changed.
func (c mapOf[K, V]) patch(p *jsontext.Parser, dst reflect.Value) {
	m := maps.Clone(*c.ptr(dst))
	c.pairs(p, func(k K, v V) {
		if old, found := m[k]; found && old == v {
			delete(m, k)
			return
		}
		if m == nil {
			m = make(map[K]V)
		}
		m[k] = v
	})
	if len(m) == 0 {
		m = nil
	}
	*c.ptr(dst) = m
}

func (c mapOf[K, V]) Append(buf []byte, src reflect.Value) (_ []byte, err error) {
	m := src.Interface().(map[K]V)
	buf = append(buf, `["map",[`...)
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			buf = append(buf, ',')
		}
		if buf, err = c.key.append(append(buf, '['), k); err != nil {
			return buf, err
		}
		if buf, err = c.value.append(append(buf, ','), m[k]); err != nil {
			return buf, err
		}
		buf = append(buf, ']')
	}
	return append(buf, "]]"...), nil
}

func (c mapOf[K, V]) equal(a, b reflect.Value) bool { return maps.Equal(*c.ptr(a), *c.ptr(b)) }

func (c mapOf[K, V]) check(s ColumnSchema) error {
	ok := s.Key.Type == c.key.base && s.Value != nil && s.Value.Type == c.value.base && s.Max > 1
	return want(s, ok, "a map of "+c.key.base+" to "+c.value.base)
}

// want returns the error for a column that does not fit.
func want(s ColumnSchema, ok bool, what string) error {
	if ok {
		return nil
	}
	return fmt.Errorf("the server has %s, the Go type is for %s", s, what)
}
