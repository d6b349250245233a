package cluster

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"hairpin/api/clusternetworkpolicy"
	"hairpin/api/frrk8s"
	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
)

// Store collects Kubernetes objects and makes Snapshots of them. It is not safe for concurrent use:
// one goroutine owns it and passes Snapshots to others.
//
// The cost of a Snapshot depends on what changed since the last one, plus one copy of each changed
// list.
type Store struct {
	config         Config
	nodes          grouped[*Node]
	pods           grouped[*Pod]
	starting       grouped[*Pod]
	namespaces     grouped[*Namespace]
	ranges         grouped[*serviceRange]
	egressIPs      grouped[*EgressIP]
	egressServices grouped[*egressService]
	policies       grouped[*Policy]
	pools          grouped[*Pool]
	loadBalancers  grouped[*LoadBalancer]
	advertisements grouped[*Advertisement]
	frrs           grouped[*FRRConfiguration]
	frontends      grouped[*Frontend] // by Service
	problems       grouped[Problem]   // by the object that has them
	services       map[Owner]*service
	sliceServices  map[Owner]Owner // slice → its Service
	stale          map[Owner]bool  // Services whose Frontends must be rebuilt
	guardInputs    map[Owner]bool  // Services for which a node change may change the guard's decisions
	guard          *guard
	guardCount     int // guards created so far
	vetting        *Vetting
	vetted         *Vetted
	nodeProblems   []Problem           // of nodes
	podProblems    map[Owner][]Problem // of Pods
	asking         map[Owner]bool      // Pods that request extra addresses
	extended       map[Owner]*Pod      // Pods with accepted extra addresses
	claimed        []*EgressIP         // the result of markClaimed in the last Snapshot
	withEgress     []*EgressIP         // claimed and those of EgressServices, if there are any
	announced      []*EgressIP         // withEgress and those of announced addresses, if there are any
	vettedPools    []*Pool             // as in the last Snapshot
	last           *Snapshot
}

// NewStore returns an empty store.
func NewStore(config Config) *Store {
	return &Store{
		config:         config,
		vetting:        NewVetting("", config.ClusterSubnets),
		nodes:          newGrouped(func(n *Node) Owner { return nodeOwner(n.Name) }, same[*Node]),
		pods:           newGrouped(func(p *Pod) Owner { return p.Owner }, same[*Pod]),
		starting:       newGrouped(func(p *Pod) Owner { return p.Owner }, same[*Pod]),
		ranges:         newGrouped(func(r *serviceRange) Owner { return r.owner }, same[*serviceRange]),
		namespaces:     newGrouped(func(n *Namespace) Owner { return namespaceOwner(n.Name) }, same[*Namespace]),
		egressIPs:      newGrouped(func(e *EgressIP) Owner { return e.Owner }, same[*EgressIP]),
		egressServices: newGrouped(func(e *egressService) Owner { return e.owner }, same[*egressService]),
		policies:       newGrouped(func(p *Policy) Owner { return p.Owner }, same[*Policy]),
		pools:          newGrouped(func(p *Pool) Owner { return p.Owner }, same[*Pool]),
		loadBalancers:  newGrouped(func(l *LoadBalancer) Owner { return l.Owner }, same[*LoadBalancer]),
		advertisements: newGrouped(func(a *Advertisement) Owner { return a.Owner }, same[*Advertisement]),
		frrs:           newGrouped(func(c *FRRConfiguration) Owner { return c.Owner }, same[*FRRConfiguration]),
		frontends: newGrouped(func(f *Frontend) Owner { return f.Owner },
			func(f, g *Frontend) bool { return f == g }),
		problems:      newGrouped(func(p Problem) Owner { return p.Owner }, func(p, q Problem) bool { return p == q }),
		services:      map[Owner]*service{},
		sliceServices: map[Owner]Owner{},
		stale:         map[Owner]bool{},
		guardInputs:   map[Owner]bool{},
		podProblems:   map[Owner][]Problem{},
		asking:        map[Owner]bool{},
		extended:      map[Owner]*Pod{},
	}
}

func same[T any](a, b T) bool { return reflect.DeepEqual(a, b) }

