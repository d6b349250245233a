package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"hairpin/api/v1alpha1"
)

// Pool is one LoadBalancerPool: addresses for Services of type LoadBalancer.
type Pool struct {
	Owner      Owner
	UID        string
	Created    time.Time
	Generation int64
	Labels     map[string]string
	Ranges     []AddressRange // as in the spec, without rejected ones
	// NodeAddresses reports that the pool has no Ranges, but the addresses of Nodes. Services may
	// have Ports there.
	NodeAddresses bool
	Ports         PortRanges
	Namespaces    Selector
	Services      Selector // in these Namespaces
	Nodes         Selector // that may announce Ranges, or that have the NodeAddresses
	Status        v1alpha1.LoadBalancerPoolStatus
}

// Selects reports whether a Service may have addresses of the pool, in a Namespace with these
// labels, or an EgressIP.
func (p *Pool) Selects(l *LoadBalancer, namespace map[string]string) bool {
	if l.Pool != "" {
		return l.Pool == p.Owner.Name
	}
	return p.Services.Matches(l.Labels) && p.Namespaces.Matches(namespace)
}

// Has reports whether an address is in one of the pool's ranges.
func (p *Pool) Has(a netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r AddressRange) bool { return r.Contains(a) })
}

// NodePoolPorts returns the ports that pools list for addresses of nodes.
func (s *Snapshot) NodePoolPorts() (list PortRanges) {
	for _, p := range s.Pools {
		list = append(list, p.Ports...)
	}
	slices.SortFunc(list, func(a, b PortRange) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	return slices.Compact(list)
}

// Older orders pools: of two with the same address, the older has it.
func (p *Pool) Older(q *Pool) int {
	return cmp.Or(p.Created.Compare(q.Created), p.Owner.Compare(q.Owner))
}

// AddressRange is the addresses from First to Last, of one family.
type AddressRange struct{ First, Last netip.Addr }

// Contains reports whether an address is in the range.
func (r AddressRange) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// String returns "192.0.2.10-192.0.2.20", or an address that is alone.
func (r AddressRange) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

func (r AddressRange) overlaps(q AddressRange) bool {
	return r.Contains(q.First) || q.Contains(r.First)
}

// RangeOf returns the addresses of a prefix.
func RangeOf(p netip.Prefix) AddressRange {
	last := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < 8*len(last); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(last)
	return AddressRange{p.Masked().Addr(), a}
}

func poolOwner(name string) Owner { return Owner{Kind: "LoadBalancerPool", Name: name} }

// parsePool returns a pool without valid selectors as one without ranges and ports.
func parsePool(o *v1alpha1.LoadBalancerPool) (*Pool, []Problem) {
	p := objectParser{owner: poolOwner(o.Name)}
	copied := v1alpha1.LoadBalancerPool{}
	o.DeepCopyInto(&copied)
	pool := &Pool{Owner: p.owner, UID: string(o.UID), Created: o.CreationTimestamp.Time.UTC(),
		Generation: o.Generation, Labels: copied.Labels, Status: copied.Status}
	for i, text := range o.Spec.Ranges {
		r, err := parseRange(text)
		if err != nil {
			p.problem(fmt.Sprintf("spec.ranges[%d]", i), "%v", err)
			continue
		}
		pool.Ranges = append(pool.Ranges, r)
	}
	if own := o.Spec.NodeAddresses; own != nil {
		pool.NodeAddresses, pool.Ranges = true, nil
		for i, text := range own.Ports {
			r, err := ParsePortRange(text)
			if err != nil {
				p.problem(fmt.Sprintf("spec.nodeAddresses.ports[%d]", i), "%v", err)
				continue
			}
			pool.Ports = append(pool.Ports, r)
		}
	}
	if !p.selectors(
		selectorField{"spec.namespaceSelector", &o.Spec.NamespaceSelector, &pool.Namespaces},
		selectorField{"spec.serviceSelector", &o.Spec.ServiceSelector, &pool.Services},
		selectorField{"spec.nodeSelector", &o.Spec.NodeSelector, &pool.Nodes}) {
		pool.Ranges, pool.Ports = nil, nil
	}
	return pool, p.problems.List()
}

// parseRange reads "192.0.2.0/26" or "192.0.2.10-192.0.2.20".
func parseRange(text string) (AddressRange, error) {
	text = strings.TrimSpace(text)
	var r AddressRange
	first, last, isRange := strings.Cut(text, "-")
	p, isPrefix := parsePrefix(text)
	switch {
	case isPrefix && p != p.Masked():
		return r, fmt.Errorf("%s does not begin with its first address, %s", text, p.Masked().Addr())
	case isPrefix:
		r = RangeOf(p)
	case !isRange:
		return r, fmt.Errorf("%q is neither a prefix such as 192.0.2.0/26 nor a range such as "+
			"192.0.2.10-192.0.2.20", text)
	default:
		var err error
		if r.First, err = parseAddr(strings.TrimSpace(first)); err != nil {
			return r, err
		}
		if r.Last, err = parseAddr(strings.TrimSpace(last)); err != nil {
			return r, err
		}
		if r.First.Is4() != r.Last.Is4() || r.Last.Less(r.First) {
			return r, fmt.Errorf("%s is not a range: the first address must not be after the last one", text)
		}
	}
	for _, x := range unreachable {
		if r.overlaps(RangeOf(x.prefix)) {
			return r, fmt.Errorf("%s overlaps %s: Services cannot have %s address", text, x.prefix, x.kind)
		}
	}
	return r, nil
}

// pooled is a range of a pool.
type pooled struct {
	AddressRange
	owner Owner
}

func rangesOfPools(pools []*Pool) (list []pooled) {
	for _, p := range pools {
		for _, r := range p.Ranges {
			list = append(list, pooled{r, p.Owner})
		}
	}
	return list
}

// rejectsRange returns why a pool cannot have a range; empty if it can.
func (g *guard) rejectsRange(p *Pool, r AddressRange, pools []*Pool) string {
	for _, x := range g.ranges {
		if r.overlaps(RangeOf(x.prefix)) {
			return fmt.Sprintf("%s overlaps %s (%s): its addresses are not used", r, x.what, x.prefix)
		}
	}
	if limit := &g.config.LoadBalancerIPs; limit.Set && !slices.ContainsFunc(limit.Ranges,
		func(q netip.Prefix) bool { return q.Contains(r.First) && q.Contains(r.Last) }) {
		return fmt.Sprintf("%s is not within a range of [default] load-balancer-ranges: its addresses are not used", r)
	}
	for _, q := range pools {
		if i := slices.IndexFunc(q.Ranges, r.overlaps); q != p && i >= 0 && q.Older(p) < 0 {
			return fmt.Sprintf("%s overlaps %s of %s, which is older: its addresses are not used", r, q.Ranges[i],
				q.Owner)
		}
	}
	return ""
}

// vetPools removes the ranges that pools cannot have, and adds the reasons to problems. It keeps
// pointers to pools that are as in the last Snapshot.
func (s *Store) vetPools(problems *[]Problem) []*Pool {
	all := s.pools.all()
	list := make([]*Pool, 0, len(all))
	for _, p := range all {
		var found Problems
		vetted := *p
		vetted.Ranges = nil
		for _, r := range p.Ranges {
			if why := s.guard.rejectsRange(p, r, all); why != "" {
				found.Add(p.Owner, "spec.ranges", "%s", why)
				continue
			}
			vetted.Ranges = append(vetted.Ranges, r)
		}
		*problems = append(*problems, found.List()...)
		i, there := slices.BinarySearchFunc(s.vettedPools, p.Owner,
			func(q *Pool, o Owner) int { return q.Owner.Compare(o) })
		if there && reflect.DeepEqual(s.vettedPools[i], &vetted) {
			list = append(list, s.vettedPools[i])
			continue
		}
		list = append(list, &vetted)
	}
	if !slices.Equal(list, s.vettedPools) {
		s.vettedPools = list
	}
	if len(s.vettedPools) == 0 {
		s.vettedPools = nil
	}
	return s.vettedPools
}
