package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hairpin/cluster"
	"hairpin/cluster/store"
	"hairpin/policy"
)

// world is the cluster of the cases. The Namespace of new/web and new/api is not read yet.
const world = `{kind: Namespace, metadata: {name: shop, labels: {team: a}}}
---
{kind: Namespace, metadata: {name: lab, labels: {team: b}}}
---
{kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}},
  spec: {nodeName: one, containers: [{name: c, ports: [
    {name: http, containerPort: 8080}, {name: dns, containerPort: 53}, {name: dns, containerPort: 5353, protocol: UDP}]}]},
  status: {podIPs: [{ip: 10.244.1.5}, {ip: "fd00:10:244:1::5"}]}}
---
{kind: Pod, metadata: {name: api, namespace: shop, labels: {app: api, tier: back}},
  spec: {nodeName: two, containers: [{name: c, ports: [{name: http, containerPort: 8081}]}],
    initContainers: [{name: s, restartPolicy: Always, ports: [{name: metrics, containerPort: 9090}]}]},
  status: {podIPs: [{ip: 10.244.2.5}, {ip: "fd00:10:244:2::5"}]}}
---
{kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db, tier: back}},
  spec: {nodeName: two, containers: [{name: c}]}, status: {podIPs: [{ip: 10.244.2.6}, {ip: "fd00:10:244:2::6"}]}}
---
{kind: Pod, metadata: {name: web, namespace: lab, labels: {app: web}},
  spec: {nodeName: one, containers: [{name: c}]}, status: {podIPs: [{ip: 10.244.1.7}, {ip: "fd00:10:244:1::7"}]}}
---
{kind: Pod, metadata: {name: web, namespace: new, labels: {app: web}},
  spec: {nodeName: one, containers: [{name: c}]}, status: {podIPs: [{ip: 10.244.1.9}, {ip: "fd00:10:244:1::9"}]}}
---
{kind: Pod, metadata: {name: api, namespace: new, labels: {app: api}},
  spec: {nodeName: two, containers: [{name: c}]}, status: {podIPs: [{ip: 10.244.2.9}, {ip: "fd00:10:244:2::9"}]}}`

// np returns a NetworkPolicy of namespace shop.
func np(name, spec string) string {
	return fmt.Sprintf("\n---\n{kind: NetworkPolicy, metadata: {name: %s, namespace: shop}, spec: %s}", name, spec)
}

// cnp returns a ClusterNetworkPolicy for all pods of namespace shop, with rules for their ingress.
func cnp(name string, tier cluster.PolicyTier, priority int, rules ...cluster.PolicyRule) *cluster.Policy {
	owner := cluster.Owner{Kind: "ClusterNetworkPolicy", Name: name}
	return &cluster.Policy{Owner: owner, Tier: tier, Priority: priority,
		Subject: cluster.PodSelector{Namespace: "shop"},
		Ingress: cluster.PolicyDirection{Rules: rules}}
}

// rule returns a rule for a TCP port, or for all ports (0), from all addresses.
func rule(a cluster.PolicyAction, port uint16) cluster.PolicyRule {
	r := cluster.PolicyRule{Action: a, AllPeers: true, AllPorts: port == 0}
	if port != 0 {
		r.Ports = []cluster.PolicyPort{{Protocol: cluster.TCP, First: port, Last: port}}
	}
	return r
}

type policyCase struct {
	name string
	np   string            // NetworkPolicies
	cnp  []*cluster.Policy // ClusterNetworkPolicies
	want []string          // "FROM > TO PORT/PROTOCOL: RESULT", see the method packet and result
}

const (
	denyIngress = `{podSelector: {}, policyTypes: [Ingress]}`
	denyAll     = `{podSelector: {}, policyTypes: [Ingress, Egress]}`
)