// Set adds or replaces an object: *corev1.Node, *corev1.Pod, *corev1.Service,
// *discoveryv1.EndpointSlice, *corev1.Namespace, *v1.EgressIP, *v1.EgressService,
// *v1alpha1.LoadBalancerPool, *v1alpha1.BGPAdvertisement, *frrk8s.FRRConfiguration,
// *networkingv1.ServiceCIDR, *networkingv1.NetworkPolicy or
// *clusternetworkpolicy.ClusterNetworkPolicy. Others are ignored. The Store keeps only strings of
// the object, and the spec of an FRRConfiguration.
func (s *Store) Set(obj any) {
	switch o := obj.(type) {
	case *corev1.Node:
		n, problems := parseNode(o)
		replace(s, &s.nodes, nodeOwner(o.Name), n, problems)
	case *corev1.Pod:
		owner := ownerOf("Pod", &o.ObjectMeta)
		p, problems := parsePod(o)
		var pods, starting []*Pod
		switch {
		case p == nil:
		case len(p.IPs) > 0:
			pods = []*Pod{p}
		default:
			starting = []*Pod{p}
		}
		s.pods.put(owner, pods)
		s.starting.put(owner, starting)
		s.note(owner, problems)
		if p != nil && len(p.Asks) > 0 {
			s.asking[owner] = true
		} else {
			s.forgetExtra(owner)
		}
	case *corev1.Service:
		owner := ownerOf("Service", &o.ObjectMeta)
		v := s.service(owner)
		v.present = true
		v.served, v.ports, v.problems = parseService(o)
		s.setLoadBalancer(owner, v, o)
	case *discoveryv1.EndpointSlice:
		x := parseSlice(o)
		if s.sliceServices[x.owner] != x.service {
			s.dropSlice(x.owner) // its label named another Service
		}
		if x.service == (Owner{}) {
			s.note(x.owner, x.problems.List())
			return
		}
		s.sliceServices[x.owner] = x.service
		s.service(x.service).set(x)
	case *networkingv1.ServiceCIDR:
		r, problems := parseServiceCIDR(o)
		replace(s, &s.ranges, r.owner, r, problems)
	case *networkingv1.NetworkPolicy:
		p, problems := parseNetworkPolicy(o)
		replace(s, &s.policies, p.Owner, p, problems)
	case *clusternetworkpolicy.ClusterNetworkPolicy:
		p, problems := parseClusterNetworkPolicy(o)
		replace(s, &s.policies, p.Owner, p, problems)
	case *corev1.Namespace:
		n, problems := parseNamespace(o)
		replace(s, &s.namespaces, namespaceOwner(o.Name), n, problems)
	case *v1.EgressIP:
		owner := egressIPOwner(o.Name)
		e, problems := parseEgressIP(o)
		s.egressIPs.put(owner, oneOrNone(e))
		s.setPoolRequest(owner, parsePoolRequest(o))
		s.note(owner, problems)
	case *v1.EgressService:
		e, problems := parseEgressService(o)
		replace(s, &s.egressServices, e.owner, e, problems)
	case *v1alpha1.LoadBalancerPool:
		p, problems := parsePool(o)
		replace(s, &s.pools, p.Owner, p, problems)
	case *v1alpha1.BGPAdvertisement:
		a, problems := parseAdvertisement(o)
		replace(s, &s.advertisements, a.Owner, a, problems)
	case *frrk8s.FRRConfiguration:
		s.frrs.put(FRRConfigurationOwner(o), oneOrNone(parseFRRConfiguration(o)))
	}
}

// replace replaces what is stored of an object, and its problems.
func replace[T any](s *Store, g *grouped[T], owner Owner, parsed T, problems []Problem) {
	g.put(owner, []T{parsed})
	s.note(owner, problems)
}

// oneOrNone returns what to store of an object from which nothing may have been parsed.
func oneOrNone[T any](parsed *T) []*T {
	if parsed == nil {
		return nil
	}
	return []*T{parsed}
}

// remove removes what is stored of an object, and its problems.
func remove[T any](s *Store, g *grouped[T], owner Owner) {
	g.put(owner, nil)
	s.note(owner, nil)
}

