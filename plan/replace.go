package plan

import (
	"maps"
	"reflect"

	"hairpin/datapath"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/delta"
)

// replace returns a copy of a State without the keys of gone and with those of come. It returns
// false if a key of gone is missing or a key of come exists: then the State is not the expected
// union.
//
// What depends on the planned node alone stays: the bridge, and the sets of nft maps and sets.
func replace(s, gone, come datapath.State) (datapath.State, bool) {
	ok := true
	s.NB = swap(&ok, s.NB, gone.NB, come.NB,
		func(a, b nb.Row) bool { return a.Why() == b.Why() && nb.SameContent(a, b) })
	s.Bridge = swapBridge(&ok, s.Bridge, gone.Bridge, come.Bridge)
	s.NFT = swapTables(&ok, s.NFT, gone.NFT, come.NFT)
	s.Host = host.State{
		Links:     swap(&ok, s.Host.Links, gone.Host.Links, come.Host.Links, equal),
		Addresses: swap(&ok, s.Host.Addresses, gone.Host.Addresses, come.Host.Addresses, equal),
		Routes:    swap(&ok, s.Host.Routes, gone.Host.Routes, come.Host.Routes, equal),
		Rules:     swap(&ok, s.Host.Rules, gone.Host.Rules, come.Host.Rules, equal),
		Neighbors: swap(&ok, s.Host.Neighbors, gone.Host.Neighbors, come.Host.Neighbors, equal),
		Sysctls:   swap(&ok, s.Host.Sysctls, gone.Host.Sysctls, come.Host.Sysctls, equal),
	}
	s.Conn.UDP = swap(&ok, s.Conn.UDP, gone.Conn.UDP, come.Conn.UDP, conn.Targets.Equal)
	s.Conn.Egress = swap(&ok, s.Conn.Egress, gone.Conn.Egress, come.Conn.Egress, equal)
	s.Conn.Ways = swap(&ok, s.Conn.Ways, gone.Conn.Ways, come.Conn.Ways, equal)
	s.Redirect.Programs = swap(&ok, s.Redirect.Programs, gone.Redirect.Programs, come.Redirect.Programs, equal)
	s.Redirect.Services = swap(&ok, s.Redirect.Services, gone.Redirect.Services, come.Redirect.Services, equal)
	return s, ok
}

func swapBridge(ok *bool, s, gone, come flow.State) flow.State {
	if gone.TunnelBridge != come.TunnelBridge {
		s.TunnelBridge = come.TunnelBridge
	}
	s.Bridges = swap(ok, s.Bridges, gone.Bridges, come.Bridges, equal)
	s.Settings = swap(ok, s.Settings, gone.Settings, come.Settings, equal)
	s.Ports = swap(ok, s.Ports, gone.Ports, come.Ports, func(a, b flow.Port) bool { return reflect.DeepEqual(a, b) })
	s.Named = swap(ok, s.Named, gone.Named, come.Named, equal)
	s.TunnelNeighbors = swap(ok, s.TunnelNeighbors, gone.TunnelNeighbors, come.TunnelNeighbors, equal)
	s.TunnelRoutes = swap(ok, s.TunnelRoutes, gone.TunnelRoutes, come.TunnelRoutes, equal)
	s.Flows = swapMaps(ok, s.Flows, gone.Flows, come.Flows,
		func(a, b *flow.Flow) bool { return a.Owner == b.Owner && a.Equal(b) })
	s.Groups = swapMaps(ok, s.Groups, gone.Groups, come.Groups,
		func(a, b *flow.Group) bool { return a.Owner == b.Owner && a.Equal(b) })
	return s
}

func swapTables(ok *bool, s, gone, come nft.State) nft.State {
	if len(gone)+len(come) == 0 {
		return s
	}
	s = maps.Clone(s)
	for _, f := range nft.Families() {
		if out, in := gone[f], come[f]; out != nil || in != nil {
			s[f] = swapTable(ok, orEmpty(s[f]), orEmpty(out), orEmpty(in))
			if t := s[f]; len(t.Chains)+len(t.Maps)+len(t.Sets) == 0 {
				delete(s, f)
			}
		}
	}
	return s
}

// swapTable is replace for one table: its chains, and the elements of changed maps and sets.
func swapTable(ok *bool, s, gone, come *nft.Table) *nft.Table {
	t := &nft.Table{Chains: swap(ok, s.Chains, gone.Chains, come.Chains, equal), Maps: maps.Clone(s.Maps),
		Sets: maps.Clone(s.Sets)}
	for name, m := range s.Maps {
		out, in := orEmpty(gone.Maps[name]).Elements, orEmpty(come.Maps[name]).Elements
		if out.Len()+in.Len() > 0 {
			t.Maps[name] = &nft.Map{Name: name, Family: m.Family, Key: m.Key,
				Elements: swapMaps(ok, m.Elements, out, in, equal)}
		}
	}
	for name, m := range s.Sets {
		out, in := orEmpty(gone.Sets[name]).Elements, orEmpty(come.Sets[name]).Elements
		if out.Len()+in.Len() > 0 {
			t.Sets[name] = &nft.Set{Name: name, Key: m.Key, Elements: swapMaps(ok, m.Elements, out, in, equal)}
		}
	}
	return t
}

func orEmpty[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

func equal[V comparable](a, b V) bool { return a == b }

// swap is replace for one map. Entries that are the same in gone and come stay unchanged; if all
// are, the map itself is returned.
func swap[M ~map[K]V, K comparable, V any](ok *bool, m, gone, come M, same func(a, b V) bool) M {
	d := delta.Of(come, gone, same)
	if d.Empty() {
		return m
	}
	*ok = *ok && fits(d, func(k K) bool { _, there := m[k]; return there })
	return d.ApplyTo(m)
}

// swapMaps is swap for a map that shares data with its copies.
func swapMaps[K comparable, V any](ok *bool, m, gone, come delta.Map[K, V], same func(a, b V) bool) delta.Map[K, V] {
	d := delta.OfMaps(come, gone, same)
	if d.Empty() {
		return m
	}
	*ok = *ok && fits(d, func(k K) bool { _, there := m.Get(k); return there })
	return d.ApplyToMap(m)
}

// fits reports whether all added keys are missing, and all others exist.
func fits[K comparable, V any](d delta.Delta[K, V], there func(K) bool) bool {
	for k := range d.Add {
		if there(k) {
			return false
		}
	}
	for _, had := range []map[K]V{d.Change, d.Delete} {
		for k := range had {
			if !there(k) {
				return false
			}
		}
	}
	return true
}
