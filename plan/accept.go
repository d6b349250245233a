package plan

import (
	"fmt"
	"net/netip"

	"hairpin/cluster"
)

// accept refuses what two Services cannot both have: a cluster IP, a port on it, a NodePort. The first in the order of
// the Snapshot keeps it. A Service whose NodePort is taken is served without it.
//
// The answer depends only on what sameClaims compares. When nothing is refused it is the list itself.
func accept(all []*cluster.Frontend) ([]*cluster.Frontend, []Problem) {
	type port struct {
		addr     netip.Addr // zero for NodePorts
		family   cluster.Family
		protocol cluster.Protocol
		port     uint16
	}
	ips := make(map[netip.Addr]cluster.Owner, len(all))
	ports := make(map[port]cluster.Owner, len(all))
	var problems []Problem
	refuse := func(f *cluster.Frontend, field string, what any, first cluster.Owner) {
		problems = append(problems, Problem{Owner: f.Owner, Field: field, Message: fmt.Sprintf("%v belongs to %s already", what, first)})
	}
	list := make([]*cluster.Frontend, 0, len(all))
	for _, f := range all {
		if first, ok := ips[f.ClusterIP]; ok && first != f.Owner {
			refuse(f, "spec.clusterIPs", f.ClusterIP, first)
			continue
		}
		ips[f.ClusterIP] = f.Owner
		p := port{f.ClusterIP, f.Family, f.Protocol, f.Port}
		if first, ok := ports[p]; ok {
			refuse(f, "spec.ports", fmt.Sprintf("%s port %d", f.Protocol, f.Port), first)
			continue
		}
		ports[p] = f.Owner
		if f.NodePort != 0 {
			p := port{family: f.Family, protocol: f.Protocol, port: f.NodePort}
			if first, ok := ports[p]; ok {
				refuse(f, "spec.ports", fmt.Sprintf("%s node port %d", f.Protocol, f.NodePort), first)
				without := *f
				without.NodePort = 0
				f = &without
			} else {
				ports[p] = f.Owner
			}
		}
		list = append(list, f)
	}
	if len(problems) == 0 {
		return all, nil
	}
	return list, problems
}

// sameClaims tells whether two states of a Frontend claim the same addresses and ports.
func sameClaims(a, b *cluster.Frontend) bool {
	return a.Owner == b.Owner && a.ClusterIP == b.ClusterIP && a.Protocol == b.Protocol && a.Port == b.Port && a.NodePort == b.NodePort &&
		a.PortName == b.PortName
}
