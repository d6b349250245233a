package explain_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/ui/demotest"
	"hairpin/walk/explain"
	"hairpin/walk/explain/question"
	"hairpin/walk/explain/why"
	"hairpin/watch"
)

// whyCluster returns manifests of three nodes with a pod each, and of Services of every kind.
func whyCluster() string {
	var b strings.Builder
	write := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n---\n", args...) }
	for i, n := range []string{"node-a", "node-b", "node-c"} {
		write(`{apiVersion: v1, kind: Node, metadata: {name: %[1]s, labels: {k8s.ovn.org/egress-assignable: ""}, annotations: {
  k8s.ovn.org/node-id: "%[2]d", k8s.ovn.org/host-cidrs: '["172.18.0.%[3]d/16","fc00:f853:ccd::%[3]d/64"]',
  k8s.ovn.org/l3-gateway-config: '{"default":{"mode":"shared","bridge-id":"br-ex","uplink":"eth0",
    "mac-address":"02:42:ac:12:00:0%[3]d","ip-addresses":["172.18.0.%[3]d/16","fc00:f853:ccd::%[3]d/64"],
    "next-hops":["172.18.0.1","fc00:f853:ccd::1"],"datapath":"netdev"}}'}},
 spec: {podCIDRs: [10.244.%[2]d.0/24, "fd00:10:244:%[2]d::/64"]}, status: {addresses: [
  {type: InternalIP, address: 172.18.0.%[3]d}, {type: InternalIP, address: "fc00:f853:ccd::%[3]d"}],
  conditions: [{type: Ready, status: "True"}]}}`, n, i+1, i+3)
	}
	write(`{apiVersion: v1, kind: Namespace, metadata: {name: default}}`)
	write(`{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`)
	for _, p := range []struct {
		namespace, name, node string
		subnet, address       int
	}{{"default", "a1", "node-a", 1, 3}, {"default", "b1", "node-b", 2, 3}, {"default", "c1", "node-c", 3, 3},
		{"default", "out", "node-a", 1, 4}, {"default", "lost", "node-a", 1, 5}, {"shop", "db", "node-c", 3, 4}} {
		write(`{apiVersion: v1, kind: Pod, metadata: {name: %[2]s, namespace: %[1]s, labels: {app: %[2]s}},
 spec: {nodeName: %[3]s}, status: {podIPs: [{ip: 10.244.%[4]d.%[5]d}, {ip: "fd00:10:244:%[4]d::%[5]d"}]}}`,
			p.namespace, p.name, p.node, p.subnet, p.address)
	}
	for i, x := range []struct{ name, spec, endpoint, node, conditions string }{
		{"web", "type: NodePort", "2::3", "node-b", ""},
		{"local", `type: LoadBalancer, externalTrafficPolicy: Local`, "3::3", "node-c", ""},
		{"near", "internalTrafficPolicy: Local", "3::3", "node-c", ""},
		{"empty", "type: NodePort", "", "", ""},
		{"unready", "type: NodePort", "2::3", "node-b", "{ready: false}"},
		{"ranges", `type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24, "2001:db8:1::/48"]`, "2::3", "node-b",
			""},
		{"outer", `externalIPs: [203.0.113.23, "2001:db8:f::23"]`, "2::3", "node-b", ""},
		{"stale", "type: NodePort", "2::63", "node-b", ""},
		{"four", "type: NodePort", "2::3", "node-b", "only IPv4"},
		{"host", "type: NodePort", "host", "node-b", ""},
		{"itself", "type: ClusterIP", "1::3", "node-a", ""},
		{"pooled", "type: LoadBalancer", "2::3", "node-b", ""},
		{"waiting", "type: LoadBalancer", "2::3", "node-b", ""},
		{"routed", "type: LoadBalancer", "2::3", "node-b", ""},
		{"unrouted", "type: LoadBalancer", "2::3", "node-b", ""},
		{"routedlocal", "type: LoadBalancer, externalTrafficPolicy: Local", "2::3", "node-b", ""},
		{"onnode", "type: LoadBalancer, loadBalancerClass: hairpin.dev/l2", "2::3", "node-b", ""},
	} {
		port := fmt.Sprintf("{name: http, port: 80, targetPort: 8080, nodePort: %d}", 30010+i)
		if !strings.Contains(x.spec, "type: ") || strings.Contains(x.spec, "ClusterIP") {
			port = "{name: http, port: 80, targetPort: 8080}"
		}
		status := ""
		if strings.Contains(x.spec, "LoadBalancer") {
			status = fmt.Sprintf(`, status: {loadBalancer: {ingress: [{ip: 203.0.113.%d}, {ip: "2001:db8:f::%d"}]}}`,
				20+i, 20+i)
		}
		if x.name == "pooled" || x.name == "waiting" { // of the pool below
			status = fmt.Sprintf(`, status: {loadBalancer: {ingress: [{ip: 172.18.0.%d}, {ip: "fc00:f853:ccd::%d"}]}}`,
				50+i, 50+i)
		}
		if x.name == "onnode" { // at the addresses of node-b and node-c, as the pool below
			ports := func(more string) string { return "ports: [{port: 80, protocol: TCP" + more + "}]}" }
			refused := ports(", error: " + cluster.ErrorPort)
			status = ", status: {loadBalancer: {ingress: [{ip: 172.18.0.5, " + ports("") +
				`, {ip: "fc00:f853:ccd::5", ` + ports("") + ", {ip: 172.18.0.4, " + refused +
				`, {ip: "fc00:f853:ccd::4", ` + refused + "]}}"
		}
		write(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: default}, spec: {%s,
 clusterIP: 10.96.0.%[3]d, clusterIPs: [10.96.0.%[3]d, "fd00:10:96::%[3]d"], ipFamilies: [IPv4, IPv6],
 ports: [%[4]s]}%[5]s}`, x.name, x.spec, 10+i, port, status)
		for _, family := range []string{"IPv4", "IPv6"} {
			address := `"fd00:10:244:` + x.endpoint + `"`
			if family == "IPv4" {
				address = "10.244." + strings.Replace(x.endpoint, "::", ".", 1)
			}
			if x.endpoint == "host" {
				address = map[string]string{"IPv4": "172.18.0.4", "IPv6": `"fc00:f853:ccd::4"`}[family]
			}
			if x.endpoint == "" || x.conditions == "only "+"IPv4" && family == "IPv6" {
				continue
			}
			conditions := x.conditions
			if !strings.HasPrefix(conditions, "{") {
				conditions = "{ready: true}"
			}
			write(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s-%[6]s, namespace: default,
 labels: {kubernetes.io/service-name: %[1]s}}, addressType: %[2]s, ports: [{name: http, port: 8080}],
 endpoints: [{addresses: [%[3]s], nodeName: %[4]s, conditions: %[5]s}]}`, x.name, family, address, x.node, conditions,
				strings.ToLower(family))
		}
	}
	write(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {
 podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress],
 ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 5432}]}]}}`)
	write(`{apiVersion: hairpin.dev/v1alpha1, kind: LoadBalancerPool, metadata: {name: edge, labels: {pool: edge}},
 spec: {ranges: [172.18.0.60-172.18.0.69, "fc00:f853:ccd::60-fc00:f853:ccd::69"]}, status: {addresses: [
 {address: 172.18.0.61, node: node-c, services: [default/pooled]},
 {address: "fc00:f853:ccd::61", node: node-c, services: [default/pooled]},
 {address: 172.18.0.62, services: [default/waiting], message: no node is ready},
 {address: "fc00:f853:ccd::62", services: [default/waiting], message: no node is ready}]}}`)
	write(`{apiVersion: hairpin.dev/v1alpha1, kind: LoadBalancerPool, metadata: {name: own}, spec: {nodeAddresses: {
 ports: ["80"]}}, status: {addresses: [{address: 172.18.0.5, node: node-c, services: [default/onnode]},
 {address: "fc00:f853:ccd::5", node: node-c, services: [default/onnode]}]}}`)
	for _, x := range []struct {
		name, service string
		n             int
		node          string
	}{{"routed", "routed", 33, "node-a"}, {"unrouted", "unrouted", 34, "node-a"},
		{"routedlocal", "routedlocal", 35, "node-b"}} {
		write(`{apiVersion: hairpin.dev/v1alpha1, kind: LoadBalancerPool, metadata: {name: %[1]s, labels: {routed: %[1]s}},
 spec: {ranges: [203.0.113.%[3]d-203.0.113.%[3]d, "2001:db8:f::%[3]d-2001:db8:f::%[3]d"]}, status: {addresses: [
 {address: 203.0.113.%[3]d, node: %[4]s, services: [default/%[2]s]},
 {address: "2001:db8:f::%[3]d", node: %[4]s, services: [default/%[2]s]}]}}`, x.name, x.service, x.n, x.node)
	}
	for _, x := range []struct{ name, pools, status string }{
		{"upstream", "{matchExpressions: [{key: routed, operator: In, values: [routed, routedlocal]}]}",
			`{nodes: 3, conditions: [{type: Advertised, status: "True"}]}`},
		{"broken", "{matchLabels: {pool: edge}}", `{conditions: [{type: Advertised, status: "False",
 message: spec.frrConfigurationSelector selects no FRRConfiguration}]}`},
	} {
		write(`{apiVersion: hairpin.dev/v1alpha1, kind: BGPAdvertisement, metadata: {name: %s}, spec: {
 advertisements: [LoadBalancer], frrConfigurationSelector: {}, loadBalancerPoolSelector: %s}, status: %s}`, x.name,
			x.pools, x.status)
	}
	write(`{apiVersion: k8s.ovn.org/v1, kind: EgressIP, metadata: {name: ours}, spec: {namespaceSelector: {},
 egressIPs: [172.18.0.33, "fc00:f853:ccd::33"], podSelector: {matchLabels: {app: out}},
 excludedCIDRs: [203.0.113.99/32, "2001:db8:99::/48"]}, status: {items: [
 {node: node-b, egressIP: 172.18.0.33}, {node: node-b, egressIP: "fc00:f853:ccd::33"}]}}`)
	write(`{apiVersion: k8s.ovn.org/v1, kind: EgressIP, metadata: {name: lost}, spec: {namespaceSelector: {},
 egressIPs: [172.18.0.44, "fc00:f853:ccd::44"], podSelector: {matchLabels: {app: lost}}}, status: {items: [
 {node: node-x, egressIP: 172.18.0.44}, {node: node-x, egressIP: "fc00:f853:ccd::44"}]}}`)
	return b.String()
}

// readWhy returns the cluster of whyCluster with a Service engine and a gateway mode.
func readWhy(t testing.TB, engine, mode string) *cluster.Snapshot {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(whyCluster()), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := watch.ReadFiles(dir, cluster.DefaultConfig())
	if err != nil || len(s.Problems) > 0 {
		t.Fatal(err, s.Problems)
	}
	if engine == cluster.EngineOVN {
		s.Policies = nil // it does not enforce them
	}
	for _, n := range s.Nodes {
		g := &n.Gateway
		g.OpenFlow, g.Mode = engine == cluster.EngineOpenFlow, mode
		if mode == cluster.ModeDetached {
			n.Links = []cluster.HostLink{{Name: "eth0", Index: 2, MAC: g.MAC, Addresses: g.Addresses}}
			g.Uplink, g.Device, g.DeviceMAC, g.MAC = "", "eth0", g.MAC, cluster.MAC{0x0a, 0x58, 10, 44}
			g.Addresses = []netip.Prefix{netip.MustParsePrefix("10.44.0.0/32"),
				netip.MustParsePrefix("fd00:10:44::/128")}
		}
	}
	return s
}

// situation is a packet and the reason for its verdict. Of two texts, the second is that of IPv6.
type situation struct {
	from, to [2]string // the second is empty if it is the first
	via      string
	nodePort bool
	only     cluster.Family // 0: both
	udp      bool
	policies bool // only where policies are enforced
	reason   why.Reason
	says     []string // parts of the text, with %s for the family
}

func both(word string) [2]string { return [2]string{word} }

var situations = []situation{
	{from: both("pod/default/a1"), to: both("svc/default/web"), reason: why.ReasonEndpoint, says: []string{
		"Service default/web port http selects Pod default/b1 on node-b, its only endpoint; it sees the " +
			"sender's own address"}},
	{from: both("host/node-a"), to: both("svc/default/web"), reason: why.ReasonEndpoint,
		says: []string{"selects Pod default/b1 on node-b", "it sees source ", " on the join switch"}},
	{from: both("pod/default/a1"), to: both("svc/default/host"), reason: why.ReasonEndpoint,
		says: []string{"selects host node-b, its only endpoint; it sees source ", "that of node-a"}},
	{from: both("pod/default/a1"), to: both("svc/default/itself"), reason: why.ReasonEndpoint,
		says: []string{"selects Pod default/a1 on node-a", "an address of the masquerade subnets"}},
	{from: both("outside"), to: both("svc/default/web"), via: "node-a", reason: why.ReasonEndpoint,
		says: []string{"selects Pod default/b1 on node-b", "that of node-a on the join switch"}},
	{from: both("outside"), to: both("svc/default/local"), via: "node-c", nodePort: true,
		reason: why.ReasonEndpoint,
		says:   []string{"selects Pod default/c1 on node-c", "it sees the sender's own address"}},
	{from: both("outside"), to: both("svc/default/local"), via: "node-a", nodePort: true,
		reason: why.ReasonNoLocalEndpoint,
		says: []string{"externalTrafficPolicy of Service default/local is Local and " +
			"node-a has no endpoint; the endpoint is on node-c"}},
	{from: both("outside"), to: both("svc/default/local"), via: "node-b", reason: why.ReasonNoLocalEndpoint,
		says: []string{"node-b has no endpoint"}},
	{from: both("pod/default/a1"), to: both("svc/default/near"), reason: why.ReasonNoLocalEndpoint,
		says: []string{"internalTrafficPolicy of Service default/near is Local and node-a has no endpoint"}},
	{from: both("host/node-b"), to: both("svc/default/near"), reason: why.ReasonNoLocalEndpoint,
		says: []string{"internalTrafficPolicy", "node-b has no endpoint"}},
	{from: both("pod/default/a1"), to: both("svc/default/empty"), reason: why.ReasonNoEndpoint,
		says: []string{"Service default/empty has no endpoint"}},
	{from: both("host/node-a"), to: both("svc/default/empty"), reason: why.ReasonNoEndpoint,
		says: []string{"Service default/empty has no endpoint"}},
	{from: both("outside"), to: both("svc/default/empty"), via: "node-a", reason: why.ReasonNoEndpoint,
		says: []string{"Service default/empty has no endpoint"}},
	{from: both("pod/default/a1"), to: both("svc/default/unready"), reason: why.ReasonNoEndpoint,
		says: []string{"Service default/unready has no ready endpoint: pod/default/b1 is not ready"}},
	{from: both("pod/default/a1"), to: [2]string{"10.96.0.99:80", "[fd00:10:96::99]:80"},
		reason: why.ReasonNoService,
		says:   []string{"no Service has "}},
	{from: both("host/node-a"), to: [2]string{"10.96.0.99:80", "[fd00:10:96::99]:80"}, reason: why.ReasonNoService},
	{from: both("pod/default/a1"), to: [2]string{"10.96.0.10:81", "[fd00:10:96::10]:81"}, reason: why.ReasonNoPort,
		says: []string{"Service default/web has no port 81/tcp; it has 80/tcp (http)"}},
	{from: both("host/node-c"), to: [2]string{"10.96.0.10:81", "[fd00:10:96::10]:81"}, reason: why.ReasonNoPort},
	{from: both("pod/default/a1"), to: [2]string{"10.244.2.99:80", "[fd00:10:244:2::99]:80"},
		reason: why.ReasonNoPod,
		says:   []string{"no Pod has ", "in the Pod range of node-b"}},
	{from: both("host/node-a"), to: [2]string{"10.244.1.99:80", "[fd00:10:244:1::99]:80"}, reason: why.ReasonNoPod,
		says: []string{"in the Pod range of node-a"}},
	{from: both("pod/default/a1"), to: [2]string{"10.244.9.99:80", "[fd00:10:244:9::99]:80"},
		reason: why.ReasonNoPod,
		says:   []string{"no node has a Pod range with it"}},
	{from: both("pod/default/a1"), to: both("svc/default/stale"), reason: why.ReasonNoPod,
		says: []string{"the endpoint of Service default/stale"}},
	{from: [2]string{"outside/198.51.100.9", "outside/2001:db8:2::9"}, to: both("svc/default/ranges"), via: "node-a",
		reason: why.ReasonSourceRanges,
		says:   []string{" is not in loadBalancerSourceRanges of Service default/ranges: "}},
	{from: [2]string{"outside/192.0.2.9", "outside/2001:db8:1::9"}, to: both("svc/default/ranges"), via: "node-a",
		reason: why.ReasonEndpoint},
	{from: both("outside"), to: both("svc/default/outer"), reason: why.ReasonNotAnnounced,
		says: []string{"nothing announces ", "an external address of Service default/outer"}},
	{from: both("outside"), to: both("svc/default/routed"), reason: why.ReasonEndpoint,
		says: []string{"; advertised by BGPAdvertisement upstream from node-a, node-b, node-c"}},
	{from: both("outside"), to: both("svc/default/routedlocal"), reason: why.ReasonEndpoint,
		says: []string{"; advertised by BGPAdvertisement upstream from node-b"}},
	{from: both("outside"), to: both("svc/default/unrouted"), reason: why.ReasonEndpoint,
		says: []string{"; no network of node-a has ", "and no BGPAdvertisement selects it: routers need a route to it"}},
	{from: both("outside"), to: both("svc/default/local"), reason: why.ReasonNotAnnounced},
	{from: both("outside"), to: [2]string{"172.18.0.62:80", "[fc00:f853:ccd::62]:80"},
		reason: why.ReasonNotAnnounced,
		says: []string{"an external address of Service default/waiting: no node is ready; BGPAdvertisement broken does " +
			"not advertise it: "}},
	{from: both("outside"), to: [2]string{"172.18.0.61:80", "[fc00:f853:ccd::61]:80"},
		reason: why.ReasonEndpoint,
		says: []string{"Service default/pooled port http", "; node-c announces ", ", and node-b would take over",
			"BGPAdvertisement broken does not advertise it: spec.frrConfigurationSelector selects no FRRConfiguration"}},
	{from: both("outside"), to: [2]string{"172.18.0.5:80", "[fc00:f853:ccd::5]:80"}, reason: why.ReasonEndpoint,
		says: []string{"Service default/onnode port http",
			" is node-c's own address, which LoadBalancerPool own gives to Services"}},
	{from: both("outside"), to: [2]string{"172.18.0.4:80", "[fc00:f853:ccd::4]:80"}, reason: why.ReasonHost,
		says: []string{"is an address of host node-b, where status.loadBalancer of Service default/onnode excludes port " +
			"80/tcp"}},
	{from: both("outside"), to: [2]string{"10.96.0.10:80", "[fd00:10:96::10]:80"}, reason: why.ReasonClusterOnly,
		says: []string{"the ClusterIP of Service default/web"}},
	{from: both("outside"), to: both("pod/default/a1:80"), reason: why.ReasonClusterOnly,
		says: []string{"the address of Pod default/a1"}},
	{from: both("outside"), to: [2]string{"172.18.0.99:80", "[fc00:f853:ccd::99]:80"}, reason: why.ReasonNoAddress,
		says: []string{"neither a node nor a Service has"}},
	{from: both("outside"), to: [2]string{"172.18.0.3:30999", "[fc00:f853:ccd::3]:30999"}, reason: why.ReasonHost,
		says: []string{"is an address of host node-a, and no Service has NodePort 30999/tcp there"}},
	{from: both("pod/default/a1"), to: both("pod/default/c1:80"), reason: why.ReasonPod,
		says: []string{"is the address of Pod default/c1 on node-c"}},
	{from: both("pod/default/a1"), to: [2]string{"127.0.0.1:30010", "[::1]:30010"}, reason: why.ReasonLoopback},
	{from: both("pod/default/a1"), to: [2]string{"100.64.0.9:80", "[fd98::9]:80"}, reason: why.ReasonReserved,
		says: []string{"an address of the join subnets"}},
	{from: both("pod/default/a1"), to: [2]string{"outside/192.0.2.50", "outside/2001:db8::50"},
		reason: why.ReasonOutside, says: []string{" is outside of the cluster; it sees source ", "that of node-a"}},
	{from: both("pod/default/out"), to: [2]string{"outside/192.0.2.50", "outside/2001:db8::50"},
		reason: why.ReasonOutside, says: []string{"an address of EgressIP ours"}},
	{from: both("pod/default/out"), to: [2]string{"outside/203.0.113.99", "outside/2001:db8:99::9"},
		reason: why.ReasonOutside, says: []string{"that of node-a", "EgressIP ours selects Pod default/out, " +
			"but not this destination (spec.destinationCIDRs, spec.excludedCIDRs)"}},
	{from: both("pod/default/lost"), to: [2]string{"outside/192.0.2.50", "outside/2001:db8::50"},
		reason: why.ReasonEgress,
		says: []string{"EgressIP lost selects Pod default/lost, and no node has an %s address " +
			"of it", "is assigned to node-x, which is no Node"}},
	{from: both("outside"), to: [2]string{"172.18.0.44:80", "[fc00:f853:ccd::44]:80"},
		reason: why.ReasonNotAnnounced,
		says:   []string{"an address of EgressIP lost, which no node has now"}},
	{from: [2]string{"outside/10.244.1.9", "outside/fd00:10:244:1::9"}, to: both("svc/default/web"), via: "node-a",
		reason: why.ReasonSpoofed},
	{from: [2]string{"outside/100.64.0.9", "outside/fd98::9"}, to: both("svc/default/web"), via: "node-a",
		reason: why.ReasonSpoofed, says: []string{"an address of the join subnets"}},
	{from: both("pod/default/a1"), to: both("svc/default/four"), only: cluster.IPv4, reason: why.ReasonEndpoint},
	{from: both("pod/default/a1"), to: both("svc/default/four"), only: cluster.IPv6, reason: why.ReasonNoEndpoint,
		says: []string{"Service default/four has no ready endpoint of IPv6; it has endpoints of IPv4"}},
	{from: both("pod/default/a1"), to: [2]string{"pod/default/b1:68", "pod/default/b1:546"}, udp: true,
		reason: why.ReasonDHCP},
	{from: both("pod/default/a1"), to: both("pod/shop/db:5432"), policies: true, reason: why.ReasonPolicies,
		says: []string{"ingress to Pod shop/db is denied by NetworkPolicy shop/db: no rule accepts it; nearest is " +
			"NetworkPolicy/shop/db rule 1: "}},
}

// TestWhy checks the reason for the verdict of packets in every situation, with both engines, in
// each gateway mode and family.
func TestWhy(t *testing.T) {
	for _, engine := range []string{cluster.EngineOpenFlow, cluster.EngineOVN} {
		for _, mode := range cluster.ModeNames() {
			s := readWhy(t, engine, mode)
			w := demotest.Planned(t, s)
			for _, family := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
				for _, c := range situations {
					i := 0
					if family == cluster.IPv6 {
						i = 1
					}
					q := question.Question{From: cmp.Or(c.from[i], c.from[0]), To: cmp.Or(c.to[i], c.to[0]), Via: c.via,
						NodePort: c.nodePort, Family: family}
					if c.udp {
						q.Protocol = cluster.UDP
					}
					if c.only != 0 && c.only != family || c.policies && engine != cluster.EngineOpenFlow {
						continue
					}
					name := fmt.Sprintf("%s %s %s: %s to %s via %s", engine, mode, family, q.From, q.To, q.Via)
					e, err := explain.Ask(w, s, q)
					if err != nil {
						t.Errorf("%s: %v", name, err)
						continue
					}
					why := e.Why()
					if why.Reason != c.reason {
						t.Errorf("%s: %s, not %s: %s\n%s", name, why.Reason, c.reason, why.Text, tail(e))
						continue
					}
					for _, want := range c.says {
						if want = strings.ReplaceAll(want, "%s", family.String()); !strings.Contains(why.Text, want) {
							t.Errorf("%s: it does not say %q: %s\n%s", name, want, why.Text, tail(e))
						}
					}
				}
			}
		}
	}
}

// tail returns the verdict of an explanation, and the last step of the packet.
func tail(e *explain.Explanation) string {
	text := "  " + e.Sentence()
	if n := len(e.Trace.Forward); n > 0 {
		text += fmt.Sprintf("\n  %+v", e.Trace.Forward[n-1])
	}
	return text
}
