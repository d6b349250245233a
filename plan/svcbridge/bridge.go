package svcbridge

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/pipeline"
	"hairpin/plan/node"
	"hairpin/plan/stablehash"
)

// serviceBridge writes claims.ServiceBridge: the ports of a node's pods, the host's port, patch
// ports to OVN and to the gateway bridge, and flows and groups.
type serviceBridge struct {
	*node.Env
	ovs.State
	owner    cluster.Owner // of the flows that are added
	feature  uint32
	problems []cluster.Problem
}

func newServiceBridge(e *node.Env) *serviceBridge {
	return &serviceBridge{Env: e, owner: cluster.NodeOwner(e.Node.Name), feature: claims.FeatureServices}
}

// Priorities in the tables of claims.ServiceBridge, named after their main flows. Other flows use
// the same numbers where their order in a table requires it.
const (
	prioTagged       = 150 // VLAN tags, and external packets with this node's MACs
	prioExternalConn = 140 // packets of connections that the host or an external client began
	prioGuard        = 130 // against what pods must not send, or before the sender of a packet is known
	prioSelf         = 120 // hairpin, and addresses of the node itself
	prioFrom         = 110 // packets that may be translated
	prioVIP          = 105 // single addresses, which may be within a range
	prioTo           = 100
	prioJoin         = 95 // to gateway routers, and multicast
	prioExternal     = 90 // between pods and addresses outside the cluster, or to endpoints that are no pods
	prioNoService    = 10 // from the host or external clients, to no Service
	prioOthers       = 0
)

// add adds a flow.
func (w *serviceBridge) add(table uint8, priority uint16, m flow.Match, actions ...flow.Action) {
	k := flow.Key{Bridge: claims.ServiceBridge, Table: table, Priority: priority, Match: m}
	w.Flows.Put(k.ID(), flow.New(k, w.feature, w.owner, actions...))
}

// Base plans the bridge, its paths to OVN, to the host and to the gateway bridge, and the flows
// that depend on no pod and no Service.
func Base(e node.Env) (datapath.State, []cluster.Problem) {
	if !e.Engine.ServiceBridge {
		return datapath.State{}, nil
	}
	w := newServiceBridge(&e)
	w.bridge()
	w.sharedFlows()
	z := node.NewZone(e)
	b, k := node.NewBridge(&e, claims.FeatureGateway), node.NewKernel(&e)
	for i := range e.Stacks {
		s := &e.Stacks[i]
		routeRejected(z, s)
		hostRoutes(k, s)
		if e.HasExternalClients() {
			externalToServices(b, s)
		}
	}
	hostLink(k)
	w.Flows.Insert(b.Flows.All())
	return datapath.State{NB: z.Rows, Bridge: w.State, Host: k.State}, nil
}

// bridge adds the bridge and its ports to OVN, the host and the gateway bridge.
func (w *serviceBridge) bridge() {
	name := claims.ServiceBridge
	w.Bridges = map[string]ovs.Bridge{name: {Name: name, Userspace: w.Node.Gateway.Userspace, Owner: w.owner,
		Learned: affinityTotal, Connections: w.PodConnectionLimit()}}
	w.Named = map[string]bool{name: true}
	patch := func(name, bridge, peer string) ovs.Port {
		return ovs.Port{Name: name, Bridge: bridge, Type: "patch", Peer: peer, Owner: w.owner}
	}
	own, ovn := patch(claims.ServicePatch, name, claims.PodsPatch),
		patch(claims.PodsPatch, claims.IntegrationBridge, claims.ServicePatch)
	ovn.ExternalIDs = map[string]string{"iface-id": podsPort(w.Node.Name)}
	host := ovs.Port{Name: claims.ServiceHost, Bridge: name, Type: "internal", MAC: w.ServiceHostMAC(),
		MTU: w.ServiceHostMTU(), Owner: w.owner}
	w.Ports = map[string]ovs.Port{own.Name: own, ovn.Name: ovn, host.Name: host}
	if w.HasExternalPatch() {
		own, peer := patch(claims.ExternalPatch, name, claims.ServicesPatch),
			patch(claims.ServicesPatch, w.Node.Gateway.Bridge, claims.ExternalPatch)
		w.Ports[own.Name], w.Ports[peer.Name] = own, peer
	}
}

