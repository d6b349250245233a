package store

import (
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/cluster/parse"
)

// withServiceCIDRs returns the configuration with the API's ranges in addition to the configured
// ones. It omits ranges within others.
func withServiceCIDRs(c cluster.Config, more []*parse.ServiceRanges) cluster.Config {
	if len(more) == 0 {
		return c
	}
	all := slices.Clone(c.ServiceCIDRs)
	for _, r := range more {
		all = append(all, r.Ranges...)
	}
	slices.SortFunc(all, cluster.ComparePrefixes)
	c.ServiceCIDRs = slices.Compact(slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool {
		return slices.ContainsFunc(all,
			func(q netip.Prefix) bool { return q.Bits() < p.Bits() && q.Contains(p.Addr()) })
	}))
	return c
}
