package store

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
)

// comparedPolicies is the largest number of policies of the same priority with which a policy is
// compared.
const comparedPolicies = 50

// samePriority reports ClusterNetworkPolicies of one tier that have the same priority, rules for
// the same direction, and subjects that may have pods in common: which of them decides is not
// defined. The list is sorted.
func samePriority(policies []*cluster.Policy) []cluster.Problem {
	var found cluster.Problems
	type place struct {
		tier     cluster.PolicyTier
		priority int
	}
	groups := map[place][]*cluster.Policy{}
	for _, p := range policies {
		if p.Tier == cluster.TierNetworkPolicy {
			continue
		}
		k := place{p.Tier, p.Priority}
		for _, q := range groups[k] {
			if len(p.Ingress.Rules)*len(q.Ingress.Rules)+len(p.Egress.Rules)*len(q.Egress.Rules) > 0 &&
				!disjoint(p.Subject.Namespaces, q.Subject.Namespaces) && !disjoint(p.Subject.Pods, q.Subject.Pods) {
				for _, x := range [][2]*cluster.Policy{{p, q}, {q, p}} {
					found.Add(x[0].Owner, "spec.priority",
						"%d is also that of %s: if rules of both match a packet, the "+
							"API does not define which decides", p.Priority, x[1].Owner)
				}
			}
		}
		if len(groups[k]) < comparedPolicies {
			groups[k] = append(groups[k], p)
		}
	}
	return found.List()
}

// disjoint reports whether two selectors name values of one label, and none in common.
func disjoint(a, b cluster.Selector) bool {
	for _, x := range a.Requirements {
		for _, y := range b.Requirements {
			if x.Key == y.Key && x.Operator == metav1.LabelSelectorOpIn && y.Operator == metav1.LabelSelectorOpIn &&
				!slices.ContainsFunc(x.Values, func(v string) bool { return slices.Contains(y.Values, v) }) {
				return true
			}
		}
	}
	return false
}
