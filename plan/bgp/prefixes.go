package bgp

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/cluster/trust"
)

// prefixes returns the prefixes that each node should announce, by its name: those of carriers, and
// the nodes' own pod ranges.
func (p *planner) prefixes(a *cluster.Advertisement) map[string][]netip.Prefix {
	out := map[string][]netip.Prefix{}
	for _, e := range p.EgressIPs {
		for _, x := range e.Addresses {
			if !p.selects(a, e, x) {
				continue
			}
			for _, n := range p.carriers(a, e, x) {
				out[n.Name] = append(out[n.Name], netip.PrefixFrom(x, x.BitLen()))
			}
		}
	}
	if a.PodNetwork {
		if p.vetted == nil {
			p.vetted = trust.Vet(p.Nodes, "", &p.Config)
		}
		for _, n := range p.Nodes {
			if len(p.vetted.Rejected[n.Name]) == 0 && a.Nodes.Matches(n.Egress.Labels) {
				out[n.Name] = append(out[n.Name], n.PodCIDRs...)
			}
		}
	}
	return out
}

// selects reports whether an Advertisement announces an address of an EgressIP.
func (p *planner) selects(a *cluster.Advertisement, e *cluster.EgressIP, x netip.Addr) bool {
	if e.Service == nil {
		return a.EgressIP
	}
	return a.LoadBalancer && p.pooled(a, x)
}

// carriers returns the nodes that should announce an address that an Advertisement selects:
//   - a load balancer address: each node that may announce it. With externalTrafficPolicy Local,
//     that is each with a ready endpoint. With an EgressService, it is its host only.
//   - an address of an EgressIP: the node that has it.
func (p *planner) carriers(a *cluster.Advertisement, e *cluster.EgressIP, x netip.Addr) []*cluster.Node {
	if e.OnlyAnnounced() {
		return p.announcers(a, e)
	}
	if n := p.Node(e.NodeOf(x)); n != nil && a.Nodes.Matches(n.Egress.Labels) {
		return []*cluster.Node{n}
	}
	return nil
}

// Announcement is what an Advertisement announces of an address.
type Announcement struct {
	By    *cluster.Advertisement
	Nodes []string // that should announce it, by name
	// Problem is the reason why not all its prefixes are announced, as the controller reports it in
	// the status.
	Problem string
}

// Announcements returns what Advertisements announce of an address of an EgressIP. It needs no
// FRRConfigurations, which only the controller has.
func Announcements(s *cluster.Snapshot, e *cluster.EgressIP, x netip.Addr) (list []Announcement) {
	p := planner{Snapshot: s}
	for _, a := range s.Advertisements {
		if a.Rejected || !p.selects(a, e, x) {
			continue
		}
		n := Announcement{By: a}
		if c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionAdvertised); c != nil &&
			c.Status == metav1.ConditionFalse {
			n.Problem = c.Message
		}
		for _, c := range p.carriers(a, e, x) {
			n.Nodes = append(n.Nodes, c.Name)
		}
		list = append(list, n)
	}
	return list
}

// pooled reports whether an address is of a pool that an Advertisement selects.
func (p *planner) pooled(a *cluster.Advertisement, x netip.Addr) bool {
	return slices.ContainsFunc(p.Pools, func(q *cluster.Pool) bool { return a.Pools.Matches(q.Labels) && q.Has(x) })
}

// announcers returns the nodes that announce a Service's load balancer addresses: those that are
// ready, and leaving ones only if there is no other.
func (p *planner) announcers(a *cluster.Advertisement, e *cluster.EgressIP) (list []*cluster.Node) {
	for _, n := range p.Nodes {
		if n.ID != 0 && n.Egress.Ready && e.MayBeOn(n) && a.Nodes.Matches(n.Egress.Labels) {
			list = append(list, n)
		}
	}
	leaves := func(n *cluster.Node) bool { return n.Egress.Leaving }
	if slices.ContainsFunc(list, func(n *cluster.Node) bool { return !leaves(n) }) {
		list = slices.DeleteFunc(list, leaves)
	}
	return list
}
