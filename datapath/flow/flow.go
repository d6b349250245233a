// Package flow is the wanted or found content of Open vSwitch on a node: our settings, bridges and
// ports, and the OpenFlow flows and groups of bridges.
//
// Flows are values: a Match is comparable and, with table and priority, the flow's identity, as in
// OpenFlow. Ports are named, never numbered: numbers change when a port is made again or Open
// vSwitch restarts, names do not.
package flow

import (
	"net/netip"
	"unique"

	"hairpin/cluster"
	"hairpin/delta"
)

// State is the content of Open vSwitch that is ours.
type State struct {
	Bridge   string            // the gateway bridge, which is another's: its ports and groups are, too
	Bridges  map[string]Bridge // ours alone, by name
	Settings map[string]string // keys of Open_vSwitch's external_ids
	Ports    map[string]Port   // by name
	Flows    delta.Map[ID, *Flow]
	Groups   delta.Map[GroupKey, *Group]
	// TunnelNeighbors are the MACs of tunnel peers. Only the userspace datapath needs them: it
	// loses the first packet to a peer that it has not resolved yet.
	TunnelNeighbors map[netip.Addr]cluster.MAC
	// TunnelBridge is the bridge that tunnels leave by, where that is not Bridge; TunnelRoutes
	// leads each peer's address to a neighbour on it. Only the userspace datapath of a node needs
	// them whose address is not on an Open vSwitch bridge.
	TunnelBridge string
	TunnelRoutes map[netip.Addr]netip.Addr
	// Unknown is what was read back with a cookie of ours and a match that this package has no
	// words for, such as a flow altered by hand. Never wanted, so Diff removes them.
	Unknown []Unknown
	// NoFlows are bridges of another program whose flows, which packets need, are gone: that of
	// OVN, br-int. Never wanted.
	NoFlows []string
}

// Bridge is an Open vSwitch bridge that must exist, and drops what no flow of ours knows (fail_mode
// secure).
type Bridge struct {
	Name      string
	Userspace bool // datapath_type netdev; all bridges of a node have the same
	// Standalone is never wanted: the bridge forwards by itself what no flow knows.
	Standalone bool
	// Learned is how many flows pipeline.SvcSessionAffinity has at most, Connections how many
	// claims.ZoneServices has on the bridge's datapath; 0 = no limit. They are ForeignLimit where
	// another program or an administrator set one.
	Learned, Connections int
	Owner                cluster.Owner
}

// ForeignLimit is never wanted: a limit that was read back, and that is not ours to change.
const ForeignLimit = -1

// Unknown is a flow of a bridge in the words of ovs-ofctl, ports numbered, without counters.
type Unknown struct {
	Bridge string // as in Key
	Flow   string
}

// Port is an Open vSwitch port that must exist, such as ovn-k8s-mp0 on br-int.
type Port struct {
	Name   string
	Bridge string
	Type   string // Interface type: "internal", "" …
	Peer   string // of a port of type patch: the one on another bridge that it leads to
	// Local is of a port of type geneve: this end of all tunnels, which flows tell apart by their
	// Tunnel.
	Local       netip.Addr
	MAC         cluster.MAC
	MTU         int               // bytes, mtu_request; 0 = not ours to say
	ExternalIDs map[string]string // of the Interface, those that are ours: iface-id
	Owner       cluster.Owner
}

// Key identifies a flow.
type Key struct {
	Bridge   string // one of State.Bridges; empty = the gateway bridge
	Table    uint8
	Priority uint16
	Match    Match
}

// ID is a Key where maps have it: a node has thousands of flows, whose map is copied for a change,
// and a Key has two hundred bytes.
type ID = unique.Handle[Key]

// ID is the same for the same Key.
func (k Key) ID() ID { return unique.Make(k) }

// Flow is one OpenFlow flow. Flows are immutable.
type Flow struct {
	Key
	Feature uint32 // upper half of the cookie: which feature wants it (lower half is claims.Cookie)
	Actions []Action
	Owner   cluster.Owner // not known of a flow read back
}

// Special port names of OpenFlow.
const (
	Local = "LOCAL" // the bridge's own port: the host
)

