package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Annotations of a Node, those of OVN-Kubernetes.
const (
	AnnotationNodeID    = "k8s.ovn.org/node-id"           // "7"
	AnnotationHostCIDRs = "k8s.ovn.org/host-cidrs"        // ["172.18.0.3/16","172.20.0.1/32"]
	AnnotationGateway   = "k8s.ovn.org/l3-gateway-config" // {"default":{"mode":"shared",…}}
)

// AnnotationShutdown on a Node, with any value, reports that the machine shuts down. The node's
// agent sets it.
const AnnotationShutdown = "hairpin.dev/shutting-down"

// shutdownMessage is the message of the condition Ready while kubelet shuts the node down
// (nodeShutdownNotReadyReason in kubelet's nodeshutdown_manager_linux.go). Its pods still run.
const shutdownMessage = "node is shutting down"

// maxNodeID is the largest node id: tunnel keys of ports have 15 bits, and 0 is none.
const maxNodeID = 32767

// gatewayJSON is the value of AnnotationGateway. The keys uplink, device, device-mac,
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

// GatewayAnnotation returns the value of AnnotationGateway that parses back to g.
func GatewayAnnotation(g Gateway) string {
	j := gatewayJSON{Mode: g.Mode, Bridge: g.Bridge, Uplink: g.Uplink, Device: g.Device, MAC: g.MAC.String(),
		MTU: g.MTU, Datapath: "system"}
	if g.Userspace {
		j.Datapath = "netdev"
	}
	if g.Redirect {
		j.NodePort = PathRedirect
	}
	if g.NodeLocal {
		j.NodeLocal = LocalDGP
	}
	if g.OpenFlow {
		j.Engine = EngineOpenFlow
	}
	if g.DeviceMAC != (MAC{}) {
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

// HostCIDRsAnnotation returns the value of AnnotationHostCIDRs that parses back to list.
func HostCIDRsAnnotation(list []netip.Prefix) string {
	texts := make([]string, 0, len(list))
	for _, p := range list {
		texts = append(texts, p.String())
	}
	text, err := json.Marshal(texts)
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(text)
}

// nodeOwner omits the namespace that an incorrect manifest may give to a Node.
func nodeOwner(name string) Owner { return Owner{Kind: "Node", Name: name} }

type nodeParser struct {
	node     *Node
	problems Problems
}

func (p *nodeParser) problem(field, format string, args ...any) {
	p.problems.Add(nodeOwner(p.node.Name), field, format, args...)
}

func parseNode(o *corev1.Node) (*Node, []Problem) {
	p := nodeParser{node: &Node{Name: o.Name, UID: string(o.UID), Created: o.CreationTimestamp.UTC(),
		Zone: o.Labels[corev1.LabelTopologyZone]}}
	p.lifecycle(o)
	p.addresses(o)
	p.podCIDRs(o)
	if text, ok := o.Annotations[AnnotationNodeID]; ok {
		id, err := strconv.Atoi(text)
		if err != nil || id < 1 || id > maxNodeID {
			p.problem("metadata.annotations["+AnnotationNodeID+"]", "%q is not a number from 1 to %d", text, maxNodeID)
		} else {
			p.node.ID = id
		}
	}
	p.hostCIDRs(o)
	p.hostLinks(o)
	p.hostRules(o)
	p.hostPorts(o)
	p.gateway(o)
	return p.node, p.problems.List()
}

// taintAutoscaler is the taint that the cluster autoscaler adds to a Node before it removes the
// Node.
const taintAutoscaler = "ToBeDeletedByClusterAutoscaler"

func (p *nodeParser) lifecycle(o *corev1.Node) {
	p.node.Leaving = o.DeletionTimestamp != nil
	for _, t := range o.Spec.Taints {
		p.node.Leaving = p.node.Leaving || t.Key == taintAutoscaler
	}
	_, shutdown := o.Annotations[AnnotationShutdown]
	for _, c := range o.Status.Conditions {
		switch c.Type {
		case corev1.NodeNetworkUnavailable:
			p.node.NetworkUnavailable = string(c.Status)
		case corev1.NodeReady:
			stops := c.Status == corev1.ConditionFalse && strings.Contains(c.Message, shutdownMessage)
			p.node.Egress.Ready, shutdown = c.Status == corev1.ConditionTrue || stops, shutdown || stops
		}
	}
	_, p.node.Egress.Assignable = o.Labels[LabelEgressAssignable]
	p.node.Egress.Labels = maps.Clone(o.Labels)
	p.node.Egress.Leaving = p.node.Leaving || o.Spec.Unschedulable || shutdown
}

func (p *nodeParser) addresses(o *corev1.Node) {
	for i, a := range o.Status.Addresses {
		addr, err := parseHostAddr(a.Address)
		if err == nil && !slices.Contains(p.node.IPs, addr) {
			p.node.IPs = append(p.node.IPs, addr)
		}
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if err != nil {
			p.problem(fmt.Sprintf("status.addresses[%d].address", i), "%v", err)
			continue
		}
		if !p.node.Address(FamilyOf(addr)).IsValid() {
			p.node.Addresses = append(p.node.Addresses, addr)
		}
	}
	slices.SortFunc(p.node.Addresses, netip.Addr.Compare)
	slices.SortFunc(p.node.IPs, netip.Addr.Compare)
}

func (p *nodeParser) podCIDRs(o *corev1.Node) {
	cidrs := o.Spec.PodCIDRs
	if len(cidrs) == 0 && o.Spec.PodCIDR != "" {
		cidrs = []string{o.Spec.PodCIDR}
	}
	for i, text := range cidrs {
		field := fmt.Sprintf("spec.podCIDRs[%d]", i)
		c, ok := parsePrefix(text)
		switch {
		case !ok:
			p.problem(field, "%q is not an address range", text)
		case p.node.PodCIDR(FamilyOf(c.Addr())).IsValid():
			p.problem(field, "%s is a second range of its family; the first is used", text)
		default:
			p.node.PodCIDRs = append(p.node.PodCIDRs, c.Masked())
		}
	}
	slices.SortFunc(p.node.PodCIDRs, ComparePrefixes)
}

func (p *nodeParser) hostCIDRs(o *corev1.Node) {
	var texts []string
	field := "metadata.annotations[" + AnnotationHostCIDRs + "]"
	if text, ok := o.Annotations[AnnotationHostCIDRs]; ok {
		if err := json.Unmarshal([]byte(text), &texts); err != nil {
			p.problem(field, "not a JSON list of strings: %v", err)
		}
	}
	for _, text := range texts {
		c, ok := parsePrefix(text)
		if !ok {
			p.problem(field, "%q is not an address with a prefix length", text)
			continue
		}
		p.node.HostAddresses = append(p.node.HostAddresses, c)
	}
	for _, a := range p.node.Addresses {
		if !p.node.HasAddress(a) {
			p.node.HostAddresses = append(p.node.HostAddresses, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	slices.SortFunc(p.node.HostAddresses, ComparePrefixes)
	p.node.HostAddresses = slices.Compact(p.node.HostAddresses)
}

func (p *nodeParser) gateway(o *corev1.Node) {
	if text, ok := o.Annotations[AnnotationGateway]; ok {
		p.parseGateway(text)
	}
}

// ParseGateway reads the output of GatewayAnnotation and omits invalid values.
func ParseGateway(text string) Gateway {
	p := nodeParser{node: &Node{}}
	if text != "" {
		p.parseGateway(text)
	}
	return p.node.Gateway
}

func (p *nodeParser) parseGateway(text string) {
	field := "metadata.annotations[" + AnnotationGateway + "]"
	var all map[string]gatewayJSON
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		p.problem(field, "not the expected JSON object: %v", err)
		return
	}
	j, ok := all["default"]
	if !ok {
		p.problem(field, "has no \"default\"")
	}
	g := Gateway{
		Mode: j.Mode, Bridge: j.Bridge, Uplink: j.Uplink, Device: j.Device, Userspace: j.Datapath == "netdev",
		Redirect: j.NodePort == PathRedirect, NodeLocal: j.NodeLocal == LocalDGP && j.Engine != EngineOpenFlow,
		OpenFlow: j.Engine == EngineOpenFlow,
	}
	if j.MAC != "" {
		mac, err := ParseMAC(j.MAC)
		if err != nil {
			p.problem(field, "mac-address: %v", err)
		}
		g.MAC = mac
	}
	if j.DeviceMAC != "" {
		mac, err := ParseMAC(j.DeviceMAC)
		if err != nil {
			p.problem(field, "device-mac: %v", err)
		}
		g.DeviceMAC = mac
	}
	for _, a := range j.Addresses {
		c, ok := parsePrefix(a)
		if !ok {
			p.problem(field, "ip-addresses: %q is not an address with a prefix length", a)
			continue
		}
		g.Addresses = append(g.Addresses, c)
	}
	for _, a := range j.NextHops {
		h, err := parseAddr(a)
		if err != nil {
			p.problem(field, "next-hops: %v", err)
			continue
		}
		g.NextHops = append(g.NextHops, h)
	}
	slices.SortFunc(g.Addresses, ComparePrefixes)
	slices.SortFunc(g.NextHops, netip.Addr.Compare)
	p.network(field, &j, &g)
	p.node.Gateway = g
}

// network reads the facts about the external network that the agent detected.
func (p *nodeParser) network(field string, j *gatewayJSON, g *Gateway) {
	if j.NextHopMACs != nil {
		g.NextHopMACs = map[netip.Addr]MAC{}
	}
	for _, text := range slices.Sorted(maps.Keys(j.NextHopMACs)) {
		a, err := parseAddr(text)
		mac, errMAC := ParseMAC(j.NextHopMACs[text])
		if err = errors.Join(err, errMAC); err != nil {
			p.problem(field, "next-hop-macs: %v", err)
			continue
		}
		g.NextHopMACs[a] = mac
	}
	for _, text := range j.OnLink {
		r, ok := parsePrefix(text)
		if !ok {
			p.problem(field, "on-link: %q is not a network", text)
			continue
		}
		g.OnLink = append(g.OnLink, r)
	}
	slices.SortFunc(g.OnLink, ComparePrefixes)
	if j.MTU < 0 || j.MTU > math.MaxUint16 {
		p.problem(field, "mtu: %d is not a link's MTU", j.MTU)
		return
	}
	g.MTU = j.MTU
}
