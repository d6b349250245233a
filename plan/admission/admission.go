// Package admission decides which Service has which cluster IP, node port, external address, proxy
// port and group slot.
//
// Its input is every Service's Frontends, the addresses of all nodes and the cluster's pod ranges.
// Its output is the Frontends that the node serves, without what was rejected, and a Problem for
// each rejection.
//
// Invariants:
//   - A key, which is something that only one Service can have, has one holder: the bid with the
//     lowest rank, and of those the oldest Service's.
//   - A rejected item does not affect the rest of its Service.
//   - The result does not depend on the order in which the objects arrived. Proxy ports and group
//     slots are the exception: a Service keeps what it has for as long as it exists.
//   - An update costs the changed Services and those that compete with them, not the number of
//     Services.
package admission

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// admit returns what is served of a Service, and the reasons for the rest. It decides what two
// Services cannot both have (a cluster IP, a node port, an external address and port), and what one
// Service cannot have twice (a port, a port's name). The older Service keeps it. But a Service
// never loses a cluster IP to another Service's external IP, nor a load balancer address to
// spec.externalIPs.
func (r *Registry) admit(s *service) ([]*Frontend, []cluster.Problem) {
	d := decision{Registry: r, service: s}
	names := markRepeated(s.frontends, nameOf)
	ports := markRepeated(s.frontends,
		func(f *cluster.Frontend) addressPort { return addressPort{f.ClusterIP, f.Protocol, f.Port} })
	nodePorts := markRepeated(s.frontends, func(f *cluster.Frontend) key { return nodePortKey(f) })
	admitted, list := make([]Frontend, len(s.frontends)), make([]*Frontend, 0, len(s.frontends))
	for i, f := range s.frontends {
		switch holder := r.holders[clusterIPKey(f.ClusterIP)]; {
		case ports.at(i):
			d.reject(f, "spec.ports", "%s port %d belongs to %s already", f.Protocol, f.Port, f.Owner)
		case names.at(i):
			d.reject(f, "spec.ports", "two %s ports are named %q", f.Protocol, f.PortName)
		case holder.service != s:
			d.reject(f, "spec.clusterIPs", "%s belongs to %s already", f.ClusterIP, holder.service.owner)
		default:
			g := &admitted[i]
			g.Frontend = f
			d.nodePort(g, nodePorts.at(i))
			d.external(g)
			d.proxyPort(g)
			g.group = d.slots.byName[groupNameOf(f)]
			list = append(list, g)
		}
	}
	return list, d.problems.List()
}

// Keys that a Service can have only once.
type (
	portName struct {
		name     string
		family   cluster.Family
		protocol cluster.Protocol
	}
	addressPort struct {
		addr     netip.Addr
		protocol cluster.Protocol
		port     uint16
	}
)

func nameOf(f *cluster.Frontend) portName { return portName{f.PortName, f.Family, f.Protocol} }

// marks says for each element of a list whether it has some property; nil: none has it.
type marks []bool

func (m marks) at(i int) bool { return m != nil && m[i] }

// markRepeated marks the Frontends that have the same key as an earlier one.
func markRepeated[K comparable](list []*cluster.Frontend, keyOf func(*cluster.Frontend) K) marks {
	if len(list) < 2 || len(list) == 2 && keyOf(list[0]) != keyOf(list[1]) { // one port in both families needs no map
		return nil
	}
	m, seen := make(marks, len(list)), make(map[K]bool, len(list))
	for i, f := range list {
		k := keyOf(f)
		m[i], seen[k] = seen[k], true
	}
	return m
}

// decision is one decision about one Service. Its problems are the new ones; those of the last
// decision are in service.
type decision struct {
	*Registry
	*service
	problems cluster.Problems
}

func (d *decision) reject(f *cluster.Frontend, field, format string, args ...any) {
	d.problems.Add(f.Owner, field, format, args...)
}