var cases = []policyCase{
	{name: "no policy", want: []string{"shop/web > shop/api 8081/tcp: arrives", "shop/web > 192.0.2.7 443/tcp: arrives"}},
	{name: "no policyTypes and only egress rules: both directions are isolated",
		np: np("a", `{podSelector: {}, egress: [{}]}`),
		want: []string{"shop/web > lab/web 80/tcp: arrives", "lab/web > shop/web 80/tcp: ingress",
			"shop/web > shop/api 80/tcp: ingress"}},
	{name: "no policyTypes and no rules: ingress is isolated", np: np("a", `{podSelector: {}}`),
		want: []string{"shop/web > lab/web 80/tcp: arrives", "lab/web > shop/web 80/tcp: ingress"}},
	{name: "policyTypes Egress without rules: ingress stays open", np: np("a", `{podSelector: {}, policyTypes: [Egress]}`),
		want: []string{"lab/web > shop/web 80/tcp: arrives", "shop/web > lab/web 80/tcp: egress"}},
	{name: "policyTypes Ingress: egress rules have no effect",
		np:   np("a", `{podSelector: {}, policyTypes: [Ingress], egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24}}]}]}`),
		want: []string{"shop/web > lab/web 80/tcp: arrives", "lab/web > shop/web 80/tcp: ingress"}},
	{name: "ingress: one empty rule", np: np("a", `{podSelector: {}, ingress: [{}]}`),
		want: []string{"lab/web > shop/web 80/tcp: arrives", "192.0.2.7 > shop/web icmp: arrives"}},
	{name: "ingress: no rule", np: np("a", `{podSelector: {}, ingress: []}`),
		want: []string{"lab/web > shop/web 80/tcp: ingress", "192.0.2.7 > shop/web icmp: ingress"}},
	{name: "ingress: empty lists of peers and ports", np: np("a", `{podSelector: {}, ingress: [{from: [], ports: []}]}`),
		want: []string{"192.0.2.7 > shop/web 80/tcp: arrives", "192.0.2.7 > shop/web icmp: arrives"}},
	{name: "the subject is in the policy's namespace", np: np("a", denyIngress) + np("b", `{podSelector: {matchLabels: {app: web}}}`),
		want: []string{"shop/web > lab/web 80/tcp: arrives", "lab/web > shop/db 80/tcp: ingress"}},
	{name: "a subject by labels", np: np("a", `{podSelector: {matchExpressions: [{key: app, operator: In, values: [api, db]}]}}`),
		want: []string{"lab/web > shop/web 80/tcp: arrives", "lab/web > shop/api 80/tcp: ingress", "lab/web > shop/db 80/tcp: ingress"}},

	{name: "namespaceSelector and podSelector in one item: both must match", np: np("a", `{podSelector: {}, ingress: [{from: [
		{namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: web}}}]}]}`),
		want: []string{"lab/web > shop/db 80/tcp: arrives", "shop/web > shop/db 80/tcp: ingress", "new/web > shop/db 80/tcp: ingress"}},
	{name: "in two items: one must match", np: np("a", `{podSelector: {}, ingress: [{from: [
		{namespaceSelector: {matchLabels: {team: b}}}, {podSelector: {matchLabels: {app: web}}}]}]}`),
		want: []string{"lab/web > shop/db 80/tcp: arrives", "shop/web > shop/db 80/tcp: arrives",
			"shop/api > shop/db 80/tcp: ingress", "new/web > shop/db 80/tcp: ingress"}},
	{name: "podSelector alone: pods of the policy's namespace", np: np("a", `{podSelector: {}, ingress: [{from: [
		{podSelector: {matchLabels: {app: web}}}]}]}`),
		want: []string{"shop/web > shop/db 80/tcp: arrives", "lab/web > shop/db 80/tcp: ingress"}},
	{name: "empty namespaceSelector: pods of all known namespaces, and only pods",
		np: np("a", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}`),
		want: []string{"lab/web > shop/db 80/tcp: arrives", "shop/web > shop/db 80/tcp: arrives",
			"new/web > shop/db 80/tcp: ingress", "192.0.2.7 > shop/db 80/tcp: ingress", "172.18.0.4 > shop/db 80/tcp: ingress"}},
	{name: "a negative selector does not match an unknown namespace", np: np("a", `{podSelector: {}, ingress: [{from: [
		{namespaceSelector: {matchExpressions: [{key: team, operator: DoesNotExist}]}}]}]}`),
		want: []string{"new/web > shop/db 80/tcp: ingress", "lab/web > shop/db 80/tcp: ingress"}},

	{name: "a policy isolates pods of its namespace, and accepts them, before the namespace is known",
		np:   strings.ReplaceAll(np("a", `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`), "shop", "new"),
		want: []string{"shop/web > new/web 80/tcp: ingress", "new/api > new/web 80/tcp: arrives"}},

	{name: "except limits its own block only", np: np("a", `{podSelector: {}, ingress: [{from: [
		{ipBlock: {cidr: 10.244.0.0/16, except: [10.244.1.0/24, 10.244.2.6/32]}}, {podSelector: {matchLabels: {app: web}}}]}]}`),
		want: []string{"shop/web > shop/db 80/tcp: arrives", "shop/api > shop/db 80/tcp: arrives",
			"lab/web > shop/db 80/tcp: ingress", "shop/db > shop/web 80/tcp: ingress"}},
	{name: "another block of the rule, and another policy, accept what a block excepts",
		np: np("a", `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.0/29]}},
			{ipBlock: {cidr: 192.0.2.7/32}}, {ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.0/29]}}]}]}`) +
			np("b", `{podSelector: {matchLabels: {app: db}}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.4/30}}]}]}`),
		want: []string{"192.0.2.7 > shop/web 80/tcp: arrives", "192.0.2.6 > shop/web 80/tcp: ingress",
			"192.0.2.6 > shop/db 80/tcp: arrives", "192.0.2.1 > shop/db 80/tcp: ingress", "192.0.2.8 > shop/db 80/tcp: arrives"}},
	{name: "0.0.0.0/0 accepts IPv4 only", np: np("a", `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}`),
		want: []string{"192.0.2.7 > shop/web 80/tcp: arrives", "lab/web > shop/web 80/tcp: arrives",
			"2001:db8::7 > shop/web 80/tcp: ingress", "lab/web > shop/web 80/tcp IPv6: ingress"}},
	{name: "a selector accepts both families, and no link-local address",
		np: np("a", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}`),
		want: []string{"lab/web > shop/web 80/tcp: arrives", "lab/web > shop/web 80/tcp IPv6: arrives",
			"fe80::1 > shop/web 80/tcp IPv6: ingress"}},

	{name: "endPort is included, and may equal port", np: np("a", `{podSelector: {}, ingress: [{ports: [
		{port: 8000, endPort: 8080}, {port: 8060, endPort: 8090}, {port: 9000, endPort: 9000}, {protocol: UDP, port: 1, endPort: 65535}]}]}`),
		want: []string{"lab/web > shop/web 7999/tcp: ingress", "lab/web > shop/web 8000/tcp: arrives",
			"lab/web > shop/web 8080/tcp: arrives", "lab/web > shop/web 8090/tcp: arrives", "lab/web > shop/web 8091/tcp: ingress",
			"lab/web > shop/web 9000/tcp: arrives", "lab/web > shop/web 9001/tcp: ingress",
			"lab/web > shop/web 1/udp: arrives", "lab/web > shop/web 65535/udp: arrives", "lab/web > shop/web 8000/sctp: ingress"}},
	{name: "a named port has the destination pod's number and protocol", np: np("a", `{podSelector: {}, ingress: [{ports: [
		{port: http}, {protocol: UDP, port: dns}, {port: none}]}]}`),
		want: []string{"lab/web > shop/web 8080/tcp: arrives", "lab/web > shop/web 8081/tcp: ingress",
			"lab/web > shop/api 8081/tcp: arrives", "lab/web > shop/api 8080/tcp: ingress", "lab/web > shop/db 8080/tcp: ingress",
			"lab/web > shop/web 5353/udp: arrives", "lab/web > shop/web 53/tcp: ingress", "lab/web > shop/web 53/udp: ingress"}},
	{name: "a named port of a sidecar", np: np("a", `{podSelector: {}, ingress: [{ports: [{port: metrics}]}]}`),
		want: []string{"lab/web > shop/api 9090/tcp: arrives", "lab/web > shop/web 9090/tcp: ingress"}},
	{name: "a named port in egress: each peer by its own number, and only pods",
		np: np("a", `{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress], egress: [{ports: [{port: http}]}]}`),
		want: []string{"shop/db > shop/web 8080/tcp: arrives", "shop/db > shop/web 8081/tcp: egress",
			"shop/db > shop/api 8081/tcp: arrives", "shop/db > shop/api 8080/tcp: egress",
			"shop/db > lab/web 8080/tcp: egress", "shop/db > 192.0.2.7 8080/tcp: egress"}},
	{name: "a protocol without a port", np: np("a", `{podSelector: {}, ingress: [{ports: [{protocol: UDP}]}]}`),
		want: []string{"lab/web > shop/web 1/udp: arrives", "lab/web > shop/web 65535/udp: arrives",
			"lab/web > shop/web 1/tcp: ingress", "lab/web > shop/web icmp: ingress"}},
	{name: "a rule without ports accepts ICMP of its peers",
		np: np("a", `{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}`),
		want: []string{"shop/web > shop/db icmp: arrives", "shop/web > shop/db 7/sctp: arrives", "shop/api > shop/db icmp: ingress",
			"192.0.2.7 > shop/db icmp: ingress"}},
	{name: "the port is the pod's, not the Service's", np: np("a", `{podSelector: {}, ingress: [{ports: [{port: 80}]}]}`),
		want: []string{"lab/web > shop/web 8080/tcp: ingress", "lab/web > shop/web 80/tcp: arrives"}},
	{name: "fragments have the port of their datagram", np: np("a", `{podSelector: {}, ingress: [{ports: [{protocol: UDP, port: 53}]}]}`),
		want: []string{"lab/web > shop/web 53/udp: arrives", "lab/web > shop/web 54/udp: ingress"}},

	{name: "a pod reaches itself", np: np("a", denyAll),
		want: []string{"shop/web > shop/web 80/tcp: arrives", "shop/web > shop/web 80/tcp IPv6: arrives", "shop/web > shop/api 80/tcp: both"}},
	{name: "its own node reaches a pod, others do not", np: np("a", denyAll),
		want: []string{"172.18.0.3 > shop/web 80/tcp own-node: arrives", "fc00::3 > shop/web 80/tcp own-node: arrives",
			"172.18.0.4 > shop/web 80/tcp: ingress"}},
	{name: "a pod reaches its own node, and no other", np: np("a", denyAll),
		want: []string{"shop/web > 172.18.0.3 10250/tcp own-node: arrives", "shop/web > 169.254.20.10 53/udp own-node: arrives",
			"shop/web > 172.18.0.4 10250/tcp: egress"}},
	{name: "an ipBlock may be a node's address", np: np("a", `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 172.18.0.4/32}}]}]}`),
		want: []string{"172.18.0.4 > shop/web 80/tcp: arrives", "172.18.0.5 > shop/web 80/tcp: ingress"}},
	{name: "an extra address belongs to its pod",
		np: np("a", `{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}`),
		want: []string{"shop/web@10.9.0.1 > shop/db 80/tcp: arrives", "lab/web@10.9.0.1 > shop/db 80/tcp: ingress",
			"shop/web > shop/db@10.9.0.2 80/tcp: arrives", "lab/web > shop/db@10.9.0.2 80/tcp: ingress"}},
	{name: "an address without a pod is no longer a peer",
		np:   np("a", `{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: job}}}]}]}`),
		want: []string{"10.244.1.99 > shop/db 80/tcp: ingress"}},
	{name: "policies add up", np: np("a", denyIngress) + np("b", `{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}`) +
		np("c", `{podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: 5432}]}]}`),
		want: []string{"shop/web > shop/db 80/tcp: arrives", "lab/web > shop/db 5432/tcp: arrives", "lab/web > shop/api 5432/tcp: ingress"}},
	{name: "one rule must have both the peer and the port", np: np("a", `{podSelector: {}, ingress: [
		{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 1}]}, {from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 2}]}]}`),
		want: []string{"shop/web > shop/db 1/tcp: arrives", "shop/web > shop/db 2/tcp: ingress", "shop/api > shop/db 1/tcp: ingress"}},

	{name: "Admin: Deny before a NetworkPolicy's rule", np: np("a", `{podSelector: {}, ingress: [{}]}`),
		cnp:  []*cluster.Policy{cnp("x", cluster.TierAdmin, 5, rule(cluster.Deny, 80))},
		want: []string{"lab/web > shop/web 80/tcp: ingress", "lab/web > shop/web 81/tcp: arrives"}},
	{name: "Admin: Accept before isolation", np: np("a", denyIngress),
		cnp:  []*cluster.Policy{cnp("x", cluster.TierAdmin, 5, rule(cluster.Accept, 80))},
		want: []string{"lab/web > shop/web 80/tcp: arrives", "lab/web > shop/web 81/tcp: ingress"}},
	{name: "Admin: Pass leaves the tier", np: np("a", `{podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 80}]}]}`),
		cnp: []*cluster.Policy{cnp("x", cluster.TierAdmin, 5,
			rule(cluster.Pass, 80), rule(cluster.Pass, 81), rule(cluster.Deny, 0))},
		want: []string{"lab/web > shop/web 80/tcp: arrives", "lab/web > shop/web 81/tcp: ingress", "lab/web > shop/web 82/tcp: ingress",
			"lab/web > shop/api 81/tcp: arrives", "lab/web > shop/api 82/tcp: ingress"}},
	{name: "Admin: the lowest priority, then the first rule",
		cnp: []*cluster.Policy{cnp("x", cluster.TierAdmin, 7, rule(cluster.Deny, 0)),
			cnp("y", cluster.TierAdmin, 5, rule(cluster.Accept, 80), rule(cluster.Deny, 80))},
		want: []string{"lab/web > shop/web 80/tcp: arrives", "lab/web > shop/web 81/tcp: ingress"}},
	{name: "Admin: at the same place of equal priorities, Deny wins",
		cnp: []*cluster.Policy{cnp("x", cluster.TierAdmin, 5, rule(cluster.Accept, 80), rule(cluster.Accept, 81)),
			cnp("y", cluster.TierAdmin, 5, rule(cluster.Deny, 80))},
		want: []string{"lab/web > shop/web 80/tcp: ingress", "lab/web > shop/web 81/tcp: arrives"}},
	{name: "Baseline: only where no NetworkPolicy isolates the pod",
		np:  np("a", `{podSelector: {matchLabels: {app: web}}, ingress: [{}]}`),
		cnp: []*cluster.Policy{cnp("x", cluster.TierBaseline, 5, rule(cluster.Accept, 80), rule(cluster.Deny, 0))},
		want: []string{"lab/web > shop/web 81/tcp: arrives", "lab/web > shop/db 81/tcp: ingress", "lab/web > shop/db 80/tcp: arrives",
			"shop/web > lab/web 81/tcp: arrives"}},
	{name: "Admin: Pass to Baseline", cnp: []*cluster.Policy{cnp("x", cluster.TierAdmin, 5, rule(cluster.Pass, 80)),
		cnp("y", cluster.TierBaseline, 5, rule(cluster.Deny, 80))},
		want: []string{"lab/web > shop/web 80/tcp: ingress", "lab/web > shop/web 81/tcp: arrives"}},
	{name: "a rule without peers matches nothing", np: np("a", denyIngress), cnp: []*cluster.Policy{
		cnp("x", cluster.TierAdmin, 5, cluster.PolicyRule{Action: cluster.Accept, AllPorts: true}),
		cnp("y", cluster.TierAdmin, 6, cluster.PolicyRule{Action: cluster.Accept, AllPeers: true})},
		want: []string{"lab/web > shop/web 80/tcp: ingress"}},
	{name: "Admin: Deny all, and the pod's own node and the pod itself",
		cnp: []*cluster.Policy{cnp("x", cluster.TierAdmin, 0, rule(cluster.Deny, 0))},
		want: []string{"172.18.0.3 > shop/web 80/tcp own-node: arrives", "shop/web > shop/web 80/tcp: arrives",
			"lab/web > shop/web 80/tcp: ingress", "lab/web > shop/web icmp: ingress"}},
	{name: "Admin and Baseline: Deny the pod's own node", np: np("a", denyAll),
		cnp: []*cluster.Policy{egress("x", cluster.TierAdmin, rule(cluster.Deny, 22)),
			egress("y", cluster.TierBaseline, rule(cluster.Deny, 53))},
		want: []string{"shop/web > 172.18.0.3 22/tcp own-node: egress", "shop/web > 172.18.0.3 53/tcp own-node: arrives",
			"shop/web > 172.18.0.3 80/tcp own-node: arrives"}},
	{name: "Baseline: Deny the pod's own node, where no NetworkPolicy isolates the pod",
		cnp: []*cluster.Policy{egress("y", cluster.TierBaseline, rule(cluster.Deny, 53))},
		want: []string{"shop/web > 172.18.0.3 53/tcp own-node: egress",
			"shop/web > 172.18.0.3 80/tcp own-node: arrives"}},
}

