package plan

import (
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/delta"
)

// gateway is the node's gateway bridge, and the host behind it. The uplink, the host (LOCAL) and the gateway router (the
// patch port) meet on the bridge; host and gateway router have the same addresses. Not every mode has the uplink there.
func gateway(e Env) (datapath.State, []cluster.Problem) {
	b := newBridge(&e, claims.FeatureGateway)
	for i := range e.Stacks {
		s := &e.Stacks[i]
		b.hostEndpoint(s)
		if e.Mode.Uplink {
			b.fromOVN(s)
			if e.byHost(s) {
				b.byHost(s)
			}
			b.fromHost(s)
			b.fromWire(s)
		} else {
			b.throughHost(s)
		}
	}
	if e.Mode.Uplink {
		b.layer2()
		b.tunnels()
	} else {
		b.classify(prioRest, flow.Match{}, flow.Drop{})
	}
	for i := range e.Stacks {
		b.noTunnels(&e.Stacks[i], e.Stacks[i].MasqHost) // the host's, too
	}
	b.rewrite()
	return datapath.State{Bridge: flow.State{Flows: b.flows}, Host: hostSide(&e), NFT: hostFilter(&e)}, nil
}

// bridge writes flows of the gateway bridge.
type bridge struct {
	env     *Env
	flows   delta.Map[flow.ID, *flow.Flow]
	feature uint32
	owner   cluster.Owner

	mac    cluster.MAC // of host and gateway router
	ovn    string      // port to the gateway router
	uplink string      // port to the external network
}

func newBridge(e *Env, feature uint32) *bridge {
	g := &e.Node.Gateway
	return &bridge{
		env: e, feature: feature, owner: nodeOwner(e.Node.Name),
		mac: g.MAC, ovn: patchPort(g.Bridge, e.Node.Name), uplink: g.Uplink,
	}
}

// Priorities in claims.TableClassify, those of the documents.
const (
	prioNoTunnel = 510 // pods and Services to the tunnels of nodes
	prioNoMTU    = 510 // pods' MTU, told to nodes
	prioOwnError = 502 // ICMP, of the host's itself
	prioAnswer   = 501 // of an external address that the redirect's flow has, too
	prioRedirect = 503 // what the eBPF programs bring for external addresses, and its answers
	prioService  = 500 // between host and gateway router (host-to-service.md)
	prioAnswered = 499 // of external addresses to what the programs brought
	prioTunnelIn = 205
	prioStranger = 204 // to the tunnels, not from a node
	prioTunnel   = 200
	prioVLAN     = 150 // tagged frames for the host
	prioNoVIP    = 115 // to the service range, and no load balancer wanted it
	prioByHost   = 112 // to the dummy next hop: the host's to route
	prioNoWay    = 111
	prioNodePort = 110
	prioMarked   = 105 // pod to a node's address, marked (egress-ip.md)
	prioPods     = 104
	prioND       = 101
	prioTrack    = 100
	prioFromWire = 50
	prioUnicast  = 10
	prioForeign  = 9
	prioRest     = 0
)

// Priorities in claims.TableUplink.
const (
	prioNoParts = 110 // fragments of tunnels' packets
	prioKnown   = 100 // connections of OVN or of the host
	prioTracked = 50  // packets to NodePorts
	prioNew     = 10
)

func (b *bridge) add(table uint8, priority uint16, m flow.Match, actions ...flow.Action) {
	k := flow.Key{Table: table, Priority: priority, Match: m}
	b.flows.Put(k.ID(), &flow.Flow{Key: k, Feature: b.feature, Actions: actions, Owner: b.owner})
}

// classify adds a flow of table 0.
func (b *bridge) classify(priority uint16, m flow.Match, actions ...flow.Action) {
	b.add(claims.TableClassify, priority, m, actions...)
}

// hostEndpoint leads what the gateway router sends to an endpoint on this very host to the host, from OVN's masquerade
// address, so that the host sees a connection from outside and not one from itself; and the replies back.
func (b *bridge) hostEndpoint(s *Stack) {
	ip, own := words(s.Family).ip, s.Address.Addr()
	// The primary address: the load balancer wrote the host's masquerade address instead (host-to-service.md).
	b.classify(prioService, flow.Match{InPort: b.ovn, Protocol: ip, Src: single(own), Dst: single(s.MasqHost)},
		flow.CT{Commit: true, Table: claims.TableReturn, Zone: claims.ZoneHost, NAT: flow.NAT{Kind: flow.NATDst, Addr: own}})
	// Secondary addresses stay themselves. Detached, they are like any other beyond the host.
	for _, a := range s.Others {
		if !b.env.Mode.Uplink {
			break
		}
		b.classify(prioService, flow.Match{InPort: b.ovn, Protocol: ip, Src: single(own), Dst: single(a)},
			flow.CT{Commit: true, Table: claims.TableReturn, Zone: claims.ZoneHost})
	}
	b.add(claims.TableReturn, prioDefault, flow.Match{Protocol: ip},
		flow.CT{Commit: true, Table: claims.TableToHost, Zone: claims.ZoneReturn, NAT: flow.NAT{Kind: flow.NATSrc, Addr: s.MasqRouter}})
	b.classify(prioService, flow.Match{InPort: flow.Local, Protocol: ip, Dst: single(s.MasqRouter)},
		flow.CT{Table: claims.TableUnDNAT, Zone: claims.ZoneReturn, NAT: flow.NAT{Kind: flow.NATUndo}})
	// Without commit: these are replies only (gateway-pitfalls.md).
	b.add(claims.TableUnDNAT, prioDefault, flow.Match{Protocol: ip},
		flow.CT{Table: claims.TableToOVN, Zone: claims.ZoneHost, NAT: flow.NAT{Kind: flow.NATUndo}})
}

