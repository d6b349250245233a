package walk_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/walk"
	"hairpin/walk/packet"
)

// drawEgress gives hosts more links, and pods egress addresses. These are in the gateway bridge's
// network and in others, on nodes with such a network and sometimes on one without.
func drawEgress(t *rapid.T, s *cluster.Snapshot) {
	if !rapid.Bool().Draw(t, "egress") {
		return
	}
	s.Namespaces = []*cluster.Namespace{{Name: "default"}}
	for _, n := range s.Nodes {
		if n.Links == nil {
			n.Links = []cluster.HostLink{}
			if n.Gateway.Mode == cluster.ModeDetached {
				n.Links = append(n.Links,
					cluster.HostLink{Name: n.Gateway.Device, Index: 2, MAC: n.Gateway.DeviceMAC,
						Addresses: []netip.Prefix{
							netip.PrefixFrom(n.Addresses[0], 16), netip.PrefixFrom(n.Addresses[1], 64)}})
			}
		}
		if l := n.Links[:min(1, len(n.Links))]; len(l) == 1 && l[0].Name == "eth1" {
			l[0].Routes = []cluster.HostRoute{{Prefix: prefix("192.0.2.0/24"), Via: addr("10.10.10.1")}}
		}
	}
	for _, p := range s.Pods {
		p.Labels = map[string]string{"team": rapid.SampledFrom([]string{"red", "blue"}).Draw(t, "team")}
	}
	for i, team := range []string{"red", "blue"} {
		e := &cluster.EgressIP{Owner: cluster.Owner{Kind: "EgressIP", Name: team}, Created: time.Unix(int64(i), 0)}
		e.Pods.Requirements = []cluster.Requirement{{Key: "team", Operator: "In", Values: []string{team}}}
		for _, a := range []netip.Addr{addr("172.18.0.%d", 33+i), addr("10.10.10.%d", 33+i),
			addr("fc00:f853:ccd::%x", 33+i), addr("fd10::%x", 33+i)} {
			e.Addresses = append(e.Addresses, a)
			on := s.Nodes[rapid.IntRange(0, len(s.Nodes)-1).Draw(t, "on")]
			taken := slices.ContainsFunc(e.Assigned,
				func(x cluster.Assignment) bool { return x.Node == on.Name && x.Address.Is4() == a.Is4() })
			if rapid.IntRange(0, 3).Draw(t, "assigned") > 0 && !taken {
				e.Assigned = append(e.Assigned, cluster.Assignment{Address: a, Node: on.Name})
			}
		}
		slices.SortFunc(e.Assigned, cluster.Assignment.Compare)
		e.Destinations = drawRanges(t, "destinations")
		e.Excluded = drawRanges(t, "excluded")
		s.EgressIPs = append(s.EgressIPs, e)
	}
	slices.SortFunc(s.EgressIPs, (*cluster.EgressIP).Compare)
}

// drawRanges draws destinations of an EgressIP; nil: all of them, or none excluded.
func drawRanges(t *rapid.T, what string) (list []netip.Prefix) {
	for _, p := range []string{"10.10.10.0/24", "172.18.0.200/32", "192.0.2.0/24", "2001:db8:9::/48",
		"203.0.113.9/32", "fc00:f853:ccd::200/128"} {
		if rapid.IntRange(0, 5).Draw(t, what) == 0 {
			list = append(list, netip.MustParsePrefix(p))
		}
	}
	return list
}

// carries reports whether a node has the network of an address.
func carries(n *cluster.Node, a netip.Addr) bool {
	var list []netip.Prefix
	if n.Gateway.Mode != cluster.ModeDetached {
		list = append(list, n.Gateway.Addresses...)
	}
	for _, l := range n.Links {
		list = append(list, l.Addresses...)
	}
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return !p.IsSingleIP() && p.Contains(a) })
}

// leads reports whether an address is reachable by a default gateway, or needs none.
func (p planned) leads(a netip.Addr) bool {
	return prefix("172.18.0.0/16").Contains(a) || prefix("fc00:f853:ccd::/64").Contains(a) ||
		slices.ContainsFunc(p.nodes[0].Gateway.NextHops,
			func(h netip.Addr) bool { return h.Is4() == a.Is4() && !p.world.Silent[h] })
}

