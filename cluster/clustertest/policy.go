package clustertest

import (
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"hairpin/cluster"
)

// These are few, so that policies often match.
var (
	policyNamespaces = []string{"x", "y", "z"}
	policyPorts      = []cluster.PodPort{{Name: "dns", Protocol: cluster.UDP}, {Name: "web", Protocol: cluster.TCP}}
	policyBlocks     = []string{"0.0.0.0/0", "10.244.0.0/16", "10.244.1.0/24", "10.244.1.4/32", "100.64.0.0/16",
		"192.0.2.0/24", "::/0", "fd00:10:244::/48", "fd00:10:244:1::4/128", "2001:db8::/32"}
)

// drawLabels draws labels of a pod or a namespace.
func drawLabels(t *rapid.T) map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if v := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, key); v != "" {
			labels[key] = v
		}
	}
	return labels
}

func drawSelector(t *rapid.T) (s cluster.Selector) {
	for _, key := range []string{"app", "tier"} {
		r := cluster.Requirement{Key: key}
		switch rapid.IntRange(0, 6).Draw(t, "requirement") {
		case 0, 1:
			r.Operator, r.Values = metav1.LabelSelectorOpIn,
				[]string{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "in")}
		case 2:
			r.Operator, r.Values = metav1.LabelSelectorOpNotIn, []string{"a"}
		case 3:
			r.Operator = metav1.LabelSelectorOpExists
		case 4:
			r.Operator = metav1.LabelSelectorOpDoesNotExist
		default:
			continue
		}
		s.Requirements = append(s.Requirements, r)
	}
	return s
}

// DrawNamespaces draws some of the namespaces of DrawPolicy.
func DrawNamespaces(t *rapid.T) (list []*cluster.Namespace) {
	for _, name := range policyNamespaces {
		if rapid.IntRange(0, 5).Draw(t, "namespace") > 0 {
			list = append(list, &cluster.Namespace{Name: name, Labels: drawLabels(t)})
		}
	}
	return list
}

// DrawPolicyPod draws a pod on one of two nodes, with labels and named ports.
func DrawPolicyPod(t *rapid.T) *cluster.Pod {
	n, o := rapid.IntRange(1, 2).Draw(t, "node"), rapid.IntRange(3, 8).Draw(t, "octet")
	p := Pod([]string{"node-a", "node-b"}[n-1], fmt.Sprintf("p%d", o), fmt.Sprintf("10.244.%d.%d", n, o),
		fmt.Sprintf("fd00:10:244:%x::%x", n, o))
	p.Owner.Namespace = rapid.SampledFrom(policyNamespaces).Draw(t, "namespace")
	p.Labels = drawLabels(t)
	for _, port := range policyPorts {
		if rapid.Bool().Draw(t, "named port") {
			port.Port = rapid.SampledFrom([]uint16{53, 80, 8080}).Draw(t, "its number")
			p.Ports = append(p.Ports, port)
		}
	}
	return p
}

// DrawPolicy draws a NetworkPolicy or a ClusterNetworkPolicy of any shape.
func DrawPolicy(t *rapid.T) *cluster.Policy {
	if rapid.IntRange(0, 2).Draw(t, "cluster network policy") == 0 {
		return drawClusterPolicy(t)
	}
	p := &cluster.Policy{Tier: cluster.TierNetworkPolicy, Subject: cluster.PodSelector{
		Namespace: rapid.SampledFrom(policyNamespaces).Draw(t, "namespace"), Pods: drawSelector(t)}}
	p.Owner = cluster.Owner{Kind: "NetworkPolicy", Namespace: p.Subject.Namespace,
		Name: rapid.SampledFrom([]string{"k", "l", "m"}).Draw(t, "policy")}
	for _, d := range []*cluster.PolicyDirection{&p.Ingress, &p.Egress} {
		if d.Isolates = rapid.IntRange(0, 2).Draw(t, "isolates") > 0; d.Isolates {
			for range rapid.IntRange(0, 2).Draw(t, "rules") {
				d.Rules = append(d.Rules, drawRule(t, p.Subject.Namespace))
			}
		}
	}
	return p
}

// drawClusterPolicy draws a ClusterNetworkPolicy. Two of them, "s" and "t", have the same priority,
// and the API does not define which of their rules decides. They have no rules that pass: without
// these, Hairpin defines it.
func drawClusterPolicy(t *rapid.T) *cluster.Policy {
	name := rapid.SampledFrom([]string{"r", "s", "t"}).Draw(t, "cluster policy")
	p := &cluster.Policy{Owner: cluster.Owner{Kind: "ClusterNetworkPolicy", Name: name},
		Tier:     rapid.SampledFrom([]cluster.PolicyTier{cluster.TierAdmin, cluster.TierBaseline}).Draw(t, "tier"),
		Priority: map[string]int{"r": 5, "s": 1000, "t": 1000}[name],
		Subject:  cluster.PodSelector{Namespaces: drawSelector(t), Pods: drawSelector(t)}}
	actions := []cluster.PolicyAction{cluster.Accept, cluster.Deny, cluster.Pass}
	if name != "r" {
		actions = actions[:2]
	}
	for _, d := range []*cluster.PolicyDirection{&p.Ingress, &p.Egress} {
		for range rapid.IntRange(0, 3).Draw(t, "rules") {
			d.Rules = append(d.Rules, drawClusterRule(t, d == &p.Egress,
				rapid.SampledFrom(actions).Draw(t, "action")))
		}
	}
	return p
}

