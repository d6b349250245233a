package assign

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/cluster/trust"
)

// nodeAllocator is the part of an allocator for pools of node addresses.
type nodeAllocator struct {
	nodes     []*cluster.Node
	frontends []*cluster.Frontend // sorted
	ports     map[nodePort]*cluster.LoadBalancer
	// nodePorts are NodePorts and health check ports, with the Services that have them.
	nodePorts map[familyPort][]*cluster.Frontend
	checked   map[netip.Addr]cluster.PortRanges // ports of which the node reports whether its host uses them
	used      map[nodePort]cluster.HostPort
	from      map[serviceFamily]*cluster.Pool // from which a Service has its addresses of a family
	addresses map[poolService][]netip.Addr    // that addressesOf returned
}

type (
	// nodePort is a port at a node's address. One Service can have it.
	nodePort struct {
		address netip.Addr
		cluster.LoadBalancerPort
	}
	familyPort struct {
		family cluster.Family
		cluster.LoadBalancerPort
	}
	serviceFamily struct {
		*cluster.LoadBalancer
		family cluster.Family
	}
	poolService struct {
		*cluster.Pool
		serviceFamily
	}
)

func newNodeAllocator(s *cluster.Snapshot, reserved *trust.Reserved) nodeAllocator {
	if !slices.ContainsFunc(s.Pools, func(p *cluster.Pool) bool { return p.NodeAddresses }) {
		return nodeAllocator{}
	}
	n := nodeAllocator{nodes: s.Nodes, frontends: s.Frontends, ports: map[nodePort]*cluster.LoadBalancer{},
		nodePorts: map[familyPort][]*cluster.Frontend{}, from: map[serviceFamily]*cluster.Pool{},
		addresses: map[poolService][]netip.Addr{}, checked: map[netip.Addr]cluster.PortRanges{},
		used: map[nodePort]cluster.HostPort{}}
	for _, x := range s.Nodes {
		for _, a := range x.Addresses {
			if reserved.NodeWith(a) == x.Name {
				n.checked[a] = x.HostPorts.Checked
			}
		}
		for _, u := range x.HostPorts.Used {
			if reserved.NodeWith(u.Address) == x.Name {
				n.used[nodePort{u.Address, u.LoadBalancerPort}] = u
			}
		}
	}
	add := func(f *cluster.Frontend, p cluster.Protocol, port uint16) {
		if port != 0 {
			k := familyPort{f.Family, cluster.LoadBalancerPort{Protocol: p, Port: port}}
			n.nodePorts[k] = append(n.nodePorts[k], f)
		}
	}
	for _, f := range s.Frontends {
		add(f, f.Protocol, f.NodePort)
		add(f, cluster.TCP, f.HealthCheckNodePort)
	}
	return n
}

// keepPorts keeps the ports in a Service's status that it may have at addresses of nodes: for each
// family those of one pool, the one with the most of them.
func (a *allocator) keepPorts(l *cluster.LoadBalancer) {
	if a.nodes.ports == nil || len(l.Recorded) == 0 {
		return
	}
	for _, f := range l.Families {
		var best *cluster.Pool
		var kept []nodePort
		for _, p := range a.pools {
			if p.NodeAddresses && a.selects(p, l) {
				if list := a.portsHeld(p, l, f); len(list) > len(kept) {
					best, kept = p, list
				}
			}
		}
		for _, k := range kept {
			a.nodes.ports[k], a.nodes.from[serviceFamily{l, f}] = l, best
		}
	}
}

// portsHeld returns the ports in a Service's status that it may have of a pool.
func (a *allocator) portsHeld(p *cluster.Pool, l *cluster.LoadBalancer, f cluster.Family) (list []nodePort) {
	for _, x := range a.addressesOf(p, l, f) {
		for _, port := range l.Ports {
			k := nodePort{x, port}
			if cluster.IsRecorded(l.Recorded, x, port) && a.rejectsPort(p, l, k, true) == "" {
				list = append(list, k)
			}
		}
	}
	return list
}

// keepNodeAddresses gives a Service the addresses of the pool of node addresses that it has ports
// of, and reports whether there is one.
func (a *allocator) keepNodeAddresses(l *cluster.LoadBalancer, f cluster.Family) bool {
	p := a.nodes.from[serviceFamily{l, f}]
	if p == nil {
		return false
	}
	_, ok := a.allocateOnNodes(p, l, f)
	return ok
}

