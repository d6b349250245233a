package node

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
)

// MainTable is the kernel's main routing table.
const MainTable = 254

// Kernel writes the host's links, addresses, routes and neighbours.
type Kernel struct {
	Env   *Env
	State host.State
	Owner cluster.Owner
}

// NewKernel returns a Kernel that writes nothing yet. Its objects will belong to the planned node.
func NewKernel(e *Env) *Kernel {
	return &Kernel{Env: e, Owner: cluster.NodeOwner(e.Node.Name), State: host.State{
		Links: map[string]host.Link{}, Addresses: map[host.AddressKey]host.Address{},
		Routes:    map[host.RouteKey]host.Route{},
		Neighbors: map[host.NeighborKey]host.Neighbor{}, Rules: map[host.Rule]cluster.Owner{},
		Sysctls: map[string]host.Sysctl{},
	}}
}

// Checksums reports whether the host must compute checksums of its packets to Open vSwitch. If the
// userspace datapath returns them, and the host or a program forwards them to a link, they would
// otherwise have a wrong checksum.
func (e *Env) Checksums() bool {
	return e.Node.Gateway.Userspace && (e.Mode.ClientsByHost || len(e.Redirect) > 0 ||
		slices.ContainsFunc(e.Stacks, func(s Stack) bool { return e.RoutesByHost(&s) }))
}

// RouteToClients adds the route to clients of endpoints on this host. Its MSS makes TCP segments
// fit the routes by which the host forwards packets from other links to Services.
func (k *Kernel) RouteToClients(s *Stack, link string, mtu int) {
	r := host.Route{RouteKey: host.RouteKey{Table: MainTable, Prefix: HostPrefix(s.MasqOVN)}, Link: link, Src: s.Node,
		MTU: mtu}
	if pods := k.Env.Config.MTU; mtu > pods {
		r.AdvMSS = pods - Vocab(s.Family).tcpHeaders
	}
	k.Route(r)
}

// ServiceLink returns the link of the host's routes to Services.
func (e *Env) ServiceLink() string {
	if e.Engine.ServiceBridge {
		return claims.ServiceHost
	}
	return e.Node.Gateway.Bridge
}

// ServiceHop returns the next hop of the host's routes to Services, on ServiceLink.
func (e *Env) ServiceHop(s *Stack) netip.Addr {
	if e.Engine.ServiceBridge {
		return s.MasqOVN
	}
	return s.MasqNext
}

// Asymmetric allows a packet and its reply to take different links, and packets to leave by the
// link by which they came, without an ICMP redirect.
func (k *Kernel) Asymmetric(link string) {
	k.Sysctl(fmt.Sprintf("net/ipv4/conf/%s/rp_filter", link), "2")
	k.Sysctl(fmt.Sprintf("net/ipv4/conf/%s/send_redirects", link), "0")
}

func (k *Kernel) Address(a host.Address) {
	a.Owner = k.Owner
	k.State.Addresses[a.AddressKey] = a
}

func (k *Kernel) Route(r host.Route) {
	r.Owner = k.Owner
	k.State.Routes[r.RouteKey] = r
}

func (k *Kernel) Neighbor(link string, ip netip.Addr, mac cluster.MAC) {
	n := host.NeighborKey{Link: link, IP: ip}
	k.State.Neighbors[n] = host.Neighbor{NeighborKey: n, MAC: mac, Owner: k.Owner}
}

func (k *Kernel) Sysctl(path, value string) {
	k.State.Sysctls[path] = host.Sysctl{Path: path, Value: value, Owner: k.Owner}
}
