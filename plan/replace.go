package plan

import (
	"maps"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
)

// replace takes the keys of gone out of a State and puts come in, in a copy. It gives false when a key of gone is missing
// or a key of come is taken: then the State is not the union that it was thought to be.
//
// It knows the parts that objects features write, and no others.
func replace(s, gone, come datapath.State) (datapath.State, bool) {
	var ok [5]bool
	s.NB, ok[0] = replaceMap(s.NB, gone.NB, come.NB, func(a, b nb.Row) bool { return a.Why() == b.Why() && nb.SameContent(a, b) })
	s.Bridge.Flows, ok[1] = replaceMap(s.Bridge.Flows, gone.Bridge.Flows, come.Bridge.Flows, func(a, b *flow.Flow) bool { return a.Owner == b.Owner && a.Equal(b) })
	s.Conn.UDP, ok[2] = replaceMap(s.Conn.UDP, gone.Conn.UDP, come.Conn.UDP, conn.Targets.Equal)
	s.Conn.Egress, ok[4] = replaceMap(s.Conn.Egress, gone.Conn.Egress, come.Conn.Egress, func(a, b conn.Egress) bool { return a == b })
	s.Host, ok[3] = replaceHost(s.Host, gone.Host, come.Host)
	if slices.Contains(ok[:], false) {
		return s, false
	}
	return replaceElements(s, gone, come)
}

// replaceBase takes over what base features alone write. The rest of what they write is in the State already.
func replaceBase(s, base datapath.State) datapath.State {
	flows := s.Bridge.Flows
	s.Bridge = base.Bridge
	s.Bridge.Flows = flows
	s.Host.Links, s.Host.Neighbors = base.Host.Links, base.Host.Neighbors
	tables := maps.Clone(base.NFT)
	if t := s.NFT[nft.Inet]; t != nil {
		changed := *t
		changed.Chains = base.NFT[nft.Inet].Chains
		tables[nft.Inet] = &changed
	}
	s.NFT = tables
	return s
}

// replaceHost is replace for the host's network.
func replaceHost(s, gone, come host.State) (host.State, bool) {
	var ok [4]bool
	s.Addresses, ok[0] = replaceMap(s.Addresses, gone.Addresses, come.Addresses, func(a, b host.Address) bool { return a == b })
	s.Routes, ok[1] = replaceMap(s.Routes, gone.Routes, come.Routes, func(a, b host.Route) bool { return a == b })
	s.Rules, ok[2] = replaceMap(s.Rules, gone.Rules, come.Rules, func(a, b cluster.Owner) bool { return a == b })
	s.Sysctls, ok[3] = replaceMap(s.Sysctls, gone.Sysctls, come.Sysctls, func(a, b host.Sysctl) bool { return a == b })
	return s, !slices.Contains(ok[:], false)
}

// replaceElements is replace for the elements of nft maps and sets.
func replaceElements(s, gone, come datapath.State) (datapath.State, bool) {
	out, in := gone.NFT[nft.Inet], come.NFT[nft.Inet]
	if out == nil && in == nil {
		return s, true
	}
	if out == nil {
		out = &nft.Table{}
	}
	if in == nil {
		in = &nft.Table{}
	}
	if s.NFT[nft.Inet] == nil {
		return s, false
	}
	t := *s.NFT[nft.Inet]
	t.Maps = maps.Clone(t.Maps)
	for name, m := range t.Maps {
		elements, ok := replaceMap(m.Elements, elementsOf(out, name), elementsOf(in, name), func(a, b nft.Target) bool { return a == b })
		if !ok {
			return s, false
		}
		changed := *m
		changed.Elements = elements
		t.Maps[name] = &changed
	}
	t.Sets = maps.Clone(t.Sets)
	for name, set := range t.Sets {
		elements, ok := replaceMap(set.Elements, keysOf(out, name), keysOf(in, name), func(a, b cluster.Owner) bool { return a == b })
		if !ok {
			return s, false
		}
		changed := *set
		changed.Elements = elements
		t.Sets[name] = &changed
	}
	s.NFT = maps.Clone(s.NFT)
	s.NFT[nft.Inet] = &t
	return s, true
}

func elementsOf(t *nft.Table, name string) map[nft.Element]nft.Target {
	if m := t.Maps[name]; m != nil {
		return m.Elements
	}
	return nil
}

func keysOf(t *nft.Table, name string) map[nft.Element]cluster.Owner {
	if s := t.Sets[name]; s != nil {
		return s.Elements
	}
	return nil
}

// replaceMap is replace for one map. What is in gone and comes back the same stays what it was, and the map itself does
// when that is all of it.
func replaceMap[M ~map[K]V, K comparable, V any](m, gone, come M, same func(a, b V) bool) (M, bool) {
	stays := 0
	for k, v := range come {
		if w, there := gone[k]; there && same(v, w) {
			stays++
		}
	}
	if stays == len(gone) && stays == len(come) {
		return m, true
	}
	n := maps.Clone(m) // which hashes no key
	if n == nil {
		n = M{}
	}
	for k, v := range gone {
		if w, back := come[k]; back && same(v, w) {
			continue
		}
		if _, there := n[k]; !there {
			return m, false
		}
		delete(n, k)
	}
	for k, v := range come {
		if w, was := gone[k]; was && same(v, w) {
			continue
		}
		if _, there := n[k]; there {
			return m, false
		}
		n[k] = v
	}
	return n, true
}
