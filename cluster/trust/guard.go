package trust

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"hairpin/cluster"
)

// Guard rejects addresses that belong to the cluster and its nodes. A Service can name any address,
// as an external address or as an endpoint, and so take it from its owner.
type Guard struct {
	Number int // identifies the Guard in its Store
	config *cluster.Config
	ranges []reservedRange
	vetted *Vetted
	api    map[netip.AddrPort]bool
	egress map[netip.Addr]*cluster.EgressIP // the oldest EgressIP with the address
	pools  []poolRange
}

// reservedRange is a range of addresses that no machine outside the cluster has.
type reservedRange struct {
	prefix   netip.Prefix
	what     string
	endpoint bool // an endpoint may be in it: it has pods
}

// KubernetesService is the Service of the API server.
var KubernetesService = cluster.Owner{Kind: "Service", Namespace: "default", Name: "kubernetes"}

// NewGuard returns the Guard of a cluster with these objects.
func NewGuard(number int, c *cluster.Config, v *Vetted, egressIPs []*cluster.EgressIP, pools []*cluster.Pool) *Guard {
	g := &Guard{Number: number, config: c, vetted: v, api: map[netip.AddrPort]bool{},
		egress: map[netip.Addr]*cluster.EgressIP{}, pools: rangesOfPools(pools)}
	for _, s := range c.ClusterSubnets {
		g.ranges = append(g.ranges, reservedRange{s.CIDR, "the pod range", true})
	}
	for _, list := range []struct {
		of   []netip.Prefix
		what string
	}{
		{c.ServiceCIDRs, "the ClusterIP range"}, {c.JoinSubnets, "the join subnet"},
		{c.TransitSubnets, "the transit subnet"},
		{c.Gateway.MasqueradeSubnets, "the masquerade subnet"}, {c.Gateway.NodeLocalSubnets, "the node-local subnet"},
	} {
		for _, p := range list.of {
			g.ranges = append(g.ranges, reservedRange{p, list.what, false})
		}
	}
	if !cluster.ModeNamed(c.Gateway.Mode).Uplink {
		for _, a := range c.Gateway.Advertise {
			g.ranges = append(g.ranges, reservedRange{netip.PrefixFrom(a, a.BitLen()),
				"the gateway bridges' own address", false})
		}
	}
	for _, a := range c.APIServers {
		g.api[a] = true
	}
	for _, e := range egressIPs {
		for _, a := range e.Addresses {
			if g.egress[a] == nil || e.ComparePrecedence(g.egress[a]) < 0 {
				g.egress[a] = e
			}
		}
	}
	return g
}

// ReserveAPI reserves the endpoints of the API server's Service.
func (g *Guard) ReserveAPI(list []*cluster.Frontend) {
	for _, f := range list {
		for _, b := range f.Backends {
			g.api[netip.AddrPortFrom(b.Addr, b.Port)] = true
		}
	}
}

// ChangedEndpoints returns the addresses about which two guards may decide differently as
// endpoints, given the changes of nodes. all means that these may be any addresses.
func (g *Guard) ChangedEndpoints(h *Guard, nodes *VettedChanges) (changed map[netip.Addr]bool, all bool) {
	if g == nil || !slices.Equal(g.ranges, h.ranges) {
		return nil, true
	}
	changed = map[netip.Addr]bool{}
	for r := range nodes.ranges {
		for _, a := range reservedIn(r) {
			changed[a] = true
		}
	}
	return changed, false
}

// SameExternal reports whether two guards reject the same external addresses. The caller must have
// checked that they accept the same endpoints, and that no node's address has changed.
func (g *Guard) SameExternal(h *Guard) bool {
	return maps.Equal(g.api, h.api) && reflect.DeepEqual(g.config, h.config) && slices.Equal(g.pools, h.pools) &&
		maps.EqualFunc(g.egress, h.egress,
			func(e, f *cluster.EgressIP) bool { return e.Owner == f.Owner && e.Created.Equal(f.Created) })
}

// Endpoint returns why an address cannot be an endpoint; empty if it can.
func (g *Guard) Endpoint(a netip.Addr) string {
	for _, r := range g.ranges {
		if !r.endpoint && r.prefix.Contains(a) {
			return fmt.Sprintf("%s is in %s (%s)", a, r.what, r.prefix)
		}
	}
	if what := g.vetted.reserved(a); what != "" {
		return fmt.Sprintf("%s is %s", a, what)
	}
	return ""
}

// externalField is a field of Services that has external addresses.
type externalField struct {
	path   string
	limit  *cluster.AllowedRanges
	option string // of limit
	chosen bool   // by the writer of the Service: addresses of pools are not allowed
}

func (g *Guard) externalIPs() externalField {
	return externalField{"spec.externalIPs", &g.config.ExternalIPs, "external-ip-ranges", true}
}

func (g *Guard) loadBalancerIPs() externalField {
	return externalField{"status.loadBalancer.ingress", &g.config.LoadBalancerIPs, "load-balancer-ranges", false}
}

