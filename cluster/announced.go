package cluster

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Announced is what a node needs for announcing addresses of a LoadBalancerPool.
type Announced struct {
	// Message is the controller's reason why no node announces an address; empty if one does.
	Message string
	// SkipsExcluded reports that nodes with the label corev1.LabelNodeExcludeBalancers do not
	// count: there are others, and the pool does not select nodes.
	SkipsExcluded bool
}

// Excluded reports whether the node has the label by which load balancers skip it.
func (n *Node) Excluded() bool {
	_, has := n.Egress.Labels[corev1.LabelNodeExcludeBalancers]
	return has
}

// OnlyAnnounced reports whether a node only announces the addresses, and no pods leave with them.
func (e *EgressIP) OnlyAnnounced() bool { return e.Service != nil && e.Service.Announced != nil }

// setLoadBalancer records whether a Service gets its addresses from pools.
func (s *Store) setLoadBalancer(owner Owner, v *service, o *corev1.Service) {
	l, problems := parseLoadBalancer(o, &s.config.LoadBalancer)
	s.setPoolRequest(owner, l)
	v.problems = append(v.problems, problems...)
}

// setPoolRequest records what an object requests of pools; nil: nothing.
func (s *Store) setPoolRequest(owner Owner, l *LoadBalancer) {
	if l == nil {
		s.loadBalancers.put(owner, nil)
		return
	}
	s.loadBalancers.put(owner, []*LoadBalancer{l})
}

// withAnnounced adds to the list of EgressIPs, per Service, the addresses that a node must
// announce: those in the status of a pool, which only the controller writes. Annotations of a
// Service would be no such record, because its owner may write them. Of several Services with an
// address, it is the oldest's. An address of an EgressService is announced by its host.
func (s *Store) withAnnounced(egressIPs []*EgressIP, pools []*Pool) []*EgressIP {
	hosted := map[netip.Addr]bool{}
	for _, e := range egressIPs {
		if e.Service != nil {
			for _, a := range e.Addresses {
				hosted[a] = true
			}
		}
	}
	of := map[Owner]*EgressIP{}
	for _, p := range pools {
		for i := range p.Status.Addresses {
			x := &p.Status.Addresses[i]
			a, err := parseHostAddr(x.Address)
			if err != nil || !p.Has(a) || hosted[a] || len(x.Services) == 0 {
				continue
			}
			namespace, name, _ := strings.Cut(x.Services[0], "/")
			owner := Owner{Kind: "Service", Namespace: namespace, Name: name}
			e := of[owner]
			if e == nil {
				if e = s.announcedFor(owner); e == nil {
					continue
				}
			}
			if !s.servedAt(owner, a) || slices.Contains(e.Addresses, a) {
				continue
			}
			of[owner] = e
			e.Addresses = append(e.Addresses, a)
			if e.Service.Nodes.Requirements = append(e.Service.Nodes.Requirements,
				p.Nodes.Requirements...); x.Node != "" {
				e.Assigned = append(e.Assigned, Assignment{a, x.Node})
			} else {
				e.Service.Announced.Message = x.Message
			}
		}
	}
	if len(of) == 0 {
		s.announced = nil
		return egressIPs
	}
	list := slices.Clone(egressIPs)
	for _, e := range of {
		s.completeAnnounced(e)
		i, found := slices.BinarySearchFunc(s.announced, e, (*EgressIP).Compare)
		if found && reflect.DeepEqual(s.announced[i], e) {
			e = s.announced[i]
		}
		list = append(list, e)
	}
	slices.SortFunc(list, (*EgressIP).Compare)
	if !slices.Equal(list, s.announced) {
		s.announced = list
	}
	return s.announced
}

// announcedFor returns what is announced for a Service, without addresses; nil if the Service is
// not there.
func (s *Store) announcedFor(owner Owner) *EgressIP {
	frontends := s.frontends.of[owner]
	if len(frontends) == 0 {
		return nil
	}
	return &EgressIP{Owner: owner, UID: frontends[0].UID, Created: frontends[0].Created,
		Service: &EgressService{Announced: &Announced{}}}
}

// servedAt reports whether a Service is served at a load balancer address.
func (s *Store) servedAt(owner Owner, a netip.Addr) bool {
	return slices.ContainsFunc(s.frontends.of[owner],
		func(f *Frontend) bool { return slices.Contains(f.LoadBalancerIPs, a) })
}

// LocalNodes returns, sorted, the nodes that external clients of a Service with
// externalTrafficPolicy Local may use: those with a ready endpoint; if there are none, those with a
// serving one. It returns nil if the policy is Cluster.
func LocalNodes(frontends []*Frontend) []string {
	var ready, serving []string
	local := false
	for _, f := range frontends {
		local = local || f.ExternalLocal
		for _, b := range f.Backends {
			if b.Ready && b.Node != "" {
				ready = append(ready, b.Node)
			} else if b.Serving && b.Node != "" {
				serving = append(serving, b.Node)
			}
		}
	}
	if !local {
		return nil
	}
	if len(ready) == 0 {
		ready = serving
	}
	slices.Sort(ready)
	return append([]string{}, slices.Compact(ready)...)
}

// completeAnnounced adds the nodes that may announce the addresses.
func (s *Store) completeAnnounced(e *EgressIP) {
	slices.SortFunc(e.Addresses, netip.Addr.Compare)
	slices.SortFunc(e.Assigned, Assignment.Compare)
	e.Service.OnlyOn = LocalNodes(s.frontends.of[e.Owner])
	if len(e.Service.Nodes.Requirements) == 0 {
		e.Service.Announced.SkipsExcluded = slices.ContainsFunc(s.nodes.all(),
			func(n *Node) bool { return !n.Excluded() && e.MayBeOn(n) })
	}
}
