package ovn

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath/nb"
)

// Port returns a logical switch port, or nil.
func (n *Network) Port(name string) *Port { return n.ports[name] }

// Localnets returns the rows of the ports to other networks.
func (n *Network) Localnets() (rows []*nb.SwitchPort) {
	for _, p := range n.ports {
		if p.row.Type == "localnet" {
			rows = append(rows, p.row)
		}
	}
	return rows
}

// RouterPort returns the router port that the port connects to; empty if none.
func (p *Port) RouterPort() string {
	if p.peer == nil {
		return ""
	}
	return p.peer.row.Name
}

// Localnet returns the network that the port connects to, if it is of that type.
func (p *Port) Localnet() (network string, ok bool) {
	return p.row.Options["network_name"], p.row.Type == "localnet"
}

// Switch returns the name of the port's switch.
func (p *Port) Switch() string { return p.row.Switch }

// Neighbor returns the MAC that answers for an address on the port's switch.
func (p *Port) Neighbor(a netip.Addr) (cluster.MAC, bool) { return p.sw.macFor(a) }

// AddNeighbor adds to the port's switch an address that a machine behind the port answers for. The
// MAC is zero if several machines may answer.
func (p *Port) AddNeighbor(a netip.Addr, m cluster.MAC) { p.sw.otherIPs[a] = m }

// Gateway returns the MAC of the switch's router for a sender with an address.
func (p *Port) Gateway(sender netip.Addr) (m cluster.MAC, ok bool) {
	gateway := p.sw.routerFor(sender)
	if gateway == nil {
		return m, false
	}
	return gateway.row.MAC, true
}
