// Package store makes Snapshots of package cluster from Kubernetes objects.
//
// Input are objects, one at a time, in any order. A Snapshot has the facts of all of them, without
// what package trust rejects, and the Problems of both. Equal objects give equal Snapshots, in any
// order of events. A value that did not change keeps its pointer from one Snapshot to the next.
package store

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"hairpin/api/clusternetworkpolicy"
	"hairpin/api/frrk8s"
	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/cluster/parse"
	"hairpin/cluster/trust"
)

// Store collects Kubernetes objects and makes Snapshots of them. It is not safe for concurrent use:
// one goroutine owns it and passes Snapshots to others.
//
// The cost of a Snapshot depends on what changed since the last one, plus one copy of each changed
// list.
type Store struct {
	config         cluster.Config
	nodes          grouped[*cluster.Node]
	pods           grouped[*cluster.Pod]
	starting       grouped[*cluster.Pod]
	namespaces     grouped[*cluster.Namespace]
	ranges         grouped[*parse.ServiceRanges]
	egressIPs      grouped[*cluster.EgressIP]
	egressServices grouped[*parse.EgressServiceSpec]
	policies       grouped[*cluster.Policy]
	pools          grouped[*cluster.Pool]
	loadBalancers  grouped[*cluster.LoadBalancer]
	advertisements grouped[*cluster.Advertisement]
	frrs           grouped[*cluster.FRRConfiguration]
	frontends      grouped[*cluster.Frontend] // by Service
	problems       grouped[cluster.Problem]   // by the object that has them
	services       map[cluster.Owner]*service
	sliceServices  map[cluster.Owner]cluster.Owner // slice → its Service
	stale          map[cluster.Owner]bool          // Services whose Frontends must be rebuilt
	guardInputs    map[cluster.Owner]bool          // Services for which a node change may change the guard's decisions
	guard          *trust.Guard
	guardCount     int // guards created so far
	vetting        *trust.Vetting
	vetted         *trust.Vetted
	nodeProblems   []cluster.Problem                   // of nodes
	podProblems    map[cluster.Owner][]cluster.Problem // of Pods
	requestsExtra  map[cluster.Owner]bool              // Pods that request extra addresses
	withExtra      map[cluster.Owner]*cluster.Pod      // Pods with accepted extra addresses
	last           *cluster.Snapshot

	// Of the last Snapshot, to keep pointers: the results of withClaimedAndRouted, of withServices
	// and withAnnounced, nil if these added nothing, and of vetPools.
	lastMarked, lastWithServices, lastWithAnnounced []*cluster.EgressIP
	vettedPools                                     []*cluster.Pool
}

