package datapath

import (
	"fmt"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/delta"
)

// mergeNFT merges tables chain by chain, and maps and sets element by element.
func mergeNFT(c *conflicts, list []State) nft.State {
	var out nft.State
	for _, f := range nft.Families() {
		var tables []*nft.Table
		for i := range list {
			if t := list[i].NFT[f]; t != nil {
				tables = append(tables, t)
			}
		}
		if len(tables) == 0 {
			continue
		}
		if out == nil {
			out = nft.State{}
		}
		out[f] = tables[0]
		if len(tables) > 1 {
			out[f] = mergeTables(c, tables)
		}
	}
	return out
}

func mergeTables(c *conflicts, tables []*nft.Table) *nft.Table {
	out := &nft.Table{Maps: map[string]*nft.Map{}, Sets: map[string]*nft.Set{}}
	maps, sets := map[string][]delta.Map[nft.Element, nft.Target]{},
		map[string][]delta.Map[nft.Element, cluster.Owner]{}
	for _, t := range tables {
		out.Unknown = append(out.Unknown, t.Unknown...)
		for name, m := range t.Maps {
			first := out.Maps[name]
			if first != nil && (first.Family != m.Family || !slices.Equal(first.Key, m.Key)) {
				c.list = append(c.list, Conflict{Key: "map " + name + " of another type"})
				continue
			}
			if first == nil {
				out.Maps[name] = m
			}
			maps[name] = append(maps[name], m.Elements)
		}
		for name, s := range t.Sets {
			first := out.Sets[name]
			if first != nil && !slices.Equal(first.Key, s.Key) {
				c.list = append(c.list, Conflict{Key: "set " + name + " of another type"})
				continue
			}
			if first == nil {
				out.Sets[name] = s
			}
			sets[name] = append(sets[name], s.Elements)
		}
	}
	out.Chains = merge(c, tables, func(t **nft.Table) map[string]*nft.Chain { return (*t).Chains }, &chains)
	mergeElements(c, out, maps, sets)
	return out
}

// mergeElements merges the maps and sets that several parts have; the others are shared.
func mergeElements(c *conflicts, t *nft.Table, maps map[string][]delta.Map[nft.Element, nft.Target],
	sets map[string][]delta.Map[nft.Element, cluster.Owner]) {
	for name, list := range maps {
		if len(list) > 1 {
			m := *t.Maps[name]
			m.Elements = mergeMaps(c, list, itself, &kind[nft.Element, nft.Target]{
				same: func(a, b nft.Target) bool { return a.Addr == b.Addr },
				why:  func(_ nft.Element, t nft.Target) cluster.Owner { return t.Owner },
				name: func(k nft.Element) string {
					return fmt.Sprintf("element of map %s: %v %v %d", name, k.Addr, k.Protocol, k.Port)
				},
			})
			t.Maps[name] = &m
		}
	}
	for name, list := range sets {
		if len(list) > 1 {
			s := *t.Sets[name]
			s.Elements = mergeMaps(c, list, itself, &kind[nft.Element, cluster.Owner]{
				same: func(a, b cluster.Owner) bool { return true },
				why:  func(_ nft.Element, o cluster.Owner) cluster.Owner { return o },
				name: func(nft.Element) string { return "element of set " + name },
			})
			t.Sets[name] = &s
		}
	}
}

func itself[M any](m *M) M { return *m }
