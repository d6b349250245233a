package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// judge decides what of a Service is served, and says why the rest is not: what two Services cannot both have (a cluster IP, a
// NodePort, an external address and port), and what one Service cannot have twice (a port, a port's name). The older one keeps
// it, but no Service loses a ClusterIP to another's external IP, nor a load balancer address to spec.externalIPs. What is
// refused takes nothing along: the Service is served without it.
func (r *registry) judge(c *claimant) ([]*cluster.Frontend, []Problem) {
	j := judgement{registry: r, claimant: c}
	names := repeats(c.given, wordOf)
	numbers := repeats(c.given, func(f *cluster.Frontend) number { return number{f.ClusterIP, f.Protocol, f.Port} })
	nodePorts := repeats(c.given, func(f *cluster.Frontend) claim { return nodePortOf(f) })
	var list []*cluster.Frontend // once it differs
	for i, f := range c.given {
		g := f
		switch first := r.first[claim{kind: claimClusterIP, addr: f.ClusterIP}]; {
		case numbers.has(i):
			j.refuse(f, "spec.ports", "%s port %d belongs to %s already", f.Protocol, f.Port, f.Owner)
			g = nil
		case names.has(i):
			j.refuse(f, "spec.ports", "two %s ports are named %q", f.Protocol, f.PortName)
			g = nil
		case first.by != c:
			j.refuse(f, "spec.clusterIPs", "%s belongs to %s already", f.ClusterIP, first.by.owner)
			g = nil
		default:
			g = j.grouped(j.numbered(j.outside(j.nodePort(f, nodePorts.has(i)))))
		}
		if g != f && list == nil {
			list = slices.Clone(c.given[:i])
		}
		if g != nil && list != nil {
			list = append(list, g)
		}
	}
	if list == nil && j.problems.Len() == 0 {
		list = c.given
	}
	return list, j.problems.List()
}

// What a Service can have once.
type (
	word struct {
		name     string
		family   cluster.Family
		protocol cluster.Protocol
	}
	number struct {
		addr     netip.Addr
		protocol cluster.Protocol
		port     uint16
	}
)

func wordOf(f *cluster.Frontend) word { return word{f.PortName, f.Family, f.Protocol} }

// marks tells of which elements of a list something holds; nil: of none.
type marks []bool

func (m marks) has(i int) bool { return m != nil && m[i] }

// repeats tells which Frontends have a key that an earlier one has.
func repeats[K comparable](list []*cluster.Frontend, key func(*cluster.Frontend) K) marks {
	if len(list) < 2 || len(list) == 2 && key(list[0]) != key(list[1]) { // one port, in both families, needs no map
		return nil
	}
	m, seen := make(marks, len(list)), make(map[K]bool, len(list))
	for i, f := range list {
		k := key(f)
		m[i], seen[k] = seen[k], true
	}
	return m
}

// judgement is one decision about one Service.
type judgement struct {
	*registry
	*claimant
	problems cluster.Problems
}

func (j *judgement) refuse(f *cluster.Frontend, field, format string, args ...any) {
	j.problems.Add(f.Owner, field, format, args...)
}

func nodePortOf(f *cluster.Frontend) claim {
	return claim{kind: claimNodePort, family: f.Family, protocol: f.Protocol, port: f.NodePort}
}

// nodePort takes the NodePort away where it is another one's, and from addresses of nodes where it is.
func (j *judgement) nodePort(f *cluster.Frontend, again bool) *cluster.Frontend {
	if f.NodePort == 0 {
		return f
	}
	if first := j.first[nodePortOf(f)].by; first != j.claimant || again {
		j.refuse(f, "spec.ports", "%s node port %d belongs to %s already", f.Protocol, f.NodePort, first.owner)
		c := *f
		c.NodePort = 0
		return &c
	}
	out := f
	none := func(a netip.Addr) {
		c := *out
		c.NoNodePort = append(slices.Clone(c.NoNodePort), a)
		out = &c
	}
	for _, x := range j.all(claim{kind: claimOutside, family: f.Family, protocol: f.Protocol, port: f.NodePort}) {
		for _, a := range addressesAt(x.by, f.Protocol, f.NodePort) {
			switch {
			case j.host(a) == "" || j.external(a, f.Protocol, f.NodePort) != x.by || j.namer(x.by, a, f.Protocol, f.NodePort) != nil:
			case x.by == j.claimant && f.Port == f.NodePort:
				none(a) // the same port at the same address
			case x.by == j.claimant:
				j.refuse(f, "spec.ports", "%s node port %d of %s is port %d of the Service itself there", f.Protocol, f.NodePort, a, f.NodePort)
				none(a)
			case x.by.given[0].CompareAge(f) <= 0:
				j.refuse(f, "spec.ports", "%s node port %d of %s belongs to %s already", f.Protocol, f.NodePort, a, x.by.owner)
				none(a)
			}
		}
	}
	return out
}

