// Package walk follows a packet through the States of one or more nodes and reports every step. A
// step has the table, chain or logical stage, the rule in the syntax of the real tool, its effect,
// the packet after it, and the object that the rule belongs to.
//
// Input: a World, which is the States and the facts about the cluster, and a packet with the Point
// where it starts. Output: a Trace of the packet and its reply.
//
// Each system has its own interpreter: openflow (Hairpin's bridges), ovn (logical switches and
// routers), nft and linux (the host). They share conntrack and path. An interpreter says by which
// port a packet leaves; this package knows what is behind the port, and carries the packet there.
//
// Invariants: each interpreter treats a first packet as the real system does, drops included. What
// it does not know is an error, never a guess. Equal Worlds give equal Traces.
package walk

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/walk/packet"
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

// Trace holds the packet's path, the reply's path, and the verdict.
type Trace struct {
	From           Point
	Sent           packet.Packet // as it left the sender
	Forward, Reply []packet.Step
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
	Bridge string        // empty: OVN's
	Port   string        // the ingress port: of the bridge, or a logical switch port
	In     packet.Packet // the packet at ingress; the MAC of an unknown machine is zero
	Tunnel flow.Tunnel   // by which the packet arrived
	Out    string        // the egress port, empty if the packet ended there
	Passes []packet.Pass
	Steps  []packet.Step
}

// Verdict says where the packet ended.
type Verdict struct {
	Delivered bool
	Rejected  bool // with a TCP reset, an SCTP abort or an ICMP error
	Flooded   bool // multicast or broadcast, sent to several receivers, which Reason lists
	At        Point
	Seen      packet.Packet // as the receiver sees it
	Cause     packet.Cause  // if it did not arrive
	Reason    string        // a sentence
	// Answered reports whether the reply reached the sender, from the address and port that the
	// packet was sent to. For a rejected packet, the reply is the reset, abort or ICMP error.
	Answered    bool
	Answer      packet.Packet // the reply as it arrived
	AnswerCause packet.Cause  // if the reply did not arrive
	// AnswerReason is a sentence about the reply, empty if no reply was followed.
	AnswerReason string
}

// Walk follows one packet and its reply. It is New(w).Walk for callers that walk once.
func Walk(w World, at Point, p packet.Packet) (Trace, error) {
	return New(w).Walk(at, p)
}
