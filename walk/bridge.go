package walk

import (
	"fmt"
	"strconv"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/walk/conntrack"
	"hairpin/walk/nft"
	"hairpin/walk/openflow"
	"hairpin/walk/ovn"
	"hairpin/walk/packet"
)

// plainBridge is the bridge of another physical network of OVN. It has none of our flows: it is a
// learning switch.
type plainBridge struct{ name, patch, localnet string }

// addPatches adds the patch ports between OVN and the bridges of its networks.
func (n *node) addPatches() {
	for _, row := range n.ovn.Localnets() {
		switch to, ok := n.mappedBridge(row.Options["network_name"]); {
		case ok && to == n.bridge.Name:
			n.patch[patchPort(row.Name)] = row.Name
		case ok:
			n.plainBridges[to] = &plainBridge{to, patchPort(row.Name), row.Name}
		}
	}
}

// podPort returns the port of one of our bridges that a pod is behind.
func (n *node) podPort(pod *cluster.Pod) (port string, ok bool) {
	for _, b := range n.ownBridges {
		for port, mac := range b.Pods {
			if mac == pod.MAC {
				return port, true
			}
		}
	}
	return "", false
}

// bridgeOf returns the bridge that a port is on: port names are unique on a node.
func (n *node) bridgeOf(port string) *openflow.Bridge {
	on := n.state.Bridge.Ports[port].Bridge
	for _, b := range n.ownBridges {
		if _, pod := b.Pods[port]; pod || b.Name == on {
			return b
		}
	}
	return n.bridge
}

// portToOVN returns OVN's port that one of our bridges connects to, or nil.
func (n *node) portToOVN(b *openflow.Bridge) *ovn.Port {
	for _, p := range n.state.Bridge.Ports {
		if id, ok := n.logicalPort(p.Peer); ok && p.Bridge == b.Name {
			return n.ovn.Port(id)
		}
	}
	return nil
}

// bridgeReceives takes a packet through the gateway bridge, or another of our bridges.
func (r *run) bridgeReceives(n *node, in string) (location, error) {
	b := n.bridgeOf(in)
	if b.Name == "" {
		return location{}, fmt.Errorf("the State has no gateway bridge")
	}
	v := &r.visits[len(r.visits)-1]
	v.Bridge, v.Tunnel = b.Name, r.tunnel
	result, err := b.Receive(&r.Path, in, r.tunnel)
	r.tunnel = flow.Tunnel{}
	if err != nil {
		return location{}, err
	}
	_, group := groupMAC(r.Dst)
	switch {
	case len(result.Outputs) == 0 && result.Denied != "":
		return r.drop(packet.ByPolicies, result.Denied)
	case len(result.Outputs) == 0:
		return r.drop(packet.ByRule, b.Name+" drops it")
	case group && b.Key != "":
		return r.flooded(n, b, result.Outputs)
	case len(result.Outputs) > 1:
		return location{}, fmt.Errorf("the packet leaves %s through %s and %s: multiple outputs are not modelled",
			b.Name, result.Outputs[0].Port, result.Outputs[1].Port)
	}
	out := result.Outputs[0]
	r.Packet, v.Out = out.Packet, out.Port
	switch {
	case b.Key != "":
		return r.afterOutput(n, b, out)
	case out.Port == flow.Local:
		return location{hostReceives, n, b.Name}, nil
	case n.patch[out.Port] != "":
		return location{switchReceives, n, n.patch[out.Port]}, nil
	case out.Port == n.uplink():
		r.Mark = 0
		return location{outsideReceives, n, ""}, nil
	}
	return n.behindPort(b, out.Port)
}

// afterOutput returns the location of a packet that left one of our bridges.
func (r *run) afterOutput(n *node, b *openflow.Bridge, out openflow.Output) (location, error) {
	if port := n.state.Bridge.Ports[out.Port]; port.Local.IsValid() {
		return r.geneve(n, port, out.Tunnel)
	}
	if mac, is := b.Pods[out.Port]; is {
		for _, pod := range n.pods {
			if pod.MAC == mac {
				return r.podReceives(n, pod)
			}
		}
		return r.drop(packet.Other, "no pod has MAC "+packet.MACText(mac))
	}
	return n.behindPort(b, out.Port)
}

