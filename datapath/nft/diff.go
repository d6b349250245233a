package nft

import (
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/delta"
)

// Delta is the difference between the wanted and the found tables. A changed Service changes
// elements, not rules. If the rules of a chain differ, all of them are replaced, in one
// transaction.
type Delta struct {
	Tables map[Family]TableDelta // only tables that differ
}

// TableDelta is the difference of one table. It shares its values with the compared States.
type TableDelta struct {
	// Add creates the table, Delete deletes it. Replace deletes it and creates it again, in one
	// transaction: it has parts for which this package has no type, or a map or set of another
	// type.
	Add, Delete, Replace bool

	Chains   delta.Delta[string, *Chain] // Change: other rules
	Recreate map[string]*Chain           // chains with another hook, device or owner

	Maps        delta.Delta[string, *Map] // never Change: see MapElements
	Sets        delta.Delta[string, *Set]
	MapElements map[string]delta.Delta[Element, Target] // of maps in both States; Change: another target or owner
	SetElements map[string]delta.Delta[Element, cluster.Owner]

	// Want is the wanted table; nil for Delete. String takes the keys of rules, maps and sets from
	// it.
	Want *Table
	// Have is the found table; nil for Add. String takes the keys of elements to delete from it.
	Have *Table
}

// Diff compares the wanted with the found State. Two owners are equal if nft stores the same
// comment for both.
func Diff(want, have State) Delta {
	var d Delta
	for _, f := range Families() {
		if t := diffTable(want[f], have[f]); t.Count() > 0 {
			if d.Tables == nil {
				d.Tables = map[Family]TableDelta{}
			}
			d.Tables[f] = t
		}
	}
	return d
}

func diffTable(want, have *Table) TableDelta {
	d := TableDelta{Want: want, Have: have}
	switch {
	case want == nil && have == nil:
		return d
	case want == nil:
		d.Delete = true
		return d
	case have == nil:
		d.Add = true
	case len(have.Unknown) > 0 || typesDiffer(want, have):
		d.Replace = true
	}
	if d.Add || d.Replace {
		have = &Table{}
	}
	d.diffChains(want, have)
	d.Maps = delta.Of(want.Maps, have.Maps, func(a, b *Map) bool { return true })
	d.Sets = delta.Of(want.Sets, have.Sets, func(a, b *Set) bool { return true })
	for name, w := range want.Maps {
		if h := have.Maps[name]; h != nil {
			e := delta.OfMaps(w.Elements, h.Elements,
				func(a, b Target) bool { return a.Addr == b.Addr && sameOwner(a.Owner, b.Owner) })
			putElements(&d.MapElements, name, e)
		}
	}
	for name, w := range want.Sets {
		if h := have.Sets[name]; h != nil {
			e := delta.OfMaps(w.Elements, h.Elements, sameOwner)
			putElements(&d.SetElements, name, e)
		}
	}
	return d
}

func putElements[V any](m *map[string]delta.Delta[Element, V], name string, e delta.Delta[Element, V]) {
	if e.Empty() {
		return
	}
	if *m == nil {
		*m = map[string]delta.Delta[Element, V]{}
	}
	(*m)[name] = e
}

// typesDiffer reports whether a map or set has another type. nft cannot change the type while rules
// reference the map or set.
func typesDiffer(want, have *Table) bool {
	for name, w := range want.Maps {
		if h := have.Maps[name]; have.Sets[name] != nil || h != nil && mapType(h) != mapType(w) {
			return true
		}
	}
	for name, w := range want.Sets {
		if h := have.Sets[name]; have.Maps[name] != nil || h != nil && setType(h) != setType(w) {
			return true
		}
	}
	return false
}

func (d *TableDelta) diffChains(want, have *Table) {
	d.Chains = delta.Of(want.Chains, have.Chains, func(w, h *Chain) bool {
		return slices.EqualFunc(w.Rules, h.Rules,
			func(a, b Rule) bool { return storedRule(want, &a) == storedRule(have, &b) })
	})
	for name, w := range want.Chains {
		h := have.Chains[name]
		if h == nil || hookText(w) == hookText(h) && sameOwner(w.Owner, h.Owner) {
			continue
		}
		if d.Recreate == nil {
			d.Recreate = map[string]*Chain{}
		}
		d.Recreate[name] = w
		delete(d.Chains.Change, name)
	}
}

