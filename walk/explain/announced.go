package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"hairpin/cluster"
	"hairpin/plan/assign"
	"hairpin/plan/bgp"
	"hairpin/walk"
)

// announced names the nodes that announce the destination of a packet from outside, if it is an
// address of a pool: on its network, with the node that would take over, and by BGP.
func (r *reasoner) announced() string {
	to := r.t.Sent.Dst
	e := r.egressIP(to)
	if r.t.From != (walk.Point{}) || e == nil || !e.OnlyAnnounced() {
		return ""
	}
	text, advertised := "", r.advertised(e, to)
	if n := r.s.Node(e.NodeOf(to)); n != nil {
		_, local := cluster.NetworkOf(n.Networks(&r.s.Config), to)
		next := assign.Successors(r.s, n.Name)[to]
		switch {
		case local && (next == "" || next == n.Name):
			text = fmt.Sprintf("; %s announces %s, and no other node can", n.Name, to)
		case local:
			text = fmt.Sprintf("; %s announces %s, and %s would take over", n.Name, to, next)
		case advertised == "":
			text = fmt.Sprintf("; no network of %s has %s, and no BGPAdvertisement selects it: routers need a route to it",
				n.Name, to)
		}
	}
	return text + advertised
}

// advertised says which BGPAdvertisements announce an address, from which nodes, or why one does
// not; empty if none selects it.
func (r *reasoner) advertised(e *cluster.EgressIP, to netip.Addr) (text string) {
	for _, a := range bgp.Announcements(r.s, e, to) {
		name := object(a.By.Owner)
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