// ownAddress reports whether a host has an address itself.
func ownAddress(n *cluster.Node, a netip.Addr) bool {
	return n.HasAddress(a) || slices.ContainsFunc(n.Links, func(l cluster.HostLink) bool {
		return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}

// TestEgressSource checks packets from pods in every random cluster, by every possible path. A
// packet to an external address that the EgressIP serves has one of the pod's egress addresses or
// does not arrive. Other packets are the same as without an EgressIP.
func TestEgressSource(t *testing.T) {
	clusters, walks, with := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := drawCluster(t)
		s := p.world.Snapshot
		if len(s.EgressIPs) == 0 {
			t.Skip("no EgressIP")
		}
		w := walk.New(p.world)
		clusters++
		for _, pod := range s.Pods {
			e := s.EgressIPs[slices.IndexFunc(s.EgressIPs,
				func(e *cluster.EgressIP) bool { return e.Owner.Name == pod.Labels["team"] })]
			for _, to := range []string{"172.18.0.200", "203.0.113.9", "10.10.10.200", "192.0.2.9",
				"fc00:f853:ccd::200", "2001:db8:9::9"} {
				dst := netip.MustParseAddr(to)
				var assigned, usable []netip.Addr
				for _, a := range e.Assigned {
					if a.Address.Is4() != dst.Is4() || !e.Serves(dst) {
						continue
					}
					assigned = append(assigned, a.Address)
					if carries(s.Node(a.Node), a.Address) {
						usable = append(usable, a.Address)
					}
				}
				for _, hop := range hopsOf(s, dst.Is4()) {
					trace, err := w.Walk(walk.Point{Node: pod.Node, Pod: pod.Owner},
						packet.Packet{Protocol: cluster.UDP, Dst: dst, DstPort: 9000}, hop)
					if err != nil {
						t.Fatalf("%s to %s: %v", pod.Owner, dst, err)
					}
					walks++
					v := trace.Verdict
					switch {
					case len(assigned) == 0 && v.Delivered && ownAddress(s.Node(pod.Node), v.Seen.Src):
					case len(assigned) == 0 && !v.Delivered &&
						(s.Config.Gateway.Mode == cluster.ModeDetached || !p.leads(dst)): // no path
					case len(assigned) > 0 && !v.Delivered &&
						(len(usable) < len(assigned) || !p.leads(dst)): // a node without the network drops it
					case len(usable) > 0 && v.Delivered && slices.Contains(usable, v.Seen.Src) && v.Answered:
						with++
					default:
						t.Fatalf("%s to %s by %s, of %v: delivered %t, seen as %s, %s; %s", pod.Owner, dst, hop,
							assigned, v.Delivered, v.Seen.Src, v.Reason, v.AnswerReason)
					}
				}
			}
			for _, n := range s.Nodes {
				p.toNode(t, w, pod, n)
				walks++
			}
		}
	})
	t.Logf("%d clusters, %d walks, %d of them with an egress address", clusters, walks, with)
}

// hopsOf returns the next hops of all nodes that a policy may choose from.
func hopsOf(s *cluster.Snapshot, v4 bool) (list []netip.AddrPort) {
	for _, n := range s.Nodes {
		texts := []netip.Addr{addr("100.64.0.%d", n.ID+1), addr("100.88.0.%d", n.ID+1), addr("10.244.%d.2", n.ID)}
		if !v4 {
			texts = []netip.Addr{addr("fd98::%x", n.ID+1), addr("fd97::%x", n.ID+1), addr("fd00:10:244:%x::2", n.ID)}
		}
		for _, a := range texts {
			list = append(list, netip.AddrPortFrom(a, 0))
		}
	}
	return list
}

// toNode checks that a node sees the pod's own address if it has the pod, else that of the pod's
// node.
func (p planned) toNode(t *rapid.T, w *walk.Walker, pod *cluster.Pod, n *cluster.Node) {
	for _, dst := range n.Addresses {
		trace, err := w.Walk(walk.Point{Node: pod.Node, Pod: pod.Owner},
			packet.Packet{Protocol: cluster.TCP, Dst: dst, DstPort: 8080})
		if err != nil {
			t.Fatalf("%s to %s: %v", pod.Owner, n.Name, err)
		}
		v := trace.Verdict
		seen := slices.Contains(p.world.Snapshot.Node(pod.Node).Addresses, v.Seen.Src)
		if pod.Node == n.Name {
			seen = slices.Contains(pod.IPs, v.Seen.Src)
		}
		if !v.Delivered || !v.Answered || !seen {
			t.Fatalf("%s to %s: delivered %t, seen as %s, %s; %s", pod.Owner, n.Name, v.Delivered, v.Seen.Src, v.Reason,
				v.AnswerReason)
		}
	}
}