// prioDefault is OpenFlow's priority for flows that name none, as in the documents' tables 2 to 5.
const prioDefault = 0x8000

// fromOVN sends the gateway router's packets to the uplink and records the connections as OVN's. Only its own
// MAC may leave (gateway-pitfalls.md).
func (b *bridge) fromOVN(s *Stack) {
	m := flow.Match{InPort: b.ovn, EthSrc: b.mac, Protocol: words(s.Family).ip}
	track := flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkOVN}
	out := flow.Output{Port: b.uplink}

	// Pod to a node's address, SNATed to an egress IP on the way: give it the node's address like any other pod.
	marked, asNode := m, track
	marked.PktMark = claims.MarkNodeIP
	asNode.NAT = flow.NAT{Kind: flow.NATSrc, Addr: s.Address.Addr()}
	as := []flow.Action{asNode, out}
	if b.env.hasExternalClients() { // the source port may become one of a Service
		as = []flow.Action{asNode, flow.CT{Commit: true, Zone: claims.ZoneServices, Mark: claims.CTMarkNode}, out}
	}
	b.classify(prioMarked, marked, as...)
	// Pods that were not SNATed must not be seen outside: others', because their egress SNAT is not there yet (egress-ip.md),
	// and this node's, because only a packet that conntrack calls invalid leaves the gateway router so. The document lets
	// those pass at priority 109.
	for _, c := range s.Cluster {
		b.classify(prioPods, flow.Match{InPort: b.ovn, Protocol: m.Protocol, Src: c}, flow.Drop{})
	}
	b.classify(prioTrack, m, track, out)
}

// throughHost leads everything else that the gateway router sends, such as to an endpoint on another host, through the
// host, which routes it: from OVN's masquerade address, because the host drops what comes in from its own (martian source).
func (b *bridge) throughHost(s *Stack) {
	b.classify(prioTrack, flow.Match{InPort: b.ovn, Protocol: words(s.Family).ip, Src: single(s.Address.Addr())},
		flow.CT{Commit: true, Table: claims.TableReturn, Zone: claims.ZoneHost})
}

// byHost leads what the gateway router sends to the dummy next hop by the host: such as to an endpoint on another network of the
// host's. It is as in throughHost, with an uplink that must not get the rest: where there is no default gateway, what has an egress
// address has no way, because the host would send it by another network.
func (b *bridge) byHost(s *Stack) {
	m := flow.Match{InPort: b.ovn, EthDst: masqMAC(), Protocol: words(s.Family).ip}
	own, marked := m, m
	own.Src, marked.PktMark = single(s.Address.Addr()), claims.MarkNodeIP
	for _, x := range []flow.Match{own, marked} {
		b.classify(prioByHost, x, flow.CT{Commit: true, Table: claims.TableReturn, Zone: claims.ZoneHost})
	}
	b.classify(prioNoWay, m, flow.Drop{})
	// What the host itself says of such a packet, that it is too long for a link or may not pass, has the node's address, and the gateway
	// router takes nothing from its own.
	b.classify(prioOwnError, flow.Match{InPort: flow.Local, Protocol: words(s.Family).icmp, Src: own.Src, Dst: single(s.MasqRouter)}, flow.SetSrc{Addr: s.MasqHost},
		flow.CT{Table: claims.TableUnDNAT, Zone: claims.ZoneReturn, NAT: flow.NAT{Kind: flow.NATUndo}})
}

// fromHost sends the host's packets to the uplink and records the connections as the host's. The documents let conntrack
// translate as well, ct(commit,nat), and there is nothing to translate: of a new connection the userspace datapath of Open
// vSwitch 3.5.0 would then keep an entry that it never removes, but frees, and end sooner or later with SIGSEGV.
func (b *bridge) fromHost(s *Stack) {
	b.classify(prioTrack, flow.Match{InPort: flow.Local, Protocol: words(s.Family).ip},
		flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkHost}, flow.Output{Port: b.uplink})
}

// trackFromWire finds the connection of a packet from the uplink.
var trackFromWire = flow.CT{Table: claims.TableUplink, Zone: claims.ZoneUplink, NAT: flow.NAT{Kind: flow.NATUndo}}

