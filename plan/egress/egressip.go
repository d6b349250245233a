package egress

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nb"
	"hairpin/plan/node"
	"hairpin/plan/selection"
)

// EgressIPs plans the EgressIPs. Their status has the assignments; labels select the pods. Pods of
// an EgressIP are in address sets: a new or removed pod changes a member, and no policy or NAT.
//
// On a pod's node, a policy sends its packets to destinations outside the cluster to the nodes that
// carry its addresses. There the gateway router SNATs them. While it does not know the pod yet, the
// bridge's drop flow drops them. The host SNATs to an address of another network than the gateway
// bridge's (host.go).
type EgressIPs struct {
	selection *selection.EgressIPs
	egressIPs []*cluster.EgressIP          // at the last update
	nodes     []*cluster.Node              // at the last update
	parts     map[cluster.Owner]egressPart // by EgressIP, if not empty
	shared    datapath.State
}

// egressPart is what one EgressIP needs on the planned node.
type egressPart struct {
	rows       nb.State
	hostEgress []hostEgress
	guarded    []netip.Prefix // pods that must not leave by the host as others do
	limits     []destinationLimit
	carriers   []int // IDs of the other nodes that the rows name
	owner      cluster.Owner
}

// New returns EgressIPs without any object.
func New() *EgressIPs {
	return &EgressIPs{selection: selection.NewEgressIPs(), parts: map[cluster.Owner]egressPart{}}
}

// Update plans the EgressIPs again that changed, or have other pods, or an address on a node that
// changed.
func (g *EgressIPs) Update(s *cluster.Snapshot, env *node.Env, c node.Changes, again bool) (gone, come datapath.State) {
	gone.NB, come.NB = nb.State{}, nb.State{}
	changed := !cluster.SameList(g.egressIPs, s.EgressIPs)
	g.egressIPs = s.EgressIPs
	replan := g.selection.Update(s)
	if again {
		for owner := range g.parts {
			replan[owner] = true
		}
		for _, e := range s.EgressIPs {
			replan[e.Owner] = true
		}
	}
	changedNodes := map[string]bool{}
	for _, n := range slices.Concat(c.Nodes.Removed, c.Nodes.Added) {
		changedNodes[n.Name] = true
	}
	if len(changedNodes) > 0 {
		for _, e := range s.EgressIPs {
			if slices.ContainsFunc(e.Assigned, func(a cluster.Assignment) bool { return changedNodes[a.Node] }) {
				replan[e.Owner] = true
			}
		}
	}
	if networks := g.networksChanged(s.Nodes); len(networks) > 0 {
		for _, e := range s.EgressIPs {
			if e.ByTable() && networks[env.Node.Name] ||
				slices.ContainsFunc(e.Assigned, func(a cluster.Assignment) bool { return networks[a.Node] }) {
				replan[e.Owner] = true
			}
		}
	}
	if len(replan)+len(changedNodes) == 0 && !again {
		return gone, come
	}
	for owner := range replan {
		maps.Copy(gone.NB, g.parts[owner].rows)
		delete(g.parts, owner)
		i, found := slices.BinarySearchFunc(s.EgressIPs, owner,
			func(e *cluster.EgressIP, o cluster.Owner) int { return e.Owner.Compare(o) })
		if !found {
			continue
		}
		if p := planEgressIP(env, s.EgressIPs[i], g.selection); len(p.rows)+len(p.guarded)+len(p.hostEgress) > 0 {
			g.parts[owner] = p
			maps.Copy(come.NB, p.rows)
		}
	}
	maps.Copy(gone.NB, g.shared.NB)
	gone.Host, gone.NFT, gone.Conn = g.shared.Host, g.shared.NFT, g.shared.Conn
	g.shared = planHost(env, g.parts)
	g.shared.NB = sharedRows(env, g.parts)
	g.shared.Conn = gone.Conn
	if changed || again {
		g.shared.Conn.Egress = trackedAddresses(env, s.EgressIPs)
	}
	maps.Copy(come.NB, g.shared.NB)
	come.Host, come.NFT, come.Conn = g.shared.Host, g.shared.NFT, g.shared.Conn
	return gone, come
}

// networksChanged returns the nodes whose networks differ from those at the last update. The
// networks decide which destinations an egress address is for.
func (g *EgressIPs) networksChanged(nodes []*cluster.Node) map[string]bool {
	if cluster.SameList(g.nodes, nodes) {
		return nil
	}
	changed := map[string]bool{}
	c := cluster.Compare(g.nodes, nodes, (*cluster.Node).Compare)
	for _, p := range c.Changed {
		if !slices.Equal(p[0].Gateway.Addresses, p[1].Gateway.Addresses) ||
			!slices.Equal(p[0].HostAddresses, p[1].HostAddresses) ||
			!reflect.DeepEqual(p[0].Links, p[1].Links) || !reflect.DeepEqual(p[0].Tables, p[1].Tables) {
			changed[p[1].Name] = true
		}
	}
	g.nodes = nodes
	return changed
}

