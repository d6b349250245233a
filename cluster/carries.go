package cluster

import "net/netip"

// NodeOf returns the node that has an address of an EgressIP; empty if none has.
func (e *EgressIP) NodeOf(a netip.Addr) string {
	for _, x := range e.Assigned {
		if x.Address == a {
			return x.Node
		}
	}
	return ""
}

// CarriedBy reports whether a node must answer for an address: for a moving address, the new node.
func (e *EgressIP) CarriedBy(node string, a netip.Addr) bool {
	for _, m := range e.Moving {
		if m.Address == a {
			return m.To == node
		}
	}
	return e.NodeOf(a) == node
}