// podsPort returns the name of the node switch's port for the pods on claims.ServiceBridge.
func podsPort(node string) string { return "pods-" + node }

// externalPorts returns the ports on which packets from the host and external clients arrive.
func (w *serviceBridge) externalPorts() []string {
	ports := []string{claims.ServiceHost}
	if w.HasExternalPatch() {
		ports = append(ports, claims.ExternalPatch)
	}
	return ports
}

// toHost returns the last actions for packets to the host. It clears the packet mark, which is
// OVN's: the host's own rules may use marks otherwise.
func (w *serviceBridge) toHost(out flow.Action) []flow.Action {
	return []flow.Action{flow.SetEthSrc{MAC: node.MasqMAC()}, flow.SetEthDst{MAC: w.ServiceHostMAC()},
		flow.SetPktMark{}, out}
}

// defaultNext has the tables that pass on what no other flow of theirs matches. It is read-only.
var defaultNext = map[uint8]uint8{
	pipeline.SvcFromPod:           pipeline.SvcEgressClassifier,
	pipeline.SvcServiceConntrack:  pipeline.SvcServiceLB,
	pipeline.SvcPodConntrack:      pipeline.SvcEgressClassifier,
	pipeline.SvcExternalConntrack: pipeline.SvcEgressClassifier,
	pipeline.SvcServiceLB:         pipeline.SvcEgressClassifier,
	pipeline.SvcIngressClassifier: pipeline.SvcConntrackCommit,
	pipeline.SvcConntrackCommit:   pipeline.SvcSNAT,
	pipeline.SvcSNAT:              pipeline.SvcL3Forwarding,
	pipeline.SvcL3Forwarding:      pipeline.SvcL2Forwarding,
}

// sharedFlows adds the flows that depend on no pod and no Service.
func (w *serviceBridge) sharedFlows() {
	out := flow.Output{Port: claims.ServicePatch}
	fromOVN := flow.Match{InPort: claims.ServicePatch}
	w.add(pipeline.SvcClassifier, prioOthers+1, fromOVN, flow.Resubmit{Table: pipeline.SvcL2Forwarding})
	// No port of the bridge is a trunk, and no packet keeps a tag that a pod chose.
	w.add(pipeline.SvcClassifier, prioTagged, flow.Match{Tagged: true}, flow.Drop{})
	for table, next := range defaultNext {
		w.add(table, prioOthers, flow.Match{}, flow.Resubmit{Table: next})
	}
	for _, table := range []uint8{pipeline.SvcL2Forwarding, pipeline.SvcNeighborDiscovery} {
		w.add(table, prioOthers, flow.Match{}, out)
	}
	for _, port := range append(w.externalPorts(), claims.ServicePatch) {
		w.noEgressPolicy(port)
	}
	w.add(pipeline.SvcServiceConntrack, prioGuard, flow.Match{CTState: flow.CTState{Set: flow.CTTrk | flow.CTDnat}},
		flow.Resubmit{Table: pipeline.SvcEgressClassifier})
	w.add(pipeline.SvcServiceConntrack, prioFrom, flow.Match{CTState: flow.CTState{Set: flow.CTTrk | flow.CTInv}},
		flow.Drop{})
	for _, port := range w.externalPorts() {
		w.add(pipeline.SvcServiceLB, prioNoService, flow.Match{InPort: port}, flow.Drop{})
	}
	host := flow.Match{EthDst: w.ServiceHostMAC()}
	w.add(pipeline.SvcExternalReply, prioTo, host, w.toHost(flow.Output{Port: claims.ServiceHost})...)
	host.InPort = claims.ServiceHost
	w.add(pipeline.SvcExternalReply, prioVIP, host, w.toHost(flow.InPort{})...)
	if w.HasExternalPatch() {
		// Replies go to the source MAC of the request. So no external packet may have the MAC of
		// claims.ServiceHost or of the dummy next hop.
		for _, mac := range []cluster.MAC{w.ServiceHostMAC(), node.MasqMAC()} {
			w.add(pipeline.SvcClassifier, prioTagged, flow.Match{InPort: claims.ExternalPatch, EthSrc: mac},
				flow.Drop{})
		}
		w.add(pipeline.SvcExternalReply, prioOthers, flow.Match{}, flow.SetEthSrc{MAC: w.Node.Gateway.MAC},
			flow.SetPktMark{}, flow.Output{Port: claims.ExternalPatch})
	}
	for i := range w.Stacks {
		w.familyFlows(&w.Stacks[i])
	}
}