// egressSet returns the name of the set of an EgressIP's pods. OVN allows no hyphen in it.
// Kubernetes allows no underscore in names, and no period in those of Services. So no two names are
// the same.
func egressSet(x cluster.Owner, f cluster.Family) string {
	name := "egressip_" + x.Name
	if x.Namespace != "" {
		name = "egressservice_" + x.Namespace + "." + x.Name
	}
	return strings.ReplaceAll(name, "-", "_") + "_" + node.Vocab(f).Match
}

// localPodsSet returns the name of the set of the pods on the planned node.
func localPodsSet(x cluster.Owner, f cluster.Family) string { return egressSet(x, f) + localSuffix }

const localSuffix = "_here"

func markedSet(f cluster.Family) string { return "egress_pods_" + node.Vocab(f).Match }

func nodesSet(f cluster.Family) string { return "node_ips_" + node.Vocab(f).Match }

// planEgressIP plans one EgressIP.
func planEgressIP(e *node.Env, x *cluster.EgressIP, selected *selection.EgressIPs) egressPart {
	part := egressPart{rows: nb.State{}, owner: x.Owner}
	ownByTable := x.ByTable() && x.Service.Network // each node's pods leave there, with no egress address
	for i := range e.Stacks {
		s := &e.Stacks[i]
		assigned, own := assignedTo(e, x, s.Family)
		if x.OnlyAnnounced() {
			if own.IsValid() {
				announce(e, &part, s, x, own)
			}
			continue
		}
		members := selected.Pods(x.Owner, s.Family)
		if len(assigned) == 0 && !own.IsValid() && !ownByTable || len(members) == 0 {
			continue // the pods leave as others do
		}
		all, local := addressesOf(e, s, members)
		switch {
		case len(local) == 0:
		case ownByTable:
			part.hostEgress = append(part.hostEgress, leaveByTable(e, part.rows, s, x, local)...)
		case len(assigned) == 0:
			// The address is no longer assigned to any node. This node's pods leave as others do.
			// Pods of nodes that may not know this yet are still translated here.
			all = slices.DeleteFunc(all, func(p netip.Prefix) bool { return slices.Contains(local, p) })
		default:
			hops, others := carriers(e, s, x, assigned)
			usual, choices := networkChoices(e, x, assigned)
			if list, _ := carriers(e, s, x, usual); len(list) > 0 {
				hops = list
			}
			reroute(e, part.rows, s, x, local, hops)
			chooseNetwork(e, part.rows, s, x, choices)
			part.limitDestinations(e, s, x, local)
			part.carriers = append(part.carriers, others...)
			if e.Mode.PodsByHost {
				part.guarded = append(part.guarded, local...)
			}
		}
		if !own.IsValid() || len(all) == 0 {
			continue
		}
		switch link, primary := egressLink(e, x, own); {
		case primary:
			translate(e, part.rows, s, x, own, all)
		case link != nil:
			toHost(e, part.rows, s, x, all)
			part.hostEgress = append(part.hostEgress, hostEgress{address: own, link: link,
				table: tableOf(e, x), service: x.Service, pods: all, answeredElsewhere: movesAway(e, x, own)})
		}
	}
	return part
}

// assignedTo returns the nodes of the addresses of a family, and the address that the planned node
// translates to, if any.
func assignedTo(e *node.Env, x *cluster.EgressIP, f cluster.Family) (list []cluster.Assignment, own netip.Addr) {
	for _, a := range x.Assigned {
		if cluster.FamilyOf(a.Address) == f {
			list = append(list, a)
			if a.Node == e.Node.Name {
				own = a.Address
			}
		}
	}
	if !own.IsValid() {
		own = movingAddress(e, x, f)
	}
	return list, own
}

// addressesOf returns the pods' addresses of a family, and those of the planned node's pods. Both
// are sorted, without duplicates.
func addressesOf(e *node.Env, s *node.Stack, members map[cluster.Owner]*cluster.Pod) (all, local []netip.Prefix) {
	for _, p := range members {
		for _, a := range p.IPs {
			if cluster.FamilyOf(a) != s.Family || !node.InRanges(s.Cluster, a) {
				continue
			}
			all = append(all, node.HostPrefix(a))
			if p.Node == e.Node.Name && s.Subnet.Contains(a) {
				local = append(local, node.HostPrefix(a))
			}
		}
	}
	return node.SortedPrefixes(all), node.SortedPrefixes(local)
}

