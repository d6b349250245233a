package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/demo"
	"hairpin/lab/probe"
	"hairpin/watch"
)

// bgpLab is a demo with nodes that speak BGP with a router, and a machine behind the router.
type bgpLab struct {
	t      *testing.T
	d      *demo.Demo
	router *lab.FRR
	far    *lab.Host // behind the router
	nodes  map[string]*lab.Node
	nodeOf map[string]string // by an address: routes to IPv6 prefixes are by link-local ones
}

// The network behind the router, and the machine in it.
const (
	farNet, farNet6         = "198.51.100.0/24", "2001:db8:51::/64"
	farRouter, farRouter6   = "198.51.100.1/24", "2001:db8:51::1/64"
	farClient, farClient6   = "198.51.100.2", "2001:db8:51::2"
	routerAddr, routerAddr6 = "172.18.0.200", "fc00:f853:ccd::200"
)

// TestBGP: a machine behind a router reaches load balancer addresses, pods and egress addresses by
// the routes that the router has learned from the nodes. Package controller has more about which
// routes there are.
func TestBGP(t *testing.T) {
	for _, mode := range []string{cluster.ModeShared, cluster.ModeLocal, cluster.ModeDetached} {
		t.Run(mode, func(t *testing.T) { testBGP(t, mode) })
	}
}

func testBGP(t *testing.T, mode string) {
	ctx := t.Context()
	favour(t)
	b := startBGP(t, mode)
	b.put(`
apiVersion: hairpin.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: routed}
spec: {ranges: [192.0.2.50-192.0.2.59, "2001:db8:50::50-2001:db8:50::59"]}`, `
apiVersion: hairpin.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: upstream}
spec: {advertisements: [LoadBalancer, EgressIP, PodNetwork], frrConfigurationSelector: {}}`)
	b.label("pod-a1", "bgp", "yes")
	b.service("routed", "Cluster", "bgp")
	all := []string{"node-a", "node-b", "node-c"}
	b.routes("first Service, sessions not up", "192.0.2.50", all...)
	b.routes("IPv6", "2001:db8:50::50", all...)

	// Policy Cluster: by each node, the endpoint answers.
	web := netip.MustParseAddrPort("192.0.2.50:80")
	web6 := netip.MustParseAddrPort("[2001:db8:50::50]:80")
	for _, to := range []netip.AddrPort{web, web6} {
		b.settles(to)
		b.answers("policy Cluster", to, "pod-a1")
		b.byEach(to, "pod-a1", all...)
	}

	// Policy Local: by the node of the endpoint only, which sees the client.
	local, local6 := netip.MustParseAddrPort("192.0.2.51:80"), netip.MustParseAddrPort("[2001:db8:50::51]:80")
	b.label("pod-a1", "here", "yes")
	created := b.service("routed-local", "Local", "here")
	b.routes("Service created", local.Addr().String(), "node-a")
	b.routes("Service created", local6.Addr().String(), "node-a")
	b.answersSince("policy Local, Service created", created, local, "pod-a1")
	for to, want := range map[netip.AddrPort]string{local: farClient, local6: farClient6} {
		if a := b.answers("policy Local", to, "pod-a1"); a.Saw.Addr().String() != want {
			t.Errorf("policy Local: %s sees %s as %s", to, want, a.Saw)
		}
	}
	b.label("pod-b1", "here", "yes")
	b.routes("another endpoint", local.Addr().String(), "node-a", "node-b")
	b.label("pod-a1", "here", nil)
	b.routes("the endpoint moves", local.Addr().String(), "node-b")
	if a := b.answers("the endpoint moves", local, "pod-b1"); a.Saw.Addr().String() != farClient {
		t.Errorf("policy Local: sees %s", a.Saw)
	}

	b.podAddresses()

	// Egress addresses that are in no network of a node. In mode shared, pods' packets leave by the
	// default gateway, which is another router. Until now it has forwarded nothing.
	_, err := b.d.Lab().Underlay().Exec(ctx, "sh", "-ec", fmt.Sprintf("ip route replace %s via %s; "+
		"ip -6 route replace %s via %s; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1", farNet,
		routerAddr, farNet6, routerAddr6))
	noError(t, err)
	b.put(`
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: routed}
spec:
  egressIPs: [192.0.2.70, "2001:db8:50::70"]
  egressNodeSelector: {matchLabels: {kubernetes.io/hostname: node-b}}
  namespaceSelector: {}
  podSelector: {matchLabels: {bgp: "yes"}}`)
	b.routes("EgressIP", "192.0.2.70", "node-b")
	b.routes("EgressIP", "2001:db8:50::70", "node-b")
	v := newViewer(t, b.d.Lab())
	v.until("pod-a1", []string{farClient + ":9000", "[" + farClient6 + "]:9000"}, "192.0.2.70", "2001:db8:50::70")

	// A node that is cut off: the router finds out by BFD.
	stop := demo.Connect(ctx, b.far, web, 10*time.Millisecond, 500*time.Millisecond)
	time.Sleep(time.Second)
	cut := time.Now()
	b.plug("node-c", "down")
	b.routes("node cut off", "192.0.2.50", "node-a", "node-b")
	time.Sleep(time.Second)
	hole := demo.Blackhole(stop(), cut)
	t.Logf("node cut off: new connections failed for %v", hole.Round(time.Millisecond))
	if hole == 0 || hole > 3*time.Second {
		t.Errorf("node cut off: new connections failed for %v", hole)
	}
	b.plug("node-c", "up")
	b.routes("node is back", "192.0.2.50", all...)

	// A Service that is deleted.
	noError(t, b.d.Client().CoreV1().Services("default").Delete(ctx, "routed", metav1.DeleteOptions{}))
	b.routes("Service deleted", "192.0.2.50")
	if a := b.get(web); a.Error == "" {
		t.Errorf("a deleted Service answers: %+v", a)
	}
	b.answers("the other Service remains", local, "pod-b1")
	for _, n := range b.nodes {
		waitWell(t, n)
	}
}

