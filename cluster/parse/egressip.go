package parse

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
)

type egressIPParser struct{ objectParser }

// EgressIP returns nil for an EgressIP without valid selectors or without a valid address.
func EgressIP(o *v1.EgressIP) (*cluster.EgressIP, []cluster.Problem) {
	p := egressIPParser{objectParser{owner: Owner(o)}}
	e := &cluster.EgressIP{
		Owner: p.owner, UID: string(o.UID), Created: o.CreationTimestamp.Time, Generation: o.Generation,
		Releases: o.Spec.WhenUnreachable == v1.Release,
		Assigned: p.assigned(o.Status.Items), Conditions: o.DeepCopy().Status.Conditions,
	}
	p.addresses(e, "spec.egressIPs", o.Spec.EgressIPs)
	if named := len(e.Addresses); o.Spec.AddressPool != "" {
		p.addresses(e, "status.addresses", o.Status.Addresses)
		e.Allocated = e.Addresses[named:]
	}
	e.Excluded = p.ranges("spec.excludedCIDRs", o.Spec.ExcludedCIDRs)
	if len(o.Spec.DestinationCIDRs) > 0 {
		e.Destinations = append([]netip.Prefix{}, p.ranges("spec.destinationCIDRs", o.Spec.DestinationCIDRs)...)
	}
	usable := len(e.Addresses) > 0
	if len(o.Spec.EgressIPs) == 0 && o.Spec.AddressPool == "" {
		p.problem("spec.egressIPs", "has no address")
	}
	if o.Spec.NamespaceSelector == nil {
		p.problem("spec.namespaceSelector", "is missing; {} selects all namespaces")
		return nil, p.problems.List()
	}
	var nodes cluster.Selector
	valid := p.selectors(
		selectorField{"spec.namespaceSelector", o.Spec.NamespaceSelector, &e.Namespaces},
		selectorField{"spec.podSelector", &o.Spec.PodSelector, &e.Pods},
		selectorField{"spec.egressNodeSelector", o.Spec.EgressNodeSelector, &nodes})
	if !usable || !valid {
		return nil, p.problems.List()
	}
	if o.Spec.EgressNodeSelector != nil && !isAssignable(&nodes) {
		e.Nodes = &nodes
	}
	return e, p.problems.List()
}

func (p *egressIPParser) addresses(e *cluster.EgressIP, list string, texts []string) {
	for i, text := range texts {
		field := fmt.Sprintf("%s[%d]", list, i)
		a, err := cluster.ParseHostAddr(text)
		switch {
		case err != nil:
			p.problem(field, "%v", err)
		case slices.Contains(e.Addresses, a):
			p.problem(field, "%s is given twice", a)
		default:
			e.Addresses = append(e.Addresses, a)
		}
	}
}

// ranges parses destinations. It omits invalid ones.
func (p *egressIPParser) ranges(field string, texts []string) (list []netip.Prefix) {
	for i, text := range texts {
		c, ok := cluster.ParsePrefix(text)
		if !ok {
			p.problem(fmt.Sprintf("%s[%d]", field, i), "%q is not an address range", text)
			continue
		}
		list = append(list, c.Masked())
	}
	slices.SortFunc(list, cluster.ComparePrefixes)
	return widest(list)
}

// assigned reads the status. It omits items with an invalid address, which no controller wrote, and
// those without a node.
func (p *egressIPParser) assigned(items []v1.EgressIPStatusItem) []cluster.Assignment {
	var list []cluster.Assignment
	for i, x := range items {
		a, err := cluster.ParseHostAddr(x.EgressIP)
		if err != nil {
			p.problem(fmt.Sprintf("status.items[%d].egressIP", i), "%v", err)
		} else if x.Node != "" {
			list = append(list, cluster.Assignment{Address: a, Node: x.Node})
		}
	}
	slices.SortFunc(list, cluster.Assignment.Compare)
	return slices.CompactFunc(list, func(a, b cluster.Assignment) bool { return a.Address == b.Address })
}
