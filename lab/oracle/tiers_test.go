package oracle

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"hairpin/cluster"
)

// admin are policies of the tiers Admin and Baseline, as kube-network-policies knows them:
// ClusterNetworkPolicy replaced both, with the same rules.
type admin struct {
	policies  []*v1alpha1.AdminNetworkPolicy
	baselines []*v1alpha1.BaselineAdminNetworkPolicy
}

func selectorOf(s metav1.LabelSelector) (to cluster.Selector) {
	for key, value := range s.MatchLabels {
		to.Requirements = append(to.Requirements,
			cluster.Requirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
	}
	for _, r := range s.MatchExpressions {
		to.Requirements = append(to.Requirements,
			cluster.Requirement{Key: r.Key, Operator: r.Operator, Values: r.Values})
	}
	return to
}

// podsOfNamespaces draws a selector of namespaces, or of namespaces and pods.
func (t drawer) podsOfNamespaces() (namespaces *metav1.LabelSelector, pods *v1alpha1.NamespacedPod,
	ours cluster.PodSelector) {
	n := t.selector()
	ours.Namespaces = selectorOf(n)
	if rapid.Bool().Draw(t.T, "whole namespaces") {
		return &n, nil, ours
	}
	p := t.selector()
	ours.Pods = selectorOf(p)
	return nil, &v1alpha1.NamespacedPod{NamespaceSelector: n, PodSelector: p}, ours
}

// adminPorts draws the ports of a rule, without names: kube-network-policies does not compare the
// number of a named port.
func (t drawer) adminPorts(r *cluster.PolicyRule) *[]v1alpha1.AdminNetworkPolicyPort {
	n := rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t.T, "ports")
	if r.AllPorts = n == 0; n == 0 {
		return nil
	}
	numbersOf := map[corev1.Protocol]cluster.Protocol{
		corev1.ProtocolTCP: cluster.TCP, corev1.ProtocolUDP: cluster.UDP, corev1.ProtocolSCTP: cluster.SCTP}
	var list []v1alpha1.AdminNetworkPolicyPort
	for range n {
		protocol := rapid.SampledFrom(protocols).Draw(t.T, "protocol")
		first := rapid.SampledFrom(numbers).Draw(t.T, "port")
		p := v1alpha1.AdminNetworkPolicyPort{PortNumber: &v1alpha1.Port{Protocol: protocol, Port: int32(first)}}
		last := first + rapid.SampledFrom([]int{0, 1, 27, 57000}).Draw(t.T, "more")
		if last > first {
			p = v1alpha1.AdminNetworkPolicyPort{PortRange: &v1alpha1.PortRange{Protocol: protocol, Start: int32(first),
				End: int32(last)}}
		}
		list = append(list, p)
		r.Ports = append(r.Ports,
			cluster.PolicyPort{Protocol: numbersOf[protocol], First: uint16(first), Last: uint16(last)})
	}
	return &list
}

