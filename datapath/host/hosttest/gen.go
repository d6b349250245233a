// Package hosttest draws random host states, for property tests here and against the real kernel.
package hosttest

import (
	"fmt"
	"net/netip"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath/host"
)

// Links of the drawn states: Own belongs to Hairpin, Shared also has values of other programs.
const (
	Own    = "ovn-k8s-mp0"
	Shared = "br-ex"
)

// Masquerade returns our ranges on Shared, of both families.
func Masquerade() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("169.254.169.0/29"), netip.MustParsePrefix("fd69::/125")}
}

// States draws states that the kernel accepts: next hops are on the subnets of existing addresses.
func States() *rapid.Generator[host.State] {
	return rapid.Custom(func(t *rapid.T) host.State {
		s := host.State{
			Links: map[string]host.Link{}, Addresses: map[host.AddressKey]host.Address{},
			Routes: map[host.RouteKey]host.Route{},
			Rules:  map[host.Rule]cluster.Owner{}, Neighbors: map[host.NeighborKey]host.Neighbor{},
			Sysctls: map[string]host.Sysctl{},
		}
		g := gen{t, &s, cluster.Owner{Kind: "Node", Name: "node-a"}}
		g.links()
		for _, f := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
			g.addresses(f)
			for range g.n("rules", 3) {
				g.rule(f)
			}
		}
		for i := range g.n("sysctls", 2) {
			path := []string{"net/ipv4/conf/" + Own + "/rp_filter", "net/ipv4/conf/" + Shared + "/send_redirects"}[i]
			s.Sysctls[path] = host.Sysctl{Path: path, Value: fmt.Sprint(g.n("value", 1)), Owner: g.owner}
		}
		return s
	})
}

type gen struct {
	t     *rapid.T
	s     *host.State
	owner cluster.Owner
}

func (g gen) n(label string, most int) int { return rapid.IntRange(0, most).Draw(g.t, label) }

func (g gen) bool(label string) bool { return rapid.Bool().Draw(g.t, label) }

func (g gen) links() {
	own := host.Link{Name: Own, Owner: g.owner}
	if g.bool("mac") {
		own.MAC = g.mac()
	}
	if g.bool("mtu") {
		own.MTU = 1400 + g.n("mtu", 50)
		own.Checksums = own.MTU%2 == 0
	}
	g.s.Links[Own] = own
	g.s.Links[Shared] = host.Link{Name: Shared, Owner: g.owner}
}

func (g gen) mac() cluster.MAC { return cluster.MAC{0x0a, 0x58, 5: byte(1 + g.n("mac byte", 200))} }

// addresses draws a management and a masquerade address, and routes and neighbours on their
// subnets.
func (g gen) addresses(f cluster.Family) {
	p := netip.MustParsePrefix
	management, masquerade, pods, services := p("10.244.1.2/24"), p("169.254.169.2/29"), p("10.244.0.0/16"),
		p("10.96.0.0/16")
	if f == cluster.IPv6 {
		management, masquerade, pods, services = p("fd00:10:244:1::2/64"), p("fd69::2/125"), p("fd00:10:244::/48"),
			p("fd00:10:96::/112")
	}
	// The kernel removes a link's neighbours with its last address: there are none without one.
	if g.bool("management") {
		g.address(Own, management, false)
		for range g.n("pods", 2) {
			g.route(Own, management, pods)
			g.neighbor(Own, management)
		}
	}
	if g.bool("masquerade") {
		g.address(Shared, masquerade, g.bool("deprecated"))
		for range g.n("services", 3) {
			g.route(Shared, masquerade, services)
			g.neighbor(Shared, masquerade)
		}
		// Egress addresses, on a link and in a range that are not ours. IPv6 removes them with the
		// link's last other one.
		for i := range g.n("egress", 2) {
			a := p("10.10.10.100/32")
			if f == cluster.IPv6 {
				a = p("fd10::64/128")
			}
			for range i {
				a = netip.PrefixFrom(a.Addr().Next(), a.Bits())
			}
			g.address(Shared, a, f == cluster.IPv6)
		}
	}
}

func (g gen) neighbor(link string, subnet netip.Prefix) {
	k := host.NeighborKey{Link: link, IP: nth(subnet, 3+g.n("neighbor", 3))}
	g.s.Neighbors[k] = host.Neighbor{NeighborKey: k, MAC: g.mac(), Owner: g.owner}
}

func (g gen) address(link string, p netip.Prefix, deprecated bool) {
	k := host.AddressKey{Link: link, Prefix: p}
	g.s.Addresses[k] = host.Address{AddressKey: k, Deprecated: deprecated, Owner: g.owner}
}

func (g gen) route(link string, subnet, to netip.Prefix) {
	table := []int{254, 1000, 100000}[g.n("table", 2)]
	b := to.Addr().AsSlice()
	bits := to.Bits() + 8*g.n("longer", 1)
	if bits > to.Bits() {
		b[to.Bits()/8] = byte(2 + g.n("subnet", 3)) // not the subnet of an address
	}
	a, _ := netip.AddrFromSlice(b)
	r := host.Route{RouteKey: host.RouteKey{Table: table, Prefix: netip.PrefixFrom(a, bits).Masked()}, Link: link,
		Owner: g.owner}
	if g.bool("via") {
		r.Via = nth(subnet, 3+g.n("next hop", 2))
	}
	if g.bool("src") {
		r.Src = subnet.Addr()
	}
	if g.bool("route mtu") {
		r.MTU = 1280 + g.n("mtu", 120)
	}
	if g.bool("route MSS") {
		r.AdvMSS = 1000 + g.n("mss", 120)
	}
	g.s.Routes[r.RouteKey] = r
}

// rule draws a rule. Rules of one priority have the same conditions with other values, as in plan:
// the kernel does not add a rule without a condition beside one that has it, as it ignores missing
// conditions when it looks for an equal rule.
func (g gen) rule(f cluster.Family) {
	r := host.Rule{Family: f, Priority: 5990 + g.n("priority", 19), Table: []int{254, 1000}[g.n("table", 1)]}
	if r.Priority%2 == 0 {
		r.From = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(g.n("from", 2))}), 32)
		if f == cluster.IPv6 {
			r.From = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 15: byte(g.n("from", 2))}), 128)
		}
	}
	if r.Priority%4 > 1 {
		r.Mark = 0x3f0
		if r.Priority%8 > 5 {
			r.Mask = 0xff0
		}
	}
	g.s.Rules[r] = g.owner
}

func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	b[len(b)-1] += byte(n)
	a, _ := netip.AddrFromSlice(b)
	return a
}