// podAddresses connects to a pod's own addresses, by the pod ranges that its node announces.
func (b *bgpLab) podAddresses() {
	b.t.Helper()
	for prefix, x := range map[string]struct{ pod, sees string }{
		"10.244.2.0/24":      {"10.244.2.3:8080", "100.64.0.0/16"},
		"fd00:10:244:2::/64": {"[fd00:10:244:2::3]:8080", "fd98::/64"},
	} {
		to := netip.MustParseAddrPort(x.pod)
		b.routes("pod ranges", prefix, "node-b")
		if a := b.answers("pod ranges", to, "pod-b1"); !netip.MustParsePrefix(x.sees).Contains(a.Saw.Addr()) {
			b.t.Errorf("%s sees %s, which is no join address", to, a.Saw)
		}
	}
	b.put(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: default}
spec: {podSelector: {}}`)
	pod := netip.MustParseAddrPort("10.244.2.3:8080")
	eventually(b.t, 10*time.Second, "a NetworkPolicy denies the connection", func() (bool, string) {
		a := b.get(pod)
		return a.Error != "", a.Name
	})
	noError(b.t, b.d.Client().NetworkingV1().NetworkPolicies("default").Delete(b.t.Context(), "isolated",
		metav1.DeleteOptions{}))
	b.answers("without NetworkPolicy", pod, "pod-b1")
}

// startBGP starts the demo with a router and a machine behind it, and FRR and frr-k8s on each node.
func startBGP(t *testing.T, mode string) *bgpLab {
	t.Helper()
	lab.NeedFRR(t)
	ctx := t.Context()
	program, err := lab.BuildFRRK8s(ctx, t.TempDir())
	noError(t, err)
	b := &bgpLab{t: t, d: startAPI(t, mode, ""), nodes: map[string]*lab.Node{}, nodeOf: map[string]string{}}
	l, p := b.d.Lab(), netip.MustParsePrefix
	router, err := l.StartHost(ctx, lab.HostConfig{Name: "router",
		Addresses: []netip.Prefix{p(routerAddr + "/16"), p(routerAddr6 + "/64")}})
	noError(t, err)
	b.far, err = l.StartHost(ctx, lab.HostConfig{Name: "far"})
	noError(t, err)
	noError(t, router.Join(ctx, "far", "eth1", p(farRouter), p(farRouter6)))
	noError(t, b.far.Join(ctx, "far", "eth1", p(farClient+"/24"), p(farClient6+"/64")))
	script := func(h *lab.Host, text string) {
		t.Helper()
		_, err := h.Exec(ctx, "sh", "-ec", text)
		noError(t, err)
	}
	script(router, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 "+
		"net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1")
	script(b.far, "ip route replace default via 198.51.100.1; "+
		"ip -6 route replace default via 2001:db8:51::1")
	_, err = lab.Serve(ctx, b.far, "far", 9000)
	noError(t, err)

	var neighbors []netip.Addr
	for _, n := range l.Nodes() {
		b.nodes[n.Name()] = n
		neighbors = append(neighbors, n.Addresses()[0].Addr())
		for line := range strings.Lines(sh(t, n, "ip -o address show")) {
			address, _, _ := strings.Cut(strings.Fields(line)[3], "/")
			b.nodeOf[address] = n.Name()
		}
	}
	b.router, err = lab.StartFRR(ctx, router, lab.RouterConfig(netip.MustParseAddr(routerAddr), neighbors...)+
		fmt.Sprintf("router bgp 64513\n address-family ipv4 unicast\n  network %s\n exit-address-family\n"+
			" address-family ipv6 unicast\n  network %s\n exit-address-family\nexit\n", farNet, farNet6))
	noError(t, err)
	b.put("{apiVersion: v1, kind: Namespace, metadata: {name: frr}}")
	for _, resource := range []string{"frrconfigurations", "frrnodestates"} {
		text, err := lab.FRRDefinition(ctx, resource)
		noError(t, err)
		b.put(string(text))
	}
	server, err := lab.OpenAPIServer(l.APIServerDir())
	noError(t, err)
	eventually(t, 30*time.Second, "FRRConfigurations are served", func() (bool, string) {
		_, err := b.d.Client().CoreV1().RESTClient().Get().AbsPath(watch.FRRConfigurationPath("frr")).
			SetHeader("Accept", "application/json").DoRaw(ctx)
		return err == nil, fmt.Sprint(err)
	})
	t.Cleanup(func() {
		for name, n := range b.nodes {
			if t.Failed() {
				out, err := n.Exec(context.Background(), "sh", "-c", "ip route; ip neighbor; "+
					"ovs-appctl dpctl/dump-conntrack | grep "+farClient)
				t.Logf("%s: routes, neighbors and connections from behind the router:\n%s%v", name, out, err)
			}
		}
	})
	for name, n := range b.nodes {
		f, err := lab.StartFRR(ctx, n.Host, "")
		noError(t, err)
		noError(t, f.StartFRRK8s(ctx, program, server.Kubeconfig(), "frr"))
		t.Cleanup(func() {
			if text, err := os.ReadFile(f.Log()); err == nil && t.Failed() {
				t.Logf("%s: end of the log of frr-k8s:\n%s", name, text[max(0, len(text)-2000):])
			}
		})
	}
	b.put(fmt.Sprintf(`
apiVersion: frrk8s.metallb.io/v1beta1
kind: FRRConfiguration
metadata: {namespace: frr, name: upstream}
spec:
  bgp:
    bfdProfiles: [{name: fast, receiveInterval: 100, transmitInterval: 100, detectMultiplier: 3}]
    routers:
    - asn: 64512
      neighbors:
      - {asn: 64513, address: %s, bfdProfile: fast, connectTime: 1s, dualStackAddressFamily: true,
         toReceive: {allowed: {mode: all}}}`, routerAddr))
	return b
}

func (b *bgpLab) put(manifests ...string) {
	b.t.Helper()
	for _, m := range manifests {
		noError(b.t, b.d.Put(b.t.Context(), m))
	}
}

// label sets or removes a label of a pod.
func (b *bgpLab) label(pod, key string, value any) {
	b.t.Helper()
	text := fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, key)
	if value != nil {
		text = fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	}
	_, err := b.d.Client().CoreV1().Pods("default").Patch(b.t.Context(), pod, types.MergePatchType, []byte(text),
		metav1.PatchOptions{})
	noError(b.t, err)
}

// service creates a Service of the pods with a label.
func (b *bgpLab) service(name, policy, label string) time.Time {
	b.t.Helper()
	created := time.Now()
	b.put(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  type: LoadBalancer
  loadBalancerClass: hairpin.dev/l2
  externalTrafficPolicy: %s
  ipFamilyPolicy: RequireDualStack
  selector: {%s: "yes"}
  ports: [{port: 80, targetPort: 8080}]`, name, policy, label))
	return created
}

