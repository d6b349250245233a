package plan_test

import (
	"testing"

	"hairpin/cluster"
	"hairpin/cluster/trust"
	"hairpin/walk"
	"hairpin/walk/packet"
)

// TestLinkLocalHostAddress: pods reach a link-local address of their own host, such as that of
// NodeLocal DNSCache, which every node has. No node claims it from another, and none is the only
// one to have it.
func TestLinkLocalHostAddress(t *testing.T) {
	dns := addr("169.254.20.10")
	for mode, flows := range everyEngine {
		s := *demoIn(t, mode, flows).Snapshot
		s.Nodes = nil
		for _, n := range demoIn(t, mode, flows).Snapshot.Nodes {
			n.HostAddresses = append(n.HostAddresses, prefix("169.254.20.10/32"))
			s.Nodes = append(s.Nodes, n)
		}
		if vetted, _ := trust.NewVetting("", s.Config.ClusterSubnets).Vet(s.Nodes); len(vetted.Untrusted)+
			len(vetted.Rejected) > 0 {
			t.Errorf("problems %v %v", vetted.Untrusted, vetted.Rejected)
		}
		walker := walk.New(worldOf(t, &s))
		for node, pod := range map[string]string{"node-a": "pod-a1", "node-b": "pod-b1"} {
			from := walk.Point{Node: node, Pod: cluster.Owner{Kind: "Pod", Namespace: "default", Name: pod}}
			for _, protocol := range []cluster.Protocol{cluster.UDP, cluster.TCP} {
				trace, err := walker.Walk(from, packet.Packet{Protocol: protocol, Dst: dns, DstPort: 53})
				if err != nil {
					t.Fatal(err)
				}
				if v := trace.Verdict; !v.Answered || v.At != (walk.Point{Node: node}) || v.Seen.Dst != dns {
					t.Errorf("%s, openflow %t, %s %s: %s", mode, flows, pod, protocol, v.Reason)
				}
			}
		}
	}
}