// drawClusterRule draws a rule, or what stands for a rule that fails closed.
func drawClusterRule(t *rapid.T, egress bool, action cluster.PolicyAction) cluster.PolicyRule {
	if rapid.IntRange(0, 9).Draw(t, "fails closed") == 0 {
		if action == cluster.Accept {
			return cluster.PolicyRule{}
		}
		return cluster.PolicyRule{Action: cluster.Deny, AllPeers: true, AllPorts: true}
	}
	r := cluster.PolicyRule{Action: action}
	r.AllPorts, r.Ports = drawPorts(t)
	for range rapid.IntRange(1, 2).Draw(t, "peers") {
		switch {
		case egress && rapid.IntRange(0, 3).Draw(t, "nodes") == 0:
			s := drawSelector(t)
			r.Peers = append(r.Peers, cluster.PolicyPeer{Nodes: &s})
		case egress && rapid.IntRange(0, 2).Draw(t, "networks") == 0:
			r.Peers = append(r.Peers, cluster.PolicyPeer{Blocks: drawBlocks(t)})
		default:
			r.Peers = append(r.Peers, cluster.PolicyPeer{Pods: &cluster.PodSelector{Namespaces: drawSelector(t),
				Pods: drawSelector(t)}})
		}
	}
	return r
}

func drawRule(t *rapid.T, own string) (r cluster.PolicyRule) {
	r.AllPeers = rapid.IntRange(0, 4).Draw(t, "all peers") == 0
	if !r.AllPeers {
		for range rapid.IntRange(1, 2).Draw(t, "peers") {
			r.Peers = append(r.Peers, drawPeer(t, own))
		}
	}
	r.AllPorts, r.Ports = drawPorts(t)
	return r
}

func drawPorts(t *rapid.T) (all bool, list []cluster.PolicyPort) {
	if rapid.IntRange(0, 2).Draw(t, "all ports") == 0 {
		return true, nil
	}
	for range rapid.IntRange(1, 2).Draw(t, "ports") {
		protocol := rapid.SampledFrom([]cluster.Protocol{cluster.TCP, cluster.UDP}).Draw(t, "protocol")
		p := cluster.PolicyPort{Protocol: protocol, Last: 65535}
		switch rapid.IntRange(0, 3).Draw(t, "kind of port") {
		case 0:
			named := rapid.SampledFrom(policyPorts).Draw(t, "name")
			p = cluster.PolicyPort{Protocol: named.Protocol, Name: named.Name}
		case 1:
			p.First = rapid.SampledFrom([]uint16{53, 80, 8080}).Draw(t, "port")
			p.Last = p.First
		case 2:
			p.First = rapid.SampledFrom([]uint16{50, 79, 1024}).Draw(t, "first")
			p.Last = rapid.SampledFrom([]uint16{8079, 8080, 65535}).Draw(t, "last")
		}
		list = append(list, p)
	}
	return false, list
}

func drawPeer(t *rapid.T, own string) cluster.PolicyPeer {
	s := &cluster.PodSelector{Pods: drawSelector(t)}
	switch rapid.IntRange(0, 2).Draw(t, "peer") {
	case 0:
		s.Namespace = own
	case 1:
		s.Namespaces = drawSelector(t)
	default:
		return cluster.PolicyPeer{Blocks: drawBlocks(t)}
	}
	return cluster.PolicyPeer{Pods: s}
}

func drawBlocks(t *rapid.T) (blocks []netip.Prefix) {
	for _, b := range rapid.SliceOfNDistinct(rapid.SampledFrom(policyBlocks), 1, 2, rapid.ID).Draw(t, "blocks") {
		blocks = append(blocks, netip.MustParsePrefix(b))
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	return blocks
}

// Relabel gives one of the nodes other labels, and perhaps another address.
func Relabel(t *rapid.T, nodes []*cluster.Node) []*cluster.Node {
	i := rapid.IntRange(0, len(nodes)-1).Draw(t, "node")
	n := *nodes[i]
	n.Egress.Labels, n.IPs = drawLabels(t), slices.Clone(n.Addresses)
	if rapid.Bool().Draw(t, "another address") {
		n.IPs = append(n.IPs, netip.MustParseAddr("203.0.113.9"))
	}
	nodes = slices.Clone(nodes)
	nodes[i] = &n
	return nodes
}

// ChurnPolicies changes namespaces, pods, labels of nodes or policies as a Store does: new slices,
// and the same pointers for what did not change.
func ChurnPolicies(t *rapid.T, s *cluster.Snapshot) *cluster.Snapshot {
	n := *s
	switch rapid.IntRange(0, 5).Draw(t, "what") {
	case 5:
		n.Nodes = Relabel(t, s.Nodes)
	case 0:
		n.Namespaces = Edit(t, s.Namespaces, func(t *rapid.T) *cluster.Namespace {
			return &cluster.Namespace{Name: rapid.SampledFrom(policyNamespaces).Draw(t, "namespace"),
				Labels: drawLabels(t)}
		}, (*cluster.Namespace).Compare)
	case 1, 2:
		n.Pods = Edit(t, s.Pods, DrawPolicyPod, (*cluster.Pod).Compare)
	default:
		n.Policies = Edit(t, s.Policies, DrawPolicy, (*cluster.Policy).Compare)
	}
	return &n
}
