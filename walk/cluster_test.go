package walk_test

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/plan"
	"hairpin/walk"
)

// planned is a small cluster with States from plan.
type planned struct {
	world walk.World
	nodes []*cluster.Node
}

// drawCluster draws one to three nodes with pods, and Services of all kinds.
func drawCluster(t *rapid.T) planned {
	s := &cluster.Snapshot{Config: cluster.DefaultConfig()}
	s.Config.Gateway.Mode = rapid.SampledFrom([]string{cluster.ModeShared, cluster.ModeLocal,
		cluster.ModeDetached}).Draw(t, "mode")
	if rapid.Bool().Draw(t, "small cluster range") { // routes by source are wider than that range
		s.Config.ClusterSubnets[0].CIDR = prefix("10.244.0.0/22")
	}
	userspace := rapid.Bool().Draw(t, "userspace")
	wire := drawGateways(t)
	nodes := rapid.IntRange(1, 3).Draw(t, "nodes")
	for i := 1; i <= nodes; i++ {
		s.Nodes = append(s.Nodes, drawNode(t, i, s.Config.Gateway.Mode, userspace, wire.hops))
		for k := range rapid.IntRange(1, 2).Draw(t, "pods") {
			s.Pods = append(s.Pods, &cluster.Pod{
				Owner: cluster.Owner{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("pod-%d-%d", i, k)},
				Node:  s.Nodes[i-1].Name,
				IPs:   []netip.Addr{addr("10.244.%d.%d", i, k+3), addr("fd00:10:244:%x::%x", i, k+3)},
				MAC:   cluster.MACFor(addr("10.244.%d.%d", i, k+3)),
			})
		}
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "services") {
		s.Frontends = append(s.Frontends, drawService(t, s, i)...)
	}
	slices.SortFunc(s.Frontends, (*cluster.Frontend).Compare)
	drawEgress(t, s)
	p := planned{world: walk.World{Snapshot: s, States: map[string]datapath.State{}, Silent: wire.dead}, nodes: s.Nodes}
	planner := plan.NewPlanner()
	for _, n := range s.Nodes {
		state, problems := planner.Node(s, n.Name)
		for _, x := range problems {
			t.Logf("%s", x.Error())
		}
		p.world.States[n.Name] = state
	}
	return p
}

// gateways are the default gateways of all nodes, and those of them that do not answer.
type gateways struct {
	hops []netip.Addr
	dead map[netip.Addr]bool
}

// drawGateways usually gives both families a default gateway. Otherwise one or no family has one,
// each has two (an ECMP route), or both are dead.
func drawGateways(t *rapid.T) (g gateways) {
	v4, v6 := addr("172.18.0.1"), addr("fc00:f853:ccd::1")
	switch rapid.SampledFrom([]string{"both", "both", "IPv4 only", "IPv6 only", "none", "dead", "two of each"}).Draw(t,
		"gateways") {
	case "both":
		g.hops = []netip.Addr{v4, v6}
	case "IPv4 only":
		g.hops = []netip.Addr{v4}
	case "IPv6 only":
		g.hops = []netip.Addr{v6}
	case "dead":
		g.hops, g.dead = []netip.Addr{v4, v6}, map[netip.Addr]bool{v4: true, v6: true}
	case "two of each":
		g.hops = []netip.Addr{v4, addr("172.18.0.2"), v6, addr("fc00:f853:ccd::2")}
	}
	return g
}

func drawNode(t *rapid.T, i int, mode string, userspace bool, hops []netip.Addr) *cluster.Node {
	v4, v6 := prefix("172.18.0.%d/16", i+2), prefix("fc00:f853:ccd::%x/64", i+2)
	n := &cluster.Node{
		Name: fmt.Sprintf("node-%c", 'a'+i-1), ID: i,
		Addresses: []netip.Addr{v4.Addr(), v6.Addr()}, HostAddresses: []netip.Prefix{v4, v6},
		PodCIDRs: []netip.Prefix{prefix("10.244.%d.0/24", i), prefix("fd00:10:244:%x::/64", i)},
		Gateway: cluster.Gateway{
			Mode: mode, Bridge: "br-ex", Uplink: "eth0", MAC: cluster.MAC{2, 0x42, 0xac, 0x12, 0, byte(i + 2)},
			Addresses: []netip.Prefix{v4, v6},
			NextHops:  hops, Userspace: userspace,
		},
	}
	if mode == cluster.ModeDetached { // the bridge has no uplink, but its own addresses
		n.Gateway.Uplink, n.Gateway.Device = "", "eth0"
		n.Gateway.MAC = cluster.MAC{0x0a, 0x58, 10, 44, 0, 0}
		n.Gateway.Addresses = []netip.Prefix{prefix("10.44.0.0/32"), prefix("fd00:10:44::/128")}
	}
	if rapid.Bool().Draw(t, "zone") {
		n.Zone = rapid.SampledFrom([]string{"east", "west"}).Draw(t, "zone's name")
	}
	if rapid.Bool().Draw(t, "secondary") {
		n.HostAddresses = append(n.HostAddresses, prefix("172.20.0.%d/32", i), prefix("fd00:20::%x/128", i))
	}
	if rapid.Bool().Draw(t, "second link") {
		own := []netip.Prefix{prefix("10.10.10.%d/24", i+3), prefix("fd10::%x/64", i+3)}
		n.HostAddresses = append(n.HostAddresses, own...)
		n.Links = []cluster.HostLink{{Name: "eth1", Index: 3, MAC: cluster.MAC{2, 0x42, 10, 10, 10, byte(i + 3)},
			Addresses: own}}
		if mode == cluster.ModeDetached {
			n.Links = append(n.Links, cluster.HostLink{Name: "eth0", Index: 2,
				MAC: cluster.MAC{2, 0x42, 10, 10, 20, byte(i + 3)}, Addresses: []netip.Prefix{v4, v6}})
		}
		n.Gateway.Redirect = rapid.Bool().Draw(t, "redirect")
	}
	n.Gateway.OpenFlow = rapid.Bool().Draw(t, "openflow")
	n.Gateway.NodeLocal = !n.Gateway.OpenFlow && rapid.Bool().Draw(t, "dgp")
	return n
}

