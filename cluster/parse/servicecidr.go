package parse

import (
	"fmt"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"

	"hairpin/cluster"
)

// ServiceRanges is a ServiceCIDR: ranges of cluster IPs.
type ServiceRanges struct {
	Owner  cluster.Owner
	Ranges []netip.Prefix
}

// ServiceCIDR returns the valid ranges of a ServiceCIDR.
func ServiceCIDR(o *networkingv1.ServiceCIDR) (*ServiceRanges, []cluster.Problem) {
	r := &ServiceRanges{Owner: Owner(o)}
	var problems cluster.Problems
	for i, text := range o.Spec.CIDRs {
		p, ok := cluster.ParsePrefix(text)
		if !ok {
			problems.Add(r.Owner, fmt.Sprintf("spec.cidrs[%d]", i), "%q is not an address range", text)
			continue
		}
		if err := cluster.CheckRange(p.Masked()); err != nil {
			problems.Add(r.Owner, fmt.Sprintf("spec.cidrs[%d]", i), "%s", err)
			continue
		}
		r.Ranges = append(r.Ranges, p.Masked())
	}
	return r, problems.List()
}