// familyFlows adds the shared flows of one family.
func (w *serviceBridge) familyFlows(s *node.Stack) {
	v := node.Vocab(s.Family)
	for _, r := range s.Services {
		w.trackVIPs(prioTo, r)
	}
	for _, r := range s.Cluster {
		w.add(pipeline.SvcFromPod, prioTo, flow.Match{Protocol: v.IP, Dst: r},
			track(claims.ZoneServices, pipeline.SvcPodConntrack))
		w.trackEndpoints(r)
	}
	for _, a := range ownVIPs(w.Env, s) {
		w.trackAddress(a, refs{vip: 1})
	}
	w.add(pipeline.SvcFromPod, prioJoin, flow.Match{Protocol: v.IP, Dst: s.Join.Masked()},
		flow.Resubmit{Table: pipeline.SvcL2Forwarding})
	w.add(pipeline.SvcClassifier, prioJoin,
		flow.Match{InPort: claims.ServicePatch, Protocol: v.IP, Src: s.Join.Masked()},
		flow.Resubmit{Table: pipeline.SvcL2Forwarding})
	w.add(pipeline.SvcClassifier, prioVIP, flow.Match{InPort: claims.ServicePatch, Protocol: v.IP, Dst: v.Multicast},
		flow.Resubmit{Table: pipeline.SvcMulticast})
	w.toMulticast(v, v.Multicast)
	w.dropDHCP(v)
	w.commitConnections(v)
	// Connections between pods and external addresses are tracked as well: any external address may
	// be a client of a Service under policy Local.
	w.add(pipeline.SvcFromPod, prioExternal, flow.Match{Protocol: v.IP, Src: s.Subnet},
		track(claims.ZoneServices, pipeline.SvcExternalConntrack))
	w.add(pipeline.SvcClassifier, prioExternal, flow.Match{InPort: claims.ServicePatch, Protocol: v.IP, Dst: s.Subnet},
		track(claims.ZoneServices, pipeline.SvcIngressClassifier))
	w.serveExternal(s)
	w.translateErrors(v)
	w.add(pipeline.SvcFromPod, prioFrom, flow.Match{Protocol: v.IP, Dst: node.HostPrefix(s.MasqHairpin)},
		track(claims.ZonePinned, pipeline.SvcUnSNAT))
	for _, bit := range []flow.CTBits{flow.CTNew, flow.CTInv} { // not a reply: pods may not send to this address
		w.add(pipeline.SvcUnSNAT, prioGuard, tracked(v.IP, bit, 0), flow.Drop{})
	}
	w.add(pipeline.SvcUnSNAT, prioOthers, flow.Match{Protocol: v.IP},
		track(claims.ZoneServices, pipeline.SvcHairpinReply))
	w.neighbors(s)
}

