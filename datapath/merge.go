package datapath

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/redirect"
	"hairpin/delta"
)

// Merge merges the States that the features want. Several features may want the same key with the
// same value, whatever the owner is. Another value is a Conflict, and the value of the first State
// wins. Conflicts are sorted.
//
// Merge does not change the States, and the result may share their maps: a State is read-only once
// it was merged. Only the biggest map is copied as a whole, so merging one big State, computed
// earlier, with small ones costs little.
func Merge(list ...State) (State, []Conflict) {
	var c conflicts
	var out State
	for _, p := range parts {
		p.mergeInto(&out, &c, list)
	}
	slices.SortFunc(c.list, func(a, b Conflict) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), a.Kept.Compare(b.Kept), a.Lost.Compare(b.Lost))
	})
	return out, c.list
}

func (p Part[S, D]) mergeInto(out *State, c *conflicts, list []State) { *p.In(out) = p.merge(c, list) }

// Union is Merge for States that have no key in common, or the same value for it.
func Union(list ...State) State {
	s, _ := Merge(list...)
	return s
}

type conflicts struct{ list []Conflict }

// kind has functions that compare the values of a map, and return the owner and the name of a key.
type kind[K comparable, V any] struct {
	same func(a, b V) bool
	why  func(K, V) cluster.Owner
	name func(K) string
}

// merge merges one map of each element of list. If only one is not empty, that map is the result.
func merge[S any, M ~map[K]V, K comparable, V any](c *conflicts, list []S, of func(*S) M, kind *kind[K, V]) M {
	big, filled, most := 0, 0, 0
	for i := range list {
		n := len(of(&list[i]))
		if n > 0 {
			filled++
		}
		if n > most {
			big, most = i, n
		}
	}
	switch {
	case len(list) == 0:
		return nil
	case filled <= 1:
		return of(&list[big])
	}
	before := M{} // of the maps before the big one, whose values take precedence
	for i := range list[:big] {
		addTo(c, before, of(&list[i]), kind, false)
	}
	out := maps.Clone(of(&list[big]))
	addTo(c, out, before, kind, true)
	for i := range list[big+1:] {
		addTo(c, out, of(&list[big+1+i]), kind, false)
	}
	return out
}

// mergeMaps is merge for delta.Maps: the result shares equal parts.
func mergeMaps[S any, K comparable, V any](c *conflicts, list []S, of func(*S) delta.Map[K, V],
	kind *kind[K, V]) delta.Map[K, V] {
	var filled []delta.Map[K, V]
	for i := range list {
		if m := of(&list[i]); !m.Same(delta.Map[K, V]{}) {
			filled = append(filled, m)
		}
	}
	if len(filled) == 1 {
		return filled[0]
	}
	return delta.Combine(func(part func(delta.Map[K, V]) map[K]V) map[K]V {
		return merge(c, filled, func(m *delta.Map[K, V]) map[K]V { return part(*m) }, kind)
	})
}

// addTo adds the entries of m. If a key has another value, the new value wins or loses, by wins.
func addTo[K comparable, V any](c *conflicts, out, m map[K]V, kind *kind[K, V], wins bool) {
	for k, v := range m {
		old, taken := out[k]
		switch {
		case !taken:
			out[k] = v
		case wins:
			out[k] = v
			if !kind.same(v, old) {
				c.list = append(c.list, Conflict{kind.name(k), kind.why(k, v), kind.why(k, old)})
			}
		case !kind.same(old, v):
			c.list = append(c.list, Conflict{kind.name(k), kind.why(k, old), kind.why(k, v)})
		}
	}
}

