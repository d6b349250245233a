package node

import (
	"net/netip"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
)

// AnyNode is the ID of no node. Its place on the transit network stands for all nodes.
const AnyNode = 0

// TransitAddress is the address of a node's router on the transit switch, if there is room for its
// ID.
func TransitAddress(s *Stack, id int) netip.Addr {
	a, _ := cluster.Nth(s.Transit.Masked(), id+NodeOffset)
	return a
}

// Reached returns the part of the join range in which gateway routers have addresses.
func (s *Stack) Reached() netip.Prefix {
	join := s.Join.Masked()
	return netip.PrefixFrom(join.Addr(), max(join.Bits(), join.Addr().BitLen()-idBits))
}

// SpreadBits returns the length of the longest route by source: that of the smallest of the
// cluster's ranges, as long as the join range has at most 1<<joinSpread parts of this length.
func (s *Stack) SpreadBits() int {
	_, bits := bitsOf(s.Cluster)
	return min(bits, s.Reached().Bits()+joinSpread)
}

// joinSpread limits into how many parts the join range is split: each is a route.
const joinSpread = 4

// maxSpread limits how much the cluster's ranges may differ.
const maxSpread = 8

// bitsOf are those of the largest and of the smallest range.
func bitsOf(ranges []netip.Prefix) (few, most int) {
	for i, r := range ranges {
		if i == 0 {
			few = r.Bits()
		}
		few, most = min(few, r.Bits()), max(most, r.Bits())
	}
	return few, most
}

// idBits are enough for the place of each node on the join network.
const idBits = 16

// OthersPort is the port of the transit switch behind which all other nodes are.
func OthersPort(node string) string { return "others-" + node }

// RemoteNodesPort is that port. OVN knows the address that routes name, and those of nodes that
// policies name, by their IDs. Only what has no type, and addresses that are known, changes without
// ovn-northd computing all anew.
func (e *Env) RemoteNodesPort(ids []int) *nb.SwitchPort {
	p := &nb.SwitchPort{Name: OthersPort(e.Node.Name), Switch: claims.TransitSwitch, Owner: OwnerOf(e.Node.Name)}
	for _, id := range append([]int{AnyNode}, ids...) {
		if !TransitAddress(&e.Stacks[0], id).IsValid() {
			continue // nor is it a peer
		}
		words := []string{cluster.MACFor(TransitAddress(&e.Stacks[0], id)).String()}
		for i := range e.Stacks {
			words = append(words, TransitAddress(&e.Stacks[i], id).String())
		}
		p.Addresses = append(p.Addresses, strings.Join(words, " "))
	}
	return p
}
