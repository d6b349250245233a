package policy

import (
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
)

// PodDescription has the policies of a pod. Field names are stable; more fields may follow.
type PodDescription struct {
	Pod       string       `json:"pod"` // NAMESPACE/NAME
	Node      string       `json:"node"`
	Addresses []netip.Addr `json:"addresses"`
	// Enforced is false if the pod's node does not enforce policies, because OVN serves Services.
	Enforced bool        `json:"enforced"`
	Ingress  Description `json:"ingress"`
	Egress   Description `json:"egress"`
}

// DescribePod returns the policies of a pod, NAMESPACE/NAME, or nil if there is no such pod.
func DescribePod(s *cluster.Snapshot, pod string) *PodDescription {
	for _, p := range s.Pods {
		if p.Owner.Namespace+"/"+p.Owner.Name != pod {
			continue
		}
		n := s.Node(p.Node)
		return &PodDescription{Pod: pod, Node: p.Node, Addresses: p.IPs, Enforced: n != nil && n.Gateway.OpenFlow,
			Ingress: Describe(s, p, Ingress), Egress: Describe(s, p, Egress)}
	}
	return nil
}

// Description is what policies say about the packets of a pod in one direction, for people.
type Description struct {
	// Isolated reports that a NetworkPolicy isolates the pod: packets need a rule to accept them.
	// ClusterNetworkPolicies do not isolate.
	Isolated bool `json:"isolated"`
	// Policies are those that select the pod, in the order of their evaluation.
	Policies []Applied `json:"policies,omitempty"`
}

// Applied is a policy with its rules for one direction. Without a rule, it accepts nothing.
type Applied struct {
	Policy string `json:"policy"`
	// Tier is "Admin" or "Baseline" for a ClusterNetworkPolicy, which has a Priority.
	Tier     string `json:"tier,omitempty"`
	Priority *int   `json:"priority,omitempty"`
	// Unused reports that the tier Baseline is not reached, because a NetworkPolicy isolates the
	// pod.
	Unused bool          `json:"unused,omitempty"`
	Rules  []AppliedRule `json:"rules,omitempty"`
}

// AppliedRule is one rule of a policy.
type AppliedRule struct {
	Rule   int      `json:"rule"`             // its place in the policy, from 1
	Action string   `json:"action,omitempty"` // if it does not accept: "deny" or "pass"
	Peers  []string `json:"peers"`
	Ports  []string `json:"ports"`
	// AllPeers reports that the rule has no list of peers. For a rule with one, Pods and Ranges are
	// how many pods and address ranges it matches now.
	AllPeers bool `json:"allPeers,omitempty"`
	Pods     int  `json:"matchingPods"`
	Ranges   int  `json:"matchingRanges"`
}

// tierNames has the names of the tiers of ClusterNetworkPolicies. It is read-only.
var tierNames = map[cluster.PolicyTier]string{cluster.TierAdmin: "Admin", cluster.TierBaseline: "Baseline"}

// String returns "NetworkPolicy/shop/db", or "ClusterNetworkPolicy/x (tier Admin, priority 10)".
func (a Applied) String() string {
	if a.Priority == nil {
		return a.Policy
	}
	unused := ""
	if a.Unused {
		unused = ", not used: a NetworkPolicy isolates the pod"
	}
	return fmt.Sprintf("%s (tier %s, priority %d%s)", a.Policy, a.Tier, *a.Priority, unused)
}

// Describe returns the policies that apply to a pod in a direction.
func Describe(s *cluster.Snapshot, pod *cluster.Pod, d Direction) Description {
	var all Description
	for _, x := range Selecting(s, pod, d) {
		all.Isolated = all.Isolated || x.Tier == cluster.TierNetworkPolicy
		a := Applied{Policy: x.Owner.String(), Tier: tierNames[x.Tier]}
		if x.Tier != cluster.TierNetworkPolicy {
			a.Priority = new(x.Priority)
			a.Unused = x.Tier == cluster.TierBaseline && all.Isolated
		}
		for i := range directionOf(x, d).Rules {
			a.Rules = append(a.Rules, describe(s, pod, d, i, &directionOf(x, d).Rules[i]))
		}
		all.Policies = append(all.Policies, a)
	}
	return all
}

