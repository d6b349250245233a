package store

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"hairpin/cluster"
	"hairpin/cluster/parse"
)

// setLoadBalancer records whether a Service gets its addresses from pools.
func (s *Store) setLoadBalancer(owner cluster.Owner, v *service, o *corev1.Service) {
	l, problems := parse.LoadBalancer(o, &s.config.LoadBalancer)
	s.loadBalancers.put(owner, oneOrNone(l))
	v.problems = append(v.problems, problems...)
}

// withAnnounced adds to the list of EgressIPs, per Service, the addresses that a node must
// announce: those in the status of a pool, which only the controller writes. Annotations of a
// Service are not trusted, because its owner may write them. If several Services have an address,
// the oldest one announces it. An address of an EgressService is announced by its host.
func (s *Store) withAnnounced(egressIPs []*cluster.EgressIP, pools []*cluster.Pool) []*cluster.EgressIP {
	hosted := map[netip.Addr]bool{}
	for _, e := range egressIPs {
		if e.Service != nil {
			for _, a := range e.Addresses {
				hosted[a] = true
			}
		}
	}
	byService := map[cluster.Owner]*cluster.EgressIP{}
	for _, p := range pools {
		for i := range p.Status.Addresses {
			x := &p.Status.Addresses[i]
			a, err := cluster.ParseHostAddr(x.Address)
			if err != nil || !p.Has(a) || hosted[a] || len(x.Services) == 0 {
				continue
			}
			// For an EgressIP, it is "EgressIP/name". No namespace has the name EgressIP.
			namespace, name, _ := strings.Cut(x.Services[0], "/")
			owner := cluster.Owner{Kind: "Service", Namespace: namespace, Name: name}
			e := byService[owner]
			if e == nil {
				if e = s.announcedFor(owner); e == nil {
					continue
				}
			}
			if !s.servedAt(owner, a) || slices.Contains(e.Addresses, a) {
				continue
			}
			byService[owner] = e
			e.Addresses = append(e.Addresses, a)
			e.Service.Nodes.Requirements = append(e.Service.Nodes.Requirements, p.Nodes.Requirements...)
			if x.Node != "" {
				e.Assigned = append(e.Assigned, cluster.Assignment{Address: a, Node: x.Node})
			} else {
				e.Service.Announced.Message = x.Message
			}
			for _, n := range x.Previous {
				e.Previous = append(e.Previous, cluster.Assignment{Address: a, Node: n.Node})
			}
		}
	}
	if len(byService) == 0 {
		s.lastWithAnnounced = nil
		return egressIPs
	}
	list := slices.Clone(egressIPs)
	for _, e := range byService {
		s.completeAnnounced(e)
		list = append(list, keepPointer(s.lastWithAnnounced, e))
	}
	slices.SortFunc(list, (*cluster.EgressIP).Compare)
	if !slices.Equal(list, s.lastWithAnnounced) {
		s.lastWithAnnounced = list
	}
	return s.lastWithAnnounced
}

// announcedFor returns what is announced for a Service, without addresses; nil if the Service is
// not there.
func (s *Store) announcedFor(owner cluster.Owner) *cluster.EgressIP {
	frontends := s.frontends.byOwner[owner]
	if len(frontends) == 0 {
		return nil
	}
	return &cluster.EgressIP{Owner: owner, UID: frontends[0].UID, Created: frontends[0].Created,
		Service: &cluster.EgressService{Announced: &cluster.Announcement{}}}
}

// servedAt reports whether a Service is served at a load balancer address.
func (s *Store) servedAt(owner cluster.Owner, a netip.Addr) bool {
	return slices.ContainsFunc(s.frontends.byOwner[owner],
		func(f *cluster.Frontend) bool { return slices.Contains(f.LoadBalancerIPs, a) })
}

// completeAnnounced adds the nodes that may announce the addresses.
func (s *Store) completeAnnounced(e *cluster.EgressIP) {
	slices.SortFunc(e.Addresses, netip.Addr.Compare)
	slices.SortFunc(e.Assigned, cluster.Assignment.Compare)
	slices.SortFunc(e.Previous, cluster.Assignment.Compare)
	e.Service.OnlyOn = cluster.LocalNodes(s.frontends.byOwner[e.Owner])
	if len(e.Service.Nodes.Requirements) == 0 {
		e.Service.Announced.SkipsExcluded = slices.ContainsFunc(s.nodes.all(),
			func(n *cluster.Node) bool { return !n.Excluded() && e.MayBeOn(n) })
	}
}