// The kinds of the maps in a State.
var (
	udpConns = kind[netip.AddrPort, conn.Targets]{
		same: func(a, b conn.Targets) bool { a.Owner = b.Owner; return a.Equal(b) },
		why:  func(_ netip.AddrPort, t conn.Targets) cluster.Owner { return t.Owner },
		name: func(k netip.AddrPort) string { return "connections to " + k.String() },
	}
	egressConns = owned("connections from %s", func(e *conn.Egress) *cluster.Owner { return &e.Owner },
		func(k netip.Addr) []any { return []any{k} })
	wayConns = owned("connections to %s", func(w *conn.Way) *cluster.Owner { return &w.Owner },
		func(k netip.Prefix) []any { return []any{k} })

	rows = kind[nb.Key, nb.Row]{
		same: func(a, b nb.Row) bool { return a == b || nb.SameContent(a, b) },
		why:  func(_ nb.Key, r nb.Row) cluster.Owner { return r.Why() },
		name: nb.Key.String,
	}

	bridges = owned("bridge %s", func(b *flow.Bridge) *cluster.Owner { return &b.Owner },
		func(k string) []any { return []any{k} })
	settings = plain[string, string]("external_ids:%s")
	ports    = kind[string, flow.Port]{
		same: func(a, b flow.Port) bool { a.Owner = b.Owner; return reflect.DeepEqual(a, b) },
		why:  func(_ string, p flow.Port) cluster.Owner { return p.Owner },
		name: func(k string) string { return "port " + k },
	}
	named           = plain[string, bool]("names of tables of bridge %q")
	tunnelNeighbors = plain[netip.Addr, cluster.MAC]("tunnel neighbour %v")
	tunnelRoutes    = plain[netip.Addr, netip.Addr]("tunnel route %v")
	flows           = kind[flow.ID, *flow.Flow]{
		same: (*flow.Flow).Equal,
		why:  func(_ flow.ID, f *flow.Flow) cluster.Owner { return f.Owner },
		name: func(id flow.ID) string { k := id.Value(); return on(k.Bridge) + k.String() },
	}

	bridgeGroups = kind[flow.GroupKey, *flow.Group]{
		same: (*flow.Group).Equal,
		why:  func(_ flow.GroupKey, g *flow.Group) cluster.Owner { return g.Owner },
		name: func(k flow.GroupKey) string { return fmt.Sprintf("%sgroup %d", on(k.Bridge), k.ID) },
	}

	links = owned("link %s", func(l *host.Link) *cluster.Owner { return &l.Owner },
		func(k string) []any { return []any{k} })
	addresses = owned("address %s dev %s", func(a *host.Address) *cluster.Owner { return &a.Owner },
		func(k host.AddressKey) []any { return []any{k.Prefix, k.Link} })
	routes = owned("route %s table %d", func(r *host.Route) *cluster.Owner { return &r.Owner },
		func(k host.RouteKey) []any { return []any{k.Prefix, k.Table} })
	rules = kind[host.Rule, cluster.Owner]{
		same: func(a, b cluster.Owner) bool { return true }, // a rule is its own value
		why:  func(_ host.Rule, o cluster.Owner) cluster.Owner { return o },
		name: func(k host.Rule) string { return fmt.Sprintf("rule %d", k.Priority) },
	}
	neighbors = owned("neigh %s dev %s", func(n *host.Neighbor) *cluster.Owner { return &n.Owner },
		func(k host.NeighborKey) []any { return []any{k.IP, k.Link} })
	sysctls = owned("sysctl %s", func(s *host.Sysctl) *cluster.Owner { return &s.Owner },
		func(k string) []any { return []any{k} })

	programs = owned("program of %s", func(p *redirect.Program) *cluster.Owner { return &p.Owner },
		func(k string) []any { return []any{k} })
	redirects = kind[redirect.Service, redirect.Way]{
		same: func(a, b redirect.Way) bool { return a.Tracked == b.Tracked },
		why:  func(_ redirect.Service, w redirect.Way) cluster.Owner { return w.Owner },
		name: redirect.Service.String,
	}
	chains = kind[string, *nft.Chain]{
		same: func(a, b *nft.Chain) bool { return a == b || reflect.DeepEqual(a, b) },
		why:  func(_ string, ch *nft.Chain) cluster.Owner { return ch.Owner },
		name: func(k string) string { return "chain " + k },
	}
)

// on returns the name of a key's bridge as a prefix, empty for the gateway bridge.
func on(bridge string) string {
	if bridge == "" {
		return ""
	}
	return bridge + " "
}

// plain returns the kind of maps whose values have no owner.
func plain[K, V comparable](format string) kind[K, V] {
	return kind[K, V]{
		same: func(a, b V) bool { return a == b },
		why:  func(K, V) cluster.Owner { return cluster.Owner{} },
		name: func(k K) string { return fmt.Sprintf(format, k) },
	}
}

