package wire

import (
	"net/netip"

	"hairpin/cluster"
)

// Claim is a received ARP or ND packet of another machine for an egress address of this node.
type Claim struct {
	Address   netip.Addr
	MAC       cluster.MAC
	Solicited bool // a reply to one machine
}
