package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
)

// Reason is why a Verdict is what it is.
type Reason uint8

// The reasons.
const (
	ByRule   Reason = iota // a rule accepts or denies the packet
	Isolated               // NetworkPolicies isolate the pod, and no rule accepts the packet
	NoRule                 // no NetworkPolicy isolates the pod, and no rule matches
	NoPod                  // this end of the packet is not a pod
	Self                   // both ends are the same pod
	OwnNode                // the other end is the pod's node
)

// Verdict is the answer for one direction of a packet.
type Verdict struct {
	Direction Direction
	Accepted  bool
	Reason    Reason
	// Owner and Rule are the rule that decided (ByRule): its policy, and its place in the list of
	// the spec, from 0. Texts count from 1.
	Owner cluster.Owner
	Rule  int
	// Isolating are the NetworkPolicies that isolate the pod (Isolated), sorted by name.
	Isolating []cluster.Owner
	// Misses are rules that would have accepted a dropped packet but for one point, the nearest
	// first, at most five.
	Misses []Miss
}

// String returns the Verdict as a sentence, without the Misses.
func (v Verdict) String() string {
	text := "dropped"
	if v.Accepted {
		text = "accepted"
	}
	text = v.Direction.String() + " " + text
	switch v.Reason {
	case ByRule:
		return fmt.Sprintf("%s by %s rule %d", text, v.Owner, v.Rule+1)
	case Isolated:
		return text + ": no rule accepts the packet; " + v.IsolatedBy()
	case NoRule:
		return text + ": no policy isolates the pod, and no rule matches"
	case NoPod:
		return text + ": not a pod"
	case Self:
		return text + ": a pod always reaches itself"
	case OwnNode:
		if v.Direction == Egress {
			return text + ": NetworkPolicies accept all packets to the pod's node"
		}
		return text + ": a pod's node always reaches it"
	}
	return text
}

// IsolatedBy returns "the pod is isolated by NetworkPolicy/shop/a, NetworkPolicy/shop/b".
func (v Verdict) IsolatedBy() string {
	var owners []string
	for _, o := range v.Isolating {
		owners = append(owners, o.String())
	}
	return "the pod is isolated by " + strings.Join(owners, ", ")
}

// Miss is a rule that would accept a packet but for one point: the peer, or the port.
type Miss struct {
	Owner cluster.Owner
	Rule  int    // its place in the policy, from 0
	Point string // what matches and what does not
	// failed and matched count conditions of the rule. Fewer failed ones, then more matched ones,
	// are nearer.
	failed, matched int
}

// String returns "NetworkPolicy/shop/from-api rule 1: the peer matches, port 8080/TCP does not: it
// accepts 5432/TCP".
func (m Miss) String() string { return fmt.Sprintf("%s rule %d: %s", m.Owner, m.Rule+1, m.Point) }

const maxMisses = 5 // of a Verdict

// nearest returns the nearest of all misses.
func nearest(misses []Miss) []Miss {
	slices.SortStableFunc(misses, func(a, b Miss) int {
		return cmp.Or(cmp.Compare(a.failed, b.failed), -cmp.Compare(a.matched, b.matched),
			a.Owner.Compare(b.Owner), cmp.Compare(a.Rule, b.Rule))
	})
	return misses[:min(len(misses), maxMisses)]
}

// portMiss describes a rule whose peer matches and whose ports do not.
func portMiss(s *cluster.Snapshot, r *rule, p Packet, peer Endpoint) Miss {
	packet := "a packet without ports"
	if p.Protocol != 0 {
		packet = fmt.Sprintf("port %d/%s", p.Port, upper(p.Protocol))
	}
	var accepts []string
	for _, x := range r.Ports {
		accepts = append(accepts, portText(x, p.To.Pod))
	}
	if len(accepts) == 0 {
		accepts = []string{"no port"}
	}
	m := Miss{Owner: r.owner, Rule: r.place, failed: 1,
		Point: fmt.Sprintf("the peer matches, %s does not: it accepts %s", packet, joinFew(accepts))}
	for i := range r.Peers {
		if failed, matched := conditions(s, &r.Peers[i], peer); len(failed) == 0 {
			m.matched = max(m.matched, matched)
		}
	}
	return m
}

func upper(p cluster.Protocol) string { return strings.ToUpper(p.String()) }

