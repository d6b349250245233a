package store_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/cluster/trust"
)

// aged makes a node with number i, age i, 172.18.0.i and 10.244.i.0/24.
func aged(name string, i int, edits ...func(*corev1.Node)) *corev1.Node {
	n := node(name, annotated(annotation.NodeID, fmt.Sprint(i)),
		annotated(annotation.HostCIDRs, fmt.Sprintf(`["172.18.0.%d/16"]`, i)))
	n.CreationTimestamp = metav1.NewTime(time.Unix(int64(1000+i), 0))
	n.Spec.PodCIDRs = []string{fmt.Sprintf("10.244.%d.0/24", i)}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.18.0.%d", i)}}
	for _, edit := range edits {
		edit(n)
	}
	return n
}

// TestFalseClaimsOfANode: no false claim of a node affects the others, and the problem names that
// node. Its name comes first, so that order by name does not help.
func TestFalseClaimsOfANode(t *testing.T) {
	ranges := func(list ...string) func(*corev1.Node) { return func(n *corev1.Node) { n.Spec.PodCIDRs = list } }
	const hosts = "metadata.annotations[" + annotation.HostCIDRs + "]"
	for _, c := range []struct {
		name    string
		lie     func(*corev1.Node)
		refused bool
		told    string
	}{
		{"the number of another", annotated(annotation.NodeID, "3"), true,
			"metadata.annotations[k8s.ovn.org/node-id]: 3 is the node ID of node b"},
		{"the address of another", func(n *corev1.Node) { n.Status.Addresses[0].Address = "172.18.0.3" }, true,
			"status.addresses: 172.18.0.3 is an address of node b"},
		{"a range within another's", ranges("10.244.3.0/28"), true,
			"spec.podCIDRs: 10.244.3.0/28 overlaps 10.244.3.0/24 of node b"},
		{"a range around the others'", ranges("10.244.0.0/16"), true, "spec.podCIDRs: 10.244.0.0/16 overlaps 10.244."},
		{"the world", ranges("8.8.8.0/24"), true, "spec.podCIDRs: 8.8.8.0/24 is not within [default] cluster-subnets"},
		{"an address of the world", annotated(annotation.HostCIDRs, `["8.8.8.8/32"]`), false, hosts +
			": 8.8.8.8/32 is neither private nor in a network of other nodes"},
		{"a network of the world", annotated(annotation.HostCIDRs, `["8.8.8.8/24"]`), false, hosts +
			": 8.8.8.8/24 is neither private nor in a network of other nodes"},
		{"an EgressIP", annotated(annotation.HostCIDRs, `["172.18.9.9/16"]`), false, hosts +
			": 172.18.9.9 is an address of EgressIP/e"},
		{"an EgressIP for a gateway", annotated(annotation.Gateway, `{"default":{"next-hops":["172.18.9.9"]}}`),
			false,
			"metadata.annotations[k8s.ovn.org/l3-gateway-config]: 172.18.9.9 is an address of EgressIP/e"},
	} {
		e := &v1.EgressIP{ObjectMeta: metav1.ObjectMeta{Name: "e"},
			Spec: v1.EgressIPSpec{EgressIPs: []string{"172.18.9.9"}, NamespaceSelector: &metav1.LabelSelector{}}}
		s := storeOf(aged("a", 9, c.lie), aged("b", 3), aged("c", 4), e).Snapshot()
		v := trust.Vet(s.Nodes, "", &s.Config)
		if _, refused := v.Rejected["a"]; refused != c.refused || len(v.Rejected) > 1 {
			t.Errorf("%s: refused %v", c.name, v.Rejected)
		}
		if v.Hosts.At(netip.MustParseAddr("172.18.0.3")) != "b" ||
			v.Hosts.At(netip.MustParseAddr("172.18.0.4")) != "c" || v.Hosts.At(netip.MustParseAddr("8.8.8.8")) != "" {
			t.Errorf("%s: addresses of nodes are %v", c.name, v.Hosts.Plain())
		}
		told := problemsOf(s, cluster.Owner{Kind: "Node", Name: "a"})
		if c.told == "" && len(told) > 0 || c.told != "" &&
			(len(told) != 1 || !strings.HasPrefix(told[0], "Node/a: "+c.told)) {
			t.Errorf("%s: told %q, want %q", c.name, told, c.told)
		}
		if len(s.Problems) != len(told) {
			t.Errorf("%s: others have problems: %v", c.name, s.Problems)
		}
		// The node itself accepts its own claims.
		if own := trust.Vet(s.Nodes, "a", &s.Config); len(own.Rejected["a"]) > 0 {
			t.Errorf("%s: the node refuses itself: %v", c.name, own.Rejected)
		}
	}
}

// TestPodOfAnotherNode: a kubelet writes the status of its Pods; one with an address of another
// node is rejected.
func TestPodOfAnotherNode(t *testing.T) {
	victim := pod("victim", "b", "10.244.3.5")
	liar := pod("liar", "a", "10.244.3.5")
	st := storeOf(aged("a", 9), aged("b", 3), victim, liar)
	check := func(when string, want ...string) {
		t.Helper()
		s := st.Snapshot()
		var got []string
		for _, p := range s.Pods {
			got = append(got, p.Owner.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: pods %v, want %v", when, got, want)
		}
		told := problemsOf(s, cluster.Owner{Kind: "Pod", Namespace: "default", Name: "liar"})
		if stray := !slices.Contains(want, "liar"); stray != (len(told) == 1) || stray &&
			told[0] != "Pod/default/liar: status.podIPs[0].ip: 10.244.3.5 is not in the pod CIDR of node a" {
			t.Errorf("%s: told %q", when, told)
		}
	}
	check("at first", "victim")
	// It claims the range as well.
	st.Set(aged("a", 9, func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.3.0/28"} }))
	check("with a range within the other's", "victim")
	st.Set(aged("a", 9))
	st.Set(pod("liar", "a", "10.244.9.5"))
	check("with an address of its own node", "liar", "victim")
}