// clusterPolicy draws a policy twice: for package policy and for kube-network-policies.
func (t drawer) clusterPolicy(tier cluster.PolicyTier, priority int, a *admin) *cluster.Policy {
	name := fmt.Sprintf("policy-%d", priority)
	ours := &cluster.Policy{Owner: cluster.Owner{Kind: "ClusterNetworkPolicy", Name: name}, Tier: tier,
		Priority: priority}
	theirs := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.AdminNetworkPolicySpec{Priority: int32(priority)}}
	theirs.Spec.Subject.Namespaces, theirs.Spec.Subject.Pods, ours.Subject = t.podsOfNamespaces()
	actions := map[cluster.PolicyAction]v1alpha1.AdminNetworkPolicyRuleAction{
		cluster.Accept: "Allow", cluster.Deny: "Deny"}
	if tier == cluster.TierAdmin {
		actions[cluster.Pass] = "Pass"
	}
	for range rapid.IntRange(0, 3).Draw(t.T, "ingress") {
		r := cluster.PolicyRule{Action: cluster.PolicyAction(rapid.IntRange(0, len(actions)-1).Draw(t.T, "action"))}
		x := v1alpha1.AdminNetworkPolicyIngressRule{Action: actions[r.Action], Ports: t.adminPorts(&r)}
		for range rapid.IntRange(1, 2).Draw(t.T, "from") {
			namespaces, pods, s := t.podsOfNamespaces()
			x.From = append(x.From, v1alpha1.AdminNetworkPolicyIngressPeer{Namespaces: namespaces, Pods: pods})
			r.Peers = append(r.Peers, cluster.PolicyPeer{Pods: &s})
		}
		ours.Ingress.Rules, theirs.Spec.Ingress = append(ours.Ingress.Rules, r), append(theirs.Spec.Ingress, x)
	}
	for range rapid.IntRange(0, 3).Draw(t.T, "egress") {
		r := cluster.PolicyRule{Action: cluster.PolicyAction(rapid.IntRange(0, len(actions)-1).Draw(t.T, "action"))}
		x := v1alpha1.AdminNetworkPolicyEgressRule{Action: actions[r.Action], Ports: t.adminPorts(&r)}
		for range rapid.IntRange(1, 2).Draw(t.T, "to") {
			if rapid.Bool().Draw(t.T, "network") {
				b := rapid.SampledFrom(blocks).Draw(t.T, "block")
				x.To = append(x.To, v1alpha1.AdminNetworkPolicyEgressPeer{Networks: []v1alpha1.CIDR{v1alpha1.CIDR(b)}})
				r.Peers = append(r.Peers, cluster.PolicyPeer{Blocks: []netip.Prefix{netip.MustParsePrefix(b).Masked()}})
				continue
			}
			namespaces, pods, s := t.podsOfNamespaces()
			x.To = append(x.To, v1alpha1.AdminNetworkPolicyEgressPeer{Namespaces: namespaces, Pods: pods})
			r.Peers = append(r.Peers, cluster.PolicyPeer{Pods: &s})
		}
		ours.Egress.Rules, theirs.Spec.Egress = append(ours.Egress.Rules, r), append(theirs.Spec.Egress, x)
	}
	if tier == cluster.TierAdmin {
		a.policies = append(a.policies, theirs)
		return ours
	}
	b := &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: v1alpha1.BaselineAdminNetworkPolicySpec{Subject: theirs.Spec.Subject}}
	for _, x := range theirs.Spec.Ingress {
		b.Spec.Ingress = append(b.Spec.Ingress, v1alpha1.BaselineAdminNetworkPolicyIngressRule{
			Action: v1alpha1.BaselineAdminNetworkPolicyRuleAction(x.Action), From: x.From, Ports: x.Ports})
	}
	for _, x := range theirs.Spec.Egress {
		y := v1alpha1.BaselineAdminNetworkPolicyEgressRule{
			Action: v1alpha1.BaselineAdminNetworkPolicyRuleAction(x.Action), Ports: x.Ports}
		for _, to := range x.To {
			y.To = append(y.To, v1alpha1.BaselineAdminNetworkPolicyEgressPeer{Namespaces: to.Namespaces, Pods: to.Pods,
				Networks: to.Networks})
		}
		b.Spec.Egress = append(b.Spec.Egress, y)
	}
	a.baselines = append(a.baselines, b)
	return ours
}

// TestTiers compares package policy with kube-network-policies in clusters with all tiers. Not
// compared, because kube-network-policies differs or cannot:
//
//   - Equal priorities, which the API leaves open, and named ports (see adminPorts).
//   - NetworkPolicies for one direction: kube-network-policies ignores the tier Baseline in both.
//   - Addresses that are no pod's: it needs a container runtime to look for them.
func TestTiers(t *testing.T) {
	k := newKubeNetworkPolicies(t)
	var packetsSeen, dropped int
	rapid.Check(t, func(t *rapid.T) {
		d := drawer{t, []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
			metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}}
		o := d.cluster()
		o.policies = o.policies[:min(len(o.policies), 2)]
		for _, x := range o.policies {
			x.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress", "Egress"}
		}
		var a admin
		for i := range rapid.IntRange(0, 3).Draw(t, "admin") {
			o.cluster = append(o.cluster, d.clusterPolicy(cluster.TierAdmin, 9-i, &a))
		}
		for range rapid.IntRange(0, 1).Draw(t, "baseline") {
			o.cluster = append(o.cluster, d.clusterPolicy(cluster.TierBaseline, 0, &a))
		}
		k.judge(t, o) // fills the other stores
		fill(t, k.admin, a.policies)
		fill(t, k.baseline, a.baselines)
		ours := hairpin(t, o)
		packets(o, func(p packet) {
			if p.from.pod == nil || p.to.pod == nil {
				return
			}
			v := ours(p)
			got := arrives(k.controller, context.Background(), theirPacket{from: p.from.addr.AsSlice(),
				to: p.to.addr.AsSlice(), protocol: p.protocol, fromPort: 40000, toPort: int(p.port)})
			packetsSeen++
			if !got {
				dropped++
			}
			if want := v.egress && v.ingress; got != want {
				t.Fatalf("%s > %s %d/%s: accepted by package policy %+v, by kube-network-policies %v",
					p.from.addr, p.to.addr, p.port, p.protocol, v, got)
			}
		})
	})
	t.Logf("%d packets, %d dropped", packetsSeen, dropped)
	if dropped < packetsSeen/10 || dropped > packetsSeen*9/10 {
		t.Errorf("the clusters are too alike: %d of %d packets are dropped", dropped, packetsSeen)
	}
}
