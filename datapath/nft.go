package datapath

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/datapath/statemap"
	"hairpin/delta"
)

// chains describes the chains of a table.
var chains = statemap.Plain[nft.Table, nft.TableDelta, string, *nft.Chain]{
	In: func(t *nft.Table) *map[string]*nft.Chain { return &t.Chains },
	Values: statemap.Values[string, *nft.Chain]{
		Same:  func(a, b *nft.Chain) bool { return a == b || reflect.DeepEqual(a, b) },
		Owner: func(ch *nft.Chain) cluster.Owner { return ch.Owner },
		Name:  func(k string) string { return "chain " + k },
	}}

// mapElements describes the elements of a map of that name.
func mapElements(name string) *statemap.Shared[nft.Map, nft.TableDelta, nft.Element, nft.Target] {
	return &statemap.Shared[nft.Map, nft.TableDelta, nft.Element, nft.Target]{
		In: func(m *nft.Map) *delta.Map[nft.Element, nft.Target] { return &m.Elements },
		Values: statemap.Values[nft.Element, nft.Target]{
			Same:  func(a, b nft.Target) bool { return a.Addr == b.Addr },
			Owner: func(t nft.Target) cluster.Owner { return t.Owner },
			Name: func(k nft.Element) string {
				return fmt.Sprintf("element of map %s: %v %v %d", name, k.Addr, k.Protocol, k.Port)
			},
		}}
}

// setElements describes the elements of a set of that name.
func setElements(name string) *statemap.Shared[nft.Set, nft.TableDelta, nft.Element, cluster.Owner] {
	return &statemap.Shared[nft.Set, nft.TableDelta, nft.Element, cluster.Owner]{
		In: func(s *nft.Set) *delta.Map[nft.Element, cluster.Owner] { return &s.Elements },
		Values: statemap.Values[nft.Element, cluster.Owner]{
			Same:  func(a, b cluster.Owner) bool { return true },
			Owner: func(o cluster.Owner) cluster.Owner { return o },
			Name:  func(nft.Element) string { return "element of set " + name },
		}}
}

// mergeNFT merges tables chain by chain, and maps and sets element by element.
func mergeNFT(c *statemap.Conflicts, out *nft.State, list []*nft.State) {
	for _, f := range nft.Families() {
		var tables []*nft.Table
		for _, s := range list {
			if t := (*s)[f]; t != nil {
				tables = append(tables, t)
			}
		}
		if len(tables) == 0 {
			continue
		}
		if *out == nil {
			*out = nft.State{}
		}
		(*out)[f] = tables[0]
		if len(tables) > 1 {
			(*out)[f] = mergeTables(c, tables)
		}
	}
}

func mergeTables(c *statemap.Conflicts, tables []*nft.Table) *nft.Table {
	out := &nft.Table{Maps: map[string]*nft.Map{}, Sets: map[string]*nft.Set{}}
	// By name, of all tables that have them.
	mapsOf, setsOf := map[string][]*nft.Map{}, map[string][]*nft.Set{}
	for _, t := range tables {
		out.Unknown = append(out.Unknown, t.Unknown...)
		for name, m := range t.Maps {
			if have := mapsOf[name]; have != nil && (have[0].Family != m.Family || !slices.Equal(have[0].Key, m.Key)) {
				c.List = append(c.List, Conflict{Key: "map " + name + " of another type"})
				continue
			}
			mapsOf[name] = append(mapsOf[name], m)
		}
		for name, s := range t.Sets {
			if have := setsOf[name]; have != nil && !slices.Equal(have[0].Key, s.Key) {
				c.List = append(c.List, Conflict{Key: "set " + name + " of another type"})
				continue
			}
			setsOf[name] = append(setsOf[name], s)
		}
	}
	chains.Merge(c, out, tables)
	for name, list := range mapsOf {
		if out.Maps[name] = list[0]; len(list) > 1 { // else it is shared
			m := *list[0]
			mapElements(name).Merge(c, &m, list)
			out.Maps[name] = &m
		}
	}
	for name, list := range setsOf {
		if out.Sets[name] = list[0]; len(list) > 1 {
			s := *list[0]
			setElements(name).Merge(c, &s, list)
			out.Sets[name] = &s
		}
	}
	return out
}

func replaceNFT(s, gone, come *nft.State) bool {
	if len(*gone)+len(*come) == 0 {
		return true
	}
	ok := true
	*s = maps.Clone(*s)
	for _, f := range nft.Families() {
		out, in := (*gone)[f], (*come)[f]
		if out == nil && in == nil {
			continue
		}
		t := *orEmpty((*s)[f])
		ok = replaceTable(&t, orEmpty(out), orEmpty(in)) && ok
		if (*s)[f] = &t; len(t.Chains)+len(t.Maps)+len(t.Sets) == 0 {
			delete(*s, f)
		}
	}
	return ok
}

// replaceTable replaces chains, and the elements of changed maps and sets.
func replaceTable(t, gone, come *nft.Table) bool {
	ok := chains.Replace(t, gone, come)
	t.Maps, t.Sets = maps.Clone(t.Maps), maps.Clone(t.Sets)
	for name, m := range t.Maps {
		if out, in := orEmpty(gone.Maps[name]), orEmpty(come.Maps[name]); out.Elements.Len()+in.Elements.Len() > 0 {
			changed := *m
			ok = mapElements(name).Replace(&changed, out, in) && ok
			t.Maps[name] = &changed
		}
	}
	for name, s := range t.Sets {
		if out, in := orEmpty(gone.Sets[name]), orEmpty(come.Sets[name]); out.Elements.Len()+in.Elements.Len() > 0 {
			changed := *s
			ok = setElements(name).Replace(&changed, out, in) && ok
			t.Sets[name] = &changed
		}
	}
	return ok
}

func orEmpty[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}
