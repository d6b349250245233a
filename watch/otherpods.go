package watch

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"hairpin/cluster"
)

// needsOtherPods returns a function that reports whether Pods of other nodes are needed.
func needsOtherPods(node string) func(*cluster.Snapshot) bool {
	policies := policyNeeds{node: node}
	return func(s *cluster.Snapshot) bool {
		return egressNeedsPods(s, node) || node != "" && policies.check(s)
	}
}

// egressNeedsPods reports whether EgressIPs need Pods of other nodes. A node that carries an egress
// address, or may have to soon, translates their packets. The controller needs them if two
// EgressIPs could select the same Pods.
func egressNeedsPods(s *cluster.Snapshot, node string) bool {
	if node == "" {
		n := 0
		for _, e := range s.EgressIPs {
			if !e.OnlyAnnounced() {
				n++
			}
		}
		return n > 1
	}
	if n := s.Node(node); n != nil && slices.ContainsFunc(s.EgressIPs,
		func(e *cluster.EgressIP) bool { return e.Service == nil && e.MayBeOn(n) }) {
		return true // an EgressService may be on any node: too many nodes would read all Pods
	}
	return slices.ContainsFunc(s.EgressIPs, func(e *cluster.EgressIP) bool {
		return !e.OnlyAnnounced() && slices.ContainsFunc(e.Assigned,
			func(a cluster.Assignment) bool { return a.Node == node })
	})
}

// policyNeeds determines whether policies need Pods of other nodes: those that select a Pod of this
// node, and have peers or named ports that depend on other Pods. It remembers such a policy,
// because most Snapshots change neither policies nor Pods, or one of many policies.
type policyNeeds struct {
	node           string
	pods, starting []*cluster.Pod
	namespaces     []*cluster.Namespace
	policies       []*cluster.Policy
	cause          *cluster.Policy // needs Pods of other nodes; nil: none does
}

func (n *policyNeeds) check(s *cluster.Snapshot) bool {
	same := cluster.SameList(n.pods, s.Pods) && cluster.SameList(n.starting, s.Starting) &&
		cluster.SameList(n.namespaces, s.Namespaces)
	if same && cluster.SameList(n.policies, s.Policies) {
		return n.cause != nil
	}
	onlyFirst := n.cause == nil && same // policies that did not change still need none
	// first are the policies to check first: the one that needed Pods probably still does; if it is
	// gone, one that is new may.
	first := cluster.Compare(n.policies, s.Policies, (*cluster.Policy).Compare).Added
	if slices.Contains(s.Policies, n.cause) {
		first = []*cluster.Policy{n.cause}
	}
	n.policies, n.pods, n.starting, n.namespaces = s.Policies, s.Pods, s.Starting, s.Namespaces
	own := map[string]*ownPods{} // by namespace
	for _, list := range [][]*cluster.Pod{s.Pods, s.Starting} {
		for _, p := range list {
			if p.Node == n.node {
				if own[p.Owner.Namespace] == nil {
					own[p.Owner.Namespace] = &ownPods{labels: map[[2]string]bool{}}
				}
				own[p.Owner.Namespace].add(p)
			}
		}
	}
	needs := func(p *cluster.Policy) bool {
		return dependsOnPods(p) && selectsAny(&p.Subject, own, s.Namespaces)
	}
	n.cause = nil
	for _, list := range [][]*cluster.Policy{first, s.Policies} {
		if i := slices.IndexFunc(list, needs); i >= 0 {
			n.cause = list[i]
			return true
		}
		if onlyFirst {
			break
		}
	}
	return false
}

// dependsOnPods reports whether the effect of a policy depends on Pods other than its subjects.
func dependsOnPods(p *cluster.Policy) bool {
	byPods := func(r cluster.PolicyRule) bool {
		return slices.ContainsFunc(r.Peers, func(p cluster.PolicyPeer) bool { return p.Pods != nil })
	}
	// The name of a port is resolved for each destination, within an ipBlock too.
	byName := func(r cluster.PolicyRule) bool {
		return slices.ContainsFunc(r.Ports, func(p cluster.PolicyPort) bool { return p.Name != "" })
	}
	return slices.ContainsFunc(p.Ingress.Rules, byPods) || slices.ContainsFunc(p.Egress.Rules, byPods) ||
		slices.ContainsFunc(p.Egress.Rules, byName)
}

// ownPods are the Pods of this node in a namespace.
type ownPods struct {
	pods   []*cluster.Pod
	labels map[[2]string]bool // keys and values of all
}

func (o *ownPods) add(p *cluster.Pod) {
	o.pods = append(o.pods, p)
	for k, v := range p.Labels {
		o.labels[[2]string{k, v}] = true
	}
}

// lackLabel reports whether no Pod has one of the labels of a requirement. If so, a selector with
// the requirement selects none of them, and need not be evaluated for each Pod.
func (o *ownPods) lackLabel(r cluster.Requirement) bool {
	return r.Operator == metav1.LabelSelectorOpIn && !slices.ContainsFunc(r.Values,
		func(v string) bool { return o.labels[[2]string{r.Key, v}] })
}

// selectsAny reports whether a selector selects any of the pods, which are given by namespace.
func selectsAny(s *cluster.PodSelector, pods map[string]*ownPods, namespaces []*cluster.Namespace) bool {
	in := func(name string) bool {
		o := pods[name]
		if o == nil || slices.ContainsFunc(s.Pods.Requirements, o.lackLabel) {
			return false
		}
		namespace := cmp.Or(cluster.NamespaceNamed(namespaces, name), &cluster.Namespace{Name: name})
		return slices.ContainsFunc(o.pods, func(p *cluster.Pod) bool { return s.Selects(namespace, p.Labels) })
	}
	if s.Namespace != "" {
		return in(s.Namespace)
	}
	for name := range pods {
		if in(name) {
			return true
		}
	}
	return false
}

// otherPods selects the Pods of other nodes. It omits Pods without a node. Otherwise, when a Pod is
// scheduled to this node, this watch would report it as deleted, and the watch of the node's own
// Pods as new, in any order.
func otherPods(node string) fields.Selector {
	scheduled := fields.OneTermNotEqualSelector(fieldNodeName, "")
	if node == "" {
		return scheduled
	}
	return fields.AndSelectors(scheduled, fields.OneTermNotEqualSelector(fieldNodeName, node))
}
