package cluster

import (
	"net/netip"
	"strings"
)

// Pod is one Pod with addresses of the pod network. Pods in the host's network, finished and
// unscheduled ones have no such addresses.
type Pod struct {
	Owner  Owner
	UID    string
	Node   string
	IPs    []netip.Addr // at most one per family, IPv4 first
	MAC    MAC
	Labels map[string]string // EgressIPs and Policies select Pods by them
	// Ports are the named ports of its containers, sorted by name and protocol. Of several with the
	// same name and protocol, only the first is listed. Policies refer to them by name.
	Ports []PodPort
	// RequestedExtra are further addresses that it requests by an annotation, and Extra those among
	// them that it may use.
	RequestedExtra, Extra []netip.Addr
	// Unread reports that the Pod's object is not known, so neither are its Labels and Ports. A
	// policy may select it. Only an agent sets it, for pods of its own node.
	Unread bool
	// Port is the Open vSwitch port of the pod, the host's end of its link. PortRow is the UUID of
	// its database row; a port that was recreated has another one. Only the pod's node knows them.
	Port, PortRow string
}

// PodPort is a named container port.
type PodPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// LogicalPort is the name of the pod's OVN port and of its Open vSwitch iface-id: "namespace_name".
func (p *Pod) LogicalPort() string { return p.Owner.Namespace + "_" + p.Owner.Name }

// PortVersion is the iface-id-ver of the pod's OVN port and of its Open vSwitch interface: the
// pod's addresses. OVN binds the port to the interface only if both have the same iface-id-ver.
func (p *Pod) PortVersion() string {
	var text []string
	for _, ip := range p.IPs {
		text = append(text, ip.String())
	}
	return strings.Join(text, ",")
}

// Namespace is one Kubernetes Namespace.
type Namespace struct {
	Name        string
	Labels      map[string]string
	ExtraRanges []netip.Prefix // its Pods may have extra addresses in these ranges
}

// NamespaceOwner returns the Owner of the Namespace of that name.
func NamespaceOwner(name string) Owner { return Owner{Kind: "Namespace", Name: name} }
