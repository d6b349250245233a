// Package walk follows a packet through the States of one or more nodes and tells every step: the table, chain or
// logical stage, the rule in the words of the real tool, what it did, the packet after it, and the object that
// wanted the rule.
//
// It interprets everything that plan emits. What it does not know is an error, never a guess.
package walk

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath"
)

// World is the nodes: name to wanted, or read-back, State. What is needed of the cluster beyond the States
// (which address is a pod's, which a host's) comes from the Snapshot.
type World struct {
	Snapshot *cluster.Snapshot
	States   map[string]datapath.State
	// Node is the home of pods that are not in the Snapshot; unused when empty.
}

// Point is where a packet starts: in a host (Node), in a pod (Node and Pod), or outside (neither).
type Point struct {
	Node string
	Pod  cluster.Owner
}

// Packet is the part of a packet that rules look at.
type Packet struct {
	Protocol         cluster.Protocol
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	EthSrc, EthDst   cluster.MAC
	Mark             uint32 // pkt_mark, skb mark
}

// Step is one rule that the packet met.
type Step struct {
	Node  string
	Stage string // "br-ex table 0", "GR_node-a lr_in_dnat", "nft inet hairpin output", "ip route" …
	Rule  string // in the words of the real tool
	Did   string // in a few words
	Why   cluster.Owner
	After Packet
	// Entry is the conntrack entry that the step made, empty if none: "zone=64001 src=… dst=… …", as conntrack(8) prints it.
	Entry string
}

// Trace is the packet's way there, the reply's way back, and the verdict.
type Trace struct {
	Forward, Reply []Step
	Verdict        Verdict
}

// Verdict says where the packet ended.
type Verdict struct {
	Delivered bool
	At        Point
	Seen      Packet // as the receiver sees it
	Reason    string // a sentence
}
