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
	a, _ := cluster.Nth(s.Transit.Masked(), id+claims.NodeOffset)
	return a
}

// GatewayRouters returns the part of the join range in which gateway routers have addresses.
func (s *Stack) GatewayRouters() netip.Prefix {
	join := s.Join.Masked()
	return netip.PrefixFrom(join.Addr(), max(join.Bits(), join.Addr().BitLen()-idBits))
}

// SourceRouteBits returns the length of the longest route by source: that of the cluster's smallest
// range. Routes to remote pods and gateway routers must be as long to precede those by source, so
// the length is limited: the join range has at most 1<<joinPartBits parts of it.
func (s *Stack) SourceRouteBits() int {
	_, longest := prefixLengths(s.Cluster)
	return min(longest, s.GatewayRouters().Bits()+joinPartBits)
}

// joinPartBits limits the number of parts of the join range, because each part is a route.
const joinPartBits = 4

// maxLengthDifference limits the difference in bits between the lengths of the cluster's ranges,
// because the largest has a route for each part as long as the smallest.
const maxLengthDifference = 8

// prefixLengths returns the prefix lengths of the largest and of the smallest range.
func prefixLengths(ranges []netip.Prefix) (shortest, longest int) {
	for i, r := range ranges {
		if i == 0 {
			shortest = r.Bits()
		}
		shortest, longest = min(shortest, r.Bits()), max(longest, r.Bits())
	}
	return shortest, longest
}

// idBits is the number of bits for the offset of each node on the join network.
const idBits = 16

// RemoteNodesPortName returns the name of the transit switch's port to all other nodes.
func RemoteNodesPortName(node string) string { return "others-" + node }

// RemoteNodesPort returns the transit switch's port to all other nodes. It has the address that
// routes name, and those of the nodes that policies name, by their IDs. ovn-northd processes a
// change incrementally only if the port has no type and its addresses are known.
func (e *Env) RemoteNodesPort(ids []int) *nb.SwitchPort {
	p := &nb.SwitchPort{Name: RemoteNodesPortName(e.Node.Name), Switch: claims.TransitSwitch,
		Owner: cluster.NodeOwner(e.Node.Name)}
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
