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

// Priorities in pipeline.GatewayClassifier, those of the documents.
const (
	PrioNoTunnel   = 510 // pods and Services to the tunnels of nodes
	PrioNoMTU      = 510 // pods' MTU, told to nodes
	PrioOwnError   = 502 // ICMP, of the host's itself
	PrioAnswer     = 501 // of an external address that the redirect's flow has, too
	PrioRedirect   = 503 // what the eBPF programs bring for external addresses, and its answers
	PrioService    = 500 // between host and gateway router (docs/design/origins.md#host-to-service)
	PrioAnswered   = 499 // of external addresses to what the programs brought
	PrioTunnelIn   = 205
	PrioStranger   = 204 // to the tunnels, not from a node
	PrioTunnel     = 200
	PrioVLAN       = 150 // tagged frames for the host
	PrioNoVIP      = 115 // to the service range, and no load balancer wanted it
	PrioByHost     = 112 // to the dummy next hop: the host's to route
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
	PrioNoParts = 110 // fragments of tunnels' packets
	PrioKnown   = 100 // connections of OVN or of the host
	PrioTracked = 50  // packets to NodePorts
	PrioNew     = 10
)

func (b *Bridge) Add(table uint8, priority uint16, m flow.Match, actions ...flow.Action) {
	k := flow.Key{Table: table, Priority: priority, Match: m}
	b.Flows.Put(k.ID(), &flow.Flow{Key: k, Feature: b.feature, Actions: actions, Owner: b.Owner})
}

// Classify adds a flow of table 0.
func (b *Bridge) Classify(priority uint16, m flow.Match, actions ...flow.Action) {
	b.Add(pipeline.GatewayClassifier, priority, m, actions...)
}

// PrioDefault is OpenFlow's priority for flows that name none, as in the documents' tables 2 to 5.
const PrioDefault = 0x8000

// TrackFromUplink finds the connection of a packet from the uplink.
var TrackFromUplink = flow.CT{Table: pipeline.GatewayUplinkConntrack, Zone: claims.ZoneUplink,
	NAT: flow.NAT{Kind: flow.NATUndo}}

// ICMPv6 types of neighbour discovery, which is to IPv6 what ARP is to IPv4 (RFC 4861).
const (
	RouterAdvertisement   = 134
	NeighborSolicitation  = 135
	NeighborAdvertisement = 136
	RedirectMessage       = 137
)

// Priorities in pipeline.GatewayClassifier and pipeline.GatewayUplinkConntrack for addresses with
// source ranges: clients outside of them.
const (
	PrioBarred        = 108
	PrioBarredTracked = 48
)