// egress returns a ClusterNetworkPolicy with egress rules for the pods of shop.
func egress(name string, tier cluster.PolicyTier, rules ...cluster.PolicyRule) *cluster.Policy {
	p := cnp(name, tier, 5)
	p.Egress.Rules = rules
	return p
}

func (c *policyCase) snapshot(t *testing.T) *cluster.Snapshot {
	t.Helper()
	facts := store.New(cluster.DefaultConfig())
	for document := range strings.SplitSeq(world+c.np, "\n---\n") {
		var object metav1.Object
		switch kind, _, _ := strings.Cut(strings.TrimPrefix(document, "{kind: "), ","); kind {
		case "Namespace":
			object = &corev1.Namespace{}
		case "Pod":
			object = &corev1.Pod{}
		case "NetworkPolicy":
			object = &networkingv1.NetworkPolicy{}
		}
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Fatalf("%v: %s", err, document)
		}
		facts.Set(object)
	}
	s := facts.Snapshot()
	s.Policies = append(s.Policies, c.cnp...)
	return s
}

func pod(t *testing.T, s *cluster.Snapshot, name string) *cluster.Pod {
	t.Helper()
	i := slices.IndexFunc(s.Pods, func(p *cluster.Pod) bool { return p.Owner.Namespace+"/"+p.Owner.Name == name })
	if i < 0 {
		t.Fatalf("there is no pod %s", name)
	}
	return s.Pods[i]
}

