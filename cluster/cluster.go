// Package cluster holds the state of a Kubernetes cluster that Hairpin uses, as plain values.
//
// The package parses Kubernetes objects once, into values that never change afterwards. So
// goroutines can share a Snapshot without a lock. An unchanged Service keeps its *Frontend from one
// Snapshot to the next, so that a reader can detect changes by pointer. Parsing never fails as a
// whole: an invalid object becomes a Problem and does not affect the others.
package cluster

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Owner names the object for which something exists. Every row, flow and rule carries one.
type Owner struct{ Kind, Namespace, Name string }

// String returns "Service/default/web", or "Node/node-a" for an object without a namespace.
func (o Owner) String() string {
	if o == (Owner{}) {
		return ""
	}
	if o.Namespace == "" {
		return o.Kind + "/" + o.Name
	}
	return o.Kind + "/" + o.Namespace + "/" + o.Name
}

// ParseOwner reads what String wrote; for any other text it returns the zero Owner.
func ParseOwner(s string) Owner {
	switch f := strings.Split(s, "/"); len(f) {
	case 2:
		return Owner{Kind: f[0], Name: f[1]}
	case 3:
		return Owner{Kind: f[0], Namespace: f[1], Name: f[2]}
	}
	return Owner{}
}

// Compare orders owners by kind, namespace and name.
func (o Owner) Compare(p Owner) int {
	return cmp.Or(cmp.Compare(o.Kind, p.Kind), cmp.Compare(o.Namespace, p.Namespace), cmp.Compare(o.Name, p.Name))
}

// Snapshot is the state of the cluster at one moment. All slices are sorted by name (Frontends by
// Compare), so equal clusters give equal Snapshots in any order of events. A value that did not
// change since an earlier Snapshot of the same Store is the same pointer.
type Snapshot struct {
	Config    Config
	Nodes     []*Node
	Frontends []*Frontend
	Pods      []*Pod
	// Starting are Pods that have a node but no address yet, so their labels are known before their
	// first packet.
	Starting   []*Pod
	Namespaces []*Namespace
	EgressIPs  []*EgressIP
	Policies   []*Policy
	Pools      []*Pool
	// LoadBalancers are the Services and EgressIPs that get their addresses from Pools.
	LoadBalancers []*LoadBalancer
	// Advertisements are what is announced by BGP, and FRRConfigurations the configuration of FRR.
	// Only the controller has the latter.
	Advertisements    []*Advertisement
	FRRConfigurations []*FRRConfiguration
	Problems          []Problem // rejected while parsing
	// PodsUnread reports that Pods of other nodes are needed but not read yet; Pods has none of
	// them. Only the controller gets such a Snapshot. It must defer its decisions about Pods.
	PodsUnread bool
	// Received is when the oldest change since the previous Snapshot that was read arrived from the
	// API server. It is zero for Snapshots of manifests.
	Received time.Time
}

// Node returns the node of that name, or nil.
func (s *Snapshot) Node(name string) *Node { return NodeNamed(s.Nodes, name) }

// NamespaceNamed returns the namespace of that name in a list sorted by name, or nil.
func NamespaceNamed(sorted []*Namespace, name string) *Namespace {
	return named(sorted, name, func(n *Namespace) string { return n.Name })
}

// NodeNamed returns the node of that name in a list sorted by name, or nil.
func NodeNamed(sorted []*Node, name string) *Node {
	return named(sorted, name, func(n *Node) string { return n.Name })
}

// named returns the element of that name in a list sorted by name, or nil.
func named[T any](sorted []*T, name string, nameOf func(*T) string) *T {
	i, found := slices.BinarySearchFunc(sorted, name,
		func(x *T, name string) int { return strings.Compare(nameOf(x), name) })
	if !found {
		return nil
	}
	return sorted[i]
}

// Family is an IP version.
type Family uint8

// The two families. Their values are those of the IP header's version field.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families are both, IPv4 first.
var Families = [...]Family{IPv4, IPv6}

// FamilyOf returns the family of an address. An IPv4-mapped IPv6 address counts as IPv6; the parser
// rejects it.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6".
func (f Family) String() string { return fmt.Sprintf("IPv%d", uint8(f)) }

// Protocol is a transport protocol of a Service port, by its IANA number.
type Protocol uint8

// The protocols of Kubernetes Services.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the lower-case name, which OVN, OpenFlow and nft use as well.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol-%d", uint8(p))
}

// MAC is an Ethernet MAC address; the zero MAC means "none". Unlike net.HardwareAddr it can be
// compared with ==.
type MAC [6]byte

