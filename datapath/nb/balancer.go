package nb

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
)

// Group is a Load_Balancer_Group. LoadBalancers, routers and switches reference it; the
// LoadBalancers are its members.
type Group struct {
	Name  string
	Owner cluster.Owner
}

// Key is by name.
func (r *Group) Key() Key              { return Key{TableGroup, r.Name} }
func (r *Group) owner() *cluster.Owner { return &r.Owner }

func (r *Group) same(x Row) bool {
	b, ok := x.(*Group)
	return ok && r.Name == b.Name
}

func (r *Group) print(p *printer) { p.cmd("create", "Load_Balancer_Group", "name="+value(r.Name)) }

// LoadBalancer is a Load_Balancer with its VIPs, one protocol.
type LoadBalancer struct {
	Name     string
	Protocol cluster.Protocol
	VIPs     []VIP             // sorted by address and port
	Options  map[string]string // reject, hairpin_snat_ip …
	Affinity bool              // selection_fields: ip_src (session affinity)
	Groups   []string          // the Groups it is a member of, sorted
	Owner    cluster.Owner
}

// VIP is one virtual address and port, and its endpoints. Without endpoints, OVN rejects packets if
// option reject is true.
type VIP struct {
	Addr     netip.AddrPort
	Backends []netip.AddrPort // sorted
}

// Key is by name.
func (r *LoadBalancer) Key() Key              { return Key{TableLoadBalancer, r.Name} }
func (r *LoadBalancer) owner() *cluster.Owner { return &r.Owner }

func (r *LoadBalancer) same(x Row) bool {
	b, ok := x.(*LoadBalancer)
	return ok && r.Name == b.Name && r.Protocol == b.Protocol && r.Affinity == b.Affinity &&
		sameVIPs(r.VIPs, b.VIPs) && maps.Equal(r.Options, b.Options) && sameSet(r.Groups, b.Groups, cmp.Compare)
}

// sameVIPs compares VIPs as the map that they are in OVN. The order of backends matters: OVN
// chooses by position.
func sameVIPs(a, b []VIP) bool {
	if len(a) != len(b) {
		return false
	}
	equal := func(a, b VIP) bool { return a.Addr == b.Addr && slices.Equal(a.Backends, b.Backends) }
	return slices.EqualFunc(a, b, equal) || slices.EqualFunc(sorted(a, VIP.Compare), sorted(b, VIP.Compare), equal)
}

// Compare orders VIPs by address and port.
func (v VIP) Compare(w VIP) int { return v.Addr.Compare(w.Addr) }

func (r *LoadBalancer) print(p *printer) {
	for _, v := range sorted(r.VIPs, VIP.Compare) {
		p.cmd("lb-add", r.Name, v.Addr.String(), joined(v.Backends), r.Protocol.String())
	}
	if len(r.VIPs) == 0 {
		p.cmd("create", "Load_Balancer", "name="+value(r.Name), "protocol="+r.Protocol.String())
	}
	if len(r.Options) > 0 || r.Affinity {
		p.cmd("set", "Load_Balancer", r.Name)
		p.settings("options", r.Options)
		if r.Affinity {
			p.add("selection_fields=" + strings.Join(r.SelectionFields(), ","))
		}
	}
	if len(r.Groups) > 0 {
		p.cmd("--id=@lb", "get", "Load_Balancer", r.Name)
		for _, g := range sorted(r.Groups, cmp.Compare) {
			p.cmd("add", "Load_Balancer_Group", g, "load_balancer", "@lb")
		}
	}
}

// SelectionFields returns the column selection_fields: the fields that choose the backend of a new
// connection. Without Affinity it is nil, and OVN uses the whole 5-tuple.
func (r *LoadBalancer) SelectionFields() []string {
	if !r.Affinity {
		return nil
	}
	for _, v := range r.VIPs {
		if v.Addr.Addr().Is6() {
			return []string{"ipv6_src"}
		}
	}
	return []string{"ip_src"}
}