// external returns why a Service must not be served at an address of a field; empty if it may.
func (g *Guard) external(a netip.Addr, port uint16, f externalField, created time.Time) string {
	for _, r := range g.ranges {
		if r.prefix.Contains(a) {
			return fmt.Sprintf("%s is in %s (%s)", a, r.what, r.prefix)
		}
	}
	n, isNode := g.vetted.Hosts.Get(a)
	e := g.egress[a]
	switch {
	case g.api[netip.AddrPortFrom(a, port)]:
		return fmt.Sprintf("%s is the API server's address", netip.AddrPortFrom(a, port))
	case isNode && g.config.ReservedNodePorts.Has(port):
		return fmt.Sprintf("%s is an address of node %s, where port %d is reserved for the node ([default] "+
			"reserved-node-ports)", a, n, port)
	case a.IsLinkLocalUnicast() && !f.limit.Set:
		return fmt.Sprintf("%s is a link-local address, and [default] %s does not list it", a, f.option)
	case !f.limit.Allows(a):
		return fmt.Sprintf("%s is not within [default] %s", a, f.option)
	case f.chosen && g.pool(a) != (cluster.Owner{}):
		return fmt.Sprintf("%s is an address of %s, which its Services get only in their status", a, g.pool(a))
	case e != nil && !e.Created.After(created):
		return fmt.Sprintf("%s is an address of %s, which is older", a, e.Owner)
	}
	return ""
}

// Extra returns why no pod may have an address as an extra one; empty if a pod may.
func (g *Guard) Extra(a netip.Addr) string {
	if why := g.Endpoint(a); why != "" {
		return why
	}
	if n, ok := g.vetted.Hosts.Get(a); ok {
		return fmt.Sprintf("%s is an address of node %s", a, n)
	}
	if e := g.egress[a]; e != nil {
		return fmt.Sprintf("%s is an address of %s", a, e.Owner)
	}
	return ""
}

// pool returns the pool that has an address.
func (g *Guard) pool(a netip.Addr) cluster.Owner {
	for _, p := range g.pools {
		if p.Contains(a) {
			return p.owner
		}
	}
	return cluster.Owner{}
}

// Admit removes from a Frontend the addresses and the NodePort that it must not have, and adds the
// reasons to refused. It returns the Frontend itself if it may have all.
func (g *Guard) Admit(f *cluster.Frontend, refused *cluster.Problems) *cluster.Frontend {
	unchanged := true
	keep := func(list []netip.Addr, field externalField) []netip.Addr {
		var allowed []netip.Addr
		for _, a := range list {
			if why := g.external(a, f.Port, field, f.Created); why != "" {
				refused.Add(f.Owner, field.path, "%s: not served there", why)
				unchanged = false
			} else {
				allowed = append(allowed, a)
			}
		}
		return allowed
	}
	nodePort := f.NodePort
	if nodePort != 0 && g.config.ReservedNodePorts.Has(nodePort) {
		refused.Add(f.Owner, "spec.ports",
			"NodePort %d is reserved for the node ([default] reserved-node-ports): served without it", nodePort)
		nodePort, unchanged = 0, false
	}
	external, balancer := keep(f.ExternalIPs, g.externalIPs()), keep(f.LoadBalancerIPs, g.loadBalancerIPs())
	if unchanged {
		return f
	}
	with := *f
	with.NodePort, with.ExternalIPs, with.LoadBalancerIPs = nodePort, external, balancer
	return &with
}

// poolRange is a range of addresses of a pool.
type poolRange struct {
	cluster.AddressRange
	owner cluster.Owner
}

func rangesOfPools(pools []*cluster.Pool) (list []poolRange) {
	for _, p := range pools {
		for _, r := range p.Ranges {
			list = append(list, poolRange{r, p.Owner})
		}
	}
	return list
}

// RejectsRange returns why a pool cannot have a range; empty if it can.
func (g *Guard) RejectsRange(p *cluster.Pool, r cluster.AddressRange, pools []*cluster.Pool) string {
	for _, x := range g.ranges {
		if r.Overlaps(cluster.RangeOf(x.prefix)) {
			return fmt.Sprintf("%s overlaps %s (%s): its addresses are not used", r, x.what, x.prefix)
		}
	}
	if limit := &g.config.LoadBalancerIPs; limit.Set && !slices.ContainsFunc(limit.Ranges,
		func(q netip.Prefix) bool { return q.Contains(r.First) && q.Contains(r.Last) }) {
		return fmt.Sprintf("%s is not within a range of [default] load-balancer-ranges: its addresses are not used", r)
	}
	for _, q := range pools {
		if i := slices.IndexFunc(q.Ranges, r.Overlaps); q != p && i >= 0 && q.CompareAge(p) < 0 {
			return fmt.Sprintf("%s overlaps %s of %s, which is older: its addresses are not used", r, q.Ranges[i],
				q.Owner)
		}
	}
	return ""
}
