package cluster

import (
	"net/netip"
	"slices"
)

// Announcement has the facts that a node needs to announce addresses of a LoadBalancerPool.
type Announcement struct {
	// Message is the controller's reason why no node announces an address; empty if one does.
	Message string
	// SkipsExcluded reports that nodes with the label corev1.LabelNodeExcludeBalancers do not
	// announce: there are other nodes, and the pool does not select nodes.
	SkipsExcluded bool
}

// OnlyAnnounced reports whether a node only announces the addresses, and no pods leave with them.
func (e *EgressIP) OnlyAnnounced() bool { return e.Service != nil && e.Service.Announced != nil }

// LabelEgressHost, followed by "NAMESPACE-NAME" of an EgressService, is a label of the node that is
// its host. By this label, a program that announces load balancer addresses can select the node.
const LabelEgressHost = "egress-service.k8s.ovn.org/"

// EgressService turns a Service's load balancer addresses and endpoints into an EgressIP. All its
// addresses are on one node, and it takes precedence over other EgressIPs that select its pods.
type EgressService struct {
	Network   bool         // sourceIPBy: Network: the pods leave as if no EgressIP selected them
	Nodes     Selector     // candidates for the host
	Endpoints []netip.Addr // of pods of its namespace; sorted
	// OnlyOn are the nodes with endpoints, sorted, if only those serve external clients; nil: all
	// nodes do.
	OnlyOn []string
	Host   string // as in the status
	Ended  bool   // it was deleted, and its host still does SNAT; only an agent sets it
	// Table is the VRF or route table of the host by which the packets leave, as in spec.network;
	// empty: none.
	Table string
	// ClusterIPs are those of the Service, only if Table is set. Replies to clients have them as
	// source, if the host did DNAT.
	ClusterIPs []netip.Addr
	// Announced is set if this was made only for load balancer addresses, without an object of kind
	// EgressService: no pods leave with the addresses, a node only announces them.
	Announced *Announcement
}

// ByTable reports whether the pods of an EgressIP leave by a route table of the host (spec.network
// of an EgressService).
func (e *EgressIP) ByTable() bool { return e.Service != nil && e.Service.Table != "" }

// MayBeOn reports whether a node may have addresses of the EgressIP, if the node is alive.
func (e *EgressIP) MayBeOn(n *Node) bool {
	switch x := e.Service; {
	case x == nil && e.Nodes != nil:
		return e.Nodes.Matches(n.Egress.Labels)
	case x == nil:
		return n.Egress.Assignable
	case x.Network || len(e.Addresses) == 0 || x.OnlyOn != nil && !slices.Contains(x.OnlyOn, n.Name):
		return false
	case x.Announced != nil && x.Announced.SkipsExcluded && n.Excluded():
		return false
	default:
		return x.Nodes.Matches(n.Egress.Labels)
	}
}

// MayCarry reports whether a node may have an address of any EgressIP, if the node is alive.
func (s *Snapshot) MayCarry(n *Node) bool {
	return slices.ContainsFunc(s.EgressIPs, func(e *EgressIP) bool { return e.MayBeOn(n) })
}

// Selects reports whether the EgressIP selects a Pod, of a Namespace with these labels. Another
// EgressIP that selects the Pod may have precedence.
func (e *EgressIP) Selects(p *Pod, namespace map[string]string) bool {
	if e.Service == nil {
		return e.Pods.Matches(p.Labels) && e.Namespaces.Matches(namespace)
	}
	return p.Owner.Namespace == e.Owner.Namespace && slices.ContainsFunc(p.IPs, func(a netip.Addr) bool {
		_, found := slices.BinarySearchFunc(e.Service.Endpoints, a, netip.Addr.Compare)
		return found
	})
}

// DisplayName returns the name of an EgressIP for messages: its own, or the EgressService's,
// "default/web", or the Service's, "Service/default/web".
func (e *EgressIP) DisplayName() string {
	switch {
	case e.Service == nil:
		return e.Owner.Name
	case e.Service.Announced != nil:
		return e.Owner.String()
	}
	return e.Owner.Namespace + "/" + e.Owner.Name
}

// NetworkFor returns the network in which a node has an address of the EgressIP: that of NetworkOf.
// A load balancer address, and one that the node announces by BGP, may belong to no network,
// because routers have routes for it. Such an address is on the network of the node's own address.
func (e *EgressIP) NetworkFor(n *Node, networks []Network, a netip.Addr) (Network, bool) {
	if x, ok := NetworkOf(networks, a); ok {
		return x, true
	}
	routed := slices.ContainsFunc(e.Routed, func(s Selector) bool { return s.Matches(n.Egress.Labels) })
	if e.Service == nil && !routed {
		return Network{}, false
	}
	return NetworkOf(networks, n.Address(FamilyOf(a)))
}
