package config_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"hairpin/api/frrk8s"
	"hairpin/api/v1alpha1"
	"hairpin/config"
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
    someDay: true
    serviceAllocation: {priority: 50, namespaces: [shop, web], serviceSelectors: [{matchLabels: {exposed: "yes"}}]}
- apiVersion: metallb.io/v1beta1
  kind: L2Advertisement
  metadata: {name: l2, namespace: metallb-system}
  spec:
    ipAddressPoolSelectors: [{matchLabels: {zone: a}}]
    nodeSelectors: [{matchLabels: {edge: "yes"}}, {matchLabels: {edge: "too"}}]
    interfaces: [eth1]
    serviceSelectors: [{matchLabels: {exposed: "yes"}}]
- {apiVersion: metallb.io/v1beta1, kind: Community, metadata: {name: blackhole}}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: plain}
spec: {addresses: [198.51.100.7/32]}
`

func TestMetalLB(t *testing.T) {
	var p config.MetalLB
	others, err := p.Add("a.yaml", []byte(metalObjects))
	if err != nil || strings.Join(others, " ") != "Community/blackhole" {
		t.Fatal(others, err)
	}
	text, err := p.Convert()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# nodeSelectors: only the first of 2", "# serviceAllocation.priority:",
		"# autoAssign is false:", "# interfaces of L2Advertisement/l2:", "# no L2Advertisement announces this pool",
		"# serviceSelectors of L2Advertisement/l2: not converted\n", "# someDay: not converted\n"} {
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
	for _, bad := range []string{"kind: [", "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nspec: {addresses: 7}\n"} {
		if _, err := p.Add("b.yaml", []byte(bad)); err == nil ||
			!strings.HasPrefix(err.Error(), "b.yaml: document 1: ") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := new(config.MetalLB).Convert(); err == nil {
		t.Error("no pool is no error")
	}
}

const metalBGP = `apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: router, namespace: metallb-system}
spec:
  myASN: 4200000000
  peerASN: 64513
  peerAddress: 192.0.2.1
  peerPort: 1790
  sourceAddress: 192.0.2.9
  routerID: 10.0.0.1
  holdTime: 90s
  ebgpMultiHop: true
  bfdProfile: fast
  passwordSecret: {name: tcp-md5, namespace: metallb-system}
  nodeSelectors: [{matchLabels: {rack: a}}, {matchLabels: {rack: b}}]
  vrf: red
  someDay: true
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: plain}
spec: {myASN: 64512, dynamicASN: external, interface: eth1, bfdProfile: slow}
---
{apiVersion: metallb.io/v1beta1, kind: BFDProfile, metadata: {name: fast}, spec: {receiveInterval: 100, echoMode: true}}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: some, namespace: metallb-system}
spec:
  ipAddressPools: [other]
  ipAddressPoolSelectors: [{matchLabels: {zone: a}}]
  peers: [router]
  nodeSelectors: [{matchLabels: {rack: a}}]
  aggregationLength: 24
  communities: [65535:65282]
  serviceSelectors: [{matchLabels: {a: b}}]