// nodePort removes the node port if another Service holds it, or if it is repeated in the Service.
// It excludes the addresses of nodes where it is another Service's external port.
func (d *decision) nodePort(g *Frontend, repeated bool) {
	f := g.Frontend
	if f.NodePort == 0 {
		return
	}
	if holder := d.holders[nodePortKey(f)].service; holder != d.service || repeated {
		d.reject(f, "spec.ports", "%s node port %d belongs to %s already", f.Protocol, f.NodePort, holder.owner)
		g.edit(func(f *cluster.Frontend) { f.NodePort = 0 })
		return
	}
	exclude := func(a netip.Addr) { g.NoNodePort = append(g.NoNodePort, a) }
	for _, b := range d.bids(externalPortKey(f, f.NodePort)) {
		for _, a := range externalAddrs(b.service, f.Protocol, f.NodePort) {
			if d.nodeWith(a) == "" || d.externalHolder(a, f.Protocol, f.NodePort) != b.service ||
				d.olderEndpoint(b.service, a, f.Protocol, f.NodePort) != nil {
				continue // the bidder is not served at a node's address
			}
			switch {
			case b.service == d.service && f.Port == f.NodePort:
				exclude(a) // the same port at the same address
			case b.service == d.service:
				d.reject(f, "spec.ports", "%s node port %d of %s is port %d of the Service itself there",
					f.Protocol, f.NodePort, a, f.NodePort)
				exclude(a)
			case b.service.frontends[0].CompareAge(f) <= 0:
				d.reject(f, "spec.ports", "%s node port %d of %s belongs to %s already", f.Protocol, f.NodePort, a,
					b.service.owner)
				exclude(a)
			}
		}
	}
}

// externalAddrs returns the external addresses of a Service that have a port.
func externalAddrs(s *service, p cluster.Protocol, port uint16) []netip.Addr {
	var list []netip.Addr
	for _, f := range s.frontends {
		if f.Protocol == p && f.Port == port {
			list = slices.Concat(list, f.ExternalIPs, f.LoadBalancerIPs)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// externalHolder returns the Service that holds an external address and port, or nil.
func (r *Registry) externalHolder(a netip.Addr, p cluster.Protocol, port uint16) *service {
	return r.holders[externalKey(a, p, port)].service
}

// external removes external addresses that another Service holds, and those that are the Service's
// own cluster IP.
func (d *decision) external(g *Frontend) {
	f := g.Frontend
	for _, v := range f.External() {
		a, field := v.Addr(), "spec.externalIPs"
		if !slices.Contains(f.ExternalIPs, a) {
			field = "status.loadBalancer.ingress"
		}
		holder := d.externalHolder(a, f.Protocol, f.Port)
		if s := d.holders[clusterIPKey(a)].service; s != nil && s != d.service && s.hasPort(a, f.Protocol, f.Port) {
			holder = s
		}
		node, nodePort := d.nodeWith(a), d.holders[nodePortAt(f, f.Port)].service
		older := d.olderEndpoint(d.service, a, f.Protocol, f.Port)
		switch {
		case a == f.ClusterIP: // the policies for pods and external clients would conflict
			d.reject(f, field, "%s is the cluster IP of the Service itself", a)
		case older != nil:
			d.reject(f, field, "%s port %d of %s is an endpoint of %s, which is older", f.Protocol, f.Port, a,
				older.owner)
		case holder != d.service:
			d.reject(f, field, "%s port %d of %s belongs to %s already", f.Protocol, f.Port, a, holder.owner)
		case node != "" && nodePort != nil && nodePort != d.service && nodePort.frontends[0].CompareAge(f) < 0:
			d.reject(f, field, "%s is an address of Node/%s, where %s port %d is the node port of %s",
				a, node, f.Protocol, f.Port, nodePort.owner)
		default:
			continue
		}
		g.edit(func(f *cluster.Frontend) {
			f.ExternalIPs, f.LoadBalancerIPs = without(f.ExternalIPs, a), without(f.LoadBalancerIPs, a)
		})
	}
}

// proxyPort sets the proxy port that was allocated to a Frontend. Without one, and without a node
// port, it is not served at external addresses.
func (d *decision) proxyPort(g *Frontend) {
	if !NeedsProxyPort(g.Frontend) {
		return
	}
	if g.port = d.allocatedPort(d.service, g.Frontend); g.port == 0 && g.NodePort == 0 {
		d.reject(g.Frontend, "spec.ports", "%s: give it a node port to serve its external addresses",
			cmp.Or(d.whyExhausted(g.Owner, portRange{g.Family, g.Protocol}), "no port of the proxy addresses is left"))
		g.edit(func(f *cluster.Frontend) { f.ExternalIPs, f.LoadBalancerIPs = nil, nil })
	}
}

// hasPort reports whether a Service has a port at a cluster IP.
func (s *service) hasPort(ip netip.Addr, p cluster.Protocol, port uint16) bool {
	return slices.ContainsFunc(s.frontends, func(f *cluster.Frontend) bool {
		return f.ClusterIP == ip && f.Protocol == p && f.Port == port
	})
}

// without returns a copy of a list without an address.
func without(list []netip.Addr, a netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(list), func(b netip.Addr) bool { return a == b })
}
