package walk

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/walk/linux"
	"hairpin/walk/openflow"
	"hairpin/walk/ovn"
)

// node is one node's State, prepared when a packet first reaches the node. It has what the
// interpreters need to know about each other: what is behind a port or a link.
type node struct {
	w            *Walker
	name         string
	state        datapath.State
	info         *cluster.Node // nil if the Snapshot has none
	owner        cluster.Owner // the Node object
	pods         map[string]*cluster.Pod
	bridge       *openflow.Bridge   // the gateway bridge
	ownBridges   []*openflow.Bridge // bridges that only Hairpin uses, without the gateway bridge
	patch        map[string]string  // patch port of the gateway bridge to OVN -> its localnet port
	plainBridges map[string]*plainBridge
	ovn          *ovn.Network
	host         *linux.Host
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
	n := &node{w: w, name: name, state: state, info: w.world.Snapshot.Node(name),
		owner: cluster.Owner{Kind: "Node", Name: name},
		pods:  map[string]*cluster.Pod{}, patch: map[string]string{}, plainBridges: map[string]*plainBridge{}}
	for _, p := range w.world.Snapshot.Pods {
		if p.Node == name {
			n.pods[p.LogicalPort()] = p
		}
	}
	var err error
	if n.ovn, err = ovn.New(state.NB, state.Bridge.Settings["system-id"], n); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	n.bridge, n.ownBridges = openflow.Bridges(&n.state.Bridge, n.info)
	n.addPatches()
	n.addNeighbors()
	n.host = linux.New(name, n.info, &n.state, n)
	w.nodes[name] = n
	return n, nil
}

func (n *node) userspace() bool { return n.info != nil && n.info.Gateway.Userspace }

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

// linkWith returns the host's link to another network to which an address belongs; empty if there
// is none. The address may be the link's own or an egress address.
func (n *node) linkWith(a netip.Addr) string {
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

// HasPort reports whether a link of the host is bound to a logical switch port.
func (n *node) HasPort(logicalPort string) bool {
	_, ok := n.link(logicalPort)
	return ok
}

// Resolve returns the MAC of a neighbour on the external network.
func (n *node) Resolve(a netip.Addr) (cluster.MAC, bool) { return n.w.resolve(a) }

// Neighbor resolves a neighbour on a link, as ARP or neighbour discovery would.
func (n *node) Neighbor(link string, a netip.Addr) (cluster.MAC, bool) {
	port, ok := n.logicalPort(link)
	if b := n.plainBridgeOfLink(link); !ok && b != nil {
		port, ok = b.localnet, true
	}
	if !ok {
		return n.w.resolve(a)
	}
	if p := n.ovn.Port(port); p != nil {
		return p.Neighbor(a)
	}
	return cluster.MAC{}, false
}

// IsNodeMAC reports whether a MAC belongs to a node's link to a network.
func (n *node) IsNodeMAC(m cluster.MAC) bool {
	return slices.ContainsFunc(n.w.world.Snapshot.Nodes, func(n *cluster.Node) bool {
		return ExternalMAC(n) == m || n.Gateway.MAC == m || n.Gateway.DeviceMAC == m ||
			slices.ContainsFunc(n.Links, func(l cluster.HostLink) bool { return l.MAC == m })
	})
}

// MAC returns a link's own MAC, zero if unknown.
func (n *node) MAC(link string) cluster.MAC {
	if l := n.hostLink(link); l != nil && link != n.info.Gateway.Device {
		return l.MAC
	}
	if m := n.state.Host.Links[link].MAC; m != (cluster.MAC{}) {
		return m
	}
	if m := n.state.Bridge.Ports[link].MAC; m != (cluster.MAC{}) {
		return m
	}
	switch {
	case n.info == nil:
	case n.info.Gateway.Device != "" && link == n.info.Gateway.Device:
		return ExternalMAC(n.info)
	case link == n.bridge.Name || n.info.Gateway.Uplink == "":
		return n.info.Gateway.MAC
	}
	return cluster.MAC{}
}

// mappedBridge returns the bridge of a physical network, by ovn-bridge-mappings.
func (n *node) mappedBridge(network string) (string, bool) {
	for _, m := range strings.Split(n.state.Bridge.Settings["ovn-bridge-mappings"], ",") {
		if name, bridge, ok := strings.Cut(strings.TrimSpace(m), ":"); ok && name == network {
			return bridge, true
		}
	}
	return "", false
}

// plainBridgeOfLink returns the bridge of the OVN network that a link of the host is a port of, or
// nil.
func (n *node) plainBridgeOfLink(link string) *plainBridge {
	return n.plainBridges[n.state.Bridge.Ports[link].Bridge]
}