// commitConnections commits connections that no group has committed, and those that are no longer
// denied.
func (w *serviceBridge) commitConnections(v node.Vocabulary) {
	// A connection to no Service is tracked as well. Else a connection to a Service with the same
	// source port and endpoint would translate its replies. This may change the source port, but no
	// later flow matches it, so there is no recirculation. It is committed after all policies: else
	// a denied packet would leave an entry, and what its receiver sends would be a reply.
	w.add(pipeline.SvcConntrackCommit, prioTo, tracked(v.IP, flow.CTNew, flow.CTRel|flow.CTDnat),
		flow.CT{Commit: true, Zone: claims.ZoneServices, NAT: flow.NAT{Kind: flow.NATSrc}},
		flow.Resubmit{Table: pipeline.SvcSNAT})
	// The next packet of a client that is permitted again removes the mark. It does so even if the
	// node has no policies any more: otherwise a later policy would still find the mark.
	w.add(pipeline.SvcConntrackCommit, prioGuard, denied(v.IP, 0, flow.CTRpl|flow.CTInv),
		flow.CT{Commit: true, Zone: claims.ZoneServices, Table: pipeline.SvcSNAT, MarkMask: claims.CTMarkDenied})
}

// translateErrors translates ICMP errors about tracked connections.
func (w *serviceBridge) translateErrors(v node.Vocabulary) {
	// The kernel translates a client's ICMP error only with commit.
	w.add(pipeline.SvcServiceConntrack, prioSelf, tracked(v.IP, flow.CTRel, flow.CTRpl),
		flow.CT{Commit: true, Zone: claims.ZoneServices, Table: pipeline.SvcEgressClassifier,
			NAT: flow.NAT{Kind: flow.NATUndo}})
	// ICMP errors from any router on the path, without a recirculation: where OVN's switch tracks
	// them as well, they would have one too many.
	for _, t := range v.Errors {
		m := flow.Match{InPort: claims.ServicePatch, Protocol: v.ICMP, ICMPType: t + 1}
		w.add(pipeline.SvcClassifier, prioFrom, m,
			flow.CT{Zone: claims.ZoneServices, NAT: flow.NAT{Kind: flow.NATUndo}},
			flow.Resubmit{Table: pipeline.SvcL2Forwarding})
	}
}

// neighbors handles ARP and neighbor discovery, and IPv4 broadcasts.
func (w *serviceBridge) neighbors(s *node.Stack) {
	v := node.Vocab(s.Family)
	list := []flow.Match{{InPort: claims.ServicePatch, Protocol: flow.ARP}}
	if s.Family == cluster.IPv4 {
		w.toMulticast(v, node.HostPrefix(broadcast()))
	} else {
		w.add(pipeline.SvcFromPod, prioTo, flow.Match{Protocol: v.IP, Dst: v.LinkLocal},
			track(claims.ZoneServices, pipeline.SvcPodConntrack))
		solicitation := flow.Match{InPort: claims.ServicePatch, Protocol: flow.ICMP6,
			ICMPType: node.NeighborSolicitation + 1}
		advertisement := solicitation
		advertisement.ICMPType = node.NeighborAdvertisement + 1
		list = []flow.Match{solicitation, advertisement}
		for _, t := range []uint16{node.RouterAdvertisement, node.RedirectMessage} { // only routers send them
			w.add(pipeline.SvcFromPod, prioGuard, flow.Match{Protocol: flow.ICMP6, ICMPType: t + 1}, flow.Drop{})
		}
		w.neighborDiscovery()
	}
	for _, m := range list {
		w.add(pipeline.SvcClassifier, prioSelf, m, flow.Resubmit{Table: pipeline.SvcNeighborDiscovery})
	}
}

// broadcast returns the IPv4 broadcast address of every link.
func broadcast() netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, 255}) }

