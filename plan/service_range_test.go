package plan_test

import (
	"testing"

	"hairpin/cluster"
	"hairpin/walk"
	"hairpin/walk/packet"
)

// TestClusterIPOutOfRange: a cluster IP outside of service-cidrs is served to pods, hosts and
// external clients, and no packet to it leaves the cluster.
func TestClusterIPOutOfRange(t *testing.T) {
	const old = `
apiVersion: v1
kind: Service
metadata: {name: old, namespace: default}
spec:
  clusterIPs: [10.112.0.10, "fd00:10:112::10"]
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: old-4, namespace: default, labels: {kubernetes.io/service-name: old}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.3.3], nodeName: node-c, conditions: {ready: true}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: old-6, namespace: default, labels: {kubernetes.io/service-name: old}}
addressType: IPv6
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: ["fd00:10:244:3::3"], nodeName: node-c, conditions: {ready: true}}]
`
	pod := cluster.Owner{Kind: "Pod", Namespace: "default", Name: "pod-a1"}
	for mode, flows := range everyEngine {
		walker := walk.New(demoWith(t, mode, flows, old))
		for name, from := range map[string]walk.Point{"pod": {Node: "node-a", Pod: pod}, "host": {Node: "node-a"}} {
			for _, ip := range []string{"10.112.0.10", "fd00:10:112::10"} {
				for port, served := range map[uint16]bool{80: true, 81: false} {
					trace, err := walker.Walk(from, packet.Packet{Protocol: cluster.TCP, Dst: addr(ip), DstPort: port})
					if err != nil {
						t.Errorf("%s, openflow %t, %s to %s port %d: %v", mode, flows, name, ip, port, err)
						continue
					}
					v := trace.Verdict
					if v.Delivered != served || v.Rejected == served || !v.Answered || served &&
						v.Seen.DstPort != 8080 {
						t.Errorf("%s, openflow %t, %s to %s port %d: %s %s", mode, flows, name, ip, port, v.Reason,
							v.AnswerReason)
					}
				}
			}
		}
	}
}
