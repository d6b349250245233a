// Package hostnet manages the network of the machine itself: it finds the gateway bridge, addresses
// and links, moves the uplink into the bridge, and publishes the result for the other nodes.
package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/kernel"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/hostnet/restore"
	"hairpin/hostnet/uplink"
	"hairpin/netdev"
	"hairpin/ovsdb"
)

// keyGateway is the external_ids key of the gateway bridge that has the Gateway as it was found
// last. A restart of a userspace Open vSwitch makes the bridge's device anew, without its addresses
// and routes, and the API may be unavailable then. keyNetwork has what is restored on the device;
// networks without a router and MACs of next hops are only here.
const keyGateway = "k8s.ovn.org/l3-gateway-config"

// Found holds the facts that the agent discovers on its own host.
type Found struct {
	Gateway    cluster.Gateway
	addresses  []netip.Prefix        // of the whole host
	deviceWith map[netip.Addr]device // the device that has an address
	otherLinks []cluster.HostLink    // to other networks than the gateway bridge's
	rules      []cluster.HostRule
	tables     []cluster.RouteTable
	ports      *cluster.HostPorts // nil before the first poll of the host's sockets
}

// LostAddress reports whether the host has lost an address since before.
func (f *Found) LostAddress(before *Found) bool {
	return slices.ContainsFunc(before.addresses, func(p netip.Prefix) bool { return !slices.Contains(f.addresses, p) })
}

// device is a link of the host.
type device struct {
	name string
	mac  cluster.MAC
}

// discover finds the gateway bridge, its uplink and its addresses, and the addresses of all links
// of the host. lost is the Record of what the bridge's device has lost.
func discover(v ovsdb.View, config cluster.Config, lost *restore.Record) (Found, error) {
	name := config.Gateway.Interface
	bridge := ovsdb.BridgeNamed(v, name)
	if bridge == nil {
		return Found{}, fmt.Errorf("[gateway] interface: Open vSwitch has no bridge %s", name)
	}
	mode := cluster.ModeNamed(config.Gateway.Mode)
	g := cluster.Gateway{
		Mode: config.Gateway.Mode, Bridge: name, Uplink: uplinkOf(v, bridge),
		Userspace: bridge.DatapathType == uplink.UserspaceDatapath,
		Redirect:  config.Gateway.NodePortPath == cluster.PathRedirect, NodeLocal: config.DistributedPort(),
		OpenFlow: config.ServiceEngine == cluster.EngineOpenFlow,
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return Found{}, fmt.Errorf("gateway bridge %s: %w", name, err)
	}
	g.MAC = macOf(bridge, link)
	host, err := hostAddresses(config)
	if err != nil {
		return Found{}, err
	}
	f := Found{deviceWith: map[netip.Addr]device{}}
	if f.otherLinks, err = hostLinks(&g, host); err != nil {
		return Found{}, err
	}
	if f.rules, err = hostRules(); err != nil {
		return Found{}, err
	}
	for _, a := range host {
		onBridge := a.link == link.Attrs().Index
		if onBridge && a.global {
			g.Addresses = append(g.Addresses, a.prefix)
		}
		if onBridge && !mode.Uplink { // other nodes reach the node by other addresses
			continue
		}
		f.addresses = append(f.addresses, a.prefix)
		f.deviceWith[a.prefix.Addr()] = a.device
	}
	if !mode.Uplink {
		f.Gateway, err = completeDetached(g, config, host)
		return f, err
	}
	if g.NextHops, err = nextHops(link.Attrs().Index, config); err != nil {
		return Found{}, err
	}
	if g.OpenFlow && !mode.ClientsByHost { // flows send the replies to external clients
		if err := discoverRouters(&g, link.Attrs().Index); err != nil {
			return Found{}, err
		}
	}
	f.Gateway = withLost(g, bridge, lost)
	f.addresses = append(f.addresses, f.Gateway.Addresses...)
	slices.SortFunc(f.addresses, cluster.ComparePrefixes)
	f.addresses = slices.Compact(f.addresses)
	return f, nil
}

// macOf returns the bridge's Ethernet address. The device may still have the address with which
// Open vSwitch made it.
func macOf(bridge *ovsdb.Bridge, link netlink.Link) (mac cluster.MAC) {
	const group = 1 // no device has a group address: Open vSwitch ignores such a value
	if wanted, err := net.ParseMAC(bridge.OtherConfig["hwaddr"]); err == nil && len(wanted) == len(mac) &&
		wanted[0]&group == 0 {
		return cluster.MAC(wanted)
	}
	copy(mac[:], link.Attrs().HardwareAddr)
	return mac
}