// drawService draws the Frontends of one Service: one or two families, with endpoints that are
// pods, hosts, secondary addresses of hosts, or none.
func drawService(t *rapid.T, s *cluster.Snapshot, i int) []*cluster.Frontend {
	protocol := rapid.SampledFrom([]cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP}).Draw(t, "protocol")
	var nodePort uint16
	if rapid.Bool().Draw(t, "has a node port") {
		nodePort = uint16(30000 + i)
	}
	var list []*cluster.Frontend
	policies := rapid.IntRange(0, 5).Draw(t, "policies") // usually both Cluster
	external, ingress := rapid.IntRange(0, 2).Draw(t, "external") == 0,
		rapid.IntRange(0, 2).Draw(t, "load balancer") == 0
	restricted := ingress && rapid.Bool().Draw(t, "restricted")
	affinity := time.Duration(rapid.SampledFrom([]int{0, 0, 10800}).Draw(t, "affinity")) * time.Second
	for _, family := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
		if rapid.IntRange(0, 5).Draw(t, "other family only") == 0 {
			continue
		}
		f := &cluster.Frontend{
			Owner:  cluster.Owner{Kind: "Service", Namespace: "default", Name: fmt.Sprintf("service-%d", i)},
			Family: family, Protocol: protocol,
			ClusterIP: addr("10.96.0.%d", 10+i), Port: 80, NodePort: nodePort,
			Affinity:      affinity,
			ExternalLocal: policies == 1 || policies == 3, InternalLocal: policies == 2 || policies == 3,
		}
		ext, lb, ranges := addr("203.0.113.%d", 10+i), addr("203.0.113.%d", 100+i), prefix("172.18.0.96/28")
		if family == cluster.IPv6 {
			f.ClusterIP = addr("fd00:10:96::%x", 10+i)
			ext, lb, ranges = addr("2001:db8:113::%x", 10+i), addr("2001:db8:113::%x", 100+i),
				prefix("fc00:f853:ccd::60/124")
		}
		if external {
			f.ExternalIPs = append(f.ExternalIPs, ext)
		}
		if ingress {
			f.LoadBalancerIPs = append(f.LoadBalancerIPs, lb)
			if f.Restricted = restricted; restricted && rapid.Bool().Draw(t, "ranges") {
				f.SourceRanges = append(f.SourceRanges, ranges)
			}
		}
		for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
			f.Backends = append(f.Backends, drawBackend(t, s, family))
		}
		slices.SortFunc(f.Backends, func(a, b cluster.Backend) int { return a.Addr.Compare(b.Addr) })
		f.Backends = slices.CompactFunc(f.Backends, func(a, b cluster.Backend) bool { return a.Addr == b.Addr })
		list = append(list, f)
	}
	return list
}

func drawBackend(t *rapid.T, s *cluster.Snapshot, family cluster.Family) cluster.Backend {
	of := func(a netip.Addr) bool { return cluster.FamilyOf(a) == family }
	var candidates []cluster.Backend
	for _, p := range s.Pods {
		a := p.IPs[slices.IndexFunc(p.IPs, of)]
		candidates = append(candidates, cluster.Backend{Addr: a, Port: 8080, Node: p.Node, Ready: true, Serving: true})
	}
	for _, n := range s.Nodes {
		for _, h := range n.HostAddresses {
			if of(h.Addr()) {
				candidates = append(candidates,
					cluster.Backend{Addr: h.Addr(), Port: 8081, Node: n.Name, Ready: true, Serving: true})
			}
		}
	}
	b := rapid.SampledFrom(candidates).Draw(t, "endpoint")
	switch rapid.IntRange(0, 5).Draw(t, "state") {
	case 0:
		b.Ready, b.Terminating = false, true
	case 1:
		b.Ready, b.Serving = false, false
	case 2:
		b.ForZones = []string{rapid.SampledFrom([]string{"east", "west"}).Draw(t, "hint")}
	}
	return b
}

// sources returns the host and a pod of each node, and an external machine.
func (p planned) sources() []walk.Point {
	list := []walk.Point{{}}
	for _, n := range p.nodes {
		list = append(list, walk.Point{Node: n.Name})
		for _, pod := range p.world.Snapshot.Pods {
			if pod.Node == n.Name {
				list = append(list, walk.Point{Node: n.Name, Pod: pod.Owner})
			}
		}
	}
	return list
}

func addr(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}

func prefix(format string, args ...any) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf(format, args...))
}
