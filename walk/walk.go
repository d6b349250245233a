// Package walk follows a packet through the States of one or more nodes and reports every step: the
// table, chain or logical stage, the rule in the words of the real tool, what it did, the packet
// after it, and the object that the rule belongs to.
//
// There is one interpreter per system: OpenFlow on the gateway bridge (flow.go), OVN's logical
// switches and routers (switch.go, router.go), nft (nft.go), the kernel's routing (host.go) and
// conntrack, which all of them share (conntrack.go). Each does what the real one does with a first
// packet, drops included. What it does not know is an error, never a guess. The semantics of OVN
// are those of 25.03, read off ovn-sbctl lflow-list and conntrack dumps.
package walk

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
)

// World is the nodes: name to wanted, or read-back, State. What is needed of the cluster beyond the
// States (which address is a pod's, which a host's, how the bridge connects to the external
// network) comes from the Snapshot.
type World struct {
	Snapshot *cluster.Snapshot
	States   map[string]datapath.State
	// Lookup gives States that are not in the map, when a packet comes to their nodes; nil: there
	// are no others. A big cluster has more of them than fit into memory, and a packet meets few.
	Lookup func(node string) (datapath.State, bool)
	// Silent are addresses on the external network that do not answer, such as a default gateway
	// that is down.
	Silent map[netip.Addr]bool
}

// Point is where a packet starts or ends: in a host (Node), in a pod (Node and Pod), or outside
// (neither).
type Point struct {
	Node string
	Pod  cluster.Owner
}

// Packet is the part of a packet that rules look at.
type Packet struct {
	Protocol         cluster.Protocol
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	EthSrc, EthDst   cluster.MAC // zero: of a machine that is not ours
	VLAN             uint16      // of its tag; 0: none
	Mark             uint32      // pkt_mark, skb mark
}

// Step is one rule that the packet met.
type Step struct {
	Node  string
	Stage string // "br-ex Classifier", "GR_node-a lr_in_dnat", "nft inet hairpin output", "ip route" …
	Rule  string // in the words of the real tool
	Did   string // in a few words
	Why   cluster.Owner
	After Packet
	// Entry is the conntrack entry that the step made, empty if none, as conntrack(8) prints it
	// without its volatile fields: "tcp src=… dst=… sport=… dport=… src=… dst=… sport=… dport=…
	// mark=2 zone=64001". Zone 0 is not written. The numbers of OVN's own zones are
	// ovn-controller's choice, so they are named: GR_node-a_dnat, default_web-1.
	Entry string
	// Choices are the endpoints or next hops of which the step took one; nil when there was nothing
	// to choose.
	Choices []netip.AddrPort
}

// Trace is the packet's way there, the reply's way back, and the verdict.
type Trace struct {
	From           Point
	Sent           Packet // as the sender sent it
	Forward, Reply []Step
	// There and Back are the visits of Forward and of Reply.
	ForwardVisits, ReplyVisits []Visit
	Verdict                    Verdict
	Costs                      Costs
}

// Visit is the packet's way through one bridge of Open vSwitch, OVN's or another: what
// ofproto/trace and ovn-trace show of it.
type Visit struct {
	Node   string
	OVN    bool
	Bridge string      // empty: OVN's
	Port   string      // by which it came: of the bridge, or a logical switch port
	In     Packet      // as it came; the MAC of an unknown machine is zero
	Tunnel flow.Tunnel // that it came by
	Out    string      // by which it left, empty if it ended there
	Passes []Pass
	Steps  []Step
}

// Pass is a packet's way through a conntrack zone, after which it was looked up again.
type Pass struct {
	State flow.CTBits
	Mark  uint32
	From  cluster.MAC // noted with the connection
	After Packet
}

// Verdict says where the packet ended.
type Verdict struct {
	Delivered bool
	Rejected  bool // refused with a TCP reset, an SCTP abort or an ICMP error
	Flooded   bool // multicast or broadcast, sent to several receivers, which Reason names
	At        Point
	Seen      Packet // as the receiver sees it
	Reason    string // a sentence
	// Answered tells that the reply reached the sender, from the address and port that it had
	// asked. Of a rejected packet the reply is the refusal.
	Answered bool
	Answer   Packet // the reply as it arrived
	// AnswerReason is a sentence about the reply, empty when there was none to follow.
	AnswerReason string
}

// Walk follows one packet and its reply. It is New(w).Walk for callers that walk once.
func Walk(w World, at Point, p Packet) (Trace, error) {
	return New(w).Walk(at, p)
}
