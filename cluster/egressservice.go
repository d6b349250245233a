package cluster

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	v1 "hairpin/api/v1"
)

// LabelEgressHost, followed by "NAMESPACE-NAME" of an EgressService, is a label of its host by
// which a load balancer's announcer can select it.
const LabelEgressHost = "egress-service.k8s.ovn.org/"

// egressService is one parsed EgressService.
type egressService struct {
	owner   Owner
	uid     string
	created time.Time
	network bool
	table   string // as in spec.network
	nodes   Selector
	host    string // as in the status
	bad     bool   // it has a problem and therefore no effect
}

func egressServiceOwner(namespace, name string) Owner {
	return Owner{Kind: "EgressService", Namespace: namespace, Name: name}
}

func parseEgressService(o *v1.EgressService) (*egressService, []Problem) {
	e := &egressService{
		owner: egressServiceOwner(o.Namespace, o.Name), uid: string(o.UID), created: o.CreationTimestamp.Time,
		host:    o.Status.Host,
		network: o.Spec.SourceIPBy == v1.SourceNetwork, table: o.Spec.Network,
	}
	var problems Problems
	bad := func(field, format string, args ...any) {
		problems.Add(e.owner, field, format, args...)
		e.bad = true
	}
	if !slices.Contains([]string{"", v1.SourceLoadBalancerIP, v1.SourceNetwork}, o.Spec.SourceIPBy) {
		bad("spec.sourceIPBy", "%q is neither %s nor %s", o.Spec.SourceIPBy, v1.SourceLoadBalancerIP, v1.SourceNetwork)
	}
	if x := o.Spec.Network; x != "" && (!linkName(x) || !routeTable(x)) {
		bad("spec.network", "%q is neither a VRF's name nor the number of a route table of the machine's own", x)
	}
	var err error
	if e.nodes, err = parseSelector(&o.Spec.NodeSelector); err != nil {
		bad("spec.nodeSelector", "%v", err)
	}
	return e, problems.List()
}

// EgressService turns a Service's load balancer addresses and endpoints into an EgressIP. All its
// addresses are on one node, and it takes precedence over other EgressIPs that select its pods.
type EgressService struct {
	Network   bool         // sourceIPBy Network: the pods leave as if no EgressIP selected them
	Nodes     Selector     // candidates for the host
	Endpoints []netip.Addr // of pods of its namespace; sorted
	// OnlyOn are the nodes with endpoints, sorted, if only those serve external clients; nil: all
	// nodes do.
	OnlyOn []string
	Host   string // as in the status
	Ended  bool   // it was deleted, and its host still translates; only an agent sets it
	// Table is the VRF or route table of the host by which the packets leave, as in spec.network;
	// empty: none.
	Table string
	// ClusterIPs are the Service's, with a Table only. Replies to clients that the host translated
	// have them as source.
	ClusterIPs []netip.Addr
	// Announced is set if there is no EgressService: no pods leave with the addresses, a node only
	// announces them.
	Announced *Announced
}

// ByTable reports whether the pods of an EgressIP leave by a route table of the host (spec.network
// of an EgressService).
func (e *EgressIP) ByTable() bool { return e.Service != nil && e.Service.Table != "" }

// MayBeOn reports whether a node may carry addresses of an EgressIP, if it is alive.
func (e *EgressIP) MayBeOn(n *Node) bool {
	switch x := e.Service; {
	case x == nil && e.Nodes != nil:
		return e.Nodes.Matches(n.Egress.Labels)
	case x == nil:
		return n.Egress.Assignable
	case x.Network || len(e.Addresses) == 0 || x.OnlyOn != nil && !slices.Contains(x.OnlyOn, n.Name):
		return false
	case x.Announced != nil && x.Announced.SkipsExcluded && n.Excluded():
		return false
	default:
		return x.Nodes.Matches(n.Egress.Labels)
	}
}

