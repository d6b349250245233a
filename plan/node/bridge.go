package node

import (
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
	feature uint32
	Owner   cluster.Owner

	Mac    cluster.MAC // of host and gateway router
	Ovn    string      // port to the gateway router
	Uplink string      // port to the external network
}

func NewBridge(e *Env, feature uint32) *Bridge {
	g := &e.Node.Gateway
	return &Bridge{
		Env: e, feature: feature, Owner: OwnerOf(e.Node.Name),
		Mac: g.MAC, Ovn: patchPort(g.Bridge, e.Node.Name), Uplink: g.Uplink,
	}
}

// Priorities in pipeline.GatewayClassifier, as in the original designs (docs/design/origins.md).
const (
	PrioNoTunnel   = 510 // tunnel packets from pods and Services to nodes
	PrioNoMTU      = 510 // reports of the pods' MTU to nodes
	PrioOwnError   = 502 // ICMP errors of the host itself
	PrioAnswer     = 501 // replies from an external address that a flow of the redirect matches, too
	PrioRedirect   = 503 // requests of the eBPF programs to external addresses, and their replies
	PrioService    = 500 // between host and gateway router (docs/design/origins.md#host-to-service)
	PrioAnswered   = 499 // replies from external addresses to requests of the programs
	PrioTunnelIn   = 205
	PrioStranger   = 204 // tunnel packets that are not from a node
	PrioTunnel     = 200
	PrioVLAN       = 150 // tagged frames for the host
	PrioNoVIP      = 115 // to the Service range, but no load balancer translated it
	PrioByHost     = 112 // to the dummy next hop: the host routes it
	PrioNoWay      = 111
	PrioNodePort   = 110
	PrioMarked     = 105 // pod to a node's address, marked (docs/design/origins.md#policies)
	PrioPods       = 104
	PrioND         = 101
	PrioTrack      = 100
	PrioFromUplink = 50
	PrioUnicast    = 10
	PrioForeign    = 9
	PrioRest       = 0
)

// Priorities in pipeline.GatewayUplinkConntrack.
const (
	PrioNoParts = 110 // fragments of tunnel packets
	PrioKnown   = 100 // connections of OVN or of the host
	PrioTracked = 50  // packets to NodePorts
	PrioNew     = 10
)

func (b *Bridge) Add(table uint8, priority uint16, m flow.Match, actions ...flow.Action) {
	k := flow.Key{Table: table, Priority: priority, Match: m}
	b.Flows.Put(k.ID(), flow.New(k, b.feature, b.Owner, actions...))
}

// Classify adds a flow of table 0.
func (b *Bridge) Classify(priority uint16, m flow.Match, actions ...flow.Action) {
	b.Add(pipeline.GatewayClassifier, priority, m, actions...)
}

// PrioDefault is OpenFlow's default priority, which the original designs use in tables 2 to 5.
const PrioDefault = 0x8000

// TrackFromUplink finds the connection of a packet from the uplink.
var TrackFromUplink = flow.CT{Table: pipeline.GatewayUplinkConntrack, Zone: claims.ZoneUplink,
	NAT: flow.NAT{Kind: flow.NATUndo}}

// ICMPv6 types of neighbor discovery (RFC 4861).
const (
	RouterAdvertisement   = 134
	NeighborSolicitation  = 135
	NeighborAdvertisement = 136
	RedirectMessage       = 137
)

// Priorities in pipeline.GatewayClassifier and pipeline.GatewayUplinkConntrack for clients outside
// the source ranges of an address.
const (
	PrioBarred        = 108
	PrioBarredTracked = 48
)