// Delete removes an object of a type that Set accepts. Only its name and namespace are read.
func (s *Store) Delete(obj any) {
	switch o := obj.(type) {
	case *corev1.Node:
		remove(s, &s.nodes, nodeOwner(o.Name))
	case *corev1.Pod:
		owner := ownerOf("Pod", &o.ObjectMeta)
		s.pods.put(owner, nil)
		remove(s, &s.starting, owner)
		s.forgetExtra(owner)
	case *corev1.Service:
		owner := ownerOf("Service", &o.ObjectMeta)
		v := s.service(owner)
		*v = service{slices: v.slices}
		s.loadBalancers.put(owner, nil)
	case *discoveryv1.EndpointSlice:
		s.dropSlice(ownerOf("EndpointSlice", &o.ObjectMeta))
	case *networkingv1.ServiceCIDR:
		remove(s, &s.ranges, serviceCIDROwner(o.Name))
	case *networkingv1.NetworkPolicy:
		remove(s, &s.policies, ownerOf("NetworkPolicy", &o.ObjectMeta))
	case *clusternetworkpolicy.ClusterNetworkPolicy:
		remove(s, &s.policies, clusterNetworkPolicyOwner(o.Name))
	case *corev1.Namespace:
		remove(s, &s.namespaces, namespaceOwner(o.Name))
	case *v1.EgressIP:
		remove(s, &s.egressIPs, egressIPOwner(o.Name))
		s.loadBalancers.put(egressIPOwner(o.Name), nil)
	case *v1.EgressService:
		remove(s, &s.egressServices, egressServiceOwner(o.Namespace, o.Name))
	case *v1alpha1.LoadBalancerPool:
		remove(s, &s.pools, poolOwner(o.Name))
	case *v1alpha1.BGPAdvertisement:
		remove(s, &s.advertisements, advertisementOwner(o.Name))
	case *frrk8s.FRRConfiguration:
		s.frrs.put(FRRConfigurationOwner(o), nil)
	}
}

// dropSlice removes a slice from its Service.
func (s *Store) dropSlice(slice Owner) {
	if owner, ok := s.sliceServices[slice]; ok {
		s.service(owner).drop(slice)
		delete(s.sliceServices, slice)
	}
	s.note(slice, nil)
}

// service returns the record of a Service that is about to change, and marks it stale.
func (s *Store) service(owner Owner) *service {
	s.stale[owner] = true
	v := s.services[owner]
	if v == nil {
		v = &service{}
		s.services[owner] = v
	}
	return v
}

// note replaces the problems of an object.
func (s *Store) note(owner Owner, problems []Problem) {
	s.problems.put(owner, SortProblems(slices.Clone(problems)))
}

// Snapshot returns the current state, or the previous Snapshot if nothing in it changed. It shares
// nothing that a later Set would change.
func (s *Store) Snapshot() *Snapshot {
	changed := s.last == nil || s.nodes.changed() || s.egressIPs.changed() || s.ranges.changed() || s.pools.changed()
	moved := slices.Collect(maps.Keys(s.nodes.stale))
	vetted := s.updateGuard(changed)
	for owner := range s.stale {
		s.refresh(owner, s.services[owner])
	}
	s.stale = map[Owner]bool{} // a map that was cleared is as large as before
	if changed || s.frontends.changed() || s.pods.changed() || s.problems.changed() || s.starting.changed() ||
		s.namespaces.changed() || s.egressServices.changed() || s.policies.changed() || s.loadBalancers.changed() ||
		s.advertisements.changed() || s.frrs.changed() {
		s.checkPodNodes(moved, &vetted)
		policies := s.policies.all()
		// and of Pods that request addresses, of EgressServices and of LoadBalancerPools
		denied := samePriority(policies)
		pools := s.vetPools(&denied)
		egressIPs := s.withServices(s.markClaimed(s.egressIPs.all(), s.frontends.all()), &denied)
		s.last = &Snapshot{
			Config:        withServiceCIDRs(s.config, s.ranges.all()),
			Nodes:         s.nodes.all(),
			Frontends:     s.frontends.all(),
			Pods:          s.applyExtra(s.withoutForeign(s.pods.all()), &denied),
			Starting:      s.applyExtra(s.starting.all(), &denied),
			Namespaces:    s.namespaces.all(),
			EgressIPs:     s.withAnnounced(egressIPs, pools),
			Policies:      policies,
			Pools:         pools,
			LoadBalancers: s.loadBalancers.all(),

			Advertisements: s.advertisements.all(), FRRConfigurations: s.frrs.all(),
			Problems: s.allProblems(denied),
		}
	}
	return s.last
}

// checkPodNodes checks whether Pods have addresses of other nodes: Pods that changed, and Pods of
// nodes that changed, also if only their address ranges did.
func (s *Store) checkPodNodes(moved []Owner, vetted *VettedChanges) {
	check := func(o Owner) {
		delete(s.podProblems, o)
		for _, p := range s.pods.of[o] {
			if problems := s.vetted.foreignAddresses(p, s.nodes.of); len(problems) > 0 {
				s.podProblems[o] = problems
			}
		}
	}
	for o := range s.pods.stale {
		check(o)
	}
	nodes := vetted.rangesOf(s.vetted)
	for _, o := range moved {
		nodes[o.Name] = true
	}
	if len(nodes) == 0 {
		return
	}
	for o, pods := range s.pods.of {
		if nodes[pods[0].Node] && !s.pods.stale[o] {
			check(o)
		}
	}
}

