package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
)

// ServiceFlows are a node's pods, and their Services, as flows and groups of claims.ServiceBridge, in place of ports and load balancers of OVN: who is
// served where, and by whom, is the same, only the writing differs. No node has that bridge yet.
func ServiceFlows(s *cluster.Snapshot, node string) (flow.State, []Problem) {
	env, problems, ok := newEnv(s, node)
	if !ok {
		return flow.State{}, sorted(problems)
	}
	n := planAll(s, env, problems, nil)
	w := newSwitchboard(&n.env)
	w.bridge()
	w.paths()
	for _, p := range n.env.Pods {
		w.pod(p)
	}
	list, _ := n.registry.served()
	for _, f := range list {
		if s := w.stack(f.Family); s != nil {
			w.frontend(s, f)
		}
	}
	return w.State, sorted(append(slices.Clone(n.problems), w.problems...))
}

// Priorities in TableServices.
const (
	prioServed  = 200
	prioGuarded = 205 // a load balancer's address, for all
	prioRange   = 210 // the same, for those who may
)

// frontend serves pods. A pod finds all endpoints at addresses from outside: the policy for clients outside does not count.
func (w *switchboard) frontend(s *Stack, f *cluster.Frontend) {
	x := w.front(s, f)
	outer := externals(f)
	if f.NodePort != 0 && w.Config.Gateway.NodePort {
		outer = append(outer, w.nodePorts(s, f)...)
	}
	inner := ""
	if f.InternalLocal {
		inner = wayOwn
	}
	w.owner = nodeOwner(w.Node.Name) // of what Services share
	for _, v := range outer {
		if !within(s.Services, v.Addr()) {
			w.toVIPs(f.Family, single(v.Addr()))
			w.fromEndpoints(f.Family, single(v.Addr())) // a node's: both ways of a connection are tracked, or none
		}
	}
	for _, e := range x.cluster {
		if !within(s.Cluster, e.Addr()) {
			w.fromEndpoints(f.Family, single(e.Addr()))
		}
	}
	w.owner = f.Owner
	w.lead(&x, prioServed, netip.Prefix{}, netip.AddrPortFrom(f.ClusterIP, f.Port), w.group(&x, inner, x.internal))
	for _, v := range outer {
		if !x.guards(v.Addr()) {
			w.lead(&x, prioServed, netip.Prefix{}, v, w.group(&x, "", x.cluster))
			continue
		}
		for _, r := range f.SourceRanges {
			w.lead(&x, prioRange, r, v, w.group(&x, "", x.cluster))
		}
		w.lead(&x, prioGuarded, netip.Prefix{}, v, flow.Drop{})
	}
}

// lead adds a flow for a VIP. Without an action there is none: OVN hands such packets to the host, which refuses them.
func (w *switchboard) lead(x *front, priority uint16, from netip.Prefix, vip netip.AddrPort, to flow.Action) {
	if to == nil {
		return
	}
	m := flow.Match{Protocol: words(x.Family).l4[x.Protocol], Src: from, Dst: single(vip.Addr()), DstPort: vip.Port()}
	w.add(claims.TableServices, priority, m, to)
}

// group is what happens to new connections to a Frontend, by one of its ways: a group of those endpoints. With none of them, but others, packets
// are dropped, so that the client tries elsewhere; with none anywhere there is nothing to do.
func (w *switchboard) group(x *front, way string, to []netip.AddrPort) flow.Action {
	h, name := fnv.New32a(), x.Key()+way
	_, _ = h.Write([]byte(name)) // never fails
	id := h.Sum32() >> 1
	switch other := w.names[id]; {
	case len(x.cluster) == 0:
		return nil
	case len(to) == 0:
		return flow.Drop{}
	case other == name:
		return flow.ToGroup{ID: id}
	case other != "":
		w.problem(x, "the number of its group is that of %s", other) // one of 20 clusters with 10 000 Services has two such (#17)
		return nil
	case len(to) > flow.MaxBuckets:
		w.problem(x, "%d of %d endpoints are served: Open vSwitch has no room for more in a group", flow.MaxBuckets, len(to))
		to = to[:flow.MaxBuckets]
	}
	w.names[id] = name
	g := bucketsOf(x, id, to)
	w.Groups[g.GroupKey] = g
	return flow.ToGroup{ID: id}
}

// bucketsOf makes a group of endpoints.
func bucketsOf(x *front, id uint32, to []netip.AddrPort) *flow.Group {
	g := &flow.Group{GroupKey: flow.GroupKey{Bridge: claims.ServiceBridge, ID: id}, Sticky: x.Affinity > 0, Owner: x.Owner}
	// An endpoint has the same id in every group and on every node, unless another one of the group got it before.
	taken := map[uint32]bool{}
	for _, a := range to {
		id := uint32(hash(a)) >> 1
		for taken[id] {
			id++
		}
		taken[id] = true
		nat := flow.NAT{Kind: flow.NATDst, Addr: a.Addr(), PortMin: a.Port(), PortMax: a.Port()}
		g.Buckets = append(g.Buckets, flow.Bucket{ID: id, CT: flow.CT{Commit: true, Zone: claims.ZoneServices, Table: claims.TableServed, NAT: nat}})
	}
	slices.SortFunc(g.Buckets, func(a, b flow.Bucket) int { return cmp.Compare(a.ID, b.ID) })
	return g
}

func (w *switchboard) problem(x *front, format string, args ...any) {
	w.problems = append(w.problems, Problem{Owner: x.Owner, Message: fmt.Sprintf(format, args...)})
}