// routes waits until the router has routes to a prefix by exactly these nodes.
func (b *bgpLab) routes(what, prefix string, nodes ...string) {
	b.t.Helper()
	took := eventually(b.t, time.Minute, fmt.Sprintf("%s: routes to %s by %v", what, prefix, nodes),
		func() (bool, string) {
			hops, err := b.router.Routes(b.t.Context(), prefix)
			got := b.names(hops)
			return err == nil && slices.Equal(got, nodes), fmt.Sprint(got, err)
		})
	b.t.Logf("%s: routes to %s by %v after %v", what, prefix, nodes, took.Round(10*time.Millisecond))
}

// names returns the nodes that have addresses, sorted.
func (b *bgpLab) names(addresses []string) (list []string) {
	for _, a := range addresses {
		list = append(list, b.nodeOf[a])
	}
	slices.Sort(list)
	return list
}

// byEach connects until connections have come by each of these nodes.
func (b *bgpLab) byEach(to netip.AddrPort, server string, nodes ...string) {
	b.t.Helper()
	nft := func(script string) string {
		out, err := b.router.Host().Exec(b.t.Context(), "nft", script)
		noError(b.t, err)
		return out
	}
	ip, kind := "ip", "ipv4_addr"
	if to.Addr().Is6() {
		ip, kind = "ip6", "ipv6_addr"
	}
	nft(fmt.Sprintf("table inet seen { set hops { type %s; flags dynamic; }; chain forward { type filter hook "+
		"forward priority 0; %s daddr %s update @hops { rt %[2]s nexthop }; }; }", kind, ip, to.Addr()))
	defer nft("delete table inet seen")
	eventually(b.t, 20*time.Second, fmt.Sprintf("connections to %s by %v", to, nodes), func() (bool, string) {
		if a := b.get(to); a.Error != "" || a.Name != server {
			b.t.Errorf("%s: %s %s, not %s", to, a.Name, a.Error, server)
		}
		_, hops, _ := strings.Cut(nft("list set inet seen hops"), "elements = {")
		hops, _, _ = strings.Cut(hops, "}")
		got := b.names(strings.FieldsFunc(hops, func(r rune) bool { return strings.ContainsRune(", \n\t", r) }))
		return slices.Equal(got, nodes), fmt.Sprint(got)
	})
}