// withoutForeign omits the Pods that have an address of another node.
func (s *Store) withoutForeign(pods []*Pod) []*Pod {
	if len(s.podProblems) == 0 {
		return pods
	}
	return slices.DeleteFunc(slices.Clone(pods), func(p *Pod) bool { return len(s.podProblems[p.Owner]) > 0 })
}

func (s *Store) allProblems(denied []Problem) []Problem {
	if len(s.nodeProblems)+len(s.podProblems)+len(denied) == 0 {
		return s.problems.all()
	}
	list := slices.Concat(s.problems.all(), s.nodeProblems, denied)
	for _, problems := range s.podProblems {
		list = append(list, problems...)
	}
	return SortProblems(list)
}

// updateGuard updates the guard. If the guard's decisions change, it marks Services stale: those
// with addresses other than cluster IPs, or with an endpoint for which the decision changed. If
// address ranges changed, it marks all.
func (s *Store) updateGuard(changed bool) (vetted VettedChanges) {
	api := s.services[kubernetesService]
	if s.guard != nil && !changed && !s.stale[kubernetesService] {
		return vetted
	}
	config, nodes := withServiceCIDRs(s.config, s.ranges.all()), s.nodes.all()
	if changed {
		s.vetted, vetted = s.vetting.Vet(nodes)
	}
	s.guardCount++
	g := newGuard(s.guardCount, &config, s.vetted, s.egressIPs.all(), s.pools.all())
	s.nodeProblems = s.vetted.problems(nodes, g.egress)
	if api != nil {
		g.reserveAPI(api.frontends(nil, g))
	}
	others, all := s.guard.otherEndpoints(g, &vetted)
	if !all && len(others)+len(vetted.Hosts) == 0 && s.guard.sameExternal(g) {
		return vetted
	}
	s.guard = g
	affected := maps.Keys(s.guardInputs)
	if all || !vetted.arePerNode(&config) {
		affected = maps.Keys(s.services)
	}
	for owner := range affected {
		if v := s.services[owner]; all || v.hasExternal() || v.hasEndpointIn(others) {
			s.stale[owner] = true
		}
	}
	return vetted
}

// markClaimed records the addresses of EgressIPs at which Services are served, and which nodes
// announce their addresses by BGP. The guard has already removed those of younger Services.
func (s *Store) markClaimed(egressIPs []*EgressIP, frontends []*Frontend) []*EgressIP {
	by := map[netip.Addr]Owner{}
	var routed []Selector
	for _, a := range s.advertisements.all() {
		if a.EgressIP && !a.Rejected {
			routed = append(routed, a.Nodes)
		}
	}
	if len(egressIPs) > 0 {
		for _, f := range frontends {
			for _, a := range f.ExternalIPs {
				by[a] = f.Owner
			}
			for _, a := range f.LoadBalancerIPs {
				by[a] = f.Owner
			}
		}
	}
	list := egressIPs
	for i, e := range egressIPs {
		var claims []Claim
		for _, a := range e.Addresses {
			if o, ok := by[a]; ok {
				claims = append(claims, Claim{a, o})
			}
		}
		if len(claims)+len(routed) == 0 {
			continue
		}
		if &list[0] == &egressIPs[0] {
			list = slices.Clone(egressIPs)
		}
		with := *e
		with.Claimed, with.Routed = claims, routed
		list[i] = &with
	}
	if !slices.EqualFunc(s.claimed, list,
		func(e, f *EgressIP) bool {
			return e == f || len(f.Claimed)+len(f.Routed) > 0 && reflect.DeepEqual(e, f)
		}) {
		s.claimed = list
	}
	return s.claimed
}

// refresh rebuilds a Service's Frontends and records the problems of the Service and its slices.
func (s *Store) refresh(owner Owner, v *service) {
	if !v.present && len(v.slices) == 0 {
		delete(s.services, owner)
	}
	if v.hasExternal() || v.mayHaveReservedEndpoint(&s.config) {
		s.guardInputs[owner] = true
	} else {
		delete(s.guardInputs, owner)
	}
	s.frontends.put(owner, v.frontends(s.frontends.of[owner], s.guard))
	s.note(owner, slices.Concat(v.problems, v.refused.List()))
	for _, x := range v.slices {
		switch {
		case !v.present:
			orphan := Problem{Owner: x.owner, Field: fieldServiceName, Message: fmt.Sprintf("there is no %s", owner)}
			s.note(x.owner, append(x.problems.List(), orphan))
		case v.served:
			s.note(x.owner, slices.Concat(x.problems.List(), x.refused))
		default: // its endpoints are not used
			s.note(x.owner, nil)
		}
	}
}