// Protocol is what the first words of an ovs-ofctl match say: the prerequisite of the other fields.
type Protocol uint8

// The protocols that matches name, with ovs-ofctl's words.
const (
	Any   Protocol = iota
	ARP            // arp
	IP             // ip
	IPv6           // ipv6
	TCP            // tcp
	TCP6           // tcp6
	UDP            // udp
	UDP6           // udp6
	SCTP           // sctp
	SCTP6          // sctp6
	ICMP           // icmp
	ICMP6          // icmp6
)

// Match is what a flow matches; zero fields match everything. It is comparable.
type Match struct {
	InPort   string // port name; empty = any
	Protocol Protocol
	VLAN     uint16 // dl_vlan; 0 = any
	Tagged   bool   // vlan_tci=0x1000/0x1000: the frame has a VLAN tag, of any number
	EthSrc   cluster.MAC
	EthDst   cluster.MAC
	// Src and Dst are nw_src/nw_dst, ipv6_src/ipv6_dst or arp_spa/arp_tpa, by Protocol.
	Src, Dst netip.Prefix
	TTL      uint8 // nw_ttl; 0 = any
	// SYN matches the first packet of a TCP connection: tcp_flags=+syn-ack.
	SYN bool
	// SrcPort and DstPort are tp_src and tp_dst; 0 = any. No fragment has them.
	SrcPort, DstPort uint16
	// ICMPType and ICMPCode are icmp_type and icmp_code (icmpv6_type, icmpv6_code) plus 1, so that
	// 0 is any.
	ICMPType, ICMPCode uint16
	// Target is nd_target, whose address a neighbour solicitation or advertisement is about, by
	// ICMPType.
	Target netip.Addr
	// LinkAddr is arp_sha, nd_sll or nd_tll, by Protocol and ICMPType: the MAC that the message
	// claims for the sender or the target. NoLinkAddr matches a neighbour discovery message without
	// that option.
	LinkAddr   cluster.MAC
	NoLinkAddr bool
	// PktMark is pkt_mark; 0 = any (no flow of ours matches mark 0).
	PktMark uint32
	// CTState has the wanted and the unwanted bits of ct_state.
	CTState CTState
	// CTMark is ct_mark; 0 = any.
	CTMark uint32
	// CTProtocol and CTDstPort are ct_nw_proto and ct_tp_dst: the IP protocol of the connection,
	// and where its first packet was going; 0 = any. All fragments have them, where a later one of
	// IPv6 is of no other protocol.
	CTProtocol uint8
	CTDstPort  uint16
	// Fragment is nw_frag: "" any, else "later", "not_later", "first", "no", "yes".
	Fragment string
	// Group is what SetGroup has noted, Bucket the one that a group of buckets with Next chose, or
	// a learned flow found; 0 = any.
	Group, Bucket uint32
	// Tunnel is what came with the packet of a tunnel.
	Tunnel Tunnel
}

// Tunnel is what OVN's Geneve packets carry, and the other end of the tunnel.
type Tunnel struct {
	Key uint32 // tun_id: of the logical datapath; 24 bits
	// tun_metadata0, which TunnelOption is for: keys of the logical ports where the packet came in
	// and where it leaves, 16 bits each
	Ports uint32
	Peer  netip.Addr // tun_src of a Match, tun_dst of SetTunnel
}

// TunnelOption leads from OVN's Geneve option (ovn-architecture(7), Tunnel Encapsulations) to
// Tunnel.Ports, in ovs-ofctl's words for a bridge.
const TunnelOption = "{class=0x102,type=0x80,len=4}->tun_metadata0"

// CTState is a ct_state match: +Set -Clear.
type CTState struct{ Set, Clear CTBits }

// CTBits are bits of ct_state, by their numbers in Open vSwitch.
type CTBits uint8

// The bits of ct_state.
const (
	CTNew CTBits = 1 << iota
	CTEst
	CTRel
	CTRpl
	CTInv
	CTTrk
	CTSnat
	CTDnat
)

// Action is one OpenFlow action, of a closed set: the types of this file.
type Action interface{ action() }

// Output sends the packet out of a port, by name (LOCAL for the host).
type Output struct{ Port string }

// InPort sends the packet out of the port where it came in.
type InPort struct{}