// trackVIPs tracks packets of pods to addresses that Services may have.
func (w *serviceBridge) trackVIPs(priority uint16, to netip.Prefix) {
	w.add(pipeline.SvcFromPod, priority, flow.Match{Protocol: node.Vocab(cluster.FamilyOf(to.Addr())).IP, Dst: to},
		track(claims.ZoneServices, pipeline.SvcServiceConntrack))
}

// trackEndpoints tracks packets from OVN whose source may be an endpoint, such as replies.
func (w *serviceBridge) trackEndpoints(from netip.Prefix) {
	m := flow.Match{InPort: claims.ServicePatch, Protocol: node.Vocab(cluster.FamilyOf(from.Addr())).IP, Src: from}
	w.add(pipeline.SvcClassifier, prioTo, m, track(claims.ZoneServices, pipeline.SvcIngressClassifier))
}

// pod adds the flows of a pod's port. The pod may send only from its own addresses. OVN could not
// check this, because replies get a Service's address before they reach OVN.
func (w *serviceBridge) pod(p *cluster.Pod) {
	if address, _ := w.AddressOf(p); address == "" { // the problem is reported with the pod's rows of OVN
		return
	}
	w.owner = p.Owner
	port := portOf(p)
	w.noEgressPolicy(port)
	from, out := flow.Match{InPort: port, EthSrc: p.MAC}, flow.Output{Port: port}
	// A pod could send others' addresses to the MAC of another pod: only OVN's packets go by it.
	w.add(pipeline.SvcL2Forwarding, prioTo, flow.Match{InPort: claims.ServicePatch, EthDst: p.MAC}, out)
	w.add(pipeline.SvcHairpinReply, prioTo, flow.Match{InPort: port}, flow.MoveEthDstToSrc{},
		flow.SetEthDst{MAC: p.MAC}, flow.InPort{})
	send := func(m flow.Match, to uint8) { w.add(pipeline.SvcClassifier, prioFrom, m, flow.Resubmit{Table: to}) }
	if w.Stack(cluster.IPv6) != nil {
		w.allowLinkLocal(from, out)
	}
	for ip, extra := range w.addressesOf(p) {
		s := w.Stack(cluster.FamilyOf(ip))
		v, own := node.Vocab(s.Family), node.HostPrefix(ip)
		m := from
		m.Protocol, m.Src = v.IP, own
		send(m, pipeline.SvcFromPod)
		if s.Family == cluster.IPv4 {
			m.Protocol, m.LinkAddr = flow.ARP, p.MAC
			send(m, pipeline.SvcNeighborDiscovery)
		} else {
			w.allowAdvertisements(from, ip)
		}
		w.floodAnnouncements(port, ip)
		if extra { // several pods may have it
			w.add(pipeline.SvcL3Forwarding, prioTo, flow.Match{EthDst: p.MAC, Protocol: v.IP, Dst: own}, out)
			continue
		}
		w.answerNeighbors(ip, out)
		w.add(pipeline.SvcL3Forwarding, prioTo, flow.Match{Protocol: v.IP, Dst: own}, flow.SetEthDst{MAC: p.MAC}, out)
		w.add(pipeline.SvcSNAT, prioSelf, flow.Match{InPort: port, Protocol: v.IP, Src: own, Dst: own},
			flow.CT{Commit: true, Zone: claims.ZonePinned, Table: pipeline.SvcHairpinReply,
				NAT: flow.NAT{Kind: flow.NATSrc, Addr: s.MasqHairpin}})
	}
}

// addressesOf iterates over the addresses of a pod that the node can serve, and whether each is an
// extra one.
func (w *serviceBridge) addressesOf(p *cluster.Pod) iter.Seq2[netip.Addr, bool] {
	return func(yield func(netip.Addr, bool) bool) {
		for i, ip := range slices.Concat(p.IPs, p.Extra) {
			s, extra := w.Stack(cluster.FamilyOf(ip)), i >= len(p.IPs)
			if s != nil && (extra || s.Subnet.Contains(ip)) && !yield(ip, extra) {
				return
			}
		}
	}
}

