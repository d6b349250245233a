package egress

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/plan/node"
)

// An EgressService with spec.network leaves by a VRF or a route table of the host. OVN hands the
// packet to the host by the management port, as with an address on another link. A rule by the
// pod's address selects the table. nft translates to the load balancer's address, or, with
// sourceIPBy Network, to that of the link by which the packet leaves. Another rule, by the
// ClusterIPs, selects the table for replies to clients that the host translated to a ClusterIP.

// tableOf returns the table of the planned node by which the pods of an EgressIP leave, or nil if
// the host has none.
func tableOf(e *node.Env, x *cluster.EgressIP) *cluster.RouteTable {
	if !x.ByTable() {
		return nil
	}
	return e.Node.Table(x.Service.Table)
}

// leaveByTable routes this node's pods of an EgressService to the host, where there is no egress
// address. Without the table their packets are dropped: they must not leave by another one.
func leaveByTable(e *node.Env, rows nb.State, s *node.Stack, x *cluster.EgressIP, local []netip.Prefix) []hostEgress {
	t := tableOf(e, x)
	if t == nil {
		reroute(e, rows, s, x, local, nil)
		return nil
	}
	reroute(e, rows, s, x, local, []netip.Addr{s.Management.Addr()})
	return []hostEgress{{link: &cluster.HostLink{Table: t.Number}, table: t, service: x.Service, pods: local}}
}

// useTable adds what the host needs for pods that leave by a table: forwarding on its links, the
// rules by ClusterIP, and the route for replies. It returns the source address with which pods
// leave by each link of the table.
func useTable(k *node.Kernel, owner cluster.Owner, h hostEgress) map[string]netip.Addr {
	n, f := k.Env.Node, cluster.FamilyOf(h.pods[0].Addr())
	s := k.Env.Stack(f)
	sources := map[string]netip.Addr{}
	for _, link := range h.table.Links {
		own := []netip.Prefix{s.Address}
		if i := slices.IndexFunc(n.Links, func(l cluster.HostLink) bool { return l.Name == link }); i >= 0 {
			own = n.Links[i].Addresses
			k.Sysctl(fmt.Sprintf("net/ipv4/conf/%s/forwarding", link), "1")
		} else if link != n.Gateway.Bridge {
			continue
		}
		if h.address.IsValid() {
			sources[link] = h.address
			continue
		}
		i := slices.IndexFunc(own, func(p netip.Prefix) bool { return cluster.FamilyOf(p.Addr()) == f })
		if i >= 0 {
			sources[link] = own[i].Addr()
		}
	}
	if f == cluster.IPv4 {
		validMarks(k)
	}
	for _, a := range h.service.ClusterIPs {
		if cluster.FamilyOf(a) == f {
			rule(k, owner, node.HostPrefix(a), h.table.Number)
		}
	}
	if h.table.VRF { // replies come into the VRF
		for _, c := range s.Cluster {
			key := host.RouteKey{Table: h.table.Number, Prefix: c}
			k.Route(host.Route{RouteKey: key, Link: claims.ManagementPort, Via: s.Router.Addr()})
		}
	}
	return sources
}

// rule adds a rule that selects a table by source address.
func rule(k *node.Kernel, owner cluster.Owner, from netip.Prefix, table int) {
	f := cluster.FamilyOf(from.Addr())
	k.State.Rules[host.Rule{Family: f, Priority: claims.RuleEgress, From: from, Table: table}] = owner
}
