package parse

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
)

// maxSources is the largest number of a Service's loadBalancerSourceRanges, times its load balancer
// addresses, times its ports.
const maxSources = 100_000

// sourceRanges is spec.loadBalancerSourceRanges.
type sourceRanges struct {
	given bool // there is a list, whether its ranges are valid or not
	list  []netip.Prefix
}

// sourceRanges parses the clients that may reach the load balancer's addresses. An invalid range
// allows no client; the others stay valid. places is the number of pairs of an address and a port:
// each range is needed at each.
func (p *serviceParser) sourceRanges(places int) sourceRanges {
	texts := p.spec.LoadBalancerSourceRanges
	r := sourceRanges{given: len(texts) > 0}
	if room := max(1, maxSources/max(1, places)); len(texts) > room {
		p.problem("spec.loadBalancerSourceRanges",
			"%d ranges, for %d addresses and ports, multiply to more than %d: the first %d ranges may reach them",
			len(texts), places, maxSources, room)
		texts = texts[:room]
	}
	for i, text := range texts {
		c, ok := cluster.ParsePrefix(strings.TrimSpace(text))
		if !ok {
			p.problem(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), "%q is not an address range", text)
			continue
		}
		r.list = append(r.list, c.Masked())
	}
	slices.SortFunc(r.list, cluster.ComparePrefixes)
	return r
}

// of returns the ranges of a family, none within another, and whether they restrict clients:
// 0.0.0.0/0 and ::/0 do not. If all ranges are of the other family, no client of this one is
// allowed.
func (r sourceRanges) of(f cluster.Family) (list []netip.Prefix, restricted bool) {
	if !r.given {
		return nil, false
	}
	for _, c := range r.list {
		if cluster.FamilyOf(c.Addr()) != f {
			continue
		}
		if c.Bits() == 0 {
			return nil, false
		}
		list = append(list, c)
	}
	return widest(list), true
}

// widest returns the prefixes of a sorted list that are not within another one.
func widest(sorted []netip.Prefix) (list []netip.Prefix) {
	for _, c := range sorted {
		if n := len(list); n == 0 || !list[n-1].Contains(c.Addr()) { // the wider one comes first
			list = append(list, c)
		}
	}
	return list
}
