package plan_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/redirect"
	"hairpin/pipeline"
	"hairpin/plan"
	"hairpin/watch"
)

// TestGuardedAddressesAreNotRedirected: the host serves load balancer addresses with
// loadBalancerSourceRanges, because it checks the source, even if the address is the node's own.
// The ranges do not apply to its NodePort there.
func TestGuardedAddressesAreNotRedirected(t *testing.T) {
	const guarded = `
---
apiVersion: v1
kind: Service
metadata: {name: guarded, namespace: default}
spec:
  type: LoadBalancer
  loadBalancerSourceRanges: [192.0.2.0/24]
  clusterIPs: [10.96.0.99]
  ports: [{protocol: TCP, port: 80, nodePort: 30099}]
status: {loadBalancer: {ingress: [{ip: 172.18.0.3}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: guarded-1, namespace: default, labels: {kubernetes.io/service-name: guarded}}
addressType: IPv4
ports: [{protocol: TCP, port: 8080}]
endpoints: [{addresses: [192.0.2.77], conditions: {ready: true}}]
`
	archive, err := txtar.ParseFile("testdata/redirect-detached.txtar")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == "objects.yaml" })
	s := watch.ParseManifests(append(archive.Files[i].Data, guarded...), cluster.DefaultConfig())
	state, _ := plan.Node(s, "ovn-worker")
	for address, want := range map[string]bool{"172.18.0.3:80": false, "172.18.0.3:30099": true,
		"10.10.10.3:30099": true} {
		if _, got := state.Redirect.Services[redirect.Service{Addr: netip.MustParseAddrPort(address),
			Protocol: cluster.TCP}]; got != want {
			t.Errorf("%s: redirected: %t", address, got)
		}
	}
}

// TestExternalAddressOfAnotherLink: in mode shared an external address may be the node's own on
// another link. A client on the uplink gets its replies on the uplink, where the bridge tracks the
// connection. The redirect's flow for replies does not match these.
func TestExternalAddressOfAnotherLink(t *testing.T) {
	const objects = `
apiVersion: v1
kind: Node
metadata:
  name: node-a
  annotations:
    k8s.ovn.org/node-id: "3"
    k8s.ovn.org/host-cidrs: '["172.18.0.3/16","10.10.10.3/24"]'
    k8s.ovn.org/host-links: '[{"name": "eth1", "index": 3, "mac-address": "02:42:0a:0a:0a:03", "mtu": 1500, "ip-addresses": ["10.10.10.3/24"]}]'
    k8s.ovn.org/l3-gateway-config: '{"default": {"mode": "shared", "bridge-id": "br-ex", "uplink": "eth0", "mac-address": "02:42:ac:12:00:03",
      "ip-addresses": ["172.18.0.3/16"], "next-hops": ["172.18.0.1"], "datapath": "netdev", "nodeport-path": "redirect"}}'
spec: {podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: default}
spec: {nodeName: node-a}
status: {podIPs: [{ip: 10.244.1.3}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {type: NodePort, clusterIPs: [10.96.0.99], externalIPs: [10.10.10.3], ports: [{protocol: TCP, port: 80, nodePort: 30099}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{protocol: TCP, port: 8080}]
endpoints: [{addresses: [10.244.1.3], nodeName: node-a}]
`
	s := watch.ParseManifests([]byte(objects), cluster.DefaultConfig())
	state, problems := plan.Node(s, "node-a")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	key := flow.Key{Table: pipeline.GatewayClassifier, Priority: 501, Match: flow.Match{
		InPort: "patch-br-ex_node-a-to-br-int", EthSrc: cluster.MAC{2, 0x42, 0xac, 0x12, 0, 3}, Protocol: flow.TCP,
		Src: netip.MustParsePrefix("10.10.10.3/32"), SrcPort: 80,
	}}
	if f := state.Bridge.Flows.At(key.ID()); f == nil ||
		!slices.Contains(f.Actions, flow.Action(flow.Output{Port: "eth0"})) {
		t.Errorf("no flow leads the answer to the uplink: %v", f)
	}
}