// addressesAt returns the addresses at which clients outside find a port of a Service.
func addressesAt(c *claimant, p cluster.Protocol, port uint16) []netip.Addr {
	var list []netip.Addr
	for _, f := range c.given {
		if f.Protocol == p && f.Port == port {
			list = slices.Concat(list, f.ExternalIPs, f.LoadBalancerIPs)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// external tells whose an external address and port is.
func (r *registry) external(a netip.Addr, p cluster.Protocol, port uint16) *claimant {
	return r.first[claim{kind: claimExternal, addr: a, protocol: p, port: port}].by
}

// outside takes external addresses away that are another one's, or the Service's own cluster IP.
func (j *judgement) outside(f *cluster.Frontend) *cluster.Frontend {
	out := f
	for _, v := range externals(f) {
		a, field := v.Addr(), "spec.externalIPs"
		if !slices.Contains(f.ExternalIPs, a) {
			field = "status.loadBalancer.ingress"
		}
		first := j.external(a, f.Protocol, f.Port)
		if ip := j.first[claim{kind: claimClusterIP, addr: a}].by; ip != nil && ip != j.claimant && has(ip, a, f.Protocol, f.Port) {
			first = ip
		}
		on, nodePort := j.host(a), j.first[claim{kind: claimNodePort, family: f.Family, protocol: f.Protocol, port: f.Port}].by
		namer := j.namer(j.claimant, a, f.Protocol, f.Port)
		switch {
		case a == f.ClusterIP: // policies for pods and for clients outside could not both hold
			j.refuse(f, field, "%s is the cluster IP of the Service itself", a)
		case namer != nil:
			j.refuse(f, field, "%s port %d of %s is an endpoint of %s, which is older", f.Protocol, f.Port, a, namer.owner)
		case first != j.claimant:
			j.refuse(f, field, "%s port %d of %s belongs to %s already", f.Protocol, f.Port, a, first.owner)
		case on != "" && nodePort != nil && nodePort != j.claimant && nodePort.given[0].CompareAge(f) < 0:
			j.refuse(f, field, "%s is an address of Node/%s, where %s port %d is the node port of %s", a, on, f.Protocol, f.Port, nodePort.owner)
		default:
			continue
		}
		out = without(out, a)
	}
	return out
}

// numbered gives a Frontend its number where that is not the one it wants most.
func (j *judgement) numbered(f *cluster.Frontend) *cluster.Frontend {
	if !wantsNumber(f) {
		return f
	}
	out := *f
	switch out.Number = j.number(j.claimant, f); out.Number {
	case numbered(f, 0):
		return f
	case 0:
		if f.NodePort != 0 {
			return f
		}
		j.refuse(f, "spec.ports", "%s: give it a node port to serve its external addresses",
			cmp.Or(j.exhausted(f.Owner, numberRange{f.Family, f.Protocol}), "no port of the proxy addresses is left"))
		out.ExternalIPs, out.LoadBalancerIPs = nil, nil
	}
	return &out
}

// has reports whether a Service has a port at a cluster IP.
func has(c *claimant, ip netip.Addr, p cluster.Protocol, port uint16) bool {
	return slices.ContainsFunc(c.given, func(f *cluster.Frontend) bool { return f.ClusterIP == ip && f.Protocol == p && f.Port == port })
}

// without returns a copy that is not served at an address.
func without(f *cluster.Frontend, a netip.Addr) *cluster.Frontend {
	c := *f
	other := func(b netip.Addr) bool { return a == b }
	c.ExternalIPs = slices.DeleteFunc(slices.Clone(f.ExternalIPs), other)
	c.LoadBalancerIPs = slices.DeleteFunc(slices.Clone(f.LoadBalancerIPs), other)
	return &c
}
