package datapath

import (
	"cmp"
	"fmt"
	"slices"

	"hairpin/datapath/ovs"
	"hairpin/datapath/statemap"
)

// Merge merges the States that the features want. Several features may want the same key with the
// same value, whatever the owner is. Another value is a Conflict, and the value of the first State
// wins. Conflicts are sorted.
//
// Merge does not change the States, and the result may share their maps: a State is read-only once
// it was merged. Only the biggest map is copied as a whole, so merging one big State, computed
// earlier, with small ones costs little.
func Merge(list ...State) (State, []Conflict) {
	var c statemap.Conflicts
	var out State
	for _, p := range parts {
		p.mergeInto(&out, &c, list)
	}
	slices.SortFunc(c.List, func(a, b Conflict) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), a.Kept.Compare(b.Kept), a.Lost.Compare(b.Lost))
	})
	return out, c.List
}

func (p Part[S, D]) mergeInto(out *State, c *statemap.Conflicts, list []State) {
	all := make([]*S, len(list))
	for i := range list {
		all[i] = p.In(&list[i])
	}
	for _, m := range p.maps {
		m.Merge(c, p.In(out), all)
	}
	if p.merge != nil {
		p.merge(c, p.In(out), all)
	}
}

// Union is Merge for States that have no key in common, or the same value for it.
func Union(list ...State) State {
	s, _ := Merge(list...)
	return s
}

// Replace returns a copy of a State without the keys of gone and with those of come. It returns
// false if a key of gone is missing or a key of come exists: then the State is not the expected
// union.
//
// What depends on the planned node alone stays: the gateway bridge, and which nft maps and sets
// there are.
func Replace(s, gone, come State) (State, bool) {
	ok := true
	for _, p := range parts {
		ok = p.replaceIn(&s, &gone, &come) && ok
	}
	return s, ok
}

func (p Part[S, D]) replaceIn(s, gone, come *State) bool {
	ok := true
	for _, m := range p.maps {
		ok = m.Replace(p.In(s), p.In(gone), p.In(come)) && ok
	}
	return (p.replace == nil || p.replace(p.In(s), p.In(gone), p.In(come))) && ok
}

// mergeBridge merges the fields that are not maps.
func mergeBridge(c *statemap.Conflicts, out *ovs.State, list []*ovs.State) {
	for _, s := range list {
		if s.Bridge != "" && out.Bridge != "" && s.Bridge != out.Bridge {
			c.List = append(c.List, Conflict{Key: fmt.Sprintf("bridge %s, not %s", out.Bridge, s.Bridge)})
		}
		out.Bridge, out.TunnelBridge = cmp.Or(out.Bridge, s.Bridge), cmp.Or(out.TunnelBridge, s.TunnelBridge)
		out.Unknown = append(out.Unknown, s.Unknown...)
		out.NoFlows = append(out.NoFlows, s.NoFlows...)
	}
}

// replaceBridge replaces TunnelBridge: what is replaced may be the only part that sets it.
func replaceBridge(s, gone, come *ovs.State) bool {
	if gone.TunnelBridge != come.TunnelBridge {
		s.TunnelBridge = come.TunnelBridge
	}
	return true
}