---
{apiVersion: metallb.io/v1beta1, kind: BGPAdvertisement, metadata: {name: all}, spec: {}}
---
{apiVersion: hairpin.dev/v1alpha1, kind: BGPAdvertisement, metadata: {name: ours}}
`

// TestMetalLBBGP: peers become FRRConfigurations, advertisements BGPAdvertisements that select the
// converted pools and peers.
func TestMetalLBBGP(t *testing.T) {
	var p config.MetalLB
	if _, err := p.Add("a.yaml", []byte(metalObjects)); err != nil {
		t.Fatal(err)
	}
	if others, err := p.Add("b.yaml", []byte(metalBGP)); err != nil ||
		strings.Join(others, " ") != "BGPAdvertisement/ours" {
		t.Fatal(others, err)
	}
	text, err := p.Convert()
	if err != nil {
		t.Fatal(err)
	}
	docs := strings.Split(text, "---\n")[1:]
	if len(docs) != 6 {
		t.Fatalf("%d documents:\n%s", len(docs), text)
	}
	for i, want := range [][]string{{}, {},
		{"# aggregationLength: not generated", "# communities: not generated", "# serviceSelectors: not converted"}, {},
		{"# nodeSelectors: only the first of 2", "# passwordSecret: copy", "# someDay: not converted", "# vrf: "},
		{"# bfdProfile: BFDProfile/slow is not in the files"}} {
		for _, w := range want {
			if !strings.Contains(docs[i], w) {
				t.Errorf("no %q in\n%s", w, docs[i])
			}
		}
		if n := strings.Count("\n"+docs[i], "\n# "); i > 1 && n != len(want) {
			t.Errorf("%d comments, not %d, in\n%s", n, len(want), docs[i])
		}
	}
	var pool v1alpha1.LoadBalancerPool
	var some, all v1alpha1.BGPAdvertisement
	var router, plain frrk8s.FRRConfiguration
	for i, to := range []any{&pool, new(v1alpha1.LoadBalancerPool), &some, &all, &router, &plain} {
		if err := yaml.UnmarshalStrict([]byte(docs[i]), to); err != nil {
			t.Fatalf("%v in\n%s", err, docs[i])
		}
	}
	selects := func(s *metav1.LabelSelector, l map[string]string) bool {
		x, err := metav1.LabelSelectorAsSelector(s)
		return err == nil && x.Matches(labels.Set(l))
	}
	if s := &some.Spec; s.Advertisements[0] != v1alpha1.AdvertiseLoadBalancer ||
		s.NodeSelector.MatchLabels["rack"] != "a" ||
		!selects(&s.LoadBalancerPoolSelector, pool.Labels) || selects(&s.LoadBalancerPoolSelector, nil) ||
		!selects(&s.FRRConfigurationSelector, router.Labels) || selects(&s.FRRConfigurationSelector, plain.Labels) {
		t.Errorf("the advertisement to one peer is %+v", some)
	}
	if s := &all.Spec; !selects(&s.LoadBalancerPoolSelector, nil) || selects(&s.FRRConfigurationSelector, nil) ||
		!selects(&s.FRRConfigurationSelector, plain.Labels) {
		t.Errorf("the advertisement of all pools is %+v", all)
	}
	r := router.Spec.BGP.Routers[0]
	n := frrk8s.Fields(r.Neighbors[0])
	if r.ASN != 4200000000 || r.ID != "10.0.0.1" || r.VRF != "red" || router.Namespace != "frr-k8s-system" ||
		router.Spec.NodeSelector.MatchLabels["rack"] != "a" || n["asn"] != float64(64513) ||
		n["port"] != float64(1790) ||
		n.Text("address") != "192.0.2.1" || n.Text("sourceaddress") != "192.0.2.9" || n.Text("holdTime") != "90s" ||
		n["ebgpMultiHop"] != true || router.Spec.BGP.BFDProfiles[0].Text("name") != "fast" ||
		router.Spec.BGP.BFDProfiles[0]["echoMode"] != true {
		t.Errorf("router is %+v", router)
	}
	if n := frrk8s.Fields(plain.Spec.BGP.Routers[0].Neighbors[0]); n.Text("dynamicASN") != "external" ||
		n.Text("interface") != "eth1" || len(plain.Spec.BGP.BFDProfiles) > 0 {
		t.Errorf("plain is %+v", plain)
	}
}

// TestMetalLBOtherGroups: Calico has a kind BGPPeer, too, which `kubectl get bgppeers` may print.
func TestMetalLBOtherGroups(t *testing.T) {
	var p config.MetalLB
	others, err := p.Add("a.yaml", []byte(`apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: tor}
spec: {peerIP: 192.0.2.1, asNumber: 64512}
`))
	if err != nil || strings.Join(others, " ") != "BGPPeer/tor" {
		t.Error(others, err)
	}
	if text, err := p.Convert(); err == nil {
		t.Errorf("converted to\n%s", text)
	}
}
