package store

import (
	"net/netip"
	"slices"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/cluster/parse"
)

// withServices adds EgressServices to the list of EgressIPs, and their problems to problems.
func (s *Store) withServices(egressIPs []*cluster.EgressIP, problems *[]cluster.Problem) []*cluster.EgressIP {
	all := s.egressServices.all()
	if len(all) == 0 {
		s.lastWithServices = nil
		return egressIPs
	}
	oldest := map[netip.Addr]*cluster.Frontend{}
	for _, f := range s.frontends.all() {
		for _, list := range [][]netip.Addr{f.ExternalIPs, f.LoadBalancerIPs} {
			for _, a := range list {
				if h := oldest[a]; h == nil || f.CompareAge(h) < 0 {
					oldest[a] = f
				}
			}
		}
	}
	list := slices.Clone(egressIPs) // Owners of kind EgressIP are before those of kind EgressService
	for _, x := range all {
		e, wrong := s.egressIPFor(x, oldest)
		*problems = append(*problems, wrong...)
		list = append(list, keepPointer(s.lastWithServices, e))
	}
	if !slices.Equal(list, s.lastWithServices) {
		s.lastWithServices = list
	}
	return s.lastWithServices
}

// egressIPFor makes an EgressIP of an EgressService, with the first address of each family at which
// the Service is served. A shared address could be used to take over another Service's connections,
// so only Services of one namespace can share one.
func (s *Store) egressIPFor(x *parse.EgressServiceSpec,
	oldest map[netip.Addr]*cluster.Frontend) (*cluster.EgressIP, []cluster.Problem) {
	out := &cluster.EgressService{Host: x.Host, Table: x.Table}
	e := &cluster.EgressIP{Owner: x.Owner, UID: x.UID, Created: x.Created, Service: out}
	if x.Invalid {
		return e, nil
	}
	service := cluster.Owner{Kind: "Service", Namespace: x.Owner.Namespace, Name: x.Owner.Name}
	var problems cluster.Problems
	refuse := func(format string, args ...any) { problems.Add(x.Owner, "metadata.name", format, args...) }
	served, local := false, false
	var on []string
	for _, f := range s.frontends.byOwner[service] {
		for _, a := range f.LoadBalancerIPs {
			served = true
			switch h := oldest[a]; {
			case slices.ContainsFunc(e.Addresses, func(b netip.Addr) bool { return a.Is4() == b.Is4() }):
			case s.vetted.Hosts.At(a) != "":
				refuse("%s of %s is an address of node %s itself: pods do not leave with it", a, service,
					s.vetted.Hosts.At(a))
			case h != nil && h.Owner.Namespace != service.Namespace && h.CompareAge(f) < 0:
				refuse("%s of %s is an address of %s, which is older and in another namespace: pods "+
					"do not leave with it", a, service, h.Owner)
			default:
				e.Addresses = append(e.Addresses, a)
			}
		}
		local = local || f.ExternalLocal
		if x.Table != "" {
			out.ClusterIPs = append(out.ClusterIPs, f.ClusterIP)
		}
		for _, b := range f.Backends {
			out.Endpoints = append(out.Endpoints, b.Addr)
			if b.Ready && b.Node != "" {
				on = append(on, b.Node)
			}
		}
	}
	if !served {
		refuse("%s is not there, or has no load balancer address that is served", service)
	}
	if len(e.Addresses) == 0 {
		out.Endpoints, out.ClusterIPs = nil, nil
		return e, problems.List()
	}
	slices.SortFunc(out.ClusterIPs, netip.Addr.Compare)
	out.ClusterIPs = slices.Compact(out.ClusterIPs)
	slices.SortFunc(out.Endpoints, netip.Addr.Compare)
	out.Endpoints = slices.Compact(out.Endpoints)
	out.Nodes = x.Nodes
	if x.Network {
		e.Addresses, out.Network = nil, true
		return e, nil
	}
	if local {
		slices.Sort(on)
		out.OnlyOn = append([]string{}, slices.Compact(on)...)
	}
	if x.Host != "" && x.Host != v1.HostAll {
		for _, a := range e.Addresses {
			e.Assigned = append(e.Assigned, cluster.Assignment{Address: a, Node: x.Host})
		}
		slices.SortFunc(e.Assigned, cluster.Assignment.Compare)
	}
	return e, problems.List()
}