// get connects from behind the router.
func (b *bgpLab) get(to netip.AddrPort) probe.Answer {
	return lab.Get(b.t.Context(), b.far, probe.Request{Protocol: "tcp", To: to, Timeout: time.Second})
}

// settles waits until 20 connections in a row are answered: a node announces its routes before its
// agent knows those that it received. Until then, replies go to the default gateway.
func (b *bgpLab) settles(to netip.AddrPort) {
	b.t.Helper()
	row := 0
	took := eventually(b.t, 30*time.Second, fmt.Sprintf("%s answers again and again", to), func() (bool, string) {
		a := b.get(to)
		if row++; a.Error != "" {
			row = 0
		}
		return row == 20, a.Error
	})
	b.t.Logf("%s answers 20 times in a row after %v", to, took.Round(10*time.Millisecond))
}

// answers waits until a server answers at an address, and then connects 20 times.
func (b *bgpLab) answers(what string, to netip.AddrPort, server string) (a probe.Answer) {
	b.t.Helper()
	b.answersSince(what, time.Now(), to, server)
	for range 20 {
		if a = b.get(to); a.Error != "" || a.Name != server {
			b.t.Errorf("%s: %s: %s %s, not %s", what, to, a.Name, a.Error, server)
		}
	}
	return a
}

// answersSince waits until a server answers at an address.
func (b *bgpLab) answersSince(what string, since time.Time, to netip.AddrPort, server string) {
	b.t.Helper()
	eventually(b.t, 10*time.Second, fmt.Sprintf("%s: %s answers at %s", what, server, to), func() (bool, string) {
		a := b.get(to)
		return a.Error == "" && a.Name == server, a.Name + a.Error
	})
	b.t.Logf("%s: %s answers at %s after %v", what, server, to, time.Since(since).Round(10*time.Millisecond))
}

// plug sets the port of a node in the underlay up or down.
func (b *bgpLab) plug(node, state string) {
	b.t.Helper()
	_, err := b.d.Lab().Underlay().Exec(b.t.Context(), "ip", "link", "set", b.nodes[node].UnderlayPort(), state)
	noError(b.t, err)
}
