package why

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/plan/assign"
	"hairpin/plan/bgp"
	"hairpin/walk"
	"hairpin/walk/explain/names"
)

// announced explains which nodes announce the destination, an address of a pool:
//
//   - a node's own address that the pool gives to Services: the node and the pool
//   - another one, for a packet from outside: the node that announces it on its network, the node
//     that would take over, and the nodes that advertise it by BGP
func (r *reasoner) announced() string {
	to := r.Trace.Sent.Dst
	for _, p := range r.Cluster.Pools {
		for _, x := range p.Status.Addresses {
			if p.NodeAddresses && x.Address == to.String() && slices.Contains(r.Service.LoadBalancerIPs, to) {
				return fmt.Sprintf("; %s is %s's own address, which %s gives to Services", to, x.Node,
					names.Object(p.Owner))
			}
		}
	}
	e := r.egressIP(to)
	if r.Trace.From != (walk.Point{}) || e == nil || !e.OnlyAnnounced() {
		return ""
	}
	text, advertised := "", r.advertised(e, to)
	if n := r.Cluster.Node(e.NodeOf(to)); n != nil {
		_, local := cluster.NetworkOf(n.Networks(&r.Cluster.Config), to)
		next := assign.Successors(r.Cluster, n.Name)[to]
		switch {
		case local && (next == "" || next == n.Name):
			text = fmt.Sprintf("; %s announces %s, and no other node can", n.Name, to)
		case local:
			text = fmt.Sprintf("; %s announces %s, and %s would take over", n.Name, to, next)
		case advertised == "":
			text = fmt.Sprintf("; no network of %s has %s, and no BGPAdvertisement selects it: routers need a "+
				"route to it", n.Name, to)
		}
	}
	return text + advertised
}

// notRecorded names a Service of type LoadBalancer that has the node's address, but not for the
// port of the packet: its status.loadBalancer lists the ports of each address.
func (r *reasoner) notRecorded() string {
	port := cluster.LoadBalancerPort{Protocol: r.Trace.Sent.Protocol, Port: r.Trace.Sent.DstPort}
	for _, l := range r.Cluster.LoadBalancers {
		if slices.Contains(l.Ports, port) && cluster.HasRecords(l.Recorded, r.Trace.Sent.Dst) &&
			!cluster.IsRecorded(l.Recorded, r.Trace.Sent.Dst, port) {
			return fmt.Sprintf(", where status.loadBalancer of %s excludes port %d/%s", names.Object(l.Owner),
				port.Port, port.Protocol)
		}
	}
	return ""
}

// advertised says which BGPAdvertisements announce an address, from which nodes, or why one does
// not; empty if none selects it.
func (r *reasoner) advertised(e *cluster.EgressIP, to netip.Addr) (text string) {
	for _, a := range bgp.Announcements(r.Cluster, e, to) {
		name := names.Object(a.By.Owner)
		switch {
		case len(a.Nodes) == 0:
			text += fmt.Sprintf("; %s selects %s, and no node may announce it", name, to)
		case a.Problem != "" && a.By.Status.Nodes == 0:
			text += fmt.Sprintf("; %s does not advertise it: %s", name, a.Problem)
		case a.Problem != "":
			text += fmt.Sprintf("; %s does not advertise it everywhere: %s", name, a.Problem)
		default:
			text += fmt.Sprintf("; advertised by %s from %s", name, strings.Join(a.Nodes, ", "))
		}
	}
	return text
}
