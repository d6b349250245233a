package nbdb

import (
	"fmt"
	"reflect"
	"slices"

	"hairpin/datapath/nb"
)

// column is one column of a table: the conversion between the database's values and a field of nb's
// row. Values of the database are passed as pointers.
type column struct {
	name string
	typ  reflect.Type
	// load reads a value into the row. It returns false for a value that Hairpin cannot have
	// written; the row is then repaired.
	load  func(r nb.Row, from any) bool
	store func(r nb.Row, to any)
	edit  func(e *edit, want, have any)
	check func(r nb.Row) error // rejects a row that cannot be written; nil: no check
}

// value returns a column with values V of rows R.
func value[R, V any](name string, load func(*R, V) bool, store func(*R) V,
	differ func(e *edit, column string, want, have V)) column {
	return column{
		name: name, typ: reflect.TypeFor[V](),
		load:  func(r nb.Row, from any) bool { return load(any(r).(*R), *from.(*V)) },
		store: func(r nb.Row, to any) { *to.(*V) = store(any(r).(*R)) },
		edit:  func(e *edit, want, have any) { differ(e, name, *want.(*V), *have.(*V)) },
	}
}

// whole edits a column that is written as a whole.
func whole[V comparable](e *edit, column string, want, have V) { e.column(column, want == have) }

// plain is a text column without conversion.
func plain[R any, F ~string](name string, field func(*R) *F) column {
	return value(name, func(r *R, s string) bool { *field(r) = F(s); return true },
		func(r *R) string { return string(*field(r)) }, whole)
}

func number[R any](name string, field func(*R) *int) column {
	return value(name, func(r *R, n int) bool { *field(r) = n; return true }, func(r *R) int { return *field(r) },
		whole)
}

// parsed is a column with the text form of a value.
func parsed[R, F any](name string, field func(*R) *F, format func(F) string, parse func(string) (F, error)) column {
	return value(name, func(r *R, s string) bool {
		v, err := parse(s)
		*field(r) = v
		return err == nil
	}, func(r *R) string { return format(*field(r)) }, whole)
}

// plainSet is a column with a set of texts without conversion.
func plainSet[R any](name string, field func(*R) *[]string) column {
	return value(name, func(r *R, list []string) bool { *field(r) = list; return true },
		func(r *R) []string { return slices.Sorted(slices.Values(*field(r))) }, (*edit).set)
}

// parsedSet is a column with a set of values in text form.
func parsedSet[R, F any](name string, field func(*R) *[]F, compare func(a, b F) int, format func(F) string,
	parse func(string) (F, error)) column {
	return value(name, func(r *R, list []string) bool {
		right := true
		for _, s := range list {
			v, err := parse(s)
			*field(r) = append(*field(r), v)
			right = right && err == nil
		}
		slices.SortFunc(*field(r), compare)
		return right
	}, func(r *R) []string {
		list := make([]string, 0, len(*field(r)))
		for _, v := range *field(r) {
			list = append(list, format(v))
		}
		slices.Sort(list)
		return slices.Compact(list)
	}, (*edit).set)
}

// options is a map column with some keys of Hairpin's. Other keys belong to others (ovn-northd
// stores values in NB_Global's options, an administrator may set some): they are neither read, nor
// compared, nor removed. A wanted row with such a key is rejected: it could be written, but Read
// would never find the key.
func options[R any](name string, field func(*R) *map[string]string, keys ...string) column {
	ours := func(key string) bool { return slices.Contains(keys, key) }
	c := value(name, func(r *R, all map[string]string) bool { *field(r) = only(all, ours); return true },
		func(r *R) map[string]string { return *field(r) },
		func(e *edit, column string, want, have map[string]string) { e.keys(column, want, have, ours) })
	c.check = func(r nb.Row) error {
		for key := range *field(any(r).(*R)) {
			if !ours(key) {
				return fmt.Errorf("%s:%s is none of the keys that are ours (apply/nbdb/tables.go)", name, key)
			}
		}
		return nil
	}
	return c
}

// only returns the entries with Hairpin's keys. The mirror's maps are never modified, so a map
// without other keys is returned as it is.
func only(all map[string]string, ours func(string) bool) map[string]string {
	mine := 0
	for k := range all {
		if ours(k) {
			mine++
		}
	}
	switch mine {
	case len(all):
		return all
	case 0:
		return nil
	}
	some := make(map[string]string, mine)
	for k, v := range all {
		if ours(k) {
			some[k] = v
		}
	}
	return some
}

// optional is an optional text column, unset for an empty text.
func optional[R any](name string, field func(*R) *string) column {
	return value(name, func(r *R, s *string) bool { *field(r) = or(s, ""); return true }, func(r *R) *string {
		if *field(r) == "" {
			return nil
		}
		return field(r)
	}, wholeText)
}

// flag is an optional text column with the value yes, or unset.
func flag[R any](name, yes string, field func(*R) *bool) column {
	return value(name, func(r *R, s *string) bool { *field(r) = or(s, "") == yes; return true }, func(r *R) *string {
		if *field(r) {
			return &yes
		}
		return nil
	}, wholeText)
}

func wholeText(e *edit, column string, want, have *string) {
	e.column(column, or(want, "") == or(have, ""))
}

// or returns an optional text, or none if it is unset.
func or(s *string, none string) string {
	if s == nil {
		return none
	}
	return *s
}

// always is a column with the same value in all of Hairpin's rows.
func always[V comparable](name string, want V) column {
	return column{
		name: name, typ: reflect.TypeFor[V](),
		load:  func(_ nb.Row, from any) bool { return *from.(*V) == want },
		store: func(_ nb.Row, to any) { *to.(*V) = want },
		edit:  func(e *edit, _, have any) { e.column(name, *have.(*V) == want) },
	}
}

// never is a column that is empty in all of Hairpin's rows.
func never[V any](name string) column {
	empty := func(v any) bool { return reflect.ValueOf(v).Elem().IsZero() }
	return column{
		name: name, typ: reflect.TypeFor[V](),
		load:  func(_ nb.Row, from any) bool { return empty(from) },
		store: func(nb.Row, any) {},
		edit:  func(e *edit, _, have any) { e.column(name, empty(have)) },
	}
}
