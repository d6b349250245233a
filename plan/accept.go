package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// registry is what Frontends have taken, and by whom.
type registry struct {
	ips      map[netip.Addr]cluster.Owner
	ports    map[takenPort]cluster.Owner
	names    map[portName]bool
	standIns map[takenPort]cluster.Owner
	hosts    map[netip.Addr]string // addresses of nodes, which have NodePorts
	problems []Problem
}

// takenPort is a port of a cluster IP, or a NodePort when it has no address.
type takenPort struct {
	addr     netip.Addr
	family   cluster.Family
	protocol cluster.Protocol
	port     uint16
}

// portName is what Frontend.Key is made of.
type portName struct {
	owner    cluster.Owner
	port     string
	family   cluster.Family
	protocol cluster.Protocol
}

// accept refuses what two Services cannot both have: a cluster IP, a port on it, a NodePort; and what one Service cannot
// have twice: a port's name. The first in the order of the Snapshot keeps it. A Service whose NodePort is taken is
// served without it.
//
// The answer depends only on the nodes and on what sameClaims compares. When nothing is refused it is the list itself.
func accept(all []*cluster.Frontend, nodes []*cluster.Node) ([]*cluster.Frontend, []Problem) {
	r := registry{
		ips:   make(map[netip.Addr]cluster.Owner, len(all)),
		ports: make(map[takenPort]cluster.Owner, len(all)),
		names: make(map[portName]bool, len(all)), standIns: map[takenPort]cluster.Owner{},
		hosts: map[netip.Addr]string{},
	}
	for _, n := range nodes {
		for _, a := range n.HostAddresses {
			r.hosts[a.Addr()] = n.Name
		}
	}
	list := make([]*cluster.Frontend, 0, len(all))
	for _, f := range all {
		if !r.take(f) {
			continue
		}
		if p := (takenPort{family: f.Family, protocol: f.Protocol, port: f.NodePort}); f.NodePort != 0 {
			if first, ok := r.ports[p]; ok {
				r.refuse(f, "spec.ports", "%s node port %d belongs to %s already", f.Protocol, f.NodePort, first)
				without := *f
				without.NodePort = 0
				f = &without
			} else {
				r.ports[p] = f.Owner
			}
		}
		list = append(list, f)
	}
	// Afterwards: nobody loses a cluster IP to somebody's external one.
	for i, f := range list {
		list[i] = r.further(f)
	}
	if len(r.problems) == 0 {
		return all, nil
	}
	return list, r.problems
}

// take takes a Frontend's cluster IP, port and name.
func (r *registry) take(f *cluster.Frontend) bool {
	if first, ok := r.ips[f.ClusterIP]; ok && first != f.Owner {
		r.refuse(f, "spec.clusterIPs", "%s belongs to %s already", f.ClusterIP, first)
		return false
	}
	p := takenPort{f.ClusterIP, f.Family, f.Protocol, f.Port}
	if first, ok := r.ports[p]; ok {
		r.refuse(f, "spec.ports", "%s port %d belongs to %s already", f.Protocol, f.Port, first)
		return false
	}
	n := portName{f.Owner, f.PortName, f.Family, f.Protocol}
	if r.names[n] {
		r.refuse(f, "spec.ports", "two %s ports are named %q", f.Protocol, f.PortName)
		return false
	}
	r.ips[f.ClusterIP], r.ports[p], r.names[n] = f.Owner, f.Owner, true
	return true
}

// further takes what a Frontend can be served without: its other addresses, and the port that stands in for it.
func (r *registry) further(f *cluster.Frontend) *cluster.Frontend {
	out := f
	for _, v := range externals(f) {
		p := takenPort{v.Addr(), f.Family, f.Protocol, v.Port()}
		field := "spec.externalIPs"
		if !slices.Contains(f.ExternalIPs, v.Addr()) {
			field = "status.loadBalancer.ingress"
		}
		if first, ok := r.ports[p]; ok && first != f.Owner {
			r.refuse(f, field, "%s port %d of %s belongs to %s already", f.Protocol, v.Port(), v.Addr(), first)
			out = without(out, v.Addr())
			continue
		}
		nodePort := takenPort{family: f.Family, protocol: f.Protocol, port: v.Port()}
		if first, ok := r.ports[nodePort]; ok && first != f.Owner && r.hosts[v.Addr()] != "" {
			r.refuse(f, field, "%s is an address of Node/%s, where %s port %d is the node port of %s", v.Addr(), r.hosts[v.Addr()], f.Protocol, v.Port(), first)
			out = without(out, v.Addr())
			continue
		}
		r.ports[p] = f.Owner
	}
	if !needsStandIn(out) {
		return out
	}
	p := takenPort{family: f.Family, protocol: f.Protocol, port: standIn(out)}
	if first, ok := r.standIns[p]; ok {
		r.refuse(f, "spec.ports", "a number that stands for it is %s's already: give the Service a node port", first)
		for _, v := range externals(out) {
			out = without(out, v.Addr())
		}
		return out
	}
	r.standIns[p] = f.Owner
	return out
}

// without gives a copy that is not served at an address.
func without(f *cluster.Frontend, a netip.Addr) *cluster.Frontend {
	c := *f
	other := func(b netip.Addr) bool { return a == b }
	c.ExternalIPs = slices.DeleteFunc(slices.Clone(f.ExternalIPs), other)
	c.LoadBalancerIPs = slices.DeleteFunc(slices.Clone(f.LoadBalancerIPs), other)
	return &c
}

func (r *registry) refuse(f *cluster.Frontend, field, format string, args ...any) {
	r.problems = append(r.problems, Problem{Owner: f.Owner, Field: field, Message: fmt.Sprintf(format, args...)})
}

// sameClaims tells whether two states of a Frontend claim the same addresses, ports and names.
func sameClaims(a, b *cluster.Frontend) bool {
	return a.Owner == b.Owner && a.ClusterIP == b.ClusterIP && a.Protocol == b.Protocol && a.Port == b.Port && a.NodePort == b.NodePort &&
		a.PortName == b.PortName && slices.Equal(a.ExternalIPs, b.ExternalIPs) && slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		needsStandIn(a) == needsStandIn(b) && a.Restricted == b.Restricted
}