// uplinkOf returns the bridge's port that is a device of the machine.
func uplinkOf(v ovsdb.View, bridge *ovsdb.Bridge) string {
	ports := map[ovsdb.UUID]bool{}
	for _, p := range bridge.Ports {
		ports[p] = true
	}
	interfaces := map[ovsdb.UUID]bool{}
	for p := range ovsdb.Rows[ovsdb.Port](v) {
		if ports[p.UUID] {
			for _, i := range p.Interfaces {
				interfaces[i] = true
			}
		}
	}
	var names []string
	for i := range ovsdb.Rows[ovsdb.Interface](v) {
		if interfaces[i.UUID] && (i.Type == "" || i.Type == "system") && i.Name != bridge.Name {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

type hostAddress struct {
	link   int // index of its link
	device device
	prefix netip.Prefix
	global bool // other machines may use it: its scope is global, and it is not one of HostOnly
}

// hostAddresses lists the unicast addresses of the host that pods may reach. It leaves out
// Hairpin's, cluster IPs (of NodeLocal DNSCache or a former kube-proxy), and link-local ones of
// IPv6, which cannot be reached from other links.
func hostAddresses(config cluster.Config) ([]hostAddress, error) {
	links, err := netdev.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	ours, devices := map[int]bool{}, map[int]device{}
	for _, l := range links {
		name := l.Attrs().Name
		d := device{name: name}
		copy(d.mac[:], l.Attrs().HardwareAddr)
		devices[l.Attrs().Index] = d
		ours[l.Attrs().Index] = name == claims.ManagementPort || name == claims.EncapBridge ||
			name == claims.EncapHost || name == claims.LocalPort
	}
	list, err := netdev.Addresses(nil)
	if err != nil {
		return nil, fmt.Errorf("addresses: %w", err)
	}
	own, err := kernel.OwnAddresses()
	if err != nil {
		return nil, err
	}
	var out []hostAddress
	for _, a := range list {
		prefix := netdev.Prefix(a.IPNet)
		addr := prefix.Addr()
		if !prefix.IsValid() || !addr.IsGlobalUnicast() && !cluster.HostOnly(addr) || ours[a.LinkIndex] ||
			inAny(config.Gateway.MasqueradeSubnets, addr) || inAny(config.ServiceCIDRs, addr) {
			continue
		}
		if own[kernel.OwnAddress{Link: a.LinkIndex, Prefix: prefix}] {
			continue
		}
		out = append(out, hostAddress{
			link: a.LinkIndex, device: devices[a.LinkIndex], prefix: prefix,
			global: a.Scope == unix.RT_SCOPE_UNIVERSE && !cluster.HostOnly(addr),
		})
	}
	slices.SortFunc(out, func(a, b hostAddress) int { return cluster.ComparePrefixes(a.prefix, b.prefix) })
	return out, nil
}

func inAny(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// anyLink is not the index of any link.
const anyLink = 0

// nextHops returns the default gateways through a link: the configuration's, or those of the
// family's best default route, which may have several.
func nextHops(link int, config cluster.Config) ([]netip.Addr, error) {
	// the kernel lists the best route first
	routes, err := kernel.Routes{Link: link, Table: unix.RT_TABLE_MAIN, Max: 1, Keep: func(r *netlink.Route) bool {
		return len(defaultHops(r, link)) > 0
	}}.List()
	if err != nil {
		return nil, err
	}
	hops := slices.Clone(config.Gateway.NextHops)
	for i := range routes {
		hops = append(hops, withoutFamiliesOf(defaultHops(&routes[i], link), hops, netip.Addr.Is4)...)
	}
	slices.SortFunc(hops, netip.Addr.Compare)
	return hops, nil
}

// defaultHops returns the next hops of a default route through a link. For another route it returns
// none.
func defaultHops(r *netlink.Route, link int) (hops []netip.Addr) {
	if netdev.Destination(r).Bits() != 0 {
		return nil
	}
	return hopsBy(r, link)
}

// hopsBy returns the next hops of a route through a link.
func hopsBy(r *netlink.Route, link int) (hops []netip.Addr) {
	for _, hop := range netdev.NextHops(r) {
		if gw, ok := netip.AddrFromSlice(hop.Gw); ok && (link == anyLink || hop.LinkIndex == link) {
			hops = append(hops, gw.Unmap())
		}
	}
	return hops
}

// withLost fills in what the bridge's device has lost: of each family, all addresses, next hops and
// networks, if the device has none again. Without a Record it fills in only the addresses that were
// found last: nothing could be planned without one.
func withLost(g cluster.Gateway, bridge *ovsdb.Bridge, lost *restore.Record) cluster.Gateway {
	old, _ := annotation.ParseGateway(bridge.ExternalIDs[keyGateway])
	addresses := old.Addresses
	if lost != nil {
		addresses = lost.Prefixes()
		g.NextHops = append(g.NextHops, withoutFamiliesOf(lost.NextHops(), g.NextHops, netip.Addr.Is4)...)
		g.OnLink = append(g.OnLink, withoutFamiliesOf(old.OnLink, g.OnLink, isIPv4)...)
	}
	g.Addresses = append(g.Addresses, withoutFamiliesOf(addresses, g.Addresses, isIPv4)...)
	slices.SortFunc(g.Addresses, cluster.ComparePrefixes)
	slices.SortFunc(g.NextHops, netip.Addr.Compare)
	g.NextHops = slices.Compact(g.NextHops)
	slices.SortFunc(g.OnLink, cluster.ComparePrefixes)
	addLastMACs(&g, old.NextHopMACs)
	return g
}

// withoutFamiliesOf returns a list without the elements of the families that `of` has.
func withoutFamiliesOf[T any](list, of []T, is4 func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool {
		return slices.ContainsFunc(of, func(y T) bool { return is4(x) == is4(y) })
	})
}

func isIPv4(p netip.Prefix) bool { return p.Addr().Is4() }

// addLastMACs fills in the last known MAC of each next hop that the kernel has no MAC for: such a
// next hop is in NextHopMACs with a zero MAC, or not at all. It leaves out next hops without one.
func addLastMACs(g *cluster.Gateway, last map[netip.Addr]cluster.MAC) {
	if g.NextHopMACs == nil {
		return
	}
	for _, h := range g.NextHops { // those of routes that the bridge has lost are not in the map
		if _, known := g.NextHopMACs[h]; !known {
			g.NextHopMACs[h] = cluster.MAC{}
		}
	}
	for a, mac := range g.NextHopMACs {
		if mac != (cluster.MAC{}) {
			continue
		}
		if last[a] == (cluster.MAC{}) {
			delete(g.NextHopMACs, a)
		} else {
			g.NextHopMACs[a] = last[a]
		}
	}
}
