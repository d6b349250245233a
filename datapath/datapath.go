// Package datapath is everything that one node must have, as one plain value.
//
// State has one part per system: OVN's databases, the gateway bridge, nft, the kernel's network, and connections. Each part
// has a text form in the words of the real tool, and a Diff. plan computes a State, apply makes the node equal
// to it, walk explains it.
package datapath

import (
	"fmt"

	"hairpin/cluster"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
)

// State is what one node must have, or has.
type State struct {
	NB     nb.State
	Bridge flow.State
	NFT    nft.State
	Host   host.State
	Conn   conn.State
}

// Conflict is one key that two owners want with different values. The first in the order of the parts stays.
type Conflict struct {
	Key        string // in the words of the real tool
	Kept, Lost cluster.Owner
}

// Error tells who lost what to whom.
func (c Conflict) Error() string {
	return fmt.Sprintf("%s: %s is already wanted by %s", c.Lost, c.Key, c.Kept)
}