// String returns the usual lower-case form "0a:58:0a:f4:01:03".
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// ParseMAC reads the form that String writes, in either case of letters.
func ParseMAC(s string) (MAC, error) {
	var m MAC
	if len(s) != 17 {
		return m, fmt.Errorf("%q is not a MAC address", s)
	}
	for i := range m {
		b, err := hex.DecodeString(s[3*i : 3*i+2])
		if err != nil || (i < 5 && s[3*i+2] != ':') {
			return MAC{}, fmt.Errorf("%q is not a MAC address", s)
		}
		m[i] = b[0]
	}
	return m, nil
}

// MACFor derives the MAC of a pod or router port from its IP address: 0a:58 and the four bytes of
// an IPv4 address, or 0a:58 and the last four bytes of an IPv6 address; none for no address.
func MACFor(a netip.Addr) MAC {
	if !a.IsValid() {
		return MAC{}
	}
	b := a.AsSlice()
	b = b[len(b)-4:]
	return MAC{0x0a, 0x58, b[0], b[1], b[2], b[3]}
}

// Node is one Kubernetes Node.
type Node struct {
	Name string
	UID  string // distinguishes a Node from a later one of the same name
	// Created orders nodes: if two claim the same, the older node has it.
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
	Tables   []RouteTable   // that EgressServices name and the host has; only its own agent knows them
	PodCIDRs []netip.Prefix // spec.podCIDRs, at most one per family, IPv4 first
	// HostPorts are ports in use that no Service gets at Addresses.
	HostPorts HostPorts
	Gateway   Gateway
	Zone      string // label topology.kubernetes.io/zone
	// Leaving reports that the Node is being deleted, or will be soon (taint
	// ToBeDeletedByClusterAutoscaler): load balancers must not send it new connections (KEP-3836).
	Leaving bool
	// NetworkUnavailable is the status of that condition, "True" or "False"; empty if there is
	// none.
	NetworkUnavailable string
	Egress             NodeEgress
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

// GatewayAddress returns the address of a family on the gateway bridge: the InternalIP, which other
// addresses do not replace when a router advertises a prefix, or else the first. Without one it is
// the zero Prefix.
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

// HostOnly reports whether an address is valid only on the host that has it, and identifies no node
// to others. These are IPv4 link-local addresses, such as that of NodeLocal DNSCache.
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
	Mode      string         // the name of a Mode; empty = that of Config.Gateway.Mode
	Bridge    string         // the Open vSwitch bridge, such as br-ex
	Uplink    string         // the bridge's port to the external network, such as eth0; empty when detached
	Device    string         // when detached: the host's link with the node's address, such as eth0 or wlan0
	DeviceMAC MAC            // of Device; zero = none, or not known
	MAC       MAC            // of the bridge's LOCAL port and of the gateway router's external port
	Addresses []netip.Prefix // on the bridge, IPv4 first; when detached the bridge's own, unknown outside the node
	NextHops  []netip.Addr   // default gateways, IPv4 first; may be empty
	// NextHopMACs are the MACs of NextHops, and of the next hops of other routes through the
	// bridge, from the host's neighbor table. Nil: no agent has read it, as in a manifest.
	NextHopMACs map[netip.Addr]MAC
	OnLink      []netip.Prefix // networks that the host reaches through the bridge without a router, sorted
	MTU         int            // of Uplink or Device, bytes; 0 = unknown
	Userspace   bool           // the bridge uses the userspace (netdev) datapath
	// the host's path to Services is the management port, with a distributed gateway port
	// (LocalDGP)
	NodeLocal bool
	// pods are on claims.ServiceBridge, and Services are flows and groups of it (EngineOpenFlow)
	OpenFlow bool
	Redirect bool // eBPF programs redirect NodePort traffic from the host's links to the gateway router
}

// Pod is one Pod with addresses of the pod network. Host-network, finished and unscheduled pods
// have none.
type Pod struct {
	Owner Owner
	UID   string
	Node  string
	IPs   []netip.Addr // at most one per family, IPv4 first
	MAC   MAC
	// Labels are the Pod's; EgressIPs and Policies select by them.
	Labels map[string]string
	// Ports are the named ports of its containers, sorted by name and protocol; of several equal
	// ones, the first. Policies refer to them.
	Ports []PodPort
	// Extra are addresses, besides its own, that it may send from.
	Extra []netip.Addr
	Asks  []netip.Addr // requested as Extra
	// Unread reports that the Pod's object is not known, so neither are its Labels and Ports. A
	// policy may select it. Only an agent sets it, for pods of its own node.
	Unread bool
	// Port is the Open vSwitch port of the pod, the host's end of its link. PortRow is the UUID of
	// its database row; a port that was recreated has another one. Only the pod's node knows them.
	Port, PortRow string
}