// Normal is the ordinary learning switch.
type Normal struct{}

// Drop is the empty action list, said aloud. It stands alone.
type Drop struct{}

// SetEthDst writes the destination MAC.
type SetEthDst struct{ MAC cluster.MAC }

// SetEthSrc writes the source MAC.
type SetEthSrc struct{ MAC cluster.MAC }

// SetSrc writes the source address.
type SetSrc struct{ Addr netip.Addr }

// SetTTL writes the time to live.
type SetTTL struct{ TTL uint8 }

// MoveEthDstToSrc copies the destination MAC to the source.
type MoveEthDstToSrc struct{}

// SetEthDstByCT writes the MAC that CT.EthSrc has noted with the connection to the destination.
type SetEthDstByCT struct{}

// MarkLonger writes the lowest bit of pkt_mark: whether the frame has more bytes than Length.
type MarkLonger struct{ Length uint16 }

// SetPktMark writes pkt_mark.
type SetPktMark struct{ Mark uint32 }

// SetTunnel is for a packet that leaves by a port of type geneve.
type SetTunnel struct{ Tunnel }

// Resubmit looks the packet up in another table, then comes back.
type Resubmit struct{ Table uint8 }

// PushVLAN adds a VLAN tag.
type PushVLAN struct{ ID uint16 }

// PopVLAN takes it off.
type PopVLAN struct{}

// ToGroup gives the packet to a group.
type ToGroup struct{ ID uint32 }

// SetGroup notes of which group a bucket is wanted (reg6), before one is looked for.
type SetGroup struct{ ID uint32 }

// Learn makes a flow in Table that notes the Bucket of this packet (reg7) for later ones with the
// same Group and the same source. Packets that find it keep it; it goes when there were none for
// Timeout, and when no flow learns for Client with this Timeout any more. Learned flows have a
// cookie that is not ours: they are not read, nor compared.
type Learn struct {
	Table   uint8
	Family  cluster.Family
	Ways    uint8  // how many of the Group's lower bits do not count
	Client  uint32 // upper half of the cookie: for whom it learns
	Timeout uint16 // seconds
	Limit   uint32 // how many flows are learned for Client at most
}

// CT sends the packet through conntrack and on to Table.
type CT struct {
	Commit bool
	Zone   uint16
	Table  uint8 // recirculates to it; 0 = the packet is not sent on (table 0 is never a target)
	NAT    NAT
	Mark   uint32 // exec(set_field:…->ct_mark); 0 = none
	EthSrc bool   // exec(move:…->ct_label): the source MAC, to which answers go
}

// NAT is the nat argument of CT.
type NAT struct {
	Kind NATKind
	// of NATSrc and NATDst; a NATSrc without one changes the port, and only if another connection
	// has the same answers
	Addr netip.Addr
	// PortMin and PortMax limit the ports of NATSrc; 0 = any.
	PortMin, PortMax uint16
}

// NATKind says what CT's nat argument does.
type NATKind uint8

// The kinds of NAT.
const (
	NoNAT   NATKind = iota
	NATUndo         // nat: translate as the connection says
	NATSrc          // nat(src=…)
	NATDst          // nat(dst=…)
)

// UnknownActions stands alone in a flow that was read back and that this package cannot read to its
// end. It is never wanted.
type UnknownActions struct {
	Attributes string // beside the match, such as "idle_timeout=5"; empty = none
	Text       string // what follows "actions="
}

func (Output) action()          {}
func (InPort) action()          {}
func (Normal) action()          {}
func (Drop) action()            {}
func (SetEthDst) action()       {}
func (SetEthSrc) action()       {}
func (SetSrc) action()          {}
func (SetTTL) action()          {}
func (MoveEthDstToSrc) action() {}
func (SetEthDstByCT) action()   {}
func (MarkLonger) action()      {}
func (SetPktMark) action()      {}
func (SetTunnel) action()       {}
func (Resubmit) action()        {}
func (PushVLAN) action()        {}
func (PopVLAN) action()         {}
func (ToGroup) action()         {}
func (SetGroup) action()        {}
func (Learn) action()           {}
func (CT) action()              {}
func (UnknownActions) action()  {}