// packet reads "FROM > TO 80/tcp", or "FROM > TO icmp", and after that "own-node" and "IPv6". FROM
// and TO are pods, "NAMESPACE/NAME" or "NAMESPACE/NAME@ADDRESS", or addresses that are no pod's.
func packet(t *testing.T, s *cluster.Snapshot, text string) policy.Packet {
	t.Helper()
	f := strings.Fields(text)
	end := func(text string) policy.Endpoint {
		name, other, _ := strings.Cut(text, "@")
		if !strings.Contains(name, "/") {
			return policy.Endpoint{Addr: netip.MustParseAddr(name)}
		}
		e := policy.Endpoint{Pod: pod(t, s, name)}
		switch {
		case other != "":
			e.Addr = netip.MustParseAddr(other)
		case slices.Contains(f, "IPv6"):
			e.Addr = e.Pod.IPs[1]
		default:
			e.Addr = e.Pod.IPs[0]
		}
		return e
	}
	p := policy.Packet{From: end(f[0]), To: end(f[2])}
	if number, protocol, hasPort := strings.Cut(f[3], "/"); hasPort {
		port, err := strconv.ParseUint(number, 10, 16)
		p.Port = uint16(port)
		p.Protocol = map[string]cluster.Protocol{"tcp": cluster.TCP, "udp": cluster.UDP, "sctp": cluster.SCTP}[protocol]
		if err != nil || p.Protocol == 0 {
			t.Fatalf("%q is not a packet", text)
		}
	}
	if slices.Contains(f, "own-node") {
		p.FromOwnNode, p.ToOwnNode = p.From.Pod == nil, p.To.Pod == nil
	}
	return p
}