// fromWire gives packets from the uplink to the owner of their connection. What has another destination MAC
// is left to the switch (gateway-pitfalls.md).
func (b *bridge) fromWire(s *Stack) {
	ip := words(s.Family).ip
	b.classify(prioFromWire, flow.Match{InPort: b.uplink, EthDst: b.mac, Protocol: ip}, trackFromWire)
	for _, bit := range []flow.CTBits{flow.CTEst, flow.CTRel} { // rel: ICMP errors follow their connection
		state := flow.CTState{Set: bit | flow.CTTrk}
		b.add(claims.TableUplink, prioKnown, flow.Match{Protocol: ip, CTState: state, CTMark: claims.CTMarkOVN}, flow.Output{Port: b.ovn})
		b.add(claims.TableUplink, prioKnown, flow.Match{Protocol: ip, CTState: state, CTMark: claims.CTMarkHost}, flow.Output{Port: flow.Local})
	}
	// What conntrack calls invalid of a connection of OVN's is OVN's all the same, not the host's, which would end it. It is so on
	// the userspace datapath: after a loss, and where a connection ended unseen and another one has its ports, as when an egress
	// address was elsewhere meanwhile. The kernel's learns, and remembers no mark with what it calls invalid.
	b.add(claims.TableUplink, prioKnown, flow.Match{Protocol: ip, CTState: flow.CTState{Set: flow.CTInv | flow.CTTrk}, CTMark: claims.CTMarkOVN},
		flow.Output{Port: b.ovn})
	if b.env.hasExternalClients() { // claims.ServiceBridge is asked first
		return
	}
	// New connections that are not to a NodePort are the host's. Committed here, in their own direction: the host's
	// reply finds them and commits nothing.
	b.add(claims.TableUplink, prioNew, flow.Match{Protocol: ip, CTState: flow.CTState{Set: flow.CTNew | flow.CTTrk}},
		flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkHost}, flow.Output{Port: flow.Local})
}

// ICMPv6 types of neighbour discovery, which is to IPv6 what ARP is to IPv4 (RFC 4861).
const (
	routerAdvertisement   = 134
	neighborSolicitation  = 135
	neighborAdvertisement = 136
	redirectMessage       = 137
)

// layer2 is what remains: ARP, neighbour discovery, broadcast, multicast and other protocols. Host and gateway router
// share addresses, so both must hear what is sent to them.
func (b *bridge) layer2() {
	both := []flow.Action{flow.Output{Port: b.ovn}, flow.Output{Port: flow.Local}}
	if b.env.stack(cluster.IPv6) != nil { // ARP is not IP and needs no exception from the flows above
		for _, t := range []uint16{neighborSolicitation, neighborAdvertisement} {
			nd := flow.Match{Protocol: flow.ICMP6, ICMPType: t + 1}
			fromHost, fromOVN, fromWire := nd, nd, nd
			fromHost.InPort = flow.Local
			fromOVN.InPort, fromOVN.EthSrc = b.ovn, b.mac
			fromWire.InPort, fromWire.EthDst = b.uplink, b.mac
			b.classify(prioND, fromHost, flow.Normal{})
			b.classify(prioND, fromOVN, flow.Normal{})
			b.classify(prioND, fromWire, both...)
		}
	}
	for _, f := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
		if b.env.stack(f) == nil { // the host's alone: the gateway router has no address of this family
			b.classify(prioFromWire, flow.Match{InPort: b.uplink, EthDst: b.mac, Protocol: words(f).ip}, flow.Output{Port: flow.Local})
		}
	}
	// Nothing that is served here has a VLAN tag. What the host has VLANs for is its own.
	b.classify(prioVLAN, flow.Match{InPort: b.uplink, EthDst: b.mac, Tagged: true}, flow.Output{Port: flow.Local})
	b.classify(prioUnicast, flow.Match{InPort: b.uplink, EthDst: b.mac}, both...)
	b.classify(prioUnicast, flow.Match{InPort: b.ovn, EthSrc: b.mac}, flow.Normal{})
	b.classify(prioForeign, flow.Match{InPort: b.ovn}, flow.Drop{})
	b.classify(prioRest, flow.Match{}, flow.Normal{})
	// From the uplink to the host's MAC, of an unknown connection: the host answers.
	b.add(claims.TableUplink, prioRest, flow.Match{}, flow.Output{Port: flow.Local})
}

// rewrite are the last tables of the way between host and gateway router, which share one MAC. Each must see
// its own as destination and the next hop's as source: the gateway router refuses packets by sending them back where they
// came from, and its switch sends nothing to a port that it came from. Packet marks are OVN's: the host's own rules may read them otherwise.
func (b *bridge) rewrite() {
	b.add(claims.TableToOVN, prioDefault, flow.Match{}, flow.SetEthSrc{MAC: masqMAC()}, flow.SetEthDst{MAC: b.mac}, flow.Output{Port: b.ovn})
	b.add(claims.TableToHost, prioDefault, flow.Match{}, flow.MoveEthDstToSrc{}, flow.SetEthDst{MAC: b.mac},
		flow.SetPktMark{}, flow.Output{Port: flow.Local})
}
