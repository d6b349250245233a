package linux

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/walk/packet"
)

// mainTable is the number of the kernel's table "main".
const mainTable = 254

// routing is a host's addresses and routes, indexed for lookup.
type routing struct {
	local  map[netip.Addr]bool
	addrs  []host.Address
	rules  []policyRule // by priority, with the one for the main table; "lookup local" before them is implied
	tables map[int][]fibLevel
}

// fibLevel holds the routes of one table with one prefix length.
type fibLevel struct {
	family cluster.Family
	length int
	routes map[netip.Prefix]*kernelRoute
}

// kernelRoute is a route of the State, or one that the kernel creates for an address.
type kernelRoute struct {
	host.Route
	connected bool
	// alternatives holds the machine's routes to the same prefix by other links. Metrics or hashes
	// decide between them, and these are not known.
	alternatives []host.Route
}

func newRouting(s *host.State, info *cluster.Node) routing {
	k := routing{local: map[netip.Addr]bool{}, tables: map[int][]fibLevel{}}
	for _, a := range s.Addresses {
		k.addrs = append(k.addrs, a)
	}
	if info != nil {
		for _, p := range info.Gateway.Addresses {
			if !slices.ContainsFunc(k.addrs, func(a host.Address) bool { return a.Prefix.Addr() == p.Addr() }) {
				key := host.AddressKey{Link: info.Gateway.Bridge, Prefix: p}
				k.addrs = append(k.addrs, host.Address{AddressKey: key, Borrowed: true})
			}
		}
		for _, p := range info.HostAddresses {
			k.local[p.Addr()] = true
		}
		k.addTables(info.Tables)
		k.addDevice(info)
		k.addLinks(info)
		for _, a := range info.Addresses {
			k.local[a] = true
		}
	}
	slices.SortFunc(k.addrs, compareAddresses)
	for _, r := range s.Routes {
		k.add(&kernelRoute{Route: r})
	}
	for _, a := range k.addrs {
		k.local[a.Prefix.Addr()] = true
		if !a.Prefix.IsSingleIP() {
			key := host.RouteKey{Table: mainTable, Prefix: a.Prefix.Masked()}
			k.add(&kernelRoute{Route: host.Route{RouteKey: key, Link: a.Link, Src: a.Prefix.Addr(),
				Borrowed: a.Borrowed, Owner: a.Owner}, connected: true})
		}
	}
	for _, t := range k.tables {
		slices.SortFunc(t, func(a, b fibLevel) int { return cmp.Compare(b.length, a.length) })
	}
	for r := range s.Rules {
		k.rules = append(k.rules, policyRule{Rule: r})
	}
	if info != nil {
		k.addRules(info.Rules)
	}
	for _, f := range [...]cluster.Family{cluster.IPv4, cluster.IPv6} {
		k.rules = append(k.rules, policyRule{Rule: host.Rule{Family: f, Priority: mainRule, Table: mainTable}})
	}
	slices.SortStableFunc(k.rules, func(a, b policyRule) int { return cmp.Compare(a.Priority, b.Priority) })
	return k
}

