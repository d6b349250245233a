package config_test

import (
	"strings"
	"testing"

	"hairpin/api/v1alpha1"
	"hairpin/config"

	"sigs.k8s.io/yaml"
)

const metalObjects = `apiVersion: v1
kind: List
items:
- apiVersion: metallb.io/v1beta1
  kind: IPAddressPool
  metadata: {name: edge, namespace: metallb-system, labels: {zone: a}}
  spec:
    addresses: [192.0.2.0/28, 192.0.2.40-192.0.2.49, "2001:db8::/124"]
    autoAssign: false
    serviceAllocation: {priority: 50, namespaces: [shop, web], serviceSelectors: [{matchLabels: {exposed: "yes"}}]}
- apiVersion: metallb.io/v1beta1
  kind: L2Advertisement
  metadata: {name: l2, namespace: metallb-system}
  spec:
    ipAddressPoolSelectors: [{matchLabels: {zone: a}}]
    nodeSelectors: [{matchLabels: {edge: "yes"}}, {matchLabels: {edge: "too"}}]
    interfaces: [eth1]
- {apiVersion: metallb.io/v1beta1, kind: BGPPeer, metadata: {name: router}}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: plain}
spec: {addresses: [198.51.100.7/32]}
`

func TestMetalLB(t *testing.T) {
	var p config.Pools
	others, err := p.Add("a.yaml", []byte(metalObjects))
	if err != nil || strings.Join(others, " ") != "BGPPeer/router" {
		t.Fatal(others, err)
	}
	text, err := p.Convert()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# nodeSelectors: only the first of 2", "# serviceAllocation.priority:",
		"# autoAssign is false:", "# interfaces of L2Advertisement/l2:", "# no L2Advertisement announces this pool"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	docs := strings.Split(text, "---\n")
	if len(docs) != 3 {
		t.Fatalf("%d documents:\n%s", len(docs), text)
	}
	var edge, plain v1alpha1.LoadBalancerPool
	for i, to := range []*v1alpha1.LoadBalancerPool{&edge, &plain} {
		if err := yaml.UnmarshalStrict([]byte(docs[i+1]), to); err != nil {
			t.Fatal(err)
		}
	}
	s := &edge.Spec
	if edge.Name != "edge" || edge.Namespace != "" || len(s.Ranges) != 3 || s.Ranges[1] != "192.0.2.40-192.0.2.49" ||
		s.NamespaceSelector.MatchExpressions[0].Values[1] != "web" ||
		s.ServiceSelector.MatchLabels["exposed"] != "yes" ||
		s.NodeSelector.MatchLabels["edge"] != "yes" {
		t.Errorf("edge is %+v", edge)
	}
	if plain.Name != "plain" || len(plain.Spec.NodeSelector.MatchLabels) > 0 {
		t.Errorf("plain is %+v", plain)
	}
	for _, bad := range []string{"kind: [", "kind: IPAddressPool\nspec: {addresses: 7}\n"} {
		if _, err := p.Add("b.yaml", []byte(bad)); err == nil ||
			!strings.HasPrefix(err.Error(), "b.yaml: document 1: ") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := new(config.Pools).Convert(); err == nil {
		t.Error("no pool is no error")
	}
}