// result returns "arrives", or which directions drop the packet: "egress", "ingress" or "both".
func result(egress, ingress policy.Verdict) string {
	switch {
	case egress.Accepted && ingress.Accepted:
		return "arrives"
	case ingress.Accepted:
		return "egress"
	case egress.Accepted:
		return "ingress"
	}
	return "both"
}

func TestEvaluate(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := c.snapshot(t)
			for _, want := range c.want {
				text, _, _ := strings.Cut(want, ": ")
				egress, ingress := policy.Evaluate(s, packet(t, s, text))
				if got := text + ": " + result(egress, ingress); got != want {
					t.Errorf("%s\nwanted %s\n%s\n%s", got, want, egress, ingress)
				}
			}
		})
	}
}

// TestReasons compares the sentences of verdicts and of their nearest misses.
func TestReasons(t *testing.T) {
	policies := np("from-api", `{podSelector: {matchLabels: {app: db}}, ingress: [
		{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 5432}, {port: 8000, endPort: 8010}, {protocol: UDP}]},
		{from: [{podSelector: {matchLabels: {app: web, tier: back}}}, {ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: 8080}]}]}`) +
		np("http", `{podSelector: {matchLabels: {app: api}}, ingress: [{ports: [{port: http}, {port: none}]}]}`) +
		np("isolated", `{podSelector: {matchLabels: {app: db}}}`) +
		np("teams", `{podSelector: {matchLabels: {app: web}}, ingress: [
			{from: [{namespaceSelector: {matchLabels: {team: c}}}], ports: [{port: 80}]},
			{from: [{namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [b]}]}}]},
			{from: [{namespaceSelector: {}, podSelector: {matchExpressions: [{key: app, operator: Exists},
				{key: tier, operator: Exists}, {key: zone, operator: In, values: [p, q]}]}}]},
			{from: [{podSelector: {matchLabels: {app: web}}}]}]}`)
	for name, c := range map[string]struct {
		cnp    []*cluster.Policy
		packet string
		want   string
	}{
		"accepted by a rule": {packet: "shop/api > shop/db 5432/tcp", want: `
egress accepted: no policy isolates the pod, and no rule matches
ingress accepted by NetworkPolicy/shop/from-api rule 1`},
		"the port, or a label": {packet: "shop/api > shop/db 8080/tcp", want: `
egress accepted: no policy isolates the pod, and no rule matches
ingress dropped: no rule accepts the packet; the pod is isolated by NetworkPolicy/shop/from-api, NetworkPolicy/shop/isolated
NetworkPolicy/shop/from-api rule 2: the port matches, the peer does not: label app is "api", not "web"
NetworkPolicy/shop/from-api rule 1: the peer matches, port 8080/TCP does not: it accepts 5432/TCP, 8000-8010/TCP, all ports/UDP`},
		"a label is missing": {packet: "shop/web > shop/db 8080/tcp", want: `
egress accepted: no policy isolates the pod, and no rule matches
ingress dropped: no rule accepts the packet; the pod is isolated by NetworkPolicy/shop/from-api, NetworkPolicy/shop/isolated
NetworkPolicy/shop/from-api rule 2: the port matches, the peer does not: label tier=back is missing`},
		"without ports": {packet: "shop/api > shop/db icmp", want: `
egress accepted: no policy isolates the pod, and no rule matches
ingress dropped: no rule accepts the packet; the pod is isolated by NetworkPolicy/shop/from-api, NetworkPolicy/shop/isolated
NetworkPolicy/shop/from-api rule 1: the peer matches, a packet without ports does not: it accepts 5432/TCP, 8000-8010/TCP, all ports/UDP`},
		"not a pod": {packet: "10.9.0.1 > shop/db 5432/tcp", want: `
egress accepted: not a pod
ingress dropped: no rule accepts the packet; the pod is isolated by NetworkPolicy/shop/from-api, NetworkPolicy/shop/isolated
NetworkPolicy/shop/from-api rule 1: the port matches, the peer does not: 10.9.0.1 is not a pod, and the rule selects pods by labels`},
		"not in a block": {packet: "10.9.0.1 > shop/db 8080/tcp", want: `
egress accepted: not a pod
ingress dropped: no rule accepts the packet; the pod is isolated by NetworkPolicy/shop/from-api, NetworkPolicy/shop/isolated
NetworkPolicy/shop/from-api rule 2: the port matches, the peer does not: 10.9.0.1 is not in 192.0.2.0/24`},
		"named ports": {packet: "lab/web > shop/api 80/tcp", want: `
egress accepted: no policy isolates the pod, and no rule matches
ingress dropped: no rule accepts the packet; the pod is isolated by NetworkPolicy/shop/http
NetworkPolicy/shop/http rule 1: the peer matches, port 80/TCP does not: it accepts http/TCP (8081), none/TCP (no such port of the destination)`},
		"namespaces, the nearest first": {packet: "lab/web > shop/web 80/tcp", want: `
egress accepted: no policy isolates the pod, and no rule matches
ingress dropped: no rule accepts the packet; the pod is isolated by NetworkPolicy/shop/teams
NetworkPolicy/shop/teams rule 1: the port matches, the peer does not: namespace label team is "b", not "c"
NetworkPolicy/shop/teams rule 4: the port matches, the peer does not: the namespace is lab, not shop
NetworkPolicy/shop/teams rule 2: the port matches, the peer does not: namespace label team=b is excluded
NetworkPolicy/shop/teams rule 3: the port matches, the peer does not: label tier is missing, and label zone is missing, with "p" or "q"`},
		"an unknown namespace": {packet: "new/web > shop/web 80/tcp", want: `
egress accepted: no policy isolates the pod, and no rule matches
ingress dropped: no rule accepts the packet; the pod is isolated by NetworkPolicy/shop/teams
NetworkPolicy/shop/teams rule 1: the port matches, the peer does not: the labels of namespace new are not known
NetworkPolicy/shop/teams rule 4: the port matches, the peer does not: the namespace is new, not shop
NetworkPolicy/shop/teams rule 2: the port matches, the peer does not: the labels of namespace new are not known
NetworkPolicy/shop/teams rule 3: the port matches, the peer does not: the labels of namespace new are not known, and label tier is missing, and label zone is missing, with "p" or "q"`},
		"denied: only what comes before": {
			cnp: []*cluster.Policy{cnp("x", cluster.TierAdmin, 5,
				rule(cluster.Deny, 81), rule(cluster.Accept, 80), rule(cluster.Deny, 0), rule(cluster.Accept, 82))},
			packet: "shop/api > shop/db 8080/tcp", want: `
egress accepted: no policy isolates the pod, and no rule matches
ingress dropped by ClusterNetworkPolicy/x rule 3
ClusterNetworkPolicy/x rule 2: the peer matches, port 8080/TCP does not: it accepts 80/TCP`},
		"a rule without valid peers": {
			cnp: []*cluster.Policy{cnp("x", cluster.TierAdmin, 5,
				cluster.PolicyRule{AllPorts: true}, rule(cluster.Deny, 0))},
			packet: "shop/api > shop/db icmp", want: `
egress accepted: no policy isolates the pod, and no rule matches
ingress dropped by ClusterNetworkPolicy/x rule 2
ClusterNetworkPolicy/x rule 1: the protocol matches, the peer does not: the rule has no peer`},
		"itself": {packet: "shop/db > shop/db 1/tcp", want: `
egress accepted: a pod always reaches itself
ingress accepted: a pod always reaches itself`},
		"its node": {packet: "172.18.0.3 > shop/db 1/tcp own-node", want: `
egress accepted: not a pod
ingress accepted: a pod's node always reaches it`},
	} {
		t.Run(name, func(t *testing.T) {
			s := (&policyCase{np: policies, cnp: c.cnp}).snapshot(t)
			egress, ingress := policy.Evaluate(s, packet(t, s, c.packet))
			got := "\n" + egress.String() + "\n" + ingress.String()
			for _, m := range slices.Concat(egress.Misses, ingress.Misses) {
				got += "\n" + m.String()
			}
			if got != c.want {
				t.Errorf("got %s\nwanted %s", got, c.want)
			}
		})
	}
}

