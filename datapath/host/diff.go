package host

import (
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/statemap"
	"hairpin/delta"
)

// Delta is the difference between the wanted and the found network.
//
// Links are never deleted: other parts create and remove them. Deleting a sysctl restores the value
// that apply recorded before it first changed the sysctl.
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
	d := statemap.Diff(Maps, &want, &have)
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
func (d Delta) Count() int { return statemap.Count(Maps, &d) }

// Grow returns the part that adds and changes.
func (d Delta) Grow() Delta { return statemap.Grow(Maps, &d) }

// Shrink returns the part that removes.
func (d Delta) Shrink() Delta { return statemap.Shrink(Maps, &d) }

// String returns the difference as commands, one per line: additions first, removals last.
func (d Delta) String() string {
	b := &strings.Builder{}
	b.WriteString(Print(State{
		Links: addedOrChanged(d.Links), Addresses: addedOrChanged(d.Addresses), Routes: addedOrChanged(d.Routes),
		Rules: addedOrChanged(d.Rules), Neighbors: addedOrChanged(d.Neighbors), Sysctls: addedOrChanged(d.Sysctls),
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
		line(b, "# undo: "+sysctlText(d.Sysctls.Delete[k]), false, cluster.Owner{})
	}
	return b.String()
}

// addedOrChanged returns the wanted values that the difference adds or changes.
func addedOrChanged[K comparable, V any](d delta.Delta[K, V]) map[K]V {
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