// carriers returns the next hop to each node that carries an address: its router on the transit
// switch, or the own gateway router, or the host. It also returns the IDs of the other nodes. A
// node that cannot be reached is left out.
func carriers(e *node.Env, s *node.Stack, x *cluster.EgressIP,
	assigned []cluster.Assignment) (hops []netip.Addr, others []int) {
	for _, a := range assigned {
		if a.Node == e.Node.Name {
			switch link, primary := egressLink(e, x, a.Address); {
			case primary:
				hops = append(hops, s.Join.Addr())
			case link != nil:
				hops = append(hops, s.Management.Addr())
			}
			continue
		}
		n := cluster.NodeNamed(e.Nodes, a.Node)
		if n == nil || n.ID == 0 || e.RejectsNode(n) {
			continue
		}
		if hop := node.TransitAddress(s, n.ID); hop.IsValid() {
			hops, others = append(hops, hop), append(others, n.ID)
		}
	}
	slices.SortFunc(hops, netip.Addr.Compare)
	return slices.Compact(hops), others
}

// reroute sends packets of the node's own pods to destinations outside the cluster to the nodes
// that carry the addresses. If none of them can be reached, it drops the packets: another source
// address would be wrong.
func reroute(e *node.Env, rows nb.State, s *node.Stack, x *cluster.EgressIP, local []netip.Prefix, hops []netip.Addr) {
	p := rerouteTo(e, s, x, claims.PolicyEgress, fromPods(s, x), hops)
	if len(hops) == 0 {
		p.Action = nb.Drop
	}
	rows.Add(&nb.AddressSet{Name: localPodsSet(x.Owner, s.Family), Addresses: local, Owner: x.Owner}, p)
}

// rerouteTo returns the policy that reroutes packets of an EgressIP's pods to next hops. If one is
// the own gateway router, which would SNAT pods without an EgressIP to the node's address, the
// packets are marked: an address that comes or goes changes the route and the SNAT together, but
// for some milliseconds Open vSwitch uses the old flows of one and the new flows of the other. The
// gateway bridge drops marked packets from the node's address.
func rerouteTo(e *node.Env, s *node.Stack, x *cluster.EgressIP, priority int, match string,
	hops []netip.Addr) *nb.Policy {
	p := &nb.Policy{Router: claims.ClusterRouter, Priority: priority, Match: match, Action: nb.Reroute, NextHops: hops,
		Owner: x.Owner}
	if !e.Mode.PodsByHost && slices.Contains(hops, s.Join.Addr()) {
		p.Options = map[string]string{"pkt_mark": strconv.Itoa(claims.MarkEgress)}
	}
	return p
}

// fromPods returns the match of packets of this node's pods to destinations of an EgressIP.
func fromPods(s *node.Stack, x *cluster.EgressIP) string {
	m := node.Vocab(s.Family).Match
	match := m + ".src == $" + localPodsSet(x.Owner, s.Family)
	if to := ofFamily(x.Destinations, s.Family); len(to) > 0 {
		match += " && " + m + ".dst == " + node.MatchSet(to)
	}
	return match
}

// translate SNATs the pods to the egress address that this node carries. The row has a match, so it
// precedes the row that SNATs this node's own pods to the node's address.
func translate(e *node.Env, rows nb.State, s *node.Stack, x *cluster.EgressIP, own netip.Addr, all []netip.Prefix) {
	set := egressSet(x.Owner, s.Family)
	rows.Add(&nb.AddressSet{Name: set, Addresses: all, Owner: x.Owner})
	for _, c := range s.Cluster {
		rows.Add(&nb.NAT{
			Router: node.GatewayRouter(e.Node.Name), Type: nb.SNAT, External: own, Logical: c, Owner: x.Owner,
			Match: `outport == "` + node.RouterToExternal(e.Node.Name) + `" && ` + node.Vocab(s.Family).Match +
				".src == $" + set,
		})
	}
}

