package cluster

import (
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

func serviceCIDROwner(name string) Owner { return Owner{Kind: "ServiceCIDR", Name: name} }

// serviceRange is a ServiceCIDR: ranges of cluster IPs.
type serviceRange struct {
	owner  Owner
	ranges []netip.Prefix
}

func parseServiceCIDR(o *networkingv1.ServiceCIDR) (*serviceRange, []Problem) {
	r := &serviceRange{owner: serviceCIDROwner(o.Name)}
	var problems Problems
	for i, text := range o.Spec.CIDRs {
		p, ok := parsePrefix(text)
		if !ok {
			problems.Add(r.owner, fmt.Sprintf("spec.cidrs[%d]", i), "%q is not an address range", text)
			continue
		}
		if err := CheckRange(p.Masked()); err != nil {
			problems.Add(r.owner, fmt.Sprintf("spec.cidrs[%d]", i), "%s", err)
			continue
		}
		r.ranges = append(r.ranges, p.Masked())
	}
	return r, problems.List()
}

// withServiceCIDRs returns the configuration with the API's ranges in addition to the configured
// ones. It omits ranges within others.
func withServiceCIDRs(c Config, more []*serviceRange) Config {
	if len(more) == 0 {
		return c
	}
	all := slices.Clone(c.ServiceCIDRs)
	for _, r := range more {
		all = append(all, r.ranges...)
	}
	slices.SortFunc(all, ComparePrefixes)
	c.ServiceCIDRs = slices.Compact(slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool {
		return slices.ContainsFunc(all,
			func(q netip.Prefix) bool { return q.Bits() < p.Bits() && q.Contains(p.Addr()) })
	}))
	return c
}
