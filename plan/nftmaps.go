package plan

import (
	"maps"

	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/delta"
)

// declared are nft maps and sets of one family, by name, without elements. Rules that look at them are in the base features.
type declared struct {
	family cluster.Family
	maps   map[string]*nft.Map
	sets   map[string]*nft.Set
}

func declare(f cluster.Family) declared {
	return declared{f, map[string]*nft.Map{}, map[string]*nft.Set{}}
}

// toMap declares a map, whose name ends with the family's digit.
func (d declared) toMap(name string, key ...nft.KeyField) *nft.Map {
	m := &nft.Map{Name: name + words(d.family).digit, Family: d.family, Key: key}
	d.maps[m.Name] = m
	return m
}

func (d declared) set(name string, key ...nft.KeyField) *nft.Set {
	s := &nft.Set{Name: name + words(d.family).digit, Key: key}
	d.sets[s.Name] = s
	return s
}

// in puts them into a table.
func (d declared) in(t *nft.Table) {
	maps.Copy(t.Maps, d.maps)
	maps.Copy(t.Sets, d.sets)
}

// elements is a table of a part's elements: of its maps and sets, it has those that are not empty.
type elements struct{ *nft.Table }

func newElements() elements {
	return elements{&nft.Table{Maps: map[string]*nft.Map{}, Sets: map[string]*nft.Set{}}}
}

// of returns the elements of a declared set.
func (t elements) of(s *nft.Set) *delta.Map[nft.Element, cluster.Owner] {
	mine := t.Sets[s.Name]
	if mine == nil {
		mine = &nft.Set{Name: s.Name, Key: s.Key}
		t.Sets[s.Name] = mine
	}
	return &mine.Elements
}

// to returns the elements of a declared map.
func (t elements) to(m *nft.Map) *delta.Map[nft.Element, nft.Target] {
	mine := t.Maps[m.Name]
	if mine == nil {
		mine = &nft.Map{Name: m.Name, Family: m.Family, Key: m.Key}
		t.Maps[m.Name] = mine
	}
	return &mine.Elements
}