// New returns an empty Store.
func New(config cluster.Config) *Store {
	return &Store{
		config:         config,
		vetting:        trust.NewVetting("", config.ClusterSubnets),
		nodes:          newGrouped(func(n *cluster.Node) cluster.Owner { return cluster.NodeOwner(n.Name) }),
		pods:           newGrouped(func(p *cluster.Pod) cluster.Owner { return p.Owner }),
		starting:       newGrouped(func(p *cluster.Pod) cluster.Owner { return p.Owner }),
		ranges:         newGrouped(func(r *parse.ServiceRanges) cluster.Owner { return r.Owner }),
		namespaces:     newGrouped(func(n *cluster.Namespace) cluster.Owner { return cluster.NamespaceOwner(n.Name) }),
		egressIPs:      newGrouped(func(e *cluster.EgressIP) cluster.Owner { return e.Owner }),
		egressServices: newGrouped(func(e *parse.EgressServiceSpec) cluster.Owner { return e.Owner }),
		policies:       newGrouped(func(p *cluster.Policy) cluster.Owner { return p.Owner }),
		pools:          newGrouped(func(p *cluster.Pool) cluster.Owner { return p.Owner }),
		loadBalancers:  newGrouped(func(l *cluster.LoadBalancer) cluster.Owner { return l.Owner }),
		advertisements: newGrouped(func(a *cluster.Advertisement) cluster.Owner { return a.Owner }),
		frrs:           newGrouped(func(c *cluster.FRRConfiguration) cluster.Owner { return c.Owner }),
		frontends:      newGroupedComparable(func(f *cluster.Frontend) cluster.Owner { return f.Owner }),
		problems:       newGroupedComparable(func(p cluster.Problem) cluster.Owner { return p.Owner }),
		services:       map[cluster.Owner]*service{},
		sliceServices:  map[cluster.Owner]cluster.Owner{},
		stale:          map[cluster.Owner]bool{},
		guardInputs:    map[cluster.Owner]bool{},
		podProblems:    map[cluster.Owner][]cluster.Problem{},
		requestsExtra:  map[cluster.Owner]bool{},
		withExtra:      map[cluster.Owner]*cluster.Pod{},
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
	owner := parse.Owner(obj)
	switch o := obj.(type) {
	case *corev1.Node:
		n, problems := parse.Node(o)
		replace(s, &s.nodes, owner, n, problems)
	case *corev1.Pod:
		p, problems := parse.Pod(o)
		var pods, starting []*cluster.Pod
		switch {
		case p == nil:
		case len(p.IPs) > 0:
			pods = []*cluster.Pod{p}
		default:
			starting = []*cluster.Pod{p}
		}
		s.pods.put(owner, pods)
		s.starting.put(owner, starting)
		s.note(owner, problems)
		if p != nil && len(p.RequestedExtra) > 0 {
			s.requestsExtra[owner] = true
		} else {
			s.forgetExtra(owner)
		}
	case *corev1.Service:
		v := s.service(owner)
		v.present = true
		v.served, v.ports, v.problems = parse.Service(o)
		s.setLoadBalancer(owner, v, o)
	case *discoveryv1.EndpointSlice:
		x := parse.EndpointSlice(o)
		if s.sliceServices[owner] != x.Service {
			s.dropSlice(owner) // its label named another Service
		}
		if x.Service == (cluster.Owner{}) {
			s.note(owner, x.Problems.List())
			return
		}
		s.sliceServices[owner] = x.Service
		s.service(x.Service).set(&slice{Slice: x})
	case *networkingv1.ServiceCIDR:
		r, problems := parse.ServiceCIDR(o)
		replace(s, &s.ranges, owner, r, problems)
	case *networkingv1.NetworkPolicy:
		p, problems := parse.NetworkPolicy(o)
		replace(s, &s.policies, owner, p, problems)
	case *clusternetworkpolicy.ClusterNetworkPolicy:
		p, problems := parse.ClusterNetworkPolicy(o)
		replace(s, &s.policies, owner, p, problems)
	case *corev1.Namespace:
		n, problems := parse.Namespace(o)
		replace(s, &s.namespaces, owner, n, problems)
	case *v1.EgressIP:
		e, problems := parse.EgressIP(o)
		s.egressIPs.put(owner, oneOrNone(e))
		s.loadBalancers.put(owner, oneOrNone(parse.PoolRequest(o)))
		s.note(owner, problems)
	case *v1.EgressService:
		e, problems := parse.EgressService(o)
		replace(s, &s.egressServices, owner, e, problems)
	case *v1alpha1.LoadBalancerPool:
		p, problems := parse.Pool(o)
		replace(s, &s.pools, owner, p, problems)
	case *v1alpha1.BGPAdvertisement:
		a, problems := parse.Advertisement(o)
		replace(s, &s.advertisements, owner, a, problems)
	case *frrk8s.FRRConfiguration:
		s.frrs.put(owner, oneOrNone(parse.FRRConfiguration(o)))
	}
}

// replace replaces what is stored of an object, and its problems.
func replace[T any](s *Store, g *grouped[T], owner cluster.Owner, parsed T, problems []cluster.Problem) {
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
func remove[T any](s *Store, g *grouped[T], owner cluster.Owner) {
	g.put(owner, nil)
	s.note(owner, nil)
}

// Delete removes an object of a type that Set accepts. Only its name and namespace are read.
func (s *Store) Delete(obj any) {
	owner := parse.Owner(obj)
	switch obj.(type) {
	case *corev1.Node:
		remove(s, &s.nodes, owner)
	case *corev1.Pod:
		s.pods.put(owner, nil)
		remove(s, &s.starting, owner)
		s.forgetExtra(owner)
	case *corev1.Service:
		v := s.service(owner)
		*v = service{slices: v.slices}
		s.loadBalancers.put(owner, nil)
	case *discoveryv1.EndpointSlice:
		s.dropSlice(owner)
	case *networkingv1.ServiceCIDR:
		remove(s, &s.ranges, owner)
	case *networkingv1.NetworkPolicy, *clusternetworkpolicy.ClusterNetworkPolicy:
		remove(s, &s.policies, owner)
	case *corev1.Namespace:
		remove(s, &s.namespaces, owner)
	case *v1.EgressIP:
		remove(s, &s.egressIPs, owner)
		s.loadBalancers.put(owner, nil)
	case *v1.EgressService:
		remove(s, &s.egressServices, owner)
	case *v1alpha1.LoadBalancerPool:
		remove(s, &s.pools, owner)
	case *v1alpha1.BGPAdvertisement:
		remove(s, &s.advertisements, owner)
	case *frrk8s.FRRConfiguration:
		s.frrs.put(owner, nil)
	}
}

// dropSlice removes a slice from its Service.
func (s *Store) dropSlice(slice cluster.Owner) {
	if owner, ok := s.sliceServices[slice]; ok {
		s.service(owner).drop(slice)
		delete(s.sliceServices, slice)
	}
	s.note(slice, nil)
}

// service returns the record of a Service that is about to change, and marks it stale.
func (s *Store) service(owner cluster.Owner) *service {
	s.stale[owner] = true
	v := s.services[owner]
	if v == nil {
		v = &service{}
		s.services[owner] = v
	}
	return v
}

// note replaces the problems of an object.
func (s *Store) note(owner cluster.Owner, problems []cluster.Problem) {
	s.problems.put(owner, cluster.SortProblems(slices.Clone(problems)))
}

// Snapshot returns the current state, or the previous Snapshot if nothing in it changed. It shares
// nothing that a later Set would change.
func (s *Store) Snapshot() *cluster.Snapshot {
	forGuard := s.last == nil || s.nodes.changed() || s.egressIPs.changed() || s.ranges.changed() || s.pools.changed()
	changedNodes := slices.Collect(maps.Keys(s.nodes.stale)) // before updateGuard reads s.nodes.all()
	vetted := s.updateGuard(forGuard)
	for owner := range s.stale {
		s.refresh(owner, s.services[owner])
	}
	s.stale = map[cluster.Owner]bool{} // a map that was cleared is as large as before
	if forGuard || s.frontends.changed() || s.pods.changed() || s.problems.changed() || s.starting.changed() ||
		s.namespaces.changed() || s.egressServices.changed() || s.policies.changed() || s.loadBalancers.changed() ||
		s.advertisements.changed() || s.frrs.changed() {
		s.checkPodNodes(changedNodes, &vetted)
		policies := s.policies.all()
		denied := samePriority(policies) // the calls below add problems of other objects
		pools := s.vetPools(&denied)
		egressIPs := s.withServices(s.withClaimedAndRouted(s.egressIPs.all(), s.frontends.all()), &denied)
		s.last = &cluster.Snapshot{
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
// nodes that changed, also if only their address ranges did. It must precede s.pods.all(), after
// which no Pod counts as changed.
func (s *Store) checkPodNodes(changedNodes []cluster.Owner, vetted *trust.VettedChanges) {
	check := func(o cluster.Owner) {
		delete(s.podProblems, o)
		for _, p := range s.pods.byOwner[o] {
			for _, n := range s.nodes.byOwner[cluster.NodeOwner(p.Node)] {
				if problems := s.vetted.ForeignAddresses(p, n); len(problems) > 0 {
					s.podProblems[o] = problems
				}
			}
		}
	}
	for o := range s.pods.stale {
		check(o)
	}
	nodes := vetted.NodesOfRanges(s.vetted)
	for _, o := range changedNodes {
		nodes[o.Name] = true
	}
	if len(nodes) == 0 {
		return
	}
	for o, pods := range s.pods.byOwner {
		if nodes[pods[0].Node] && !s.pods.stale[o] {
			check(o)
		}
	}
}

// withoutForeign omits the Pods that have an address of another node.
func (s *Store) withoutForeign(pods []*cluster.Pod) []*cluster.Pod {
	if len(s.podProblems) == 0 {
		return pods
	}
	return slices.DeleteFunc(slices.Clone(pods), func(p *cluster.Pod) bool { return len(s.podProblems[p.Owner]) > 0 })
}

func (s *Store) allProblems(denied []cluster.Problem) []cluster.Problem {
	if len(s.nodeProblems)+len(s.podProblems)+len(denied) == 0 {
		return s.problems.all()
	}
	list := slices.Concat(s.problems.all(), s.nodeProblems, denied)
	for _, problems := range s.podProblems {
		list = append(list, problems...)
	}
	return cluster.SortProblems(list)
}

// updateGuard updates the guard. changed reports that a list changed on which its decisions depend,
// besides the Service of the API server. If the decisions change, it marks Services stale: those
// with addresses other than cluster IPs, or with an endpoint for which the decision changed. If
// address ranges changed, it marks all.
func (s *Store) updateGuard(changed bool) (vetted trust.VettedChanges) {
	api := s.services[trust.KubernetesService]
	if s.guard != nil && !changed && !s.stale[trust.KubernetesService] {
		return vetted
	}
	config, nodes := withServiceCIDRs(s.config, s.ranges.all()), s.nodes.all()
	if changed {
		s.vetted, vetted = s.vetting.Vet(nodes)
	}
	s.guardCount++
	g := trust.NewGuard(s.guardCount, &config, s.vetted, s.egressIPs.all(), s.pools.all())
	s.nodeProblems = s.vetted.Problems(nodes, g)
	if api != nil {
		g.ReserveAPI(api.frontends(nil, g))
	}
	endpoints, all := s.guard.ChangedEndpoints(g, &vetted)
	if !all && len(endpoints)+len(vetted.Hosts) == 0 && s.guard.SameExternal(g) {
		return vetted
	}
	s.guard = g
	affected := maps.Keys(s.guardInputs)
	if all || !vetted.RangesArePerNode(&config) {
		affected = maps.Keys(s.services)
	}
	for owner := range affected {
		if v := s.services[owner]; all || v.hasExternal() || v.hasEndpointIn(endpoints) {
			s.stale[owner] = true
		}
	}
	return vetted
}

// refresh rebuilds a Service's Frontends and records the problems of the Service and its slices.
func (s *Store) refresh(owner cluster.Owner, v *service) {
	if !v.present && len(v.slices) == 0 {
		delete(s.services, owner)
	}
	if v.hasExternal() || v.mayHaveReservedEndpoint(&s.config) {
		s.guardInputs[owner] = true
	} else {
		delete(s.guardInputs, owner)
	}
	s.frontends.put(owner, v.frontends(s.frontends.byOwner[owner], s.guard))
	s.note(owner, slices.Concat(v.problems, v.refused.List()))
	for _, x := range v.slices {
		switch {
		case !v.present && !x.Dependent:
			orphan := cluster.Problem{Owner: x.Owner, Field: parse.FieldServiceName,
				Message: fmt.Sprintf("there is no %s", owner)}
			s.note(x.Owner, append(x.Problems.List(), orphan))
		case v.served:
			s.note(x.Owner, slices.Concat(x.Problems.List(), x.refused))
		default: // its endpoints are not used, or Kubernetes is about to delete it
			s.note(x.Owner, nil)
		}
	}
}