// allocateOnNodes gives a Service the addresses of a pool's nodes at which it may have a port. It
// reports whether there is one; if not, it returns why.
func (a *allocator) allocateOnNodes(p *cluster.Pool, l *cluster.LoadBalancer, f cluster.Family) ([]Refusal, bool) {
	if l.Pool != "" {
		return []Refusal{{Reason: ReasonNoPool,
			Message: fmt.Sprintf("%s has addresses of nodes, with which no pods leave", p.Owner)}}, false
	}
	addresses := a.addressesOf(p, l, f)
	if len(addresses) == 0 {
		message := fmt.Sprintf("%s selects no node with an %s address", p.Owner, f)
		if l.Local {
			message += " and a ready endpoint (externalTrafficPolicy: Local)"
		}
		return []Refusal{{Reason: ReasonNoNode, Message: message}}, false
	}
	var refused []Refusal
	out, ok := a.given[l], false
	for _, x := range addresses {
		var records []cluster.IngressPort
		served := false
		for _, port := range l.Ports {
			k, r := nodePort{x, port}, cluster.IngressPort{Address: x, LoadBalancerPort: port}
			has, reason := a.nodes.ports[k] == l, ReasonPort
			why := a.rejectsPort(p, l, k, has)
			if why == "" && !has && !a.nodes.checked[x].Has(port.Port) {
				reason, why = ReasonPortUnknown, fmt.Sprintf("node %s has not reported whether its host uses %s port %d of %s",
					a.reserved.NodeWith(x), port.Protocol, port.Port, x)
			}
			if why != "" {
				r.Error, refused = cluster.ErrorPort, append(refused, Refusal{Reason: reason, Message: why})
			} else {
				served, a.nodes.ports[k] = true, l
			}
			records = append(records, r)
		}
		if served {
			ok = true
			out.Addresses, out.Recorded = append(out.Addresses, x), append(out.Recorded, records...)
		}
	}
	if !ok {
		return refused, false
	}
	a.nodes.from[serviceFamily{l, f}] = p
	for _, r := range refused {
		a.refuse(l, r.Address, r.Reason, "%s", r.Message)
	}
	return nil, true
}

// addressesOf returns the addresses of a pool's nodes that a Service gets, in the order of nodes.
// With externalTrafficPolicy Local, these are the addresses of nodes with a ready endpoint. Nodes
// that are not ready, cordoned, about to leave or excluded from load balancers count only if there
// are no others. There are at most as many addresses as an agent serves.
func (a *allocator) addressesOf(p *cluster.Pool, l *cluster.LoadBalancer, f cluster.Family) []netip.Addr {
	key := poolService{p, serviceFamily{l, f}}
	if list, known := a.nodes.addresses[key]; known {
		return list
	}
	var local []string
	if l.Local {
		local = cluster.LocalNodes(cluster.FrontendsOf(a.nodes.frontends, l.Owner))
	}
	var good, others []netip.Addr
	for _, n := range a.nodes.nodes {
		x := n.Address(f)
		switch _, on := slices.BinarySearch(local, n.Name); {
		case !x.IsValid() || a.reserved.NodeWith(x) != n.Name || !p.Nodes.Matches(n.Egress.Labels) || l.Local && !on:
		case n.Egress.Ready && !n.Egress.Leaving && (len(p.Nodes.Requirements) > 0 || !n.Excluded()):
			good = append(good, x)
		default:
			others = append(others, x)
		}
	}
	if len(good) == 0 {
		good = others
	}
	good = good[:min(len(good), max(1, cluster.MaxExternal/max(1, len(l.Families)*len(l.Ports))))]
	a.nodes.addresses[key] = good
	return good
}

// rejectsPort returns why a Service cannot have a port at an address of a node; empty if it can.
// Programs of the host and hostPorts of Pods always win, even if the Service has the port, and even
// if they are its own endpoints: otherwise, the author of an EndpointSlice could send their clients
// to another endpoint. If the Service has the port already, no younger one takes it by a NodePort.
func (a *allocator) rejectsPort(p *cluster.Pool, l *cluster.LoadBalancer, k nodePort, has bool) string {
	if !p.Ports.Has(k.Port) {
		return fmt.Sprintf("%s port %d is not in spec.nodeAddresses.ports of %s", k.Protocol, k.Port, p.Owner)
	}
	if why := a.reserved.ForPort(k.address, k.Port, l.Created); why != "" {
		return why
	}
	switch u, isUsed := a.nodes.used[k]; {
	case isUsed && u.Pod != (cluster.Owner{}):
		return fmt.Sprintf("%s port %d of %s is a hostPort of %s", k.Protocol, k.Port, k.address, u.Pod)
	case isUsed:
		return fmt.Sprintf("%s port %d of %s is used by a program of node %s", k.Protocol, k.Port, k.address,
			a.reserved.NodeWith(k.address))
	}
	if other := a.nodes.ports[k]; other != nil && other != l {
		return fmt.Sprintf("%s port %d of %s is one of %s", k.Protocol, k.Port, k.address, other.Owner)
	}
	for _, other := range a.has[k.address] {
		if slices.Contains(other.Ports, k.LoadBalancerPort) {
			return fmt.Sprintf("%s port %d of %s is one of %s", k.Protocol, k.Port, k.address, other.Owner)
		}
	}
	for _, f := range a.nodes.nodePorts[familyPort{cluster.FamilyOf(k.address), k.LoadBalancerPort}] {
		older := cmp.Or(f.Created.Compare(l.Created), cmp.Compare(f.UID, l.UID)) < 0
		switch {
		case f.HealthCheckNodePort == k.Port && (older || !has || f.Owner == l.Owner):
			return fmt.Sprintf("port %d is the health check port of %s", k.Port, f.Owner)
		case f.NodePort == k.Port && f.Owner != l.Owner && (older || !has):
			return fmt.Sprintf("%s port %d is the NodePort of %s", k.Protocol, k.Port, f.Owner)
		}
	}
	return ""
}

// availableNodes returns how many addresses of nodes a pool has.
func (a *allocator) availableNodes(p *cluster.Pool) (n int64) {
	for _, x := range a.nodes.nodes {
		for _, y := range x.Addresses {
			if p.Nodes.Matches(x.Egress.Labels) && a.reserved.NodeWith(y) == x.Name {
				n++
			}
		}
	}
	return n
}
