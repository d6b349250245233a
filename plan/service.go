package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
)

// services makes load balancers of Frontends, one row with one VIP each, so that northd handles a changed endpoint
// without looking at the others; and the ways from NodePorts to them.
func services(e Env) (datapath.State, []Problem) {
	b := balancer{
		Env: &e, rows: make(nb.State, len(e.Frontends)), wire: newBridge(&e, claims.FeatureServices),
		nodePorts: map[cluster.Family]*nft.Map{}, options: map[bool]map[string]string{},
	}
	for _, f := range e.Frontends {
		// A family that the node does not have is nobody's way to a Service here.
		if s := e.stack(f.Family); s != nil {
			b.frontend(s, f)
		}
	}
	s := datapath.State{NB: b.rows, Bridge: flow.State{Flows: b.wire.flows}}
	if len(b.nodePorts) > 0 {
		t := &nft.Table{Maps: map[string]*nft.Map{}}
		for _, m := range b.nodePorts {
			t.Maps[m.Name] = m
		}
		s.NFT = nft.State{nft.Inet: t}
	}
	return s, b.problems
}

// balancer writes what Services need.
type balancer struct {
	*Env
	rows      nb.State
	wire      *bridge
	nodePorts map[cluster.Family]*nft.Map
	options   map[bool]map[string]string // of load balancers: without an endpoint, or not
	problems  []Problem
}

func (b *balancer) problem(f *cluster.Frontend, field, format string, args ...any) {
	b.problems = append(b.problems, Problem{Owner: f.Owner, Field: field, Message: fmt.Sprintf(format, args...)})
}

func (b *balancer) frontend(s *Stack, f *cluster.Frontend) {
	b.unserved(f)
	if !slices.ContainsFunc(s.Services, func(r netip.Prefix) bool { return r.Contains(f.ClusterIP) }) {
		b.problem(f, "spec.clusterIPs", "%s is not within [kubernetes] service-cidrs: pods reach it, hosts do not", f.ClusterIP)
	}
	backends := endpoints(f)
	b.balance(s, f, f.Key(), netip.AddrPortFrom(f.ClusterIP, f.Port), backends)
	if f.NodePort == 0 || !b.Config.Gateway.NodePort {
		return
	}
	b.balance(s, f, f.Key()+":nodeport", netip.AddrPortFrom(s.Node, f.NodePort), backends)
	if !b.hostRouted() { // else clients outside come by the host, and by the map below
		b.wire.owner = f.Owner
		b.wire.nodePort(s, f)
	}
	m := b.nodePorts[f.Family]
	if m == nil {
		m = nodePortMap(f.Family)
		b.nodePorts[f.Family] = m
	}
	m.Elements[nft.Element{Protocol: f.Protocol, Port: f.NodePort}] = nft.Target{Addr: netip.AddrPortFrom(f.ClusterIP, f.Port), Owner: f.Owner}
}

// balance makes the load balancer of one VIP: one row for node switch and gateway router, or one for each when a backend
// is this node's address. That is the gateway router's own too, and a packet to it would go no further; the host's
// masquerade address stands for it (host-to-service.md).
func (b *balancer) balance(s *Stack, f *cluster.Frontend, name string, vip netip.AddrPort, backends []netip.AddrPort) {
	row := nb.LoadBalancer{
		Name: name, Protocol: f.Protocol, VIPs: []nb.VIP{{Addr: vip, Backends: backends}},
		Options: b.lbOptions(len(backends) == 0), Groups: []string{groupBoth}, Owner: f.Owner,
		// By a hash of the client's address, the same for all VIPs of the port, however long the timeout is. OVN's own
		// affinity_timeout drops the first packet of each client, and ends at 65535 s.
		Affinity: f.Affinity > 0,
	}
	node := s.Address.Addr()
	if !slices.ContainsFunc(backends, func(a netip.AddrPort) bool { return a.Addr() == node }) {
		b.rows.Add(&row)
		return
	}
	masqueraded := slices.Clone(backends)
	for i, a := range masqueraded {
		if a.Addr() == node {
			masqueraded[i] = netip.AddrPortFrom(s.MasqHost, a.Port())
		}
	}
	slices.SortFunc(masqueraded, netip.AddrPort.Compare)
	sw, router := row, row
	sw.Name, sw.Groups = name+":switch", []string{groupSwitch}
	router.Name, router.Groups = name+":router", []string{groupRouter}
	router.VIPs = []nb.VIP{{Addr: vip, Backends: masqueraded}}
	b.rows.Add(&sw, &router)
}

// endpoints picks those that get new connections: the ready ones; when there is none, those that still serve while they
// terminate (KEP-1669).
func endpoints(f *cluster.Frontend) []netip.AddrPort {
	list := make([]netip.AddrPort, 0, len(f.Backends))
	for _, b := range f.Backends {
		if b.Ready {
			list = append(list, netip.AddrPortFrom(b.Addr, b.Port))
		}
	}
	if len(list) == 0 {
		for _, b := range f.Backends {
			if b.Serving && b.Terminating {
				list = append(list, netip.AddrPortFrom(b.Addr, b.Port))
			}
		}
	}
	return list
}

// lbOptions gives the options of a load balancer; rows share them.
func (b *balancer) lbOptions(refuses bool) map[string]string {
	if o, ok := b.options[refuses]; ok {
		return o
	}
	var pins []string
	for i := range b.Stacks {
		pins = append(pins, b.Stacks[i].MasqPin.String())
	}
	o := map[string]string{
		"reject": "true",  // no endpoint: TCP reset or ICMP port unreachable
		"event":  "false", // nobody listens for "no endpoint" events
		// A gateway router translates what it load-balances, but must not translate a reset that it made itself: the host
		// would get it from another address than it had asked.
		"skip_snat":       strconv.FormatBool(refuses),
		"hairpin_snat_ip": strings.Join(pins, " "), // source for a pod that reaches itself
	}
	b.options[refuses] = o
	return o
}

// unserved tells what the Service asks for and does not get yet.
func (b *balancer) unserved(f *cluster.Frontend) {
	if f.ExternalLocal {
		b.problem(f, "spec.externalTrafficPolicy", "Local is not served yet: it is treated as Cluster")
	}
	if f.InternalLocal {
		b.problem(f, "spec.internalTrafficPolicy", "Local is not served yet: it is treated as Cluster")
	}
	if len(f.ExternalIPs) > 0 {
		b.problem(f, "spec.externalIPs", "external IPs are not served yet")
	}
	if len(f.LoadBalancerIPs) > 0 {
		b.problem(f, "status.loadBalancer.ingress", "load balancer addresses are not served yet")
	}
	if slices.ContainsFunc(f.Backends, func(b cluster.Backend) bool { return len(b.ForZones)+len(b.ForNodes) > 0 }) {
		b.problem(f, "spec.trafficDistribution", "topology hints are not served yet: every endpoint is used")
	}
}
