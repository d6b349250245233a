package ovs

import (
	"fmt"
	"net/netip"
	"reflect"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/statemap"
	"hairpin/delta"
)

// Maps describes the maps of a State. Fits reports whether a found value needs no change, where
// that is not the same as equality.
var Maps = []statemap.Map[State, Delta]{
	&statemap.Plain[State, Delta, string, Bridge]{
		In:      func(s *State) *map[string]Bridge { return &s.Bridges },
		InDelta: func(d *Delta) *delta.Delta[string, Bridge] { return &d.Bridges },
		Values: statemap.Values[string, Bridge]{
			Same:  func(a, b Bridge) bool { a.Owner = b.Owner; return a == b },
			Fits:  sameBridge,
			Owner: func(b Bridge) cluster.Owner { return b.Owner },
			Name:  func(k string) string { return "bridge " + k },
		}},
	&statemap.Plain[State, Delta, string, string]{
		In:      func(s *State) *map[string]string { return &s.Settings },
		InDelta: func(d *Delta) *delta.Delta[string, string] { return &d.Settings },
		Values:  unowned[string, string]("external_ids:%s")},
	&statemap.Plain[State, Delta, string, Port]{
		In:      func(s *State) *map[string]Port { return &s.Ports },
		InDelta: func(d *Delta) *delta.Delta[string, Port] { return &d.Ports },
		Values: statemap.Values[string, Port]{
			Same:  func(a, b Port) bool { a.Owner = b.Owner; return reflect.DeepEqual(a, b) },
			Fits:  samePort,
			Owner: func(p Port) cluster.Owner { return p.Owner },
			Name:  func(k string) string { return "port " + k },
		}},
	&statemap.Plain[State, Delta, string, bool]{
		In:      func(s *State) *map[string]bool { return &s.Named },
		InDelta: func(d *Delta) *delta.Delta[string, bool] { return &d.Named },
		Values:  unowned[string, bool]("names of tables of bridge %q")},
	&statemap.Plain[State, Delta, netip.Addr, cluster.MAC]{
		In:      func(s *State) *map[netip.Addr]cluster.MAC { return &s.TunnelNeighbors },
		InDelta: func(d *Delta) *delta.Delta[netip.Addr, cluster.MAC] { return &d.TunnelNeighbors },
		Values:  unowned[netip.Addr, cluster.MAC]("tunnel neighbour %v")},
	&statemap.Plain[State, Delta, netip.Addr, netip.Addr]{
		In:      func(s *State) *map[netip.Addr]netip.Addr { return &s.TunnelRoutes },
		InDelta: func(d *Delta) *delta.Delta[netip.Addr, netip.Addr] { return &d.TunnelRoutes },
		Values:  unowned[netip.Addr, netip.Addr]("tunnel route %v")},
	&statemap.Shared[State, Delta, flow.ID, *flow.Flow]{
		In:      func(s *State) *delta.Map[flow.ID, *flow.Flow] { return &s.Flows },
		InDelta: func(d *Delta) *delta.Delta[flow.ID, *flow.Flow] { return &d.Flows },
		Values: statemap.Values[flow.ID, *flow.Flow]{
			Same:  (*flow.Flow).Equal,
			Owner: func(f *flow.Flow) cluster.Owner { return f.Owner },
			Name:  func(id flow.ID) string { k := id.Value(); return bridgePrefix(k.Bridge) + k.String() },
		}},
	&statemap.Shared[State, Delta, flow.GroupKey, *flow.Group]{
		In:      func(s *State) *delta.Map[flow.GroupKey, *flow.Group] { return &s.Groups },
		InDelta: func(d *Delta) *delta.Delta[flow.GroupKey, *flow.Group] { return &d.Groups },
		Values: statemap.Values[flow.GroupKey, *flow.Group]{
			Same:  (*flow.Group).Equal,
			Owner: func(g *flow.Group) cluster.Owner { return g.Owner },
			Name:  func(k flow.GroupKey) string { return fmt.Sprintf("%sgroup %d", bridgePrefix(k.Bridge), k.ID) },
		}},
}

// unowned describes values without an owner.
func unowned[K, V comparable](format string) statemap.Values[K, V] {
	return statemap.Values[K, V]{
		Same: func(a, b V) bool { return a == b },
		Name: func(k K) string { return fmt.Sprintf(format, k) },
	}
}

// bridgePrefix returns the name of a key's bridge as a prefix, empty for the gateway bridge.
func bridgePrefix(bridge string) string {
	if bridge == "" {
		return ""
	}
	return bridge + " "
}
