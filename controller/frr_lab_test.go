package controller_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/lab"
	"hairpin/watch"
)

// TestBGPRouter: a router with FRR learns load balancer addresses from nodes on which frr-k8s
// configures FRR, follows the endpoints of a Service with externalTrafficPolicy Local, loses the
// routes of a node that is cut off by BFD, and those of a Service that is deleted. Package agent
// has the same with packets.
func TestBGPRouter(t *testing.T) {
	lab.NeedFRR(t)
	ctx := t.Context()
	program, err := lab.BuildFRRK8s(ctx, t.TempDir())
	noError(t, err)
	p := startControlPlane(t)
	c := p.client
	definePools(t, c)
	text, err := os.ReadFile("../charts/hairpin/crds/bgpadvertisements.yaml")
	noError(t, err)
	define(t, c, text, watch.AdvertisementPath())
	for resource, path := range map[string]string{"frrconfigurations": watch.FRRConfigurationPath("frr"),
		"frrnodestates": "/apis/frrk8s.metallb.io/v1beta1/frrnodestates"} {
		text, err := lab.FRRDefinition(ctx, resource)
		noError(t, err)
		define(t, c, text, path)
	}
	_, err = c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "frr"}},
		metav1.CreateOptions{})
	noError(t, err)
	host := func(name string) *lab.Host {
		h, err := p.host.Lab().StartHost(ctx, lab.HostConfig{Name: name})
		noError(t, err)
		return h
	}
	router, hosts := host("router"), map[string]*lab.Host{"a": host("a"), "b": host("b")}
	ip := func(h *lab.Host) netip.Addr { return h.Addresses()[0].Addr() }
	upstream, err := lab.StartFRR(ctx, router, lab.RouterConfig(ip(router), ip(hosts["a"]), ip(hosts["b"])))
	noError(t, err)
	for name, h := range hosts {
		addCarrier(t, c, name, ip(h).String())
		_, err := c.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"kubernetes.io/hostname":"`+name+`"}}}`), metav1.PatchOptions{})
		noError(t, err)
		f, err := lab.StartFRR(ctx, h, "")
		noError(t, err)
		noError(t, f.StartFRRK8s(ctx, program, p.server.Kubeconfig(), "frr"))
		t.Cleanup(func() {
			if text, err := os.ReadFile(f.Log()); err == nil && t.Failed() {
				t.Logf("%s: end of the log of frr-k8s:\n%s", name, text[max(0, len(text)-3000):])
			}
		})
	}
	answer, err := raw(t, c, "POST", watch.FRRConfigurationPath("frr"), fmt.Sprintf(`{
"apiVersion":"frrk8s.metallb.io/v1beta1","kind":"FRRConfiguration","metadata":{"name":"upstream"},"spec":{"bgp":{
"bfdProfiles":[{"name":"fast","receiveInterval":100,"transmitInterval":100,"detectMultiplier":3}],
"routers":[{"asn":64512,"neighbors":[{"address":"%s","asn":64513,"bfdProfile":"fast","connectTime":"1s",
"dualStackAddressFamily":true}]}]}}}`, ip(router)))
	if err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	_, err = raw(t, c, "POST", watch.AdvertisementPath(),
		`{"apiVersion":"hairpin.dev/v1alpha1","kind":"BGPAdvertisement",
"metadata":{"name":"upstream"},"spec":{"advertisements":["LoadBalancer"],"frrConfigurationSelector":{}}}`)
	noError(t, err)
	candidate(t, p.own, "one")
	noError(t, createPool(t, c, "edge", `"192.0.2.50-192.0.2.59"`, ""))
	routes := func(what, prefix string, hosts ...*lab.Host) {
		t.Helper()
		var want []string
		for _, h := range hosts {
			want = append(want, ip(h).String())
		}
		slices.Sort(want)
		begun := time.Now()
		soon(t, 60*time.Second, func() string {
			got, err := upstream.Routes(ctx, prefix)
			noError(t, err)
			if !slices.Equal(got, want) {
				return fmt.Sprintf("routes to %s by %v, not %v", prefix, got, want)
			}
			return ""
		})
		t.Logf("%s: routes to %s by %v after %s", what, prefix, want, time.Since(begun).Round(10*time.Millisecond))
	}
	createBalancer(t, c, "web")
	routes("first Service, sessions not up", "192.0.2.50", hosts["a"], hosts["b"])
	createBalancer(t, c, "local", func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	endpoint := func(node string) {
		t.Helper()
		port, ready := int32(80), true
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "local-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "local"}}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{"10.244.200.7"}, NodeName: &node,
				Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}}
		_, err := c.DiscoveryV1().EndpointSlices("default").Update(ctx, slice, metav1.UpdateOptions{})
		if err != nil {
			_, err = c.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
		}
		noError(t, err)
	}
	endpoint("a")
	routes("first endpoint", "192.0.2.51", hosts["a"])
	endpoint("b")
	routes("the endpoint moves", "192.0.2.51", hosts["b"])
	createBalancer(t, c, "second")
	routes("Service created", "192.0.2.52", hosts["a"], hosts["b"])

	_, err = hosts["a"].Exec(ctx, "nft",
		"add table inet cut; add chain inet cut out { type filter hook output priority 0; "+
			"policy drop; }")
	noError(t, err)
	routes("node cut off", "192.0.2.50", hosts["b"])
	peers, err := upstream.Vtysh(ctx, "show bfd peers")
	noError(t, err)
	if !strings.Contains(peers, "control detection time expired") {
		t.Errorf("BFD did not detect it:\n%s", peers)
	}
	noError(t, c.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}))
	routes("Service deleted", "192.0.2.50")
}