// allowLinkLocal lets a pod send from its link-local address, and solicit neighbors with its own
// MAC.
func (w *serviceBridge) allowLinkLocal(from flow.Match, out flow.Action) {
	link := linkLocal(from.EthSrc)
	w.answerNeighbors(link, out)
	w.add(pipeline.SvcL3Forwarding, prioTo, flow.Match{Protocol: flow.IPv6, Dst: node.HostPrefix(link)}, out)
	m := from
	m.Protocol, m.Src = flow.IPv6, node.HostPrefix(link)
	w.add(pipeline.SvcClassifier, prioFrom, m, flow.Resubmit{Table: pipeline.SvcFromPod})
	solicitation := flow.Match{InPort: from.InPort, Protocol: flow.ICMP6, ICMPType: node.NeighborSolicitation + 1,
		LinkAddr: from.EthSrc}
	w.add(pipeline.SvcNDSecurity, prioTo, solicitation, flow.Resubmit{Table: pipeline.SvcNeighborDiscovery})
	w.allowAdvertisements(from, link)
}

// allowAdvertisements lets a pod advertise one of its addresses, with its own MAC or with none.
func (w *serviceBridge) allowAdvertisements(from flow.Match, ip netip.Addr) {
	m := flow.Match{InPort: from.InPort, Protocol: flow.ICMP6, ICMPType: node.NeighborAdvertisement + 1, Target: ip}
	for _, mac := range []cluster.MAC{from.EthSrc, {}} {
		m.LinkAddr, m.NoLinkAddr = mac, mac == cluster.MAC{}
		w.add(pipeline.SvcNDSecurity, prioTo, m, flow.Resubmit{Table: pipeline.SvcNeighborDiscovery})
	}
}

// answerNeighbors sends ARP requests and neighbor solicitations for ip to the ports that have it.
func (w *serviceBridge) answerNeighbors(ip netip.Addr, out ...flow.Action) {
	if ip.Is4() {
		w.add(pipeline.SvcNeighborDiscovery, prioTo, flow.Match{Protocol: flow.ARP, Dst: node.HostPrefix(ip)}, out...)
		return
	}
	for _, t := range []uint16{node.NeighborSolicitation, node.NeighborAdvertisement} {
		w.add(pipeline.SvcNeighborDiscovery, prioTo,
			flow.Match{Protocol: flow.ICMP6, ICMPType: t + 1, Dst: node.HostPrefix(ip)}, out...)
	}
	w.add(pipeline.SvcNeighborDiscovery, prioTo-1,
		flow.Match{Protocol: flow.ICMP6, ICMPType: node.NeighborSolicitation + 1, Target: ip}, out...)
}

// floodAnnouncements floods a pod's gratuitous ARP or unsolicited advertisements of an address,
// because an extra address may have moved from another pod.
func (w *serviceBridge) floodAnnouncements(port string, ip netip.Addr) {
	m := flow.Match{InPort: port, Protocol: flow.ARP, Dst: node.HostPrefix(ip)}
	if ip.Is6() {
		m = flow.Match{InPort: port, Protocol: flow.ICMP6, ICMPType: node.NeighborAdvertisement + 1, Target: ip,
			Dst: node.Vocab(cluster.IPv6).Multicast}
	}
	w.add(pipeline.SvcNeighborDiscovery, prioFrom, m, flow.Resubmit{Table: pipeline.SvcMulticast})
}

// linkLocal returns the link-local address that follows from a MAC (RFC 4291, appendix A).
func linkLocal(m cluster.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
}

// portOf returns the name of the pod's port, or a derived name if it is not known (without a node).
func portOf(p *cluster.Pod) string {
	if p.Port != "" {
		return p.Port
	}
	return fmt.Sprintf("%s%08x", claims.PodInterface, stablehash.String32(p.LogicalPort()))
}
