package node

import (
	"net/netip"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
)

// AnyNode is the ID of no node. Its address on the transit network stands for all nodes.
const AnyNode = 0

// TransitAddress returns the address of a node's router on the transit switch. It is invalid if the
// subnet has no room for the ID.
func TransitAddress(s *Stack, id int) netip.Addr {
	a, _ := cluster.Nth(s.Transit.Masked(), id+NodeOffset)
	return a
}

// Reached returns the part of the join range in which gateway routers have addresses.
func (s *Stack) Reached() netip.Prefix {
	join := s.Join.Masked()
	return netip.PrefixFrom(join.Addr(), max(join.Bits(), join.Addr().BitLen()-idBits))
}

// SpreadBits returns the length of the longest route by source: that of the cluster's smallest
// range, limited so that the join range has at most 1<<joinSpread parts of this length.
func (s *Stack) SpreadBits() int {
	_, bits := bitsOf(s.Cluster)
	return min(bits, s.Reached().Bits()+joinSpread)
}

// joinSpread limits the number of parts of the join range, because each part is a route.
const joinSpread = 4

// maxSpread limits the difference in bits between the lengths of the cluster's ranges.
const maxSpread = 8

// bitsOf returns the prefix lengths of the largest and of the smallest range.
func bitsOf(ranges []netip.Prefix) (few, most int) {
	for i, r := range ranges {
		if i == 0 {
			few = r.Bits()
		}
		few, most = min(few, r.Bits()), max(most, r.Bits())
	}
	return few, most
}

// idBits is the number of bits for the offset of each node on the join network.
const idBits = 16

// OthersPort returns the name of the transit switch's port to all other nodes.
func OthersPort(node string) string { return "others-" + node }

// RemoteNodesPort returns that port. It has the address that routes name, and those of the nodes
// that policies name, by their IDs. ovn-northd processes a change incrementally only if the port
// has no type and its addresses are known.
func (e *Env) RemoteNodesPort(ids []int) *nb.SwitchPort {
	p := &nb.SwitchPort{Name: OthersPort(e.Node.Name), Switch: claims.TransitSwitch, Owner: OwnerOf(e.Node.Name)}
	for _, id := range append([]int{AnyNode}, ids...) {
		if !TransitAddress(&e.Stacks[0], id).IsValid() {
			continue // such a node is no peer either
		}
		words := []string{cluster.MACFor(TransitAddress(&e.Stacks[0], id)).String()}
		for i := range e.Stacks {
			words = append(words, TransitAddress(&e.Stacks[i], id).String())
		}
		p.Addresses = append(p.Addresses, strings.Join(words, " "))
	}
	return p
}