// TestMostMisses: of many misses there are five, the nearest.
func TestMostMisses(t *testing.T) {
	rules := "{ports: [{port: 1}, {port: 2}, {port: 3}, {port: 4}, {port: 5}, {port: 6}, {port: 7}]}"
	for i := range 9 {
		rules += fmt.Sprintf(", {from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: %d}]}", 100+i)
	}
	s := (&policyCase{np: np("a", "{podSelector: {}, ingress: ["+rules+"]}")}).snapshot(t)
	_, ingress := policy.Evaluate(s, packet(t, s, "shop/web > shop/db 80/tcp"))
	if len(ingress.Misses) != 5 || ingress.Misses[0].Rule != 1 || ingress.Misses[4].Rule != 5 {
		t.Errorf("wanted rules 2 to 6, which have a selector: %v", ingress.Misses)
	}
	_, ingress = policy.Evaluate(s, packet(t, s, "192.0.2.7 > shop/db 80/tcp"))
	want := "NetworkPolicy/shop/a rule 1: the peer matches, port 80/TCP does not: " +
		"it accepts 1/TCP, 2/TCP, 3/TCP, 4/TCP, 5/TCP and 2 more"
	if len(ingress.Misses) != 1 || ingress.Misses[0].String() != want {
		t.Errorf("got %v, wanted %s", ingress.Misses, want)
	}
}

