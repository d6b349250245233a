package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/cluster/store"
)

// TestPoliciesNeedPods: Pods of other nodes are needed if a policy selects a Pod of this node and
// depends on other Pods, whatever comes first.
func TestPoliciesNeedPods(t *testing.T) {
	const policy = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p}, spec: %s}`
	pod := func(name, node, ip string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, labels: {app: %[1]s}},
			spec: {nodeName: %[2]s}, status: {podIP: %[3]q}}`, name, node, ip)
	}
	own, starting, other := pod("own", "a", "10.244.1.3"), pod("starting", "a", ""), pod("other", "b", "10.244.2.3")
	elsewhere := `{apiVersion: v1, kind: Pod, metadata: {name: own, namespace: x}, spec: {nodeName: a},
		status: {podIP: 10.244.1.9}}`
	onHost := `{apiVersion: v1, kind: Pod, metadata: {name: host}, spec: {nodeName: a, hostNetwork: true},
		status: {podIP: 172.18.0.3}}`
	for _, c := range []struct {
		spec   string
		others []string
		want   bool
	}{
		{`{ingress: [{from: [{podSelector: {}}]}]}`, []string{own, other}, true},
		{`{ingress: [{from: [{podSelector: {}}]}]}`, []string{starting}, true},
		{`{ingress: [{from: [{podSelector: {}}]}]}`, []string{other, elsewhere, onHost}, false},
		{`{podSelector: {matchLabels: {app: own}}, ingress: [{}, {from: [{namespaceSelector: {}}]}]}`,
			[]string{other, own}, true},
		{`{podSelector: {matchLabels: {app: other}}, ingress: [{from: [{namespaceSelector: {}}]}]}`,
			[]string{other, own}, false},
		{`{egress: [{to: [{namespaceSelector: {}}]}]}`, []string{own}, true},
		{`{policyTypes: [Ingress], egress: [{to: [{namespaceSelector: {}}]}]}`, []string{own}, false},
		{`{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}, {}, {ports: [{port: http}]}]}`, []string{own}, false},
		{`{egress: [{ports: [{port: 80}]}]}`, []string{own}, false},
		{`{egress: [{ports: [{port: http}]}]}`, []string{own}, true},
		{`{egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: http}]}]}`, []string{own}, true},
		{`{egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 80}]}]}`, []string{own}, false},
		{`cluster: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: own}}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]`,
			[]string{other, own}, true},
		{`cluster: {namespaces: {matchLabels: {a: b}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]`,
			[]string{own}, false},
		{`cluster: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [10.0.0.0/8]}, {nodes: {}}]}]`,
			[]string{own}, false},
	} {
		for _, reverse := range []bool{false, true} {
			docs := append([]string{fmt.Sprintf(policy, c.spec)}, c.others...)
			if subject, is := strings.CutPrefix(c.spec, "cluster: "); is {
				docs[0] = `{apiVersion: policy.networking.k8s.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: p},
					spec: {tier: Admin, priority: 1, subject: ` + subject + `}}`
			}
			if reverse {
				slices.Reverse(docs)
			}
			facts, needs := store.New(cluster.DefaultConfig()), needsOtherPods("a")
			got := needs(facts.Snapshot())
			for _, doc := range docs {
				f := parseFile("", []byte(doc))
				if len(f.manifests) != 1 || len(f.problems) > 0 {
					t.Fatal(doc, f.problems)
				}
				facts.Set(f.manifests[0].object)
				got = needs(facts.Snapshot())
			}
			if got != c.want {
				t.Errorf("%s, reverse %v: %v", c.spec, reverse, got)
			}
			facts.Delete(parseFile("", []byte(docs[0])).manifests[0].object)
			facts.Delete(parseFile("", []byte(docs[len(docs)-1])).manifests[0].object)
			if len(docs) == 2 && needs(facts.Snapshot()) {
				t.Errorf("%s: needed without anything", c.spec)
			}
			if needsOtherPods("")(facts.Snapshot()) {
				t.Errorf("%s: the controller needs them", c.spec)
			}
		}
	}
}

// BenchmarkPoliciesNeedPods: 250 Pods of this node among 10 000, and 4 000 policies that select
// none of them, all in one namespace; one Pod changes.
func BenchmarkPoliciesNeedPods(b *testing.B) {
	s := &cluster.Snapshot{Namespaces: []*cluster.Namespace{{Name: "default"}}}
	for i := range 10_000 {
		s.Pods = append(s.Pods, &cluster.Pod{
			Owner:  cluster.Owner{Kind: "Pod", Namespace: "default", Name: fmt.Sprint(i)},
			Node:   fmt.Sprint("node-", i%40),
			Labels: map[string]string{"app": "web", "pod-template-hash": fmt.Sprint(i)}})
	}
	for i := range 4_000 {
		other := []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{fmt.Sprint("app-", i)}}}
		s.Policies = append(s.Policies, &cluster.Policy{
			Subject: cluster.PodSelector{Namespace: "default", Pods: cluster.Selector{Requirements: other}},
			Ingress: cluster.PolicyDirection{Isolates: true, Rules: []cluster.PolicyRule{
				{Peers: []cluster.PolicyPeer{{Pods: &cluster.PodSelector{}}}}}},
		})
	}
	needs := needsOtherPods("node-1")
	for b.Loop() {
		s.Pods = slices.Clone(s.Pods)
		if needs(s) {
			b.Fatal("needed")
		}
	}
}
