package walk

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath"
)

// zone0 is the conntrack zone of the kernel's own stack.
const zone0 = "0"

// node is one node's State, prepared when a packet first reaches the node.
type node struct {
	name    string
	state   datapath.State
	info    *cluster.Node // nil if the Snapshot has none
	owner   cluster.Owner // the Node object
	pods    map[string]*cluster.Pod
	bridge  *bridge   // the gateway bridge
	further []*bridge // bridges that only Hairpin uses
	ovn     *logical
	kernel  *kernel
	zone0   zone
}

// node returns the node with that name.
func (w *Walker) node(name string) (*node, error) {
	if n := w.nodes[name]; n != nil {
		return n, nil
	}
	state, ok := w.world.States[name]
	if !ok && w.world.Lookup != nil {
		state, ok = w.world.Lookup(name)
	}
	if !ok {
		return nil, fmt.Errorf("the State of node %s is not known", name)
	}
	n := &node{name: name, state: state, info: w.world.Snapshot.Node(name),
		owner: cluster.Owner{Kind: "Node", Name: name},
		pods:  map[string]*cluster.Pod{}}
	n.zone0 = zone{node: name, name: zone0}
	for _, p := range w.world.Snapshot.Pods {
		if p.Node == name {
			n.pods[p.LogicalPort()] = p
		}
	}
	var err error
	if n.ovn, err = newLogical(state.NB); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	n.bridge = newBridge(n)
	n.addNeighbors()
	n.kernel = newKernel(n)
	w.nodes[name] = n
	return n, nil
}

// zone returns a conntrack zone of the node's Open vSwitch.
func (n *node) zone(name string) zone {
	return zone{n.name, name, n.userspace()}
}

// uplink returns the gateway bridge's uplink port; empty if the host keeps the uplink.
func (n *node) uplink() string {
	if n.info == nil {
		return ""
	}
	return n.info.Gateway.Uplink
}

// hostLink returns the host's link to a network other than the gateway bridge's, or nil.
func (n *node) hostLink(name string) *cluster.HostLink {
	if n.info == nil {
		return nil
	}
	for i := range n.info.Links {
		if n.info.Links[i].Name == name {
			return &n.info.Links[i]
		}
	}
	return nil
}

// carrying returns the host's link to another network that has an address, its own or an egress
// address; empty if none has it.
func (n *node) carrying(a netip.Addr) string {
	for k := range n.state.Host.Addresses {
		if k.Prefix.Addr() == a && n.hostLink(k.Link) != nil {
			return k.Link
		}
	}
	if n.info == nil {
		return ""
	}
	for i := range n.info.Links {
		l := &n.info.Links[i]
		if l.Name != n.info.Gateway.Device &&
			slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return l.Name
		}
	}
	return ""
}

// logicalPort returns the logical switch port that a link of the host is bound to.
func (n *node) logicalPort(link string) (string, bool) {
	id, ok := n.state.Bridge.Ports[link].ExternalIDs["iface-id"]
	return id, ok
}

// link returns the link of the host that is bound to a logical switch port.
func (n *node) link(logicalPort string) (string, bool) {
	for name, p := range n.state.Bridge.Ports {
		if p.ExternalIDs["iface-id"] == logicalPort {
			return name, true
		}
	}
	return "", false
}

// chassis returns the node's chassis name in OVN.
func (n *node) chassis() string { return n.state.Bridge.Settings["system-id"] }

// mappedBridge returns the bridge of a physical network, by ovn-bridge-mappings.
func (n *node) mappedBridge(network string) (string, bool) {
	for _, m := range strings.Split(n.state.Bridge.Settings["ovn-bridge-mappings"], ",") {
		if name, bridge, ok := strings.Cut(strings.TrimSpace(m), ":"); ok && name == network {
			return bridge, true
		}
	}
	return "", false
}

// pluggedInto returns the bridge of the OVN network that a link of the host is a port of, or nil.
func (n *node) pluggedInto(link string) *plainBridge {
	return n.bridge.plain[n.state.Bridge.Ports[link].Bridge]
}

// internal reports whether an address is in one of the cluster's own networks, which no external
// machine uses.
func (w *Walker) internal(a netip.Addr) bool {
	c := &w.world.Snapshot.Config
	for _, s := range c.ClusterSubnets {
		if s.CIDR.Contains(a) {
			return true
		}
	}
	for _, list := range [...][]netip.Prefix{c.ServiceCIDRs, c.JoinSubnets, c.TransitSubnets,
		c.Gateway.MasqueradeSubnets, c.Gateway.NodeLocalSubnets} {
		for _, p := range list {
			if p.Contains(a) {
				return true
			}
		}
	}
	return false
}

// owner returns the node that answers for an address on the external network. The address belongs
// to its host, is an egress address, or is the external address of a NAT row.
func (w *Walker) owner(a netip.Addr) (*node, error) {
	if w.owners == nil {
		w.owners = map[netip.Addr]string{}
		for name, s := range w.world.States {
			for _, external := range natAddresses(s.NB) {
				w.owners[external] = name
			}
		}
		for _, e := range w.world.Snapshot.EgressIPs {
			for _, a := range e.Assigned {
				if w.world.Snapshot.Node(a.Node) != nil {
					w.owners[a.Address] = a.Node
				}
			}
		}
		for _, n := range w.world.Snapshot.Nodes {
			for _, p := range n.HostAddresses {
				if !cluster.HostOnly(p.Addr()) {
					w.owners[p.Addr()] = n.Name
				}
			}
			for _, a := range n.Addresses {
				w.owners[a] = n.Name
			}
		}
	}
	if w.internal(a) {
		return nil, nil
	}
	name, ok := w.owners[a]
	if !ok {
		return nil, nil
	}
	return w.node(name)
}

// byMAC returns the node that has a MAC on a network, and the node's link if that is to a network
// other than the gateway bridge's.
func (w *Walker) byMAC(m cluster.MAC) (n *node, link string, err error) {
	if m == (cluster.MAC{}) {
		return nil, "", nil
	}
	for _, info := range w.world.Snapshot.Nodes {
		if ExternalMAC(info) == m {
			n, err = w.node(info.Name)
			return n, "", err
		}
		for i := range info.Links {
			if l := &info.Links[i]; l.MAC == m && l.Name != info.Gateway.Device {
				n, err = w.node(info.Name)
				return n, l.Name, err
			}
		}
	}
	return nil, "", nil
}

// resolve returns the MAC of a neighbour on the external network; ok is false if none answers. An
// external machine answers with the zero MAC.
func (w *Walker) resolve(a netip.Addr) (m cluster.MAC, ok bool) {
	if w.internal(a) || w.world.Silent[a] {
		return m, false
	}
	if n, err := w.owner(a); err == nil && n != nil && n.info != nil {
		return ExternalMAC(n.info), true
	}
	return m, true
}