// LogicalPort is the name of the pod's OVN port and of its Open vSwitch iface-id: "namespace_name".
func (p *Pod) LogicalPort() string { return p.Owner.Namespace + "_" + p.Owner.Name }

// PortVersion is the iface-id-ver of the pod's OVN port and of its Open vSwitch interface: its
// addresses. OVN binds the two only when both are equal.
func (p *Pod) PortVersion() string {
	var text []string
	for _, ip := range p.IPs {
		text = append(text, ip.String())
	}
	return strings.Join(text, ",")
}

// Frontend is one address family, one protocol and one port of one Service: a dual-stack Service
// with two ports is four Frontends.
type Frontend struct {
	Owner     Owner
	UID       string    // of the Service
	Created   time.Time // the Service's creationTimestamp, zero when unknown
	PortName  string    // name of the Service port; empty when the Service has one port without a name
	Family    Family
	Protocol  Protocol
	ClusterIP netip.Addr
	Port      uint16
	NodePort  uint16 // 0 = none
	// ExternalIPs and LoadBalancerIPs are more addresses on which Port is served.
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr
	// Restricted reports that only clients within SourceRanges may reach LoadBalancerIPs; without a
	// range of this family, no client may. The ranges are sorted, and none is within another.
	Restricted   bool
	SourceRanges []netip.Prefix
	// HealthCheckNodePort is the port at which load balancers check for endpoints on this node; 0 =
	// none.
	HealthCheckNodePort uint16
	// Affinity is the session affinity timeout (ClientIP), 0 = none; whole seconds.
	Affinity      time.Duration
	ExternalLocal bool // externalTrafficPolicy: Local
	InternalLocal bool // internalTrafficPolicy: Local
	Backends      []Backend
	// Triggered is the newest endpoints.kubernetes.io/last-change-trigger-time of the slices, zero
	// when unknown.
	Triggered time.Time
}

// External returns the addresses and ports outside of the cluster's ranges on which f is served,
// sorted.
func (f *Frontend) External() []netip.AddrPort {
	if len(f.ExternalIPs) == 0 && len(f.LoadBalancerIPs) == 0 {
		return nil
	}
	var list []netip.AddrPort
	for _, a := range slices.Concat(f.ExternalIPs, f.LoadBalancerIPs) {
		list = append(list, netip.AddrPortFrom(a, f.Port))
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// Key names a Frontend within the cluster: "default/web:http/tcp/IPv4".
func (f *Frontend) Key() string {
	return f.Owner.Namespace + "/" + f.Owner.Name + ":" + f.PortName + "/" + f.Protocol.String() + "/" +
		f.Family.String()
}

// Compare orders Frontends by Service, family, protocol, port and the port's name.
func (f *Frontend) Compare(g *Frontend) int {
	return cmp.Or(f.Owner.Compare(g.Owner), cmp.Compare(f.Family, g.Family), cmp.Compare(f.Protocol, g.Protocol),
		cmp.Compare(f.Port, g.Port), cmp.Compare(f.PortName, g.PortName))
}

// CompareAge orders Frontends by the age of their Services: the older one keeps what both request.
// UIDs order those created in the same second, and names only those without UIDs, as in manifests.
func (f *Frontend) CompareAge(g *Frontend) int {
	return cmp.Or(f.Created.Compare(g.Created), cmp.Compare(f.UID, g.UID), f.Owner.Compare(g.Owner))
}

// OfService returns all Frontends of a Service, of a list in the order of Compare.
func OfService(list []*Frontend, owner Owner) []*Frontend {
	i, _ := slices.BinarySearchFunc(list, owner,
		func(f *Frontend, o Owner) int { return f.Owner.Compare(o) })
	end := i
	for end < len(list) && list[end].Owner == owner {
		end++
	}
	return list[i:end:end]
}

// Backend is one endpoint of a Frontend. Backends are sorted by address and port, without
// duplicates.
type Backend struct {
	Addr        netip.Addr
	Port        uint16
	Node        string // endpoint's nodeName; empty if the slice has none
	Ready       bool
	Serving     bool
	Terminating bool
	Zone        string   // endpoint's zone
	ForZones    []string // hints.forZones
	ForNodes    []string // hints.forNodes
}
