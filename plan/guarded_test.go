package plan_test

import (
	"testing"

	"hairpin/cluster"
	"hairpin/walk"
	"hairpin/walk/packet"
)

// TestSourceRangesRestrictOnePort: loadBalancerSourceRanges restrict one address, protocol and
// Service port. Where the address is a node's own, its NodePorts, its host's other ports and other
// Services' endpoints there stay open.
func TestSourceRangesRestrictOnePort(t *testing.T) {
	const restricted = `
apiVersion: v1
kind: Service
metadata: {name: restricted, namespace: default}
spec:
  type: LoadBalancer
  loadBalancerSourceRanges: [192.0.2.0/24]
  clusterIPs: [10.96.62.1]
  ports: [{name: http, port: 8443, targetPort: 8080, nodePort: 30621}]
status: {loadBalancer: {ingress: [{ip: 172.18.0.3}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: restricted-1, namespace: default, labels: {kubernetes.io/service-name: restricted}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.3.3], nodeName: node-c, conditions: {ready: true}}]
`
	pod := func(node, name string) walk.Point {
		return walk.Point{Node: node, Pod: cluster.Owner{Kind: "Pod", Namespace: "default", Name: name}}
	}
	for mode, flows := range everyEngine {
		w := demoWith(t, mode, flows, restricted)
		walker := walk.New(w)
		for _, c := range []struct {
			what   string
			from   walk.Point
			src    string
			to     string
			port   uint16
			served bool
		}{
			{"client in the ranges, load balancer port", walk.Point{}, "192.0.2.7", "172.18.0.3", 8443, true},
			{"client outside of the ranges, load balancer port", walk.Point{}, "198.51.100.9", "172.18.0.3", 8443,
				false},
			{"client outside of the ranges, NodePort", walk.Point{}, "198.51.100.9", "172.18.0.3", 30621, true},
			{"client outside of the ranges, NodePort of another node", walk.Point{}, "198.51.100.9", "172.18.0.4",
				30621, true},
			{"pod of the node, load balancer port", pod("node-a", "pod-a1"), "", "172.18.0.3", 8443, false},
			{"pod of the node, NodePort", pod("node-a", "pod-a1"), "", "172.18.0.3", 30621, true},
			{"pod of the node, a port of the host", pod("node-a", "pod-a1"), "", "172.18.0.3", 10250, true},
			{"pod of another node, load balancer port", pod("node-b", "pod-b1"), "", "172.18.0.3", 8443, false},
			{"pod of another node, NodePort", pod("node-b", "pod-b1"), "", "172.18.0.3", 30621, true},
			{"pod of another node, a port of the host", pod("node-b", "pod-b1"), "", "172.18.0.3", 10250, true},
		} {
			p := packet.Packet{Protocol: cluster.TCP, Dst: addr(c.to), DstPort: c.port}
			if c.src != "" {
				p.Src = addr(c.src)
			}
			trace, err := walker.Walk(c.from, p)
			if err != nil {
				t.Errorf("%s, openflow %t, %s: %v", mode, flows, c.what, err)
				continue
			}
			v := trace.Verdict
			if v.Answered != c.served || c.port != 10250 && c.served && v.Seen.DstPort != 8080 {
				t.Errorf("%s, openflow %t, %s: answered %t: %s", mode, flows, c.what, v.Answered, v.Reason)
			}
		}
	}
}
