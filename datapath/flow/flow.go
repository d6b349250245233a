// Package flow describes OpenFlow flows and groups as values, and converts them from and to their
// two other forms: text in ovs-ofctl's syntax ([ParseFlow], String) and OpenFlow messages (Encode,
// [Decode]). Check returns why Open vSwitch would refuse a flow or a group, or change it.
//
// A Match is comparable and, with bridge, table and priority, the flow's identity, as in OpenFlow.
// Ports have names, not numbers: numbers change when a port is added again or Open vSwitch
// restarts, names do not. Each field of a Match and each action is described once (fields, codecs):
// a flow that is printed, parsed, encoded and decoded is the same flow.
package flow

import (
	"net/netip"
	"slices"
	"unique"

	"hairpin/claims"
	"hairpin/cluster"
)

// Key identifies a flow.
type Key struct {
	Bridge   string // one that only Hairpin uses (package ovs); empty = the gateway bridge
	Table    uint8
	Priority uint16
	Match    Match
}

// ID is a compact Key for maps: a node has thousands of flows, a change copies their map, and a Key
// has two hundred bytes.
type ID = unique.Handle[Key]

// ID returns the same ID for equal Keys.
func (k Key) ID() ID { return unique.Make(k) }

// Flow is one OpenFlow flow. Flows are immutable.
type Flow struct {
	Key
	Feature uint32 // upper half of the cookie: the feature that wants it (lower half: claims.Cookie)
	Actions []Action
	Owner   cluster.Owner // unknown for a flow that was read back
}

// New returns a flow of a feature. A flow that drops has claims.FeatureDrop as well.
func New(k Key, feature uint32, owner cluster.Owner, actions ...Action) *Flow {
	if slices.Contains(actions, Action(Drop{})) {
		feature |= claims.FeatureDrop
	}
	return &Flow{Key: k, Feature: feature, Actions: actions, Owner: owner}
}

// Equal reports whether two flows have the same match, cookie and actions. It ignores the owner,
// which the switch does not store.
func (f *Flow) Equal(g *Flow) bool {
	return f == g || f.Key == g.Key && f.Feature == g.Feature && slices.Equal(f.Actions, g.Actions)
}

// Local is OpenFlow's name of the bridge's own port: the host.
const Local = "LOCAL"

// Protocol is the protocol keyword of an ovs-ofctl match: the prerequisite of other fields.
type Protocol uint8

// The protocols in matches, with ovs-ofctl's keywords.
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
	Tagged   bool  // vlan_tci=0x1000/0x1000: the frame has a VLAN tag with any ID
	TTL      uint8 // nw_ttl; 0 = any
	EthSrc   cluster.MAC
	EthDst   cluster.MAC
	// Src and Dst are nw_src/nw_dst, ipv6_src/ipv6_dst or arp_spa/arp_tpa, by Protocol.
	Src, Dst netip.Prefix
	TCPFlags string // tcp_flags: SYN or NoSYN; empty = any
	// SrcPort and DstPort are tp_src and tp_dst; 0 = any. Fragments do not have them.
	SrcPort, DstPort uint16
	// DstMask has the bits of DstPort that are compared; 0 = all, if DstPort is not 0.
	DstMask uint16
	// ICMPType and ICMPCode are icmp_type and icmp_code (icmpv6_type, icmpv6_code) plus 1, so that
	// 0 is any.
	ICMPType, ICMPCode uint16
	// Target is nd_target: the address that a neighbour solicitation or advertisement (by ICMPType)
	// is about.
	Target netip.Addr
	// LinkAddr is arp_sha, nd_sll or nd_tll, by Protocol and ICMPType: the MAC in the message of
	// the sender or the target. NoLinkAddr matches a neighbour discovery message without that
	// option.
	LinkAddr   cluster.MAC
	NoLinkAddr bool
	// PktMark is pkt_mark; 0 = any (no flow of ours matches mark 0).
	PktMark uint32
	// CTState holds the required and the excluded bits of ct_state.
	CTState CTState
	// CTMark is ct_mark; 0 = any. CTMarkMask has the bits that are compared; 0 = all.
	CTMark, CTMarkMask uint32
	// CTProtocol and CTDstPort are ct_nw_proto and ct_tp_dst: the IP protocol of the connection,
	// and the destination port of its first packet; 0 = any. All fragments have them, even later
	// ones of IPv6, which have no Protocol but IPv6.
	CTProtocol uint8
	CTDstPort  uint16
	// Fragment is nw_frag: "" any, else "later", "not_later", "first", "no", "yes".
	Fragment string
	// Group is the group that SetGroup set. Bucket is the bucket with Next that a group chose for
	// the packet, or that a learned flow set (Learn); 0 = any.
	Group, Bucket uint32
	// Profile is what SetProfile set; 0 = any.
	Profile uint32
	// ConjID is conj_id: a packet matches if it matched one flow of each clause of the Conjunctions
	// with that ID, in the same table and at the same priority; 0 = any.
	ConjID uint32
	// Tunnel holds the tunnel fields of a packet that arrived by a tunnel.
	Tunnel Tunnel
}

