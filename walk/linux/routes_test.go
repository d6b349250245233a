package linux

import (
	"net/netip"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/walk/packet"
)

var addr, prefix = netip.MustParseAddr, netip.MustParsePrefix

// The machine's own policy routing rules apply by priority, and have a step. A rule that is not
// understood has a step but is skipped.
func TestHostRules(t *testing.T) {
	route := func(table int, link string) host.Route {
		return host.Route{RouteKey: host.RouteKey{Table: table, Prefix: prefix("0.0.0.0/0")}, Link: link}
	}
	own := func(r cluster.HostRule, links ...string) cluster.HostRule {
		for _, l := range links {
			r.Routes = append(r.Routes, cluster.TableRoute{To: prefix("0.0.0.0/0"), Dev: l})
		}
		return r
	}
	for _, c := range []struct {
		name string
		rule cluster.HostRule
		out  string
		told string
	}{
		{"by a link", own(cluster.HostRule{Priority: 100, In: "br-ex", Table: 100}, "vpn"), "vpn",
			"100: from all iif br-ex lookup 100"},
		{"by another link", own(cluster.HostRule{Priority: 100, In: "eth7", Table: 100}, "vpn"), "eth0", ""},
		{"from and to", own(cluster.HostRule{Priority: 100, From: prefix("10.0.0.0/8"), To: prefix("192.0.2.0/24"),
			Table: 100}, "vpn"), "vpn", "100: from 10.0.0.0/8 to 192.0.2.0/24 lookup 100"},
		{"a mark that it has not", own(cluster.HostRule{Priority: 100, Mark: 4, Mask: 4, Table: 100}, "vpn"), "eth0",
			""},
		{"all but a mark", own(cluster.HostRule{Priority: 100, Not: true, Mark: 4, Mask: 4, Table: 100}, "vpn"), "vpn",
			"100: not from all fwmark 0x4/0x4 lookup 100"},
		{"a table without a way", own(cluster.HostRule{Priority: 100, Table: 100}), "eth0", ""},
		{"no default route", cluster.HostRule{Priority: 100, Table: mainTable, Length: 1}, "eth0", ""},
		{"after ours", own(cluster.HostRule{Priority: 7000, Table: 100}, "vpn"), "egress", ""},
		{"after the main table", own(cluster.HostRule{Priority: 32800, Table: 100}, "vpn"), "eth0", ""},
		{"refused", cluster.HostRule{Priority: 100, Refuse: true}, "",
			"100: from all unreachable, blackhole or prohibit"},
		{"not understood", own(cluster.HostRule{Priority: 100, More: true, Table: 100}, "vpn"), "eth0",
			"100: from all …"},
		{"the other family", own(cluster.HostRule{Priority: 100, IPv6: true, Table: 100}, "vpn"), "eth0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := host.State{Routes: map[host.RouteKey]host.Route{}, Rules: map[host.Rule]cluster.Owner{}}
			for _, r := range []host.Route{route(mainTable, "eth0"), route(85003, "egress")} {
				s.Routes[r.RouteKey] = r
			}
			if c.out == "egress" {
				s.Rules[host.Rule{Family: cluster.IPv4, Priority: 6000, From: prefix("10.244.1.3/32"),
					Table: 85003}] = cluster.Owner{}
			}
			k := newRouting(&s, &cluster.Node{Rules: []cluster.HostRule{c.rule}})
			found, rules := k.lookup(&packet.Packet{Src: addr("10.244.1.3"), Dst: addr("192.0.2.9")}, "br-ex")
			if found == nil {
				found = &kernelRoute{}
			}
			told := ""
			for _, r := range rules {
				if r.hostRule != nil {
					told += r.hostRule.String()
				}
			}
			if found.Link != c.out || told != c.told {
				t.Errorf("out of %q by %q, want %q by %q", found.Link, told, c.out, c.told)
			}
		})
	}
}