// storedOwner returns an owner as the kernel stores it: an nft comment, or nothing if it is too
// long.
func storedOwner(o cluster.Owner) string {
	comment, _ := labelText(o.String())
	return comment
}

// sameOwner reports whether the kernel cannot distinguish two owners.
func sameOwner(a, b cluster.Owner) bool { return a == b || storedOwner(a) == storedOwner(b) }

// storedRule returns a rule as the kernel stores it, with its matches sorted: their order does not
// matter, because all of them must hold.
func storedRule(t *Table, r *Rule) string {
	comment, _ := labelText(ruleLabel(r))
	c := Rule{Do: r.Do}
	var matches []string
	for _, m := range r.Matches {
		if !slices.ContainsFunc(r.Matches, func(other Match) bool { return implies(other, m) }) {
			matches = append(matches, matchText(t, m))
		}
	}
	slices.Sort(matches)
	return strings.Join(slices.Compact(matches), " ") + " " + t.RuleText(&c) + comment
}

// implies reports whether m holds if other holds: nft omits "meta l4proto tcp" before "tcp dport
// …".
func implies(other, m Match) bool {
	proto, is := m.(L4Proto)
	port, ok := other.(DstPort)
	return is && ok && port.Protocol == proto.Protocol
}

// Empty reports whether there is nothing to do.
func (d Delta) Empty() bool { return d.Count() == 0 }

// Count returns the number of differences: of tables, chains, maps, sets and single elements.
func (d Delta) Count() int {
	n := 0
	for _, t := range d.Tables {
		n += t.Count()
	}
	return n
}

// OnlyElements reports whether all differences are elements of maps and sets that both States have.
func (d Delta) OnlyElements() bool {
	for _, t := range d.Tables {
		if t.Add || t.Delete || t.Replace || t.Chains.Count()+len(t.Recreate)+t.Maps.Count()+t.Sets.Count() > 0 {
			return false
		}
	}
	return true
}

// Count returns the number of differences in one table.
func (d TableDelta) Count() int {
	n := d.Chains.Count() + len(d.Recreate) + d.Maps.Count() + d.Sets.Count()
	if d.Add || d.Delete || d.Replace {
		n++
	}
	for _, m := range d.Maps.Add {
		n += m.Elements.Len()
	}
	for _, s := range d.Sets.Add {
		n += s.Elements.Len()
	}
	for _, e := range d.MapElements {
		n += e.Count()
	}
	for _, e := range d.SetElements {
		n += e.Count()
	}
	return n
}

// Grow returns the part that adds and changes. It is applied before Shrink.
func (d Delta) Grow() Delta { return d.part(true) }

// Shrink returns the part that deletes.
func (d Delta) Shrink() Delta { return d.part(false) }

func (d Delta) part(grow bool) Delta {
	var out Delta
	for f, t := range d.Tables {
		p := TableDelta{Want: t.Want, Have: t.Have}
		if grow {
			p.Add, p.Replace, p.Recreate = t.Add, t.Replace, t.Recreate
		} else {
			p.Delete = t.Delete
		}
		p.Chains, p.Maps, p.Sets = pickHalf(t.Chains, grow), pickHalf(t.Maps, grow), pickHalf(t.Sets, grow)
		for name, e := range t.MapElements {
			putElements(&p.MapElements, name, pickHalf(e, grow))
		}
		for name, e := range t.SetElements {
			putElements(&p.SetElements, name, pickHalf(e, grow))
		}
		if p.Count() == 0 {
			continue
		}
		if out.Tables == nil {
			out.Tables = map[Family]TableDelta{}
		}
		out.Tables[f] = p
	}
	return out
}

func pickHalf[K comparable, V any](d delta.Delta[K, V], grow bool) delta.Delta[K, V] {
	g, s := d.Split()
	if grow {
		return g
	}
	return s
}