// MayCarry reports whether a node may carry an egress address, if it is alive.
func (s *Snapshot) MayCarry(n *Node) bool {
	return slices.ContainsFunc(s.EgressIPs, func(e *EgressIP) bool { return e.MayBeOn(n) })
}

// Selects reports whether an EgressIP selects a Pod, of a Namespace with these labels. Another
// EgressIP may still take precedence.
func (e *EgressIP) Selects(p *Pod, namespace map[string]string) bool {
	if e.Service == nil {
		return e.Pods.Matches(p.Labels) && e.Namespaces.Matches(namespace)
	}
	return p.Owner.Namespace == e.Owner.Namespace && slices.ContainsFunc(p.IPs, func(a netip.Addr) bool {
		_, found := slices.BinarySearchFunc(e.Service.Endpoints, a, netip.Addr.Compare)
		return found
	})
}

// Word returns the name of an EgressIP for messages: its own, or the EgressService's,
// "default/web", or the Service's, "Service/default/web".
func (e *EgressIP) Word() string {
	switch {
	case e.Service == nil:
		return e.Owner.Name
	case e.Service.Announced != nil:
		return e.Owner.String()
	}
	return e.Owner.Namespace + "/" + e.Owner.Name
}

// NetworkFor is NetworkOf for an address of an EgressIP. A load balancer's address, and one that
// the node announces by BGP, may belong to no network, because routers route it to the nodes: then
// it is on the network of the node's own address.
func (e *EgressIP) NetworkFor(n *Node, networks []Network, a netip.Addr) (Network, bool) {
	x, ok := NetworkOf(networks, a)
	if ok || e.Service == nil && !slices.ContainsFunc(e.Routed,
		func(s Selector) bool { return s.Matches(n.Egress.Labels) }) {
		return x, ok
	}
	return NetworkOf(networks, n.Address(FamilyOf(a)))
}

// withServices adds EgressServices to the list of EgressIPs, and their problems to problems.
func (s *Store) withServices(egressIPs []*EgressIP, problems *[]Problem) []*EgressIP {
	all := s.egressServices.all()
	if len(all) == 0 {
		s.withEgress = nil
		return egressIPs
	}
	oldest := map[netip.Addr]*Frontend{}
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
		e, wrong := s.serve(x, oldest)
		*problems = append(*problems, wrong...)
		i, found := slices.BinarySearchFunc(s.withEgress, e, (*EgressIP).Compare)
		if found && reflect.DeepEqual(s.withEgress[i], e) {
			e = s.withEgress[i]
		}
		list = append(list, e)
	}
	if !slices.Equal(list, s.withEgress) {
		s.withEgress = list
	}
	return s.withEgress
}

// serve makes an EgressIP of an EgressService, with the first address of each family at which the
// Service is served. A shared address could be used to take over another Service's connections, so
// only Services of one namespace can share one.
func (s *Store) serve(x *egressService, oldest map[netip.Addr]*Frontend) (*EgressIP, []Problem) {
	out := &EgressService{Host: x.host, Table: x.table}
	e := &EgressIP{Owner: x.owner, UID: x.uid, Created: x.created, Service: out}
	if x.bad {
		return e, nil
	}
	service := Owner{Kind: "Service", Namespace: x.owner.Namespace, Name: x.owner.Name}
	var problems Problems
	refuse := func(format string, args ...any) { problems.Add(x.owner, "metadata.name", format, args...) }
	served, local := false, false
	var on []string
	for _, f := range s.frontends.of[service] {
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
		if x.table != "" {
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
	if out.Nodes = x.nodes; x.network {
		e.Addresses, out.Network = nil, true
		return e, nil
	}
	if local {
		slices.Sort(on)
		out.OnlyOn = append([]string{}, slices.Compact(on)...)
	}
	if x.host != "" && x.host != v1.HostAll {
		for _, a := range e.Addresses {
			e.Assigned = append(e.Assigned, Assignment{a, x.host})
		}
		slices.SortFunc(e.Assigned, Assignment.Compare)
	}
	return e, problems.List()
}
