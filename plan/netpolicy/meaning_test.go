package netpolicy

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/cluster/clustertest"
	"hairpin/policy"
)

// accepts reports whether a Profile accepts a packet from a peer or to it.
func accepts(x *Index, d Direction, id uint32, peer netip.Addr, protocol cluster.Protocol, port uint16) bool {
	if id == Open {
		return true
	}
	matches := func(r *Rule) bool {
		inSet := r.Set == 0
		for m, sets := range x.members[d] {
			inSet = inSet || m.Place == r.Place && m.Contains(peer) && slices.Contains(setIDs(sets), r.Set)
		}
		return inSet && (r.Ports == nil || slices.ContainsFunc(r.Ports, func(q PortRange) bool {
			return q.Protocol == protocol && q.First <= port && port <= q.Last
		}))
	}
	for _, p := range x.profiles {
		if p.ID != id {
			continue
		}
		for tier := cluster.TierAdmin; tier <= cluster.TierBaseline; tier++ {
			rules := p.In(tier) // by Level
			i := slices.IndexFunc(rules, func(r Rule) bool { return matches(&r) })
			switch {
			case i >= 0 && rules[i].Action != cluster.Pass:
				return rules[i].Action == cluster.Accept
			case i < 0 && tier == cluster.TierNetworkPolicy && p.Isolated:
				return false
			}
		}
		return true
	}
	return false
}

// Profiles and Members accept what package policy accepts, after any updates.
func TestProfilesAcceptAsPolicies(t *testing.T) {
	counts := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		s := clustertest.Snapshot(clustertest.Node("node-a", 1, 3), clustertest.Node("node-b", 2, 4))
		s.Namespaces = clustertest.DrawNamespaces(t)
		x := NewIndex()
		pods := map[cluster.Owner]*Pod{}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			s = clustertest.ChurnPolicies(t, s)
			d := x.Update(s, ownPods(s), join)
			for _, p := range d.Pods.Removed {
				delete(pods, p.Owner)
			}
			for _, p := range d.Pods.Added {
				pods[p.Owner] = p
			}
		}
		var ends []policy.Endpoint
		used := map[netip.Addr]bool{}
		for _, p := range s.Pods {
			for _, a := range slices.Concat(p.IPs, p.Extra) {
				if used[a] {
					ends = slices.DeleteFunc(ends, func(e policy.Endpoint) bool { return e.Addr == a })
					continue
				}
				used[a] = true
				ends = append(ends, policy.Endpoint{Addr: a, Pod: p})
			}
		}
		for _, a := range []string{"192.0.2.7", "10.9.9.9", "2001:db8::7", "172.18.0.3", "172.18.0.4", "203.0.113.9"} {
			ends = append(ends, policy.Endpoint{Addr: netip.MustParseAddr(a)})
		}
		for _, own := range ownPods(s) {
			egress, ingress := uint32(Open), uint32(Open)
			if p := pods[own.Owner]; p != nil {
				egress, ingress = p.Egress, p.Ingress
			}
			for _, peer := range ends {
				if peer.Pod != nil && peer.Pod.Owner == own.Owner {
					continue
				}
				for _, protocol := range []cluster.Protocol{0, cluster.TCP, cluster.UDP, cluster.SCTP} {
					for _, port := range []uint16{1, 53, 80, 81, 443, 8080, 8081, 65535} {
						me := policy.Endpoint{Addr: own.IPs[0], Pod: own}
						to, _ := policy.Evaluate(s, policy.Packet{From: me, To: peer, Protocol: protocol, Port: port})
						_, from := policy.Evaluate(s, policy.Packet{From: peer, To: me, Protocol: protocol, Port: port})
						for _, c := range []struct {
							got  bool
							want policy.Verdict
						}{
							{accepts(x, Egress, egress, peer.Addr, protocol, port), to},
							{accepts(x, Ingress, ingress, peer.Addr, protocol, port), from},
						} {
							counts[c.got]++
							if c.got != c.want.Accepted {
								t.Fatalf("%s, %s, %s port %d: %v, want %s", own.Owner, peer.Addr, protocol, port, c.got,
									c.want)
							}
						}
					}
				}
			}
		}
	})
	t.Logf("%d packets accepted, %d dropped", counts[true], counts[false])
}