// Values of Match.TCPFlags.
const (
	SYN   = "+syn-ack" // the first packet of a connection
	NoSYN = "-syn"     // a later packet of a connection
)

// Tunnel holds the fields of OVN's Geneve packets, and the other end of the tunnel.
type Tunnel struct {
	Key uint32 // tun_id: of the logical datapath; 24 bits
	// Ports is tun_metadata0, see TunnelOption: the keys of the ingress and egress logical ports,
	// 16 bits each.
	Ports uint32
	Peer  netip.Addr // tun_src of a Match, tun_dst of SetTunnel
}

// TunnelOption maps OVN's Geneve option (ovn-architecture(7), Tunnel Encapsulations) to
// Tunnel.Ports, in ovs-ofctl's syntax for a bridge.
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

// InPort sends the packet out of its ingress port.
type InPort struct{}

// Normal is the ordinary learning switch.
type Normal struct{}

// Drop is the explicit empty action list. It must be the only action.
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

// SetEthDstByCT writes the MAC that CT.EthSrc stored with the connection to the destination MAC.
type SetEthDstByCT struct{}

// MarkLonger writes the lowest bit of pkt_mark: whether the frame has more bytes than Length.
type MarkLonger struct{ Length uint16 }

// SetPktMark writes pkt_mark.
type SetPktMark struct{ Mark uint32 }

// SetTunnel sets the tunnel of a packet that leaves by a port of type geneve.
type SetTunnel struct{ Tunnel }

// Resubmit looks the packet up in another table, then continues with the next action.
type Resubmit struct{ Table uint8 }

// ToGroup sends the packet to a group.
type ToGroup struct{ ID uint32 }

// SetGroup records the group (reg6) before a bucket is chosen.
type SetGroup struct{ ID uint32 }

// SetProfile records the profile (reg5): the rules of the policies that apply to the packet's pod.
type SetProfile struct{ ID uint32 }

// Conjunction makes the flow an alternative in a clause of Match.ConjID, see ovs-fields(7). Such a
// flow has only Conjunctions, each with another ID.
type Conjunction struct {
	ID         uint32
	Clause, Of uint8 // clause Clause of Of; the first is 1
}

// Learn adds a flow to Table that sets the Bucket of this packet (reg7) in later packets with the
// same Group and the same source. The flow expires after Timeout without packets. Open vSwitch also
// removes it when no flow learns for Client with this Timeout any more. Learned flows do not have
// our cookie: they are neither read nor compared.
type Learn struct {
	Table       uint8
	Family      cluster.Family
	VariantBits uint8  // number of low bits of the Group that are ignored
	Client      uint32 // upper half of the learned flows' cookie: for what they are learned, such as a Service
	Timeout     uint16 // seconds
	Limit       uint32 // maximum number of flows learned for Client
}

// CT sends the packet through conntrack and then to Table.
type CT struct {
	Commit bool
	Zone   uint16
	Table  uint8 // recirculates to it; 0 = no recirculation (table 0 is never a target)
	NAT    NAT
	// Mark and MarkMask are exec(set_field:Mark/MarkMask->ct_mark). MarkMask 0 writes the whole
	// mark, unless Mark is 0 as well: then none is written.
	Mark, MarkMask uint32
	EthSrc         bool // exec(move:…->ct_label): stores the source MAC, to which replies go
}

// NAT is the nat argument of CT.
type NAT struct {
	Kind NATKind
	// Addr is for NATSrc and NATDst. A NATSrc without Addr only changes the port, if another
	// connection has the same reply tuple.
	Addr netip.Addr
	// PortMin and PortMax limit the ports of NATSrc; 0 = any.
	PortMin, PortMax uint16
}

// NATKind is the kind of CT's nat argument.
type NATKind uint8

// The kinds of NAT.
const (
	NoNAT   NATKind = iota
	NATUndo         // nat: translate as the connection requires
	NATSrc          // nat(src=…)
	NATDst          // nat(dst=…)
)

// UnknownActions is the only action of a flow that was read back and that this package cannot fully
// decode. It is never wanted.
type UnknownActions struct {
	Attributes string // such as "idle_timeout=5"; empty = none
	Text       string // the actions; unknown ones as they are encoded
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
func (ToGroup) action()         {}
func (SetGroup) action()        {}
func (SetProfile) action()      {}
func (Conjunction) action()     {}
func (Learn) action()           {}
func (CT) action()              {}
func (UnknownActions) action()  {}
