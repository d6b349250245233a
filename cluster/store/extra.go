package store

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
)

// maxExtra is the largest number of extra addresses of a Pod: each needs flows for port security.
const maxExtra = 16

// applyExtra gives Pods the extra addresses that they request and may have, and adds the reasons
// for the rejected ones to denied. A Pod that requests none is returned unchanged.
func (s *Store) applyExtra(pods []*cluster.Pod, denied *[]cluster.Problem) []*cluster.Pod {
	if len(s.requestsExtra) == 0 {
		return pods
	}
	out := slices.Clone(pods)
	for i, p := range pods {
		if len(p.RequestedExtra) == 0 {
			continue
		}
		allowed, problems := s.allowedExtra(p)
		*denied = append(*denied, problems...)
		if len(allowed) == 0 {
			continue
		}
		if with := s.withExtra[p.Owner]; with != nil && equalsPlain(with, p) && slices.Equal(with.Extra, allowed) {
			out[i] = with
			continue
		}
		with := *p
		with.Extra = allowed
		s.withExtra[p.Owner], out[i] = &with, &with
	}
	return out
}

// forgetExtra forgets the extra addresses of a Pod.
func (s *Store) forgetExtra(o cluster.Owner) {
	delete(s.requestsExtra, o)
	delete(s.withExtra, o)
}

// equalsPlain reports whether p without its extra addresses is deeply equal to q.
func equalsPlain(p, q *cluster.Pod) bool {
	without := *p
	without.Extra = nil
	return same(&without, q)
}

// allowedExtra splits the addresses that a Pod requests into allowed ones and problems.
func (s *Store) allowedExtra(p *cluster.Pod) (allowed []netip.Addr, problems []cluster.Problem) {
	var ranges []netip.Prefix
	for _, n := range s.namespaces.byOwner[cluster.NamespaceOwner(p.Owner.Namespace)] {
		ranges = n.ExtraRanges
	}
	for i, a := range p.RequestedExtra {
		why := s.guard.Extra(a)
		switch {
		case i >= maxExtra:
			why = fmt.Sprintf("more than %d addresses", maxExtra)
		case why == "" && !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) }):
			why = fmt.Sprintf("%s is not within annotation %s of Namespace/%s", a, annotation.ExtraRanges,
				p.Owner.Namespace)
		case why == "" && isPodAddress(&s.config, a) && !s.onNode(p.Node, a):
			why = fmt.Sprintf("%s is in the range of pods, but not of node %s", a, p.Node)
		}
		if why != "" {
			problems = append(problems, cluster.Problem{
				Owner: p.Owner, Field: annotation.Field(annotation.ExtraAddresses), Message: why +
					": the pod must not use it",
			})
		} else {
			allowed = append(allowed, a)
		}
		if i >= maxExtra {
			break
		}
	}
	return allowed, problems
}

// onNode reports whether an address is in the range of a node's pods.
func (s *Store) onNode(node string, a netip.Addr) bool {
	for _, n := range s.nodes.byOwner[cluster.NodeOwner(node)] {
		if c := n.PodCIDR(cluster.FamilyOf(a)); c.IsValid() && c.Contains(a) {
			return true
		}
	}
	return false
}

func isPodAddress(c *cluster.Config, a netip.Addr) bool {
	return slices.ContainsFunc(c.ClusterSubnets, func(s cluster.ClusterSubnet) bool { return s.CIDR.Contains(a) })
}
