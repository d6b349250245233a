package wire

import (
	"net/netip"

	"hairpin/cluster"
)

// Claim is what was heard on the wire: somebody else has one of this node's egress addresses.
type Claim struct {
	Address netip.Addr
	MAC     cluster.MAC
}