// sharedRows returns the rows that all EgressIPs share, and the port to other nodes. Packets within
// the cluster continue as routed. Packets to nodes are marked: a node that carries the pod's egress
// address translates them, and the bridge then undoes that.
func sharedRows(e *node.Env, parts map[cluster.Owner]egressPart) nb.State {
	rows := nb.State{}
	var carriers []int
	marked := map[cluster.Family][]netip.Prefix{}
	translated, byHost := map[cluster.Family]bool{}, map[cluster.Family]bool{}
	for _, part := range parts {
		carriers = append(carriers, part.carriers...)
		for _, h := range part.hostEgress {
			if len(h.pods) > 0 {
				byHost[cluster.FamilyOf(h.pods[0].Addr())] = true
			}
		}
		for _, r := range part.rows {
			switch r := r.(type) {
			case *nb.AddressSet:
				if strings.HasSuffix(r.Name, localSuffix) {
					f := cluster.FamilyOf(r.Addresses[0].Addr())
					marked[f] = append(marked[f], r.Addresses...)
				}
			case *nb.NAT:
				if r.Logical.Addr() != r.External { // otherwise it is only announced
					translated[cluster.FamilyOf(r.External)] = true
				}
			}
		}
	}
	slices.Sort(carriers)
	rows.Add(e.RemoteNodesPort(slices.Compact(carriers)))
	for i := range e.Stacks {
		s := &e.Stacks[i]
		foreign := translated[s.Family] && e.Mode.PodsByHost
		if len(marked[s.Family]) == 0 && !foreign && !byHost[s.Family] {
			continue
		}
		allowInternal(e, rows, s)
		if len(marked[s.Family]) > 0 {
			markToNodes(e, rows, s, node.SortedPrefixes(marked[s.Family]))
			if e.Engine.PodPorts { // else replies do not pass OVN
				routeReplies(e, rows, s)
			}
		}
		if foreign { // else they leave by the gateway router anyway
			throughRouter(e, rows, s)
		}
	}
	return rows
}

// allowInternal lets packets of pods within the cluster continue as routed.
func allowInternal(e *node.Env, rows nb.State, s *node.Stack) {
	m := node.Vocab(s.Family).Match
	for _, c := range s.Cluster {
		for _, to := range append(slices.Clone(s.Cluster), s.Join.Masked()) {
			rows.Add(&nb.Policy{
				Router: claims.ClusterRouter, Priority: claims.PolicyEastWest, Action: nb.Allow,
				Match: m + ".src == " + c.String() + " && " + m + ".dst == " + to.String(),
				Owner: cluster.NodeOwner(e.Node.Name),
			})
		}
	}
}

// routeReplies keeps replies to external clients on the path of the requests, if a Service's policy
// Local has kept the client's address: they look like a pod's packets to outside. Only the node
// switch tracks connections, so it marks them. It marks none to pods and gateway routers of other
// nodes: a userspace Open vSwitch finds no route for a tunnel packet with a mark.
func routeReplies(e *node.Env, rows nb.State, s *node.Stack) {
	owner := cluster.NodeOwner(e.Node.Name)
	rows.Add(&nb.Policy{
		Router: claims.ClusterRouter, Priority: claims.PolicyReplies, Action: nb.Allow, Owner: owner,
		Match: "pkt.mark == " + strconv.Itoa(claims.MarkReply) + " && " + node.Vocab(s.Family).Match + ".src == $" +
			markedSet(s.Family),
	})
	for _, to := range append(slices.Clone(s.Cluster), s.Join.Masked()) {
		rows.Add(&nb.QoS{
			Switch: e.Node.Name, Priority: claims.QoSInside, Owner: owner,
			Match: "ct.rpl && " + node.Vocab(s.Family).Match + ".dst == " + to.String(),
		})
	}
	rows.Add(&nb.QoS{
		Switch: e.Node.Name, Priority: claims.PolicyReplies, Mark: claims.MarkReply, Owner: owner,
		Match: "ct.rpl && " + node.Vocab(s.Family).Match + ".src == $" + markedSet(s.Family),
	})
}

// markToNodes marks packets of pods with an egress address to nodes.
func markToNodes(e *node.Env, rows nb.State, s *node.Stack, marked []netip.Prefix) {
	m, owner := node.Vocab(s.Family).Match, cluster.NodeOwner(e.Node.Name)
	rows.Add(
		&nb.AddressSet{Name: markedSet(s.Family), Addresses: marked, Owner: owner},
		&nb.AddressSet{Name: nodesSet(s.Family), Addresses: e.NodeAddresses(s), Owner: owner},
		&nb.Policy{
			Router: claims.ClusterRouter, Priority: claims.PolicyEastWest, Action: nb.Allow, Owner: owner,
			Match:   m + ".src == $" + markedSet(s.Family) + " && " + m + ".dst == $" + nodesSet(s.Family),
			Options: map[string]string{"pkt_mark": strconv.Itoa(claims.MarkNodeIP)},
		},
	)
}

// throughRouter sends foreign pods' packets for this node's egress addresses to the gateway router,
// in modes in which pods of this node leave by the host.
func throughRouter(e *node.Env, rows nb.State, s *node.Stack) {
	for _, c := range s.Cluster {
		rows.Add(&nb.Policy{
			Router: claims.ClusterRouter, Priority: claims.PolicyEgress, Action: nb.Reroute,
			NextHops: []netip.Addr{s.Join.Addr()},
			Match: `inport == "` + node.RouterToTransit(e.Node.Name) + `" && ` + node.Vocab(s.Family).Match +
				".src == " + c.String(), Owner: cluster.NodeOwner(e.Node.Name),
		})
	}
}