// portText returns "5432/TCP", "8000-8100/TCP", "all ports/TCP" or "http/TCP (8080)".
func portText(x cluster.PolicyPort, to *cluster.Pod) string {
	number := fmt.Sprint(x.First)
	if number, known := portNumber(to, x); known {
		return fmt.Sprintf("%s/%s (%d)", x.Name, upper(x.Protocol), number)
	}
	switch {
	case x.Name != "":
		return fmt.Sprintf("%s/%s (no such port of the destination)", x.Name, upper(x.Protocol))
	case x.First == 0:
		number = "all ports"
	case x.First != x.Last:
		number = fmt.Sprintf("%d-%d", x.First, x.Last)
	}
	return number + "/" + upper(x.Protocol)
}

// peerMiss describes a rule whose ports match and whose peers do not, by the nearest of them.
func peerMiss(s *cluster.Snapshot, r *rule, p Packet, peer Endpoint) Miss {
	m := Miss{Owner: r.owner, Rule: r.place, failed: 2}
	why := "the rule has no peer"
	if len(r.Peers) > 0 {
		m.failed = 0
	}
	for i := range r.Peers {
		failed, matched := conditions(s, &r.Peers[i], peer)
		if m.failed == 0 || len(failed) < m.failed || len(failed) == m.failed && matched > m.matched {
			m.failed, m.matched, why = len(failed), matched, strings.Join(failed, ", and ")
		}
	}
	if !r.AllPorts {
		m.matched++
	}
	what := "the port"
	if p.Protocol == 0 {
		what = "the protocol"
	}
	m.Point = fmt.Sprintf("%s matches, the peer does not: %s", what, why)
	return m
}

// conditions returns which conditions of a peer fail, and how many hold.
func conditions(s *cluster.Snapshot, x *cluster.PolicyPeer, peer Endpoint) (failed []string, matched int) {
	if x.Nodes != nil {
		if ofNode(s, x.Nodes, peer.Addr) {
			return nil, 1
		}
		return []string{fmt.Sprintf("%s is not an address of a node with %s", peer.Addr,
			cmp.Or(strings.Join(requirementTexts(*x.Nodes), " and "), "any labels"))}, 0
	}
	if x.Pods == nil {
		var blocks []string
		for _, b := range x.Blocks {
			if b.Contains(peer.Addr) {
				return nil, 1
			}
			blocks = append(blocks, b.String())
		}
		return []string{fmt.Sprintf("%s is not in %s", peer.Addr, cmp.Or(joinFew(blocks), "any block"))}, 0
	}
	if peer.Pod == nil {
		return []string{fmt.Sprintf("%s is not a pod", peer.Addr), "the rule selects pods by labels"}, 0
	}
	n := namespaceOf(s, peer.Pod)
	switch {
	case x.Pods.Namespace == peer.Pod.Owner.Namespace:
		matched++
	case x.Pods.Namespace != "":
		failed = append(failed, fmt.Sprintf("the namespace is %s, not %s", peer.Pod.Owner.Namespace, x.Pods.Namespace))
	case n == nil:
		failed = append(failed, fmt.Sprintf("the labels of namespace %s are not known", peer.Pod.Owner.Namespace))
	default:
		failed, matched = requirements("namespace label", x.Pods.Namespaces, n.Labels)
	}
	podFailed, podMatched := requirements("label", x.Pods.Pods, peer.Pod.Labels)
	return append(failed, podFailed...), matched + podMatched
}

// requirements returns which requirements of a selector fail, and how many hold. The argument
// what is "label" or "namespace label".
func requirements(what string, by cluster.Selector, labels map[string]string) (failed []string, matched int) {
	for _, r := range by.Requirements {
		if (cluster.Selector{Requirements: []cluster.Requirement{r}}).Matches(labels) {
			matched++
			continue
		}
		value, has := labels[r.Key]
		label := what + " " + r.Key
		switch {
		case r.Operator == metav1.LabelSelectorOpIn && has:
			label += fmt.Sprintf(" is %q, not %s", value, strings.Join(quoted(r.Values), " or "))
		case r.Operator == metav1.LabelSelectorOpIn && len(r.Values) == 1:
			label += "=" + r.Values[0] + " is missing"
		case r.Operator == metav1.LabelSelectorOpIn:
			label += fmt.Sprintf(" is missing, with %s", strings.Join(quoted(r.Values), " or "))
		case r.Operator == metav1.LabelSelectorOpExists:
			label += " is missing"
		default:
			label += "=" + value + " is excluded"
		}
		failed = append(failed, label)
	}
	return failed, matched
}

func quoted(values []string) []string {
	var q []string
	for _, v := range values {
		q = append(q, fmt.Sprintf("%q", v))
	}
	return q
}

// joinFew joins items for a sentence, the first few of many.
func joinFew(items []string) string {
	const most = 5
	if n := len(items) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(items[:most], ", "), n)
	}
	return strings.Join(items, ", ")
}