func TestSelecting(t *testing.T) {
	s := (&policyCase{
		np: np("b", `{podSelector: {}, egress: [{to: [{podSelector: {matchLabels: {tier: back}}}, {podSelector: {matchLabels: {app: db}}},
			{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/9]}}]}, {}]}`) +
			np("a", `{podSelector: {matchLabels: {app: web}}}`),
		cnp: []*cluster.Policy{cnp("base", cluster.TierBaseline, 0, rule(cluster.Deny, 0)),
			cnp("second", cluster.TierAdmin, 2, rule(cluster.Deny, 0)),
			cnp("first", cluster.TierAdmin, 1, rule(cluster.Deny, 0)),
			cnp("none", cluster.TierAdmin, 1)},
	}).snapshot(t)
	for _, c := range []struct {
		pod  string
		d    policy.Direction
		want string
	}{
		{"shop/web", policy.Ingress, "first second a b base"},
		{"shop/web", policy.Egress, "b"},
		{"shop/db", policy.Ingress, "first second b base"},
		{"lab/web", policy.Ingress, ""},
	} {
		var names []string
		for _, x := range policy.Selecting(s, pod(t, s, c.pod), c.d) {
			names = append(names, x.Owner.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s of %s: got %q, wanted %q", c.d, c.pod, got, c.want)
		}
	}
	rules := policy.Selecting(s, pod(t, s, "shop/web"), policy.Egress)[0].Egress.Rules
	for i, want := range [][2]int{{4, 1}, {0, 0}} {
		if pods, blocks := policy.Members(s, &rules[i]); pods != want[0] || blocks != want[1] {
			t.Errorf("rule %d has %d pods and %d blocks, wanted %v", i+1, pods, blocks, want)
		}
	}
}

func TestDescribe(t *testing.T) {
	s := (&policyCase{
		np: np("b", `{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: web}}},
			{namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [b, a]}, {key: old, operator: DoesNotExist}]}},
			{namespaceSelector: {}, podSelector: {matchExpressions: [{key: tier, operator: NotIn, values: [x]}, {key: app, operator: Exists}]}},
			{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/9]}}], ports: [{port: 80}, {port: http}]}, {from: [{podSelector: {}}]}],
			egress: [{ports: [{port: http}, {protocol: UDP}]}]}`) +
			np("a", `{podSelector: {matchLabels: {app: web}}}`),
		cnp: []*cluster.Policy{cnp("base", cluster.TierBaseline, 0, rule(cluster.Deny, 0))},
	}).snapshot(t)
	text := func(d policy.Direction) string {
		x := policy.Describe(s, pod(t, s, "shop/web"), d)
		text := fmt.Sprintf("isolated %v\n", x.Isolated)
		for _, a := range x.Policies {
			text += a.Policy + "\n"
			for _, r := range a.Rules {
				text += "  " + r.String() + "\n"
			}
		}
		return text
	}
	const ingress = `isolated true
NetworkPolicy/shop/a
NetworkPolicy/shop/b
  rule 1: pods with app=web in namespace shop, or all pods in namespaces with no label old and team in (a, b), or ` +
		`pods with label app and tier not in (x) in all namespaces, or 10.128.0.0/9 (4 pods, 1 range); 80/TCP, ` +
		`http/TCP (8080)
  rule 2: all pods in namespace shop (3 pods, 0 ranges); all ports and protocols
ClusterNetworkPolicy/base
  rule 1: deny every address; all ports and protocols
`
	if got := text(policy.Ingress); got != ingress {
		t.Errorf("got %s\nwanted %s", got, ingress)
	}
	const egress = `isolated true
NetworkPolicy/shop/b
  rule 1: every address; http/TCP (of each peer), all ports/UDP
`
	if got := text(policy.Egress); got != egress {
		t.Errorf("got %s\nwanted %s", got, egress)
	}
	if got := policy.Describe(s, pod(t, s, "lab/web"), policy.Ingress); got.Isolated || len(got.Policies) > 0 {
		t.Errorf("got %+v for a pod that no policy selects", got)
	}
}