// addDevice adds the host's own uplink, if that is no port of the gateway bridge: it belongs to the
// machine and is not part of a State.
func (k *routing) addDevice(n *cluster.Node) {
	device := n.Gateway.Device
	if device == "" {
		return
	}
	for _, p := range n.HostAddresses {
		if n.Links == nil && !p.IsSingleIP() { // other addresses are on links that are not known
			k.addrs = append(k.addrs, host.Address{AddressKey: host.AddressKey{Link: device, Prefix: p},
				Borrowed: true})
		}
	}
	for _, a := range n.Gateway.NextHops {
		any := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if a.Is6() {
			any = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		k.add(&kernelRoute{Route: host.Route{RouteKey: host.RouteKey{Table: mainTable, Prefix: any}, Link: device,
			Via: a, Borrowed: true}})
	}
}

// addLinks adds addresses and routes of the host's links to other networks. Routes of a VRF go to
// the VRF's table.
func (k *routing) addLinks(n *cluster.Node) {
	for i := range n.Links {
		l := &n.Links[i]
		for _, r := range l.Routes {
			key := host.RouteKey{Table: cmp.Or(l.Table, mainTable), Prefix: r.Prefix}
			x := host.Route{RouteKey: key, Link: l.Name, Via: r.Via, Borrowed: true}
			if first := k.routeTo(key); first != nil && first.Link != x.Link {
				first.alternatives = append(first.alternatives, x)
			} else {
				k.add(&kernelRoute{Route: x})
			}
		}
		for _, p := range l.Addresses {
			if l.Table == 0 {
				k.addrs = append(k.addrs,
					host.Address{AddressKey: host.AddressKey{Link: l.Name, Prefix: p}, Borrowed: true})
				continue
			}
			k.local[p.Addr()] = true
			key := host.RouteKey{Table: l.Table, Prefix: p.Masked()}
			k.add(&kernelRoute{Route: host.Route{RouteKey: key, Link: l.Name, Src: p.Addr(), Borrowed: true},
				connected: true})
		}
	}
}

// addTables adds the machine's own route tables that EgressServices reference.
func (k *routing) addTables(list []cluster.RouteTable) {
	for _, t := range list {
		for _, x := range t.Routes {
			k.add(&kernelRoute{Route: host.Route{RouteKey: host.RouteKey{Table: t.Number, Prefix: x.To}, Link: x.Dev,
				Via: x.Via, Borrowed: true}})
		}
	}
}

// compareAddresses sorts the machine's own addresses before ours, and deprecated ones last.
func compareAddresses(a, b host.Address) int {
	rank := func(a host.Address) int {
		switch {
		case a.Deprecated:
			return 2
		case a.Borrowed:
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Link, b.Link), a.Prefix.Compare(b.Prefix))
}

func (k *routing) add(r *kernelRoute) {
	table := r.Table
	if table == 0 {
		table = mainTable
	}
	family := cluster.FamilyOf(r.Prefix.Addr())
	levels := k.tables[table]
	i := slices.IndexFunc(levels, func(l fibLevel) bool { return l.family == family && l.length == r.Prefix.Bits() })
	if i < 0 {
		i = len(levels)
		levels = append(levels, fibLevel{family, r.Prefix.Bits(), map[netip.Prefix]*kernelRoute{}})
		k.tables[table] = levels
	}
	// Of a route of the State and the kernel's own for an address, the first one is kept.
	if old := levels[i].routes[r.Prefix.Masked()]; old == nil || old.connected == r.connected {
		levels[i].routes[r.Prefix.Masked()] = r
	}
}

// IsLocal reports whether an address belongs to the host.
func (k *routing) IsLocal(a netip.Addr) bool { return a.IsLoopback() || k.local[a] }

// policyRule is a policy routing rule: ours, or the machine's own.
type policyRule struct {
	host.Rule
	hostRule *cluster.HostRule // the machine's own rule, nil for ours
}

// mainRule is the priority of the rule for the main table.
const mainRule = 32766

// addRules adds the machine's own rules, and the routes of their tables.
func (k *routing) addRules(list []cluster.HostRule) {
	for i := range list {
		r := &list[i]
		f := cluster.IPv4
		if r.IPv6 {
			f = cluster.IPv6
		}
		k.rules = append(k.rules, policyRule{host.Rule{Family: f, Priority: r.Priority, Table: r.Table}, r})
		for _, x := range r.Routes {
			k.add(&kernelRoute{Route: host.Route{RouteKey: host.RouteKey{Table: r.Table, Prefix: x.To}, Link: x.Dev,
				Via: x.Via, Borrowed: true}})
		}
	}
}

// lookup returns the route of a packet, or nil. in is the ingress link, "lo" for the host's own
// packets. rules are those to show: the one that decides, unless it is the usual one for the main
// table, and before it those with conditions that are not known here (More).
func (k *routing) lookup(p *packet.Packet, in string) (route *kernelRoute, rules []policyRule) {
	for _, r := range k.rules {
		if r.Family != cluster.FamilyOf(p.Dst) || r.From.IsValid() && !r.From.Contains(p.Src) || !r.HasMark(p.Mark) {
			continue
		}
		if r.hostRule != nil && !r.hostRule.Matches(p.Src, p.Dst, p.Mark, in) && !r.hostRule.More {
			continue
		}
		switch {
		case r.hostRule != nil && r.hostRule.More:
			rules = append(rules, r)
			continue
		case r.hostRule != nil && r.hostRule.Refuse:
			return nil, append(rules, r)
		}
		found := k.lookupTable(r.Table, p.Dst)
		if found == nil || r.hostRule != nil && found.Prefix.Bits() < r.hostRule.Length {
			continue
		}
		if r.Priority != mainRule || r.hostRule != nil {
			rules = append(rules, r)
		}
		return found, rules
	}
	return nil, rules
}

// routeTo returns a table's route with exactly that prefix, or nil.
func (k *routing) routeTo(key host.RouteKey) *kernelRoute {
	for _, l := range k.tables[key.Table] {
		if r := l.routes[key.Prefix]; r != nil {
			return r
		}
	}
	return nil
}

func (k *routing) lookupTable(table int, dst netip.Addr) *kernelRoute {
	family := cluster.FamilyOf(dst)
	for _, l := range k.tables[table] {
		if l.family != family {
			continue
		}
		p, _ := dst.Prefix(l.length)
		if r := l.routes[p]; r != nil {
			return r
		}
	}
	return nil
}

// source returns the source address for packets by a route.
func (k *routing) source(r *kernelRoute, dst netip.Addr) netip.Addr {
	if r.Src.IsValid() {
		return r.Src
	}
	return k.SelectAddress(r.Link, r.hop(dst), dst)
}

// String returns the route in the format of `ip route show`.
func (r *kernelRoute) String() string {
	if !r.connected {
		return r.Route.String()
	}
	plain := r.Route
	plain.Borrowed = true // has no protocol number of ours
	return plain.String() + " proto kernel scope link"
}

// hop returns the next hop of a route.
func (r *kernelRoute) hop(dst netip.Addr) netip.Addr {
	if r.Via.IsValid() {
		return r.Via
	}
	return dst
}

// SelectAddress implements the kernel's choice among a link's addresses. IPv4 (inet_select_addr):
// an address whose network contains the next hop, else the first, deprecated or not. IPv6 (RFC
// 6724): an address that is not deprecated, with the longest prefix in common with the destination.
func (k *routing) SelectAddress(link string, hop, dst netip.Addr) netip.Addr {
	var best netip.Addr
	score := -1
	for _, a := range k.addrs {
		own := a.Prefix.Addr()
		if a.Link != link || cluster.FamilyOf(own) != cluster.FamilyOf(dst) {
			continue
		}
		s := 0
		switch {
		case own.Is4() && a.Prefix.Contains(hop):
			s = 1
		case own.Is6():
			s = commonBits(own, dst)
			if !a.Deprecated {
				s += 1000
			}
		}
		if s > score {
			best, score = own, s
		}
	}
	return best
}

func commonBits(a, b netip.Addr) int {
	x, y := a.As16(), b.As16()
	for i := range x {
		if d := x[i] ^ y[i]; d != 0 {
			return 8*i + bits.LeadingZeros8(d)
		}
	}
	return 128
}

// Uplink returns the uplink of a host whose gateway bridge has none: the configured one, else the
// link of the default route.
func (h *Host) Uplink() string {
	if h.info != nil && h.info.Gateway.Device != "" {
		return h.info.Gateway.Device
	}
	for _, any := range [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if r := h.lookupTable(mainTable, any); r != nil && r.Prefix.Bits() == 0 {
			return r.Link
		}
	}
	return "wire"
}
