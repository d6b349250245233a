package oracle

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	_ "unsafe" // for go:linkname

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	"sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"
	"sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"

	"hairpin/cluster"
	"hairpin/cluster/store"
	"hairpin/policy"
)

// objects are those of a cluster, as a user wrote them.
type objects struct {
	namespaces []*corev1.Namespace
	pods       []*corev1.Pod
	policies   []*networkingv1.NetworkPolicy
	cluster    []*cluster.Policy // ClusterNetworkPolicies
}

// end is one end of a packet.
type end struct {
	addr netip.Addr
	pod  *corev1.Pod // nil: the address is not a pod's
}

type packet struct {
	from, to end
	protocol corev1.Protocol // "ICMP" has no port
	port     uint16
}

// verdict says which directions accept a packet.
type verdict struct{ egress, ingress bool }

// A judge evaluates the policies of one cluster.
type judge func(packet) verdict

// defaulted returns a policy as the API server returns it.
func defaulted(o *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	o = o.DeepCopy()
	if len(o.Spec.PolicyTypes) == 0 {
		o.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(o.Spec.Egress) > 0 {
			o.Spec.PolicyTypes = append(o.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	tcp := func(ports []networkingv1.NetworkPolicyPort) {
		for i := range ports {
			if ports[i].Protocol == nil {
				ports[i].Protocol = new(corev1.ProtocolTCP)
			}
		}
	}
	for i := range o.Spec.Ingress {
		tcp(o.Spec.Ingress[i].Ports)
	}
	for i := range o.Spec.Egress {
		tcp(o.Spec.Egress[i].Ports)
	}
	if len(o.Spec.Ingress) == 0 { // an empty list is not stored
		o.Spec.Ingress = nil
	}
	if len(o.Spec.Egress) == 0 {
		o.Spec.Egress = nil
	}
	return o
}

// hairpin judges by package policy, with the objects as a user wrote them.
func hairpin(t interface{ Fatalf(string, ...any) }, o objects) judge {
	facts := store.New(cluster.DefaultConfig())
	for _, x := range o.namespaces {
		facts.Set(x)
	}
	for _, x := range o.pods {
		facts.Set(x)
	}
	for _, x := range o.policies {
		facts.Set(x)
	}
	s := facts.Snapshot()
	for _, p := range s.Problems {
		if p.Field != "" {
			t.Fatalf("%v", p)
		}
	}
	s.Policies = append(s.Policies, o.cluster...)
	endpoint := func(e end) policy.Endpoint {
		if e.pod == nil {
			return policy.Endpoint{Addr: e.addr}
		}
		i := slices.IndexFunc(s.Pods, func(p *cluster.Pod) bool {
			return p.Owner.Namespace == e.pod.Namespace && p.Owner.Name == e.pod.Name
		})
		if i < 0 {
			t.Fatalf("the snapshot has no pod %s/%s", e.pod.Namespace, e.pod.Name)
		}
		return policy.Endpoint{Addr: e.addr, Pod: s.Pods[i]}
	}
	protocols := map[corev1.Protocol]cluster.Protocol{
		corev1.ProtocolTCP: cluster.TCP, corev1.ProtocolUDP: cluster.UDP, corev1.ProtocolSCTP: cluster.SCTP}
	return func(p packet) verdict {
		egress, ingress := policy.Evaluate(s, policy.Packet{From: endpoint(p.from), To: endpoint(p.to),
			Protocol: protocols[p.protocol], Port: p.port})
		return verdict{egress.Accepted, ingress.Accepted}
	}
}

// cyclonus judges by its package matcher.
func cyclonus(o objects) judge {
	var policies []*networkingv1.NetworkPolicy
	for _, x := range o.policies {
		policies = append(policies, defaulted(x))
	}
	m := matcher.BuildNetworkPolicies(false, policies)
	peer := func(e end) *matcher.TrafficPeer {
		p := &matcher.TrafficPeer{IP: e.addr.String()}
		if e.pod != nil {
			p.Internal = &matcher.InternalPeer{PodLabels: e.pod.Labels, Namespace: e.pod.Namespace}
			for _, n := range o.namespaces {
				if n.Name == e.pod.Namespace {
					p.Internal.NamespaceLabels = n.Labels
				}
			}
		}
		return p
	}
	return func(p packet) verdict {
		r := m.IsTrafficAllowed(&matcher.Traffic{Source: peer(p.from), Destination: peer(p.to),
			ResolvedPort: int(p.port), ResolvedPortName: portName(p.to.pod, p.protocol, p.port), Protocol: p.protocol})
		return verdict{r.Egress.IsAllowed(), r.Ingress.IsAllowed()}
	}
}

// portName returns the name that a pod gives a port, which cyclonus expects with a packet.
func portName(pod *corev1.Pod, protocol corev1.Protocol, port uint16) string {
	if pod == nil {
		return ""
	}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		for _, p := range c.Ports {
			if p.Protocol == protocol && p.ContainerPort == int32(port) {
				return p.Name
			}
		}
	}
	return ""
}

// kubeNetworkPolicies is the controller of kube-network-policies. It never runs: a test fills the
// stores of its informers.
type kubeNetworkPolicies struct {
	controller                 *networkpolicy.Controller
	namespaces, pods, policies cache.Indexer
	admin, baseline            cache.Indexer
}

func newKubeNetworkPolicies(t *testing.T) *kubeNetworkPolicies {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	f := informers.NewSharedInformerFactory(client, 0)
	namespaces, pods := f.Core().V1().Namespaces(), f.Core().V1().Pods()
	policies := f.Networking().V1().NetworkPolicies()
	apiClient, err := versioned.NewForConfig(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g := externalversions.NewSharedInformerFactory(apiClient, 0).Policy().V1alpha1()
	c, err := networkpolicy.NewController(client, policies, namespaces, pods, f.Core().V1().Nodes(), apiClient,
		g.AdminNetworkPolicies(), g.BaselineAdminNetworkPolicies(), networkpolicy.Config{NodeName: "node",
			NRIdisabled: true, AdminNetworkPolicy: true, BaselineAdminNetworkPolicy: true})
	if err != nil {
		t.Fatal(err)
	}
	return &kubeNetworkPolicies{c, namespaces.Informer().GetIndexer(), pods.Informer().GetIndexer(),
		policies.Informer().GetIndexer(), g.AdminNetworkPolicies().Informer().GetIndexer(),
		g.BaselineAdminNetworkPolicies().Informer().GetIndexer()}
}

// All are methods of the controller, which do not export what they decide in any other way.
//
//go:linkname policiesOf sigs.k8s.io/kube-network-policies/pkg/networkpolicy.(*Controller).getNetworkPoliciesForPod
func policiesOf(*networkpolicy.Controller, *corev1.Pod) []*networkingv1.NetworkPolicy

//go:linkname accepts sigs.k8s.io/kube-network-policies/pkg/networkpolicy.(*Controller).evaluator
func accepts(c *networkpolicy.Controller, ctx context.Context, policies []*networkingv1.NetworkPolicy,
	direction networkingv1.PolicyType, subject *corev1.Pod, subjectPort int, peer *corev1.Pod, peerAddr net.IP,
	peerPort int, protocol corev1.Protocol) bool

//go:linkname arrives sigs.k8s.io/kube-network-policies/pkg/networkpolicy.(*Controller).evaluatePacket
func arrives(*networkpolicy.Controller, context.Context, theirPacket) bool

// theirPacket has the fields of the type packet of kube-network-policies.
type theirPacket struct {
	id               uint32
	family           corev1.IPFamily
	from, to         net.IP
	protocol         corev1.Protocol
	fromPort, toPort int
	payload          []byte
}

// fill replaces what a store has.
func fill[T any](t interface{ Fatalf(string, ...any) }, store cache.Indexer, list []T) {
	var all []any
	for _, x := range list {
		all = append(all, x)
	}
	if err := store.Replace(all, ""); err != nil {
		t.Fatalf("%v", err)
	}
}

// judge returns the judge of a cluster, and ends the one before.
func (k *kubeNetworkPolicies) judge(t interface{ Fatalf(string, ...any) }, o objects) judge {
	var policies []*networkingv1.NetworkPolicy
	for _, x := range o.policies {
		policies = append(policies, defaulted(x))
	}
	fill(t, k.namespaces, o.namespaces)
	fill(t, k.pods, o.pods)
	fill(t, k.policies, policies)
	return func(p packet) verdict {
		from, to := net.IP(p.from.addr.AsSlice()), net.IP(p.to.addr.AsSlice())
		const sourcePort = 40000
		c, ctx := k.controller, context.Background()
		return verdict{
			accepts(c, ctx, policiesOf(c, p.from.pod), networkingv1.PolicyTypeEgress,
				p.from.pod, sourcePort, p.to.pod, to, int(p.port), p.protocol),
			accepts(c, ctx, policiesOf(c, p.to.pod), networkingv1.PolicyTypeIngress,
				p.to.pod, int(p.port), p.from.pod, from, sourcePort, p.protocol),
		}
	}
}