// addNeighbors adds, to the switch that one of our bridges connects to, the addresses for which the
// bridge sends ARP requests and neighbor solicitations to pods: OVN itself has no port with them.
func (n *node) addNeighbors() {
	for _, b := range n.ownBridges {
		if p := n.portToOVN(b); p != nil {
			for a, m := range b.Neighbors() {
				p.AddNeighbor(a, m)
			}
		}
	}
}

// behindPort returns the location behind a port: OVN, another bridge, or the host.
func (n *node) behindPort(b *openflow.Bridge, out string) (location, error) {
	port := n.state.Bridge.Ports[out]
	id, isOVN := n.logicalPort(port.Peer)
	switch {
	case isOVN:
		return location{switchReceives, n, id}, nil
	case port.Peer != "":
		return location{bridgeReceives, n, port.Peer}, nil
	case port.Type == "internal":
		return location{hostReceives, n, out}, nil
	}
	return location{}, fmt.Errorf("%s: it is not known where port %s leads", b.Name, out)
}

// patchPort returns the name that ovn-controller gives to the patch port of a localnet port.
func patchPort(localnet string) string { return "patch-" + localnet + "-to-br-int" }

// plainBridgeOfPatch returns the bridge without our flows that a patch port is on, or nil.
func (n *node) plainBridgeOfPatch(patch string) *plainBridge {
	for _, p := range n.plainBridges {
		if p.patch == patch {
			return p
		}
	}
	return nil
}

// plainReceives takes a packet through a bridge without our flows, between OVN and the host's links
// on it.
func (r *run) plainReceives(n *node, in string) (location, error) {
	b, to := n.plainBridgeOfPatch(in), location{}
	if b != nil {
		for name, p := range n.state.Bridge.Ports {
			if p.Bridge == b.name && p.MAC == r.EthDst {
				to = location{hostReceives, n, name}
			}
		}
	} else if b = n.plainBridgeOfLink(in); b != nil {
		to = location{switchReceives, n, b.localnet}
	}
	if to == (location{}) {
		return r.drop(packet.Other, "no port of the bridge of "+in+" has MAC "+packet.MACText(r.EthDst))
	}
	out := to.port
	if to.place == switchReceives {
		out = b.patch
	}
	r.CT = conntrack.State{}
	r.Step(b.name+" table 0", "priority=0 actions=NORMAL", n.owner, "switched to "+out)
	v := &r.visits[len(r.visits)-1]
	v.Bridge, v.Out = b.name, out
	return to, nil
}

// afterHost carries a packet to what is behind the link by which it leaves the host.
func (r *run) afterHost(n *node, link string, err error) (location, error) {
	if err != nil || r.End != nil {
		return location{}, err
	}
	port, isOVN := n.logicalPort(link)
	switch {
	case link == nft.Loopback:
		return r.deliver(Point{Node: n.name}, "delivered to host "+n.name+" port "+strconv.Itoa(int(r.DstPort)))
	case link == n.bridge.Name:
		return location{bridgeReceives, n, flow.Local}, nil
	case n.bridgeOf(link) != n.bridge:
		return location{bridgeReceives, n, link}, nil
	case n.plainBridgeOfLink(link) != nil:
		return location{plainReceives, n, link}, nil
	case isOVN:
		return location{switchReceives, n, port}, nil
	}
	r.Mark = 0
	return location{outsideReceives, n, ""}, nil
}

// switchOutput delivers the packet to what a port of a logical switch connects to.
func (r *run) switchOutput(n *node, name string) (location, error) {
	p := n.ovn.Port(name)
	r.CT = conntrack.State{}
	if err := p.Check(); err != nil {
		return location{}, err
	}
	if router := p.RouterPort(); router != "" {
		return location{routerReceives, n, router}, nil
	}
	if network, ok := p.Localnet(); ok {
		patch := patchPort(name)
		switch {
		case n.plainBridgeOfPatch(patch) != nil:
			return location{plainReceives, n, patch}, nil
		case n.patch[patch] == "":
			return r.drop(packet.Other,
				fmt.Sprintf("port %s: no bridge is mapped to network %q (ovn-bridge-mappings)", name, network))
		}
		return location{bridgeReceives, n, patch}, nil
	}
	if pod := n.pods[name]; pod != nil {
		return r.podReceives(n, pod)
	}
	if link, ok := n.link(name); ok {
		if peer := n.state.Bridge.Ports[link].Peer; peer != "" {
			return location{bridgeReceives, n, peer}, nil
		}
		return location{hostReceives, n, link}, nil
	}
	return r.drop(packet.Other, fmt.Sprintf("no interface is bound to port %s", name))
}
