// Package walk follows a packet through the States of one or more nodes and reports every step. A
// step has the table, chain or logical stage, the rule in the syntax of the real tool, its effect,
// the packet after it, and the object that the rule belongs to.
//
// Each system has its own interpreter: OpenFlow on Hairpin's bridges (flow.go), OVN's logical
// switches and routers (switch.go, router.go), nft (nft.go) and the kernel's routing (host.go). All
// of them share conntrack (conntrack.go). Each treats a first packet as the real system does, drops
// included. What an interpreter does not know is an error, never a guess. The semantics of OVN are
// those of 25.03, read from ovn-sbctl lflow-list and conntrack dumps.
package walk

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
)

// World maps the name of each node to its desired State, or to the State read back from it. The
// Snapshot has the other facts about the cluster: which address belongs to a pod, which to a host,
// and how the bridge connects to the external network.
type World struct {
	Snapshot *cluster.Snapshot
	States   map[string]datapath.State
	// Lookup returns the State of a node that is not in the map, when a packet reaches the node;
	// nil: no other nodes. The States of a big cluster do not fit into memory, and a packet meets
	// few.
	Lookup func(node string) (datapath.State, bool)
	// Silent holds the addresses on the external network that do not answer, such as a default
	// gateway that is down.
	Silent map[netip.Addr]bool
}

// Point is where a packet starts or ends: in a host (Node), in a pod (Node and Pod), or outside the
// cluster (neither).
type Point struct {
	Node string
	Pod  cluster.Owner
}

// Packet is the part of a packet that rules look at.
type Packet struct {
	Protocol         cluster.Protocol
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	EthSrc, EthDst   cluster.MAC // zero: of a machine outside the cluster
	VLAN             uint16      // of the 802.1Q tag; 0: none
	Mark             uint32      // pkt_mark, skb mark
}

// Step is one rule that the packet met.
type Step struct {
	Node  string
	Stage string // "br-ex Classifier", "GR_node-a lr_in_dnat", "nft inet hairpin output", "ip route" …
	Rule  string // in the syntax of the real tool
	Did   string // in a few words
	Why   cluster.Owner
	After Packet
	// Entry is the conntrack entry that the step created, empty if none, as conntrack(8) prints it
	// without its volatile fields: "tcp src=… dst=… sport=… dport=… src=… dst=… sport=… dport=…
	// mark=2 zone=64001". Zone 0 is not written. OVN's own zones have names, such as GR_node-a_dnat
	// or default_web-1, because ovn-controller chooses their numbers.
	Entry string
	// Choices are the endpoints or next hops of which the step chose one; nil if there was no
	// choice.
	Choices []netip.AddrPort
}

// Trace holds the packet's path, the reply's path, and the verdict.
type Trace struct {
	From           Point
	Sent           Packet // as it left the sender
	Forward, Reply []Step
	// ForwardVisits and ReplyVisits are the visits of Forward and of Reply.
	ForwardVisits, ReplyVisits []Visit
	Verdict                    Verdict
	Costs                      Costs
}

// Visit is the packet's path through one Open vSwitch bridge, OVN's or another, as ofproto/trace
// and ovn-trace show it.
type Visit struct {
	Node   string
	OVN    bool
	Bridge string      // empty: OVN's
	Port   string      // the ingress port: of the bridge, or a logical switch port
	In     Packet      // the packet at ingress; the MAC of an unknown machine is zero
	Tunnel flow.Tunnel // by which the packet arrived
	Out    string      // the egress port, empty if the packet ended there
	Passes []Pass
	Steps  []Step
}

// Pass is one pass through a conntrack zone, followed by another lookup (recirculation).
type Pass struct {
	State flow.CTBits
	Mark  uint32
	From  cluster.MAC // stored with the connection
	After Packet
}

// Verdict says where the packet ended.
type Verdict struct {
	Delivered bool
	Rejected  bool // with a TCP reset, an SCTP abort or an ICMP error
	Flooded   bool // multicast or broadcast, sent to several receivers, which Reason lists
	At        Point
	Seen      Packet // as the receiver sees it
	Cause     Cause  // if it did not arrive
	Reason    string // a sentence
	// Answered reports whether the reply reached the sender, from the address and port that the
	// packet was sent to. For a rejected packet, the reply is the reset, abort or ICMP error.
	Answered    bool
	Answer      Packet // the reply as it arrived
	AnswerCause Cause  // if the reply did not arrive
	// AnswerReason is a sentence about the reply, empty if no reply was followed.
	AnswerReason string
}

// Walk follows one packet and its reply. It is New(w).Walk for callers that walk once.
func Walk(w World, at Point, p Packet) (Trace, error) {
	return New(w).Walk(at, p)
}