func describe(s *cluster.Snapshot, pod *cluster.Pod, d Direction, place int, r *cluster.PolicyRule) AppliedRule {
	x := AppliedRule{Rule: place + 1, AllPeers: r.AllPeers}
	x.Pods, x.Ranges = Members(s, r)
	switch r.Action {
	case cluster.Accept:
	case cluster.Deny:
		x.Action = "deny"
	case cluster.Pass:
		x.Action = "pass"
	}
	for i := range r.Peers {
		x.Peers = append(x.Peers, peerText(&r.Peers[i]))
	}
	for _, p := range r.Ports {
		switch {
		case p.Name != "" && d == Egress:
			x.Ports = append(x.Ports, fmt.Sprintf("%s/%s (of each peer)", p.Name, upper(p.Protocol)))
		default:
			x.Ports = append(x.Ports, portText(p, pod))
		}
	}
	switch {
	case r.AllPeers:
		x.Peers = []string{"every address"}
	case len(x.Peers) == 0:
		x.Peers = []string{"no address"}
	}
	switch {
	case r.AllPorts:
		x.Ports = []string{"all ports and protocols"}
	case len(x.Ports) == 0:
		x.Ports = []string{"no port"}
	}
	return x
}

// String returns "rule 1: pods with app=api in namespace shop (2 pods), 5432/TCP".
func (x AppliedRule) String() string {
	text := fmt.Sprintf("rule %d: ", x.Rule)
	if x.Action != "" {
		text += x.Action + " "
	}
	text += strings.Join(x.Peers, ", or ")
	if !x.AllPeers {
		text += " (" + x.Matches() + ")"
	}
	return text + "; " + strings.Join(x.Ports, ", ")
}

// Matches returns "2 pods, 1 range".
func (x AppliedRule) Matches() string {
	return counted(x.Pods, "pod") + ", " + counted(x.Ranges, "range")
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// peerText returns "pods with app=api in namespace shop", or the address ranges.
func peerText(x *cluster.PolicyPeer) string {
	if x.Nodes != nil {
		if r := requirementTexts(*x.Nodes); len(r) > 0 {
			return "nodes with " + strings.Join(r, " and ")
		}
		return "all nodes"
	}
	if x.Pods == nil {
		var blocks []string
		for _, b := range x.Blocks {
			blocks = append(blocks, b.String())
		}
		return joinFew(blocks)
	}
	text := "all pods"
	if r := requirementTexts(x.Pods.Pods); len(r) > 0 {
		text = "pods with " + strings.Join(r, " and ")
	}
	switch r := requirementTexts(x.Pods.Namespaces); {
	case x.Pods.Namespace != "":
		return text + " in namespace " + x.Pods.Namespace
	case len(r) > 0:
		return text + " in namespaces with " + strings.Join(r, " and ")
	}
	return text + " in all namespaces"
}

func requirementTexts(s cluster.Selector) (texts []string) {
	for _, r := range s.Requirements {
		values := "(" + strings.Join(r.Values, ", ") + ")"
		switch r.Operator {
		case metav1.LabelSelectorOpIn:
			if len(r.Values) == 1 {
				texts = append(texts, r.Key+"="+r.Values[0])
			} else {
				texts = append(texts, r.Key+" in "+values)
			}
		case metav1.LabelSelectorOpNotIn:
			texts = append(texts, r.Key+" not in "+values)
		case metav1.LabelSelectorOpExists:
			texts = append(texts, "label "+r.Key)
		case metav1.LabelSelectorOpDoesNotExist:
			texts = append(texts, "no label "+r.Key)
		}
	}
	return texts
}