// owned returns the kind of maps whose values are comparable structs with an owner.
func owned[K, V comparable](format string, owner func(*V) *cluster.Owner, words func(K) []any) kind[K, V] {
	return kind[K, V]{
		same: func(a, b V) bool { *owner(&a) = *owner(&b); return a == b },
		why:  func(_ K, v V) cluster.Owner { return *owner(&v) },
		name: func(k K) string { return fmt.Sprintf(format, words(k)...) },
	}
}

func mergeConn(c *conflicts, list []State) conn.State {
	return conn.State{
		UDP:    merge(c, list, func(s *State) map[netip.AddrPort]conn.Targets { return s.Conn.UDP }, &udpConns),
		Egress: merge(c, list, func(s *State) map[netip.Addr]conn.Egress { return s.Conn.Egress }, &egressConns),
		Ways:   merge(c, list, func(s *State) map[netip.Prefix]conn.Way { return s.Conn.Ways }, &wayConns),
	}
}

func mergeRedirect(c *conflicts, list []State) redirect.State {
	return redirect.State{
		Programs: merge(c, list, func(s *State) map[string]redirect.Program { return s.Redirect.Programs }, &programs),
		Services: merge(c, list, func(s *State) map[redirect.Service]redirect.Way { return s.Redirect.Services },
			&redirects),
	}
}

func mergeNB(c *conflicts, list []State) nb.State {
	return merge(c, list, func(s *State) nb.State { return s.NB }, &rows)
}

func mergeBridge(c *conflicts, list []State) flow.State {
	var out flow.State
	for i := range list {
		s := &list[i].Bridge
		if s.Bridge != "" && out.Bridge != "" && s.Bridge != out.Bridge {
			c.list = append(c.list, Conflict{Key: fmt.Sprintf("bridge %s, not %s", out.Bridge, s.Bridge)})
		}
		out.Bridge, out.TunnelBridge = cmp.Or(out.Bridge, s.Bridge), cmp.Or(out.TunnelBridge, s.TunnelBridge)
		out.Unknown = append(out.Unknown, s.Unknown...)
		out.NoFlows = append(out.NoFlows, s.NoFlows...)
	}
	out.Bridges = merge(c, list, func(s *State) map[string]flow.Bridge { return s.Bridge.Bridges }, &bridges)
	out.Settings = merge(c, list, func(s *State) map[string]string { return s.Bridge.Settings }, &settings)
	out.Ports = merge(c, list, func(s *State) map[string]flow.Port { return s.Bridge.Ports }, &ports)
	out.Named = merge(c, list, func(s *State) map[string]bool { return s.Bridge.Named }, &named)
	out.TunnelNeighbors = merge(c, list, func(s *State) map[netip.Addr]cluster.MAC { return s.Bridge.TunnelNeighbors },
		&tunnelNeighbors)
	out.TunnelRoutes = merge(c, list, func(s *State) map[netip.Addr]netip.Addr { return s.Bridge.TunnelRoutes },
		&tunnelRoutes)
	out.Flows = mergeMaps(c, list, func(s *State) delta.Map[flow.ID, *flow.Flow] { return s.Bridge.Flows }, &flows)
	out.Groups = mergeMaps(c, list, func(s *State) delta.Map[flow.GroupKey, *flow.Group] { return s.Bridge.Groups },
		&bridgeGroups)
	return out
}

func mergeHost(c *conflicts, list []State) host.State {
	return host.State{
		Links: merge(c, list, func(s *State) map[string]host.Link { return s.Host.Links }, &links),
		Addresses: merge(c, list, func(s *State) map[host.AddressKey]host.Address { return s.Host.Addresses },
			&addresses),
		Routes: merge(c, list, func(s *State) map[host.RouteKey]host.Route { return s.Host.Routes }, &routes),
		Rules:  merge(c, list, func(s *State) map[host.Rule]cluster.Owner { return s.Host.Rules }, &rules),
		Neighbors: merge(c, list, func(s *State) map[host.NeighborKey]host.Neighbor { return s.Host.Neighbors },
			&neighbors),
		Sysctls: merge(c, list, func(s *State) map[string]host.Sysctl { return s.Host.Sysctls }, &sysctls),
	}
}
