package plan_test

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/cluster/clustertest"
)

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix

	node     = clustertest.Node
	egressIP = clustertest.EgressIP
	snapshot = clustertest.Snapshot
	pod      = clustertest.Pod
)

// service returns one Frontend: "10.96.146.87:80" tcp to backends.
func frontend(name, vip string, nodePort uint16, backends ...string) *cluster.Frontend {
	v := netip.MustParseAddrPort(vip)
	f := &cluster.Frontend{
		Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: name}, Family: cluster.FamilyOf(v.Addr()),
		Protocol: cluster.TCP, ClusterIP: v.Addr(), Port: v.Port(), NodePort: nodePort,
	}
	for _, b := range backends {
		a := netip.MustParseAddrPort(b)
		f.Backends = append(f.Backends, cluster.Backend{Addr: a.Addr(), Port: a.Port(), Ready: true, Serving: true})
	}
	return f
}

// large returns a cluster of nodes and Services: each Service has one TCP Frontend per family, with
// two endpoints. Every tenth Service has a NodePort, every hundredth an endpoint on a host.
func large(nodes, services int, families ...cluster.Family) *cluster.Snapshot {
	var objects []any
	for i := range nodes {
		objects = append(objects, node(fmt.Sprintf("node-%03d", i), i+1, i+3))
	}
	for i := range nodes * 30 {
		n, o := i%nodes, 3+i/nodes
		objects = append(objects, pod(fmt.Sprintf("node-%03d", n), fmt.Sprintf("pod-%05d", i),
			fmt.Sprintf("10.244.%d.%d", n+1, o), fmt.Sprintf("fd00:10:244:%x::%x", n+1, o)))
	}
	for i := range services {
		var nodePort uint16
		if i%10 == 0 {
			nodePort = uint16(30000 + i/10)
		}
		a, b, o := i%nodes+1, (i+1)%nodes+1, 3+i%30
		for _, f := range families {
			vip, backends := fmt.Sprintf("10.96.%d.%d:80", 1+i/250, 1+i%250),
				[]string{fmt.Sprintf("10.244.%d.%d:8080", a, o), fmt.Sprintf("10.244.%d.%d:8080", b, o)}
			if f == cluster.IPv6 {
				vip, backends = fmt.Sprintf("[fd00:10:96::%x]:80", i+1),
					[]string{fmt.Sprintf("[fd00:10:244:%x::%x]:8080", a, o),
						fmt.Sprintf("[fd00:10:244:%x::%x]:8080", b, o)}
			}
			if i%100 == 0 {
				backends[0] = "172.18.0.3:8081"
				if f == cluster.IPv6 {
					backends[0] = "[fc00:f853:ccd::3]:8081"
				}
			}
			objects = append(objects, frontend(fmt.Sprintf("service-%05d", i), vip, nodePort, backends...))
		}
	}
	return snapshot(objects...)
}

// change returns a Snapshot in which one Frontend has another endpoint.
func change(s *cluster.Snapshot, i int, backend string) *cluster.Snapshot {
	t := *s
	t.Frontends = slices.Clone(s.Frontends)
	f := *t.Frontends[i]
	b := netip.MustParseAddrPort(backend)
	f.Backends = append(slices.Clone(f.Backends[:1]),
		cluster.Backend{Addr: b.Addr(), Port: b.Port(), Ready: true, Serving: true})
	t.Frontends[i] = &f
	return &t
}
