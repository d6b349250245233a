package cluster

import (
	"cmp"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// LabelEgressAssignable on a Node, with any value, allows it to carry the addresses of EgressIPs
// that do not select nodes.
const LabelEgressAssignable = "k8s.ovn.org/egress-assignable"

// Node is one Kubernetes Node.
type Node struct {
	Name string
	UID  string // distinguishes a Node from a later one of the same name
	// Created orders nodes: if two have the same ID or address, the older one is accepted.
	Created time.Time
	// ID is the cluster-wide small number of the node (annotation k8s.ovn.org/node-id), 1 to 32767,
	// assigned by the controller; 0 while it has none. Tunnel keys, join and transit addresses are
	// derived from it.
	ID int
	// Addresses are the node's InternalIPs, at most one per family, IPv4 first.
	Addresses []netip.Addr
	// IPs are the addresses in the Node's status, of all types: policies select nodes by them.
	IPs []netip.Addr
	// HostAddresses are all addresses of the host that pods may reach, the secondary ones included,
	// with their prefix lengths (annotation k8s.ovn.org/host-cidrs). It always contains Addresses,
	// with full length if the mask is not known. An agent's own node also has IPv4 link-local
	// addresses, which the annotation omits (see HostOnly).
	HostAddresses []netip.Prefix
	// Links are the host's links to other networks than the gateway bridge's, by name (annotation
	// k8s.ovn.org/host-links); nil if they are not known.
	Links    []HostLink
	Rules    []HostRule     // not Hairpin's, by priority (annotation k8s.ovn.org/host-rules)
	Tables   []RouteTable   // named by EgressServices; only the node's own agent knows them
	PodCIDRs []netip.Prefix // spec.podCIDRs, at most one per family, IPv4 first
	// HostPorts are ports in use: no Service gets them at Addresses.
	HostPorts HostPorts
	Gateway   Gateway
	Zone      string // label topology.kubernetes.io/zone
	// Leaving reports that the Node is being deleted, or will be soon (taint
	// ToBeDeletedByClusterAutoscaler): load balancers must not send it new connections (KEP-3836).
	// Egress.Leaving has further reasons.
	Leaving bool
	// NetworkUnavailable is the status of the condition NetworkUnavailable, "True" or "False";
	// empty if there is none.
	NetworkUnavailable string
	Egress             NodeEgress
}

// NodeOwner returns the Owner of the Node of that name.
func NodeOwner(name string) Owner { return Owner{Kind: "Node", Name: name} }

// CompareAge orders nodes by precedence for IDs and addresses: the older first, then the one with
// the lower UID.
func (n *Node) CompareAge(m *Node) int {
	return cmp.Or(n.Created.Compare(m.Created), cmp.Compare(n.UID, m.UID), cmp.Compare(n.Name, m.Name))
}

// Address returns the InternalIP of a family, or the zero Addr.
func (n *Node) Address(f Family) netip.Addr {
	for _, a := range n.Addresses {
		if FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// GatewayAddress returns the address of a family on the gateway bridge, or the zero Prefix. Of
// several, it is the InternalIP: a router may advertise prefixes at any time, and then the bridge
// has further addresses. If none is the InternalIP, it is the first one.
func (n *Node) GatewayAddress(f Family) netip.Prefix {
	own := n.Address(f)
	for _, p := range n.Gateway.Addresses {
		if p.Addr() == own {
			return p
		}
	}
	return PrefixOf(n.Gateway.Addresses, f)
}

// PodCIDR returns the pod subnet of a family, or the zero Prefix.
func (n *Node) PodCIDR(f Family) netip.Prefix {
	for _, p := range n.PodCIDRs {
		if FamilyOf(p.Addr()) == f {
			return p
		}
	}
	return netip.Prefix{}
}

// HasAddress reports whether a is one of the host's own addresses.
func (n *Node) HasAddress(a netip.Addr) bool {
	for _, p := range n.HostAddresses {
		if p.Addr() == a {
			return true
		}
	}
	return false
}

// HostOnly reports whether an address is valid only on the host that has it, so that it identifies
// no node. These are IPv4 link-local addresses, such as that of NodeLocal DNSCache.
func HostOnly(a netip.Addr) bool { return a.Is4() && a.IsLinkLocalUnicast() }

// HasEndpoint reports whether an endpoint is on the node. An endpoint without a node name is on the
// node with its address.
func (n *Node) HasEndpoint(b *Backend) bool {
	return b.Node == n.Name || b.Node == "" && n.HasAddress(b.Addr)
}

// Gateway describes a node's gateway bridge (annotation k8s.ovn.org/l3-gateway-config). The node's
// agent detects it on the host and publishes it, so that all other readers, and `hairpin plan` on
// another machine, use the same values.
type Gateway struct {
	Mode      string         // the name of a Mode; empty = Config.Gateway.Mode
	Bridge    string         // the Open vSwitch bridge, such as br-ex
	Uplink    string         // the bridge's port to the external network, such as eth0; empty when detached
	Device    string         // when detached: the host's link that has the node's address, such as eth0
	DeviceMAC MAC            // of Device; zero = none, or not known
	MAC       MAC            // of the bridge's LOCAL port and of the gateway router's external port
	Addresses []netip.Prefix // of the bridge, IPv4 first; when detached, other nodes do not know them
	NextHops  []netip.Addr   // default gateways, IPv4 first; may be empty
	// NextHopMACs are the MACs of NextHops, and of the next hops of other routes through the
	// bridge, from the host's neighbor table. Nil: no agent has read it, as in a manifest.
	NextHopMACs map[netip.Addr]MAC
	OnLink      []netip.Prefix // networks that the host reaches by the bridge without a router, sorted
	MTU         int            // of Uplink or Device, bytes; 0 = unknown
	Userspace   bool           // the bridge uses the userspace (netdev) datapath
	NodeLocal   bool           // LocalDGP is in use; it is not with OpenFlow
	OpenFlow    bool           // EngineOpenFlow is in use; otherwise EngineOVN
	Redirect    bool           // PathRedirect is in use
}

// NodeEgress has the facts about a Node that matter only for carrying egress addresses.
type NodeEgress struct {
	Assignable bool              // label LabelEgressAssignable
	Ready      bool              // condition Ready is True, or kubelet shuts the node down
	Labels     map[string]string // EgressIPs, EgressServices and pools select nodes by them
	Leaving    bool              // Node.Leaving, cordoned or shut down: addresses move to other nodes
}

// Excluded reports whether the node has the label by which load balancers skip it.
func (n *Node) Excluded() bool {
	_, has := n.Egress.Labels[corev1.LabelNodeExcludeBalancers]
	return has
}
