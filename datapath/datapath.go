// Package datapath holds a node's desired or observed state, as one plain value.
//
// State has one part per system: OVN's databases, the gateway bridge, nft, the kernel's network,
// connections, and eBPF programs. Each part has a text form in the syntax of the real tool, and a
// Diff. plan computes a State, apply makes the node equal to it, walk explains it.
package datapath

import (
	"hairpin/datapath/conn"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/ovs"
	"hairpin/datapath/redirect"
	"hairpin/datapath/statemap"
)

// State is the desired or observed state of one node. parts lists its fields.
type State struct {
	NB     nb.State
	Bridge ovs.State
	NFT    nft.State
	Host   host.State
	Conn   conn.State

	Redirect redirect.State // of packets of external clients, around the host's IP stack
}

// Part describes one part of a State.
type Part[S any, D interface{ Empty() bool }] struct {
	System string // its system, as reports name it
	In     func(*State) *S
	Diff   func(want, have S) D

	maps []statemap.Map[S, D] // its maps, for Merge and Replace
	// merge and replace are for fields of S that maps does not describe; nil: it has none.
	merge   func(c *statemap.Conflicts, out *S, list []*S)
	replace func(s, gone, come *S) bool

	heading string // line before its text; it names the tools with the syntax of the text
	brief   bool   // omits the heading if there is no text
	print   func(S) string
}

// The parts of a State.
var (
	NB = Part[nb.State, nb.Delta]{System: "ovn", In: func(s *State) *nb.State { return &s.NB }, Diff: nb.Diff,
		maps: nb.Maps, heading: "### OVN: ovn-nbctl, ovn-sbctl", print: nb.Print}
	Bridge = Part[ovs.State, ovs.Delta]{System: "openvswitch", In: func(s *State) *ovs.State { return &s.Bridge },
		Diff: ovs.Diff, maps: ovs.Maps, merge: mergeBridge, replace: replaceBridge,
		heading: "### Open vSwitch: ovs-vsctl, ovs-ofctl", print: ovs.Print}
	NFT = Part[nft.State, nft.Delta]{System: "nft", In: func(s *State) *nft.State { return &s.NFT }, Diff: nft.Diff,
		merge: mergeNFT, replace: replaceNFT, heading: "### nft", print: nft.Print}
	Host = Part[host.State, host.Delta]{System: "host", In: func(s *State) *host.State { return &s.Host },
		Diff: host.Diff, maps: host.Maps, heading: "### kernel: ip, sysctl", print: host.Print}
	Conn = Part[conn.State, conn.Delta]{System: "connections", In: func(s *State) *conn.State { return &s.Conn },
		Diff: conn.Diff, maps: conn.Maps, heading: "### connections", brief: true, print: conn.Print}

	Redirect = Part[redirect.State, redirect.Delta]{System: "redirect",
		In: func(s *State) *redirect.State { return &s.Redirect }, Diff: redirect.Diff, maps: redirect.Maps,
		heading: "### eBPF: tc, bpftool", brief: true, print: redirect.Print}

	parts = []part{NB, Bridge, NFT, Host, Conn, Redirect} // in the order of the text
)

// part is a Part of any types.
type part interface {
	mergeInto(out *State, c *statemap.Conflicts, list []State)
	replaceIn(s, gone, come *State) bool
	section(State) string
	system() string
	adoptUnchanged(found *State, want State)
}

// adoptUnchanged replaces a found part by the wanted one if apply would not change it.
func (p Part[S, D]) adoptUnchanged(found *State, want State) {
	if w, f := p.In(&want), p.In(found); p.Diff(*w, *f).Empty() {
		*f = *w
	}
}

// Conflict is one key for which two owners want different values. The first in the order of the
// features wins.
type Conflict = statemap.Conflict
