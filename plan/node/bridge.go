package node

import (
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/delta"
	"hairpin/pipeline"
)

// Bridge writes flows of the gateway bridge.
type Bridge struct {
	Env     *Env
	Flows   delta.Map[flow.ID, *flow.Flow]
	feature uint32        // of the flows that are added: one of claims.Feature…
	Owner   cluster.Owner // of the flows that are added

	MAC    cluster.MAC // of host and gateway router
	OVN    string      // port to the gateway router
	Uplink string      // port to the external network
}

// NewBridge returns a Bridge without flows. Its flows will belong to the planned node.
func NewBridge(e *Env, feature uint32) *Bridge {
	g := &e.Node.Gateway
	return &Bridge{
		Env: e, feature: feature, Owner: cluster.NodeOwner(e.Node.Name),
		MAC: g.MAC, OVN: patchPort(g.Bridge, e.Node.Name), Uplink: g.Uplink,
	}
}

// Priorities in pipeline.GatewayClassifier, as in the original designs (docs/design/origins.md).
const (
	PrioNoTunnel      = 510 // tunnel packets from pods and Services to nodes
	PrioNoMTU         = 510 // reports of the pods' MTU to nodes
	PrioRedirect      = 503 // requests of the eBPF programs to external addresses, and their replies
	PrioOwnError      = 502 // ICMP errors of the host itself
	PrioExternalReply = 501 // replies from an external address that a flow of the redirect matches, too
	PrioService       = 500 // between host and gateway router (docs/design/origins.md#host-to-service)
	PrioRedirectReply = 499 // replies from external addresses to requests of the programs
	PrioTunnelIn      = 205 // tunnel packets from nodes
	PrioForeignTunnel = 204 // tunnel packets that are not from a node
	PrioTunnel        = 200 // tunnel packets of this node
	PrioVLAN          = 150 // tagged frames for the host
	PrioNoVIP         = 115 // to the Service range, but no load balancer translated it
	PrioEgress        = 113 // pods' packets with the node's address in place of an egress address
	PrioByHost        = 112 // to the dummy next hop: the host routes it
	PrioNoNextHop     = 111 // other packets to the dummy next hop: dropped
	PrioNodePort      = 110 // to an address of a Service
	PrioSourceDenied  = 108 // the same, from clients outside the address's source ranges
	PrioMarked        = 105 // pod to a node's address, marked (docs/design/origins.md#policies)
	PrioPods          = 104 // pods' packets without SNAT
	PrioND            = 101
	PrioTrack         = 100 // other packets of the host and the gateway router
	PrioFromUplink    = 50
	PrioUnicast       = 10 // other frames to and from the bridge's MAC
	PrioForeign       = 9  // from the gateway router with another MAC
	PrioRest          = 0
)

// Priorities in pipeline.GatewayUplinkConntrack.
const (
	PrioTunnelFragment      = 110
	PrioKnown               = 100 // connections of OVN or of the host
	PrioTracked             = 50  // packets to NodePorts
	PrioSourceDeniedTracked = 48  // packets from clients outside the address's source ranges
	PrioNew                 = 10
)

// PrioDefault is OpenFlow's default priority, which the original designs use in tables 2 to 5.
const PrioDefault = 0x8000

// Add adds a flow of any table.
func (b *Bridge) Add(table uint8, priority uint16, m flow.Match, actions ...flow.Action) {
	b.AddTo("", table, priority, m, actions...)
}

// AddTo adds a flow of any bridge; "" is the gateway bridge.
func (b *Bridge) AddTo(bridge string, table uint8, priority uint16, m flow.Match, actions ...flow.Action) {
	k := flow.Key{Bridge: bridge, Table: table, Priority: priority, Match: m}
	b.Flows.Put(k.ID(), flow.New(k, b.feature, b.Owner, actions...))
}

// Classify adds a flow of pipeline.GatewayClassifier.
func (b *Bridge) Classify(priority uint16, m flow.Match, actions ...flow.Action) {
	b.Add(pipeline.GatewayClassifier, priority, m, actions...)
}

// NeighborReply matches the packets by which others learn a MAC: neighbor advertisements, or all
// ARP packets, because a request contains its sender's MAC, too.
func NeighborReply(f cluster.Family) flow.Match {
	if f == cluster.IPv4 {
		return flow.Match{Protocol: flow.ARP}
	}
	return flow.Match{Protocol: flow.ICMP6, ICMPType: NeighborAdvertisement + 1}
}

// Answer lets the gateway router answer for addresses. It answers for no others: a node releases an
// address by the removal of this flow, also while OVN hangs.
func (b *Bridge) Answer(addresses netip.Prefix) {
	m := NeighborReply(cluster.FamilyOf(addresses.Addr()))
	m.Src = addresses
	b.Add(pipeline.GatewayNeighborReplies, PrioDefault, m, flow.Normal{})
}

// TrackFromUplink finds the connection of a packet from the uplink.
var TrackFromUplink = flow.CT{Table: pipeline.GatewayUplinkConntrack, Zone: claims.ZoneUplink,
	NAT: flow.NAT{Kind: flow.NATUndo}}

// Fragments returns, for a match of UDP packets by port, the match of their fragments after a
// conntrack lookup, in new connections. A flow cannot match the port of a fragment (ovs-fields(7),
// nw_frag). The kernel's conntrack reassembles fragments. That of the userspace datapath does not,
// but the connection has the port, unless the fragment is treated as invalid.
func Fragments(v Vocabulary, m flow.Match) flow.Match {
	m.CTProtocol, m.CTDstPort = uint8(cluster.UDP), m.DstPort
	m.Protocol, m.DstPort, m.Fragment = v.IP, 0, "yes"
	m.CTState = flow.CTState{Set: flow.CTNew | flow.CTTrk}
	return m
}

// ICMPv6 types of neighbor discovery (RFC 4861). A flow.Match has a type plus 1.
const (
	RouterAdvertisement   = 134
	NeighborSolicitation  = 135
	NeighborAdvertisement = 136
	RedirectMessage       = 137
)
