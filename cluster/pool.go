package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
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
	// NodeAddresses reports that the pool has no Ranges. Its addresses are those of Nodes, where
	// Services may have the ports in Ports.
	NodeAddresses bool
	Ports         PortRanges
	Namespaces    Selector
	Services      Selector // in these Namespaces
	Nodes         Selector // that may announce addresses of Ranges; with NodeAddresses, that have them
	Status        v1alpha1.LoadBalancerPoolStatus
}

// Selects reports whether a LoadBalancer may have addresses of the pool. namespace has the labels
// of its Namespace.
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

// CompareAge orders pools: of two with the same address, the older has it.
func (p *Pool) CompareAge(q *Pool) int {
	return cmp.Or(p.Created.Compare(q.Created), p.Owner.Compare(q.Owner))
}

// AddressRange is the addresses from First to Last, of one family.
type AddressRange struct{ First, Last netip.Addr }

// Contains reports whether an address is in the range.
func (r AddressRange) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// String returns "192.0.2.10-192.0.2.20", or "192.0.2.10" for a range of one address.
func (r AddressRange) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// Overlaps reports whether two ranges have an address in common.
func (r AddressRange) Overlaps(q AddressRange) bool {
	return r.Contains(q.First) || q.Contains(r.First)
}

// RangeOf returns the range with the addresses of a prefix.
func RangeOf(p netip.Prefix) AddressRange {
	last := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < 8*len(last); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(last)
	return AddressRange{p.Masked().Addr(), a}
}

// ParseAddressRange reads "192.0.2.0/26" or "192.0.2.10-192.0.2.20".
func ParseAddressRange(text string) (AddressRange, error) {
	text = strings.TrimSpace(text)
	var r AddressRange
	first, last, isRange := strings.Cut(text, "-")
	p, isPrefix := ParsePrefix(text)
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
		if r.First, err = ParseAddr(strings.TrimSpace(first)); err != nil {
			return r, err
		}
		if r.Last, err = ParseAddr(strings.TrimSpace(last)); err != nil {
			return r, err
		}
		if r.First.Is4() != r.Last.Is4() || r.Last.Less(r.First) {
			return r, fmt.Errorf("%s is not a range: the first address must not be after the last one", text)
		}
	}
	for _, x := range unreachable {
		if r.Overlaps(RangeOf(x.prefix)) {
			return r, fmt.Errorf("%s overlaps %s: Services cannot have %s address", text, x.prefix, x.kind)
		}
	}
	return r, nil
}
