package host

import (
	"strings"

	"hairpin/cluster"
	"hairpin/delta"
)

// Delta is the difference between the wanted and the found network.
//
// Links are never deleted: other parts create and remove them. Deleting a sysctl restores its
// former value.
type Delta struct {
	Links     delta.Delta[string, Link]
	Addresses delta.Delta[AddressKey, Address]
	Routes    delta.Delta[RouteKey, Route]
	Rules     delta.Delta[Rule, cluster.Owner] // a rule is its own value: Change is always empty
	Neighbors delta.Delta[NeighborKey, Neighbor]
	Sysctls   delta.Delta[string, Sysctl]
}

// Diff compares the wanted with the found State. It ignores owners, which the kernel does not
// store, and fields of a link that are not set in the wanted one. Borrowed values are described,
// not wanted: no part of the Delta contains them.
func Diff(want, have State) Delta {
	d := Delta{
		Links: delta.Of(want.Links, have.Links, func(w, h Link) bool {
			return (w.MAC == h.MAC || w.MAC == cluster.MAC{}) && (w.MTU == h.MTU || w.MTU == 0) &&
				(h.Checksums || !w.Checksums)
		}),
		Addresses: delta.Of(want.Addresses, have.Addresses, func(w, h Address) bool {
			return w.Borrowed || w.Deprecated == h.Deprecated
		}),
		Routes: delta.Of(want.Routes, have.Routes, func(w, h Route) bool {
			h.Owner, h.Borrowed = w.Owner, w.Borrowed
			return w.Borrowed || w == h
		}),
		Rules:     delta.Of(want.Rules, have.Rules, func(w, h cluster.Owner) bool { return true }),
		Neighbors: delta.Of(want.Neighbors, have.Neighbors, func(w, h Neighbor) bool { return w.MAC == h.MAC }),
		Sysctls: delta.Of(want.Sysctls, have.Sysctls, func(w, h Sysctl) bool {
			return w.Value == h.Value ||
				strings.Join(strings.Fields(w.Value), " ") == strings.Join(strings.Fields(h.Value), " ")
		}),
	}
	d.Links.Delete = nil
	d.Addresses.Add = without(d.Addresses.Add, func(a Address) bool { return a.Borrowed })
	d.Routes.Add = without(d.Routes.Add, func(r Route) bool { return r.Borrowed })
	d.Addresses.Delete = without(d.Addresses.Delete, func(a Address) bool { return a.Borrowed })
	d.Routes.Delete = without(d.Routes.Delete, func(r Route) bool { return r.Borrowed })
	return d
}

// without returns a copy without the entries that drop selects; nil if none is left.
func without[K comparable, V any](m map[K]V, drop func(V) bool) map[K]V {
	var out map[K]V
	for k, v := range m {
		if drop(v) {
			continue
		}
		if out == nil {
			out = map[K]V{}
		}
		out[k] = v
	}
	return out
}

// Empty reports whether there is nothing to do.
func (d Delta) Empty() bool { return d.Count() == 0 }

// Count returns the number of differences.
func (d Delta) Count() int {
	return d.Links.Count() + d.Addresses.Count() + d.Routes.Count() + d.Rules.Count() + d.Neighbors.Count() +
		d.Sysctls.Count()
}

// Grow returns the part that adds and changes.
func (d Delta) Grow() Delta {
	grow, _ := d.split()
	return grow
}

// Shrink returns the part that removes.
func (d Delta) Shrink() Delta {
	_, shrink := d.split()
	return shrink
}

func (d Delta) split() (g, s Delta) {
	g.Links, s.Links = d.Links.Split()
	g.Addresses, s.Addresses = d.Addresses.Split()
	g.Routes, s.Routes = d.Routes.Split()
	g.Rules, s.Rules = d.Rules.Split()
	g.Neighbors, s.Neighbors = d.Neighbors.Split()
	g.Sysctls, s.Sysctls = d.Sysctls.Split()
	return g, s
}

// String returns the difference as commands, one per line: additions first, removals last.
func (d Delta) String() string {
	b := &strings.Builder{}
	b.WriteString(Print(State{
		Links: made(d.Links), Addresses: made(d.Addresses), Routes: made(d.Routes),
		Rules: made(d.Rules), Neighbors: made(d.Neighbors), Sysctls: made(d.Sysctls),
	}))
	for _, k := range delta.Sorted(d.Rules.Delete, Rule.Compare) {
		line(b, ruleText("del", k), false, cluster.Owner{})
	}
	for _, k := range delta.Sorted(d.Routes.Delete, RouteKey.Compare) {
		line(b, routeText("del", d.Routes.Delete[k]), false, cluster.Owner{})
	}
	for _, k := range delta.Sorted(d.Neighbors.Delete, NeighborKey.Compare) {
		line(b, neighborText("del", d.Neighbors.Delete[k]), false, cluster.Owner{})
	}
	for _, k := range delta.Sorted(d.Addresses.Delete, AddressKey.Compare) {
		line(b, addressText("del", d.Addresses.Delete[k]), false, cluster.Owner{})
	}
	for _, k := range delta.Keys(d.Sysctls.Delete) {
		line(b, "# as it was: "+sysctlText(d.Sysctls.Delete[k]), false, cluster.Owner{})
	}
	return b.String()
}

func made[K comparable, V any](d delta.Delta[K, V]) map[K]V {
	return delta.Delta[K, V]{Add: d.Add, Change: d.Change}.ApplyTo(nil)
}

// ApplyTo returns a copy of have with the changes.
func (d Delta) ApplyTo(have State) State {
	return State{
		Links: d.Links.ApplyTo(have.Links), Addresses: d.Addresses.ApplyTo(have.Addresses),
		Routes: d.Routes.ApplyTo(have.Routes),
		Rules:  d.Rules.ApplyTo(have.Rules), Neighbors: d.Neighbors.ApplyTo(have.Neighbors),
		Sysctls: d.Sysctls.ApplyTo(have.Sysctls),
	}
}
