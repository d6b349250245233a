package oracle

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/generator"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// server makes a pod as cyclonus does: with the ports 80 and 81 of each protocol, named
// serve-80-tcp and so on.
func server(namespace, name string, n int) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"pod": name}},
		Spec:       corev1.PodSpec{NodeName: "node"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{
			{IP: fmt.Sprintf("192.168.%d.%d", n/4, n%4+10)}, {IP: fmt.Sprintf("fd00::%x", n+10)}}}}
	for _, protocol := range protocols {
		for _, port := range []int32{80, 81} {
			portName := fmt.Sprintf("serve-%d-%s", port, strings.ToLower(string(protocol)))
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: portName,
				Ports: []corev1.ContainerPort{{Name: portName, Protocol: protocol, ContainerPort: port}}})
		}
	}
	return pod
}

// state is a cluster between the steps of a case of cyclonus.
type state struct {
	namespaces map[string]*corev1.Namespace
	pods       map[string]*corev1.Pod
	policies   map[string]*networkingv1.NetworkPolicy
	made       int // pods
}

func (s *state) namespace(name string, labels map[string]string) {
	s.namespaces[name] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func (s *state) pod(namespace, name string, labels map[string]string) {
	s.pods[namespace+"/"+name] = server(namespace, name, s.made)
	s.pods[namespace+"/"+name].Labels = labels
	s.made++
}

func (s *state) apply(t *testing.T, a *generator.Action) {
	t.Helper()
	switch {
	case a.CreatePolicy != nil:
		s.policies[a.CreatePolicy.Policy.Namespace+"/"+a.CreatePolicy.Policy.Name] = a.CreatePolicy.Policy
	case a.UpdatePolicy != nil:
		s.policies[a.UpdatePolicy.Policy.Namespace+"/"+a.UpdatePolicy.Policy.Name] = a.UpdatePolicy.Policy
	case a.DeletePolicy != nil:
		delete(s.policies, a.DeletePolicy.Namespace+"/"+a.DeletePolicy.Name)
	case a.CreateNamespace != nil:
		s.namespace(a.CreateNamespace.Namespace, a.CreateNamespace.Labels)
	case a.SetNamespaceLabels != nil:
		s.namespace(a.SetNamespaceLabels.Namespace, a.SetNamespaceLabels.Labels)
	case a.DeleteNamespace != nil:
		inside := func(key string) bool { return strings.HasPrefix(key, a.DeleteNamespace.Namespace+"/") }
		delete(s.namespaces, a.DeleteNamespace.Namespace)
		maps.DeleteFunc(s.pods, func(key string, _ *corev1.Pod) bool { return inside(key) })
		maps.DeleteFunc(s.policies, func(key string, _ *networkingv1.NetworkPolicy) bool { return inside(key) })
	case a.CreatePod != nil:
		s.pod(a.CreatePod.Namespace, a.CreatePod.Pod, a.CreatePod.Labels)
	case a.SetPodLabels != nil:
		key := a.SetPodLabels.Namespace + "/" + a.SetPodLabels.Pod
		s.pods[key] = s.pods[key].DeepCopy()
		s.pods[key].Labels = a.SetPodLabels.Labels
	case a.DeletePod != nil:
		delete(s.pods, a.DeletePod.Namespace+"/"+a.DeletePod.Pod)
	case a.ReadNetworkPolicies != nil: // of others, which are none here
	default:
		t.Fatalf("the action %+v is not known", a)
	}
}

func (s *state) objects() (o objects) {
	for _, key := range slices.Sorted(maps.Keys(s.namespaces)) {
		o.namespaces = append(o.namespaces, s.namespaces[key])
	}
	for _, key := range slices.Sorted(maps.Keys(s.pods)) {
		o.pods = append(o.pods, s.pods[key])
	}
	for _, key := range slices.Sorted(maps.Keys(s.policies)) {
		o.policies = append(o.policies, s.policies[key])
	}
	return o
}

// TestCasesOfCyclonus compares the three evaluators after each step of all cases that cyclonus
// generates for a cluster.
func TestCasesOfCyclonus(t *testing.T) {
	k := newKubeNetworkPolicies(t)
	namespaces := []string{"x", "y", "z"}
	var n counts
	steps := 0
	// cyclonus makes ipBlocks around the address of z/c.
	zc := server("z", "c", 8).Status.PodIPs[0].IP
	cases := generator.NewTestCaseGenerator(true, zc, namespaces, nil, nil).GenerateAllTestCases()
	for _, c := range cases {
		s := state{namespaces: map[string]*corev1.Namespace{}, pods: map[string]*corev1.Pod{},
			policies: map[string]*networkingv1.NetworkPolicy{}}
		for _, name := range namespaces {
			s.namespace(name, map[string]string{"ns": name})
			for _, pod := range []string{"a", "b", "c"} {
				s.pod(name, pod, map[string]string{"pod": pod})
			}
		}
		for _, step := range c.Steps {
			for _, a := range step.Actions {
				s.apply(t, a)
			}
			steps++
			o := s.objects()
			compare(t, o, map[string]judge{"cyclonus": cyclonus(o), "kube-network-policies": k.judge(t, o)}, &n)
		}
	}
	t.Logf("%d cases with %d steps: %+v", len(cases), steps, n)
	if len(cases) < 200 || n.dropped == 0 {
		t.Errorf("%d cases: %+v", len(cases), n)
	}
}

// TestDifferences shows where the others differ from package policy, and why package policy is
// right. An evaluator that agrees one day needs no exception any more.
func TestDifferences(t *testing.T) {
	k := newKubeNetworkPolicies(t)
	from, to := server("x", "a", 0), server("x", "b", 1)
	from.Labels = map[string]string{"other": "label"}
	sidecar := server("x", "c", 2)
	sidecar.Spec.InitContainers = []corev1.Container{{
		Name: "s", RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
		Ports: []corev1.ContainerPort{{Name: "metrics", Protocol: corev1.ProtocolTCP, ContainerPort: 9090}}}}
	notWeb := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"web"}}}}
	base := objects{pods: []*corev1.Pod{from, to, sidecar},
		namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "x"}}}}
	policy := func(rules ...networkingv1.NetworkPolicyIngressRule) objects {
		o := base
		o.policies = []*networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"},
			Spec: networkingv1.NetworkPolicySpec{Ingress: rules}}}
		return o
	}
	for _, c := range []struct {
		name                 string
		cluster              objects
		to                   *corev1.Pod
		port                 uint16
		ours, cyclonus, kube bool
	}{
		// Documentation, "Labels and Selectors": NotIn also selects objects without the key.
		{"NotIn and an object without the key", policy(networkingv1.NetworkPolicyIngressRule{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: notWeb}}}), to, 80, true, false, true},
		// A sidecar is one of the pod's containers as long as the pod runs (KEP-753).
		{"a named port of a sidecar", policy(networkingv1.NetworkPolicyIngressRule{
			Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("metrics"))}}}),
			sidecar, 9090, true, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ends := func(pod *corev1.Pod) end { return end{netip.MustParseAddr(pod.Status.PodIPs[0].IP), pod} }
			p := packet{ends(from), ends(c.to), corev1.ProtocolTCP, c.port}
			for _, x := range []struct {
				name  string
				judge judge
				want  bool
			}{
				{"package policy", hairpin(t, c.cluster), c.ours},
				{"cyclonus", cyclonus(c.cluster), c.cyclonus},
				{"kube-network-policies", k.judge(t, c.cluster), c.kube},
			} {
				if got := x.judge(p).ingress; got != x.want {
					t.Errorf("%s: accepted %v, wanted %v", x.name, got, x.want)
				}
			}
		})
	}
}
