package cluster

import (
	"cmp"
	"net/netip"
)

// HostPorts are the ports that a node's host uses.
type HostPorts struct {
	Checked PortRanges // the ports about which the agent knows whether they are used
	Used    []HostPort // sorted
}

// HostPort is a port in use at an address of a node: a program of the host listens there, or it is
// the hostPort of a Pod.
type HostPort struct {
	Address netip.Addr // zero: all addresses of the node
	LoadBalancerPort
	Pod Owner // zero: a program of the host
}

// Compare orders HostPorts by address, protocol and port.
func (p HostPort) Compare(q HostPort) int {
	return cmp.Or(p.Address.Compare(q.Address), p.LoadBalancerPort.Compare(q.LoadBalancerPort), p.Pod.Compare(q.Pod))
}
