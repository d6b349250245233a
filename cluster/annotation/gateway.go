package annotation

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// gatewayJSON is the value of Gateway. The keys uplink, device, device-mac,
// next-hop-macs, on-link, mtu, datapath, nodeport-path, node-local and service-engine are
// Hairpin's.
type gatewayJSON struct {
	Mode      string   `json:"mode"`
	Bridge    string   `json:"bridge-id,omitempty"`
	Uplink    string   `json:"uplink,omitempty"`
	Device    string   `json:"device,omitempty"`
	DeviceMAC string   `json:"device-mac,omitempty"`
	MAC       string   `json:"mac-address,omitempty"`
	Addresses []string `json:"ip-addresses,omitempty"`
	NextHops  []string `json:"next-hops,omitempty"`
	// A node without reachable routers has an empty object; without a check by the agent, there is
	// none.
	NextHopMACs map[string]string `json:"next-hop-macs,omitzero"`
	OnLink      []string          `json:"on-link,omitempty"`
	MTU         int               `json:"mtu,omitempty"`
	Datapath    string            `json:"datapath,omitempty"` // "netdev" (userspace) or "system" (kernel)
	NodePort    string            `json:"nodeport-path,omitempty"`
	NodeLocal   string            `json:"node-local,omitempty"`
	Engine      string            `json:"service-engine,omitempty"`
}

// FormatGateway returns the value of Gateway that parses back to g.
func FormatGateway(g cluster.Gateway) string {
	j := gatewayJSON{Mode: g.Mode, Bridge: g.Bridge, Uplink: g.Uplink, Device: g.Device, MAC: g.MAC.String(),
		MTU: g.MTU, Datapath: "system"}
	if g.Userspace {
		j.Datapath = "netdev"
	}
	if g.Redirect {
		j.NodePort = cluster.PathRedirect
	}
	if g.NodeLocal {
		j.NodeLocal = cluster.LocalDGP
	}
	if g.OpenFlow {
		j.Engine = cluster.EngineOpenFlow
	}
	if g.DeviceMAC != (cluster.MAC{}) {
		j.DeviceMAC = g.DeviceMAC.String()
	}
	for _, a := range g.Addresses {
		j.Addresses = append(j.Addresses, a.String())
	}
	for _, a := range g.NextHops {
		j.NextHops = append(j.NextHops, a.String())
	}
	if g.NextHopMACs != nil {
		j.NextHopMACs = map[string]string{}
	}
	for a, mac := range g.NextHopMACs {
		j.NextHopMACs[a.String()] = mac.String()
	}
	for _, r := range g.OnLink {
		j.OnLink = append(j.OnLink, r.String())
	}
	text, err := json.Marshal(map[string]gatewayJSON{"default": j})
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(text)
}

// ParseGateway reads the output of FormatGateway and omits invalid values.
func ParseGateway(text string) (cluster.Gateway, []error) {
	var all map[string]gatewayJSON
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return cluster.Gateway{}, invalid{fmt.Errorf("not the expected JSON object: %w", err)}
	}
	var wrong invalid
	j, ok := all["default"]
	if !ok {
		wrong.add("has no \"default\"")
	}
	g := cluster.Gateway{
		Mode: j.Mode, Bridge: j.Bridge, Uplink: j.Uplink, Device: j.Device, Userspace: j.Datapath == "netdev",
		Redirect: j.NodePort == cluster.PathRedirect, OpenFlow: j.Engine == cluster.EngineOpenFlow,
		NodeLocal: j.NodeLocal == cluster.LocalDGP && j.Engine != cluster.EngineOpenFlow,
	}
	if j.MAC != "" {
		mac, err := cluster.ParseMAC(j.MAC)
		if err != nil {
			wrong.add("mac-address: %w", err)
		}
		g.MAC = mac
	}
	if j.DeviceMAC != "" {
		mac, err := cluster.ParseMAC(j.DeviceMAC)
		if err != nil {
			wrong.add("device-mac: %w", err)
		}
		g.DeviceMAC = mac
	}
	for _, a := range j.Addresses {
		c, ok := cluster.ParsePrefix(a)
		if !ok {
			wrong.add("ip-addresses: %q is not an address with a prefix length", a)
			continue
		}
		g.Addresses = append(g.Addresses, c)
	}
	for _, a := range j.NextHops {
		h, err := cluster.ParseAddr(a)
		if err != nil {
			wrong.add("next-hops: %w", err)
			continue
		}
		g.NextHops = append(g.NextHops, h)
	}
	slices.SortFunc(g.Addresses, cluster.ComparePrefixes)
	slices.SortFunc(g.NextHops, netip.Addr.Compare)
	wrong.network(&j, &g)
	return g, wrong
}

// network reads the facts about the external network that the agent detected.
func (x *invalid) network(j *gatewayJSON, g *cluster.Gateway) {
	if j.NextHopMACs != nil {
		g.NextHopMACs = map[netip.Addr]cluster.MAC{}
	}
	for _, text := range slices.Sorted(maps.Keys(j.NextHopMACs)) {
		a, err := cluster.ParseAddr(text)
		mac, errMAC := cluster.ParseMAC(j.NextHopMACs[text])
		if err = errors.Join(err, errMAC); err != nil {
			x.add("next-hop-macs: %w", err)
			continue
		}
		g.NextHopMACs[a] = mac
	}
	for _, text := range j.OnLink {
		r, ok := cluster.ParsePrefix(text)
		if !ok {
			x.add("on-link: %q is not a network", text)
			continue
		}
		g.OnLink = append(g.OnLink, r)
	}
	slices.SortFunc(g.OnLink, cluster.ComparePrefixes)
	if j.MTU < 0 || j.MTU > math.MaxUint16 {
		x.add("mtu: %d is not a link's MTU", j.MTU)
		return
	}
	g.MTU = j.MTU
}
